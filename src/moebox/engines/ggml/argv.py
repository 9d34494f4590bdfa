"""Command lines of the two llama.cpp servers: flags with the same meaning in both."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.flags import Argument
from moebox.engines.kv_store import store_folder

FIELDS: dict[str, str] = {
    "--alias": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--parallel": "max_seqs",
}
HYBRID_FIELDS: dict[str, str] = {
    "-t": "hybrid.threads",
    "-tb": "hybrid.threads_batch",
    "-b": "hybrid.batch",
    "-ub": "hybrid.ubatch",
    "-ngl": "hybrid.gpu_layers",
    "-mla": "hybrid.mla",
    "-amb": "hybrid.attention_buffer",
}
VARIABLES = {"-m": "MODEL_PATH", "--alias": "SERVED_MODEL_NAME", "-c": "MAX_MODEL_LEN", "--port": "PORT"}
# The model's own template, and metrics for monitoring: a benchmark, `moebox watch`, Prometheus.
ALWAYS_ON = ("--jinja", "--metrics")
ALL_LAYERS = 999  # more than any model has: every layer's dense part on the GPUs


def is_local_file(weights: str) -> bool:
    """True if the weights are a file of this machine, or a variable that holds one."""
    return weights.endswith(".gguf") or weights.startswith(("/", "~", ".", "$"))


def layer_arguments(recipe: Recipe) -> list[Argument]:
    """Arguments of context, threads, batches and placement; without [hybrid] everything is on the GPUs."""
    # The server divides -c over its slots, so it gets the context times the slots.
    out: list[Argument] = [("-c", str(recipe.context * recipe.slots))] if recipe.context else []
    hybrid = recipe.hybrid
    if hybrid is None:
        return [*out, ("-ngl", str(ALL_LAYERS))]
    for flag, path in HYBRID_FIELDS.items():
        value = getattr(hybrid, path.removeprefix("hybrid."))
        if value is not None:
            out.append((flag, str(value)))
    if hybrid.split:
        out.append(("-ts", ",".join(map(str, hybrid.split))))
    return out + [("-ot", rule) for rule in placement_rules(recipe)]


def tier_arguments(deployment: Deployment) -> list[Argument]:
    """Return the prompt cache in RAM, and the folder in which slots are saved on request."""
    tiers = deployment.recipe.tiers
    out: list[Argument] = [("--cache-ram", str(int(tiers.ram_gib * 1024)))] if tiers.ram_gib else []
    return [*out, ("--slot-save-path", store_folder(deployment))] if tiers.disk_gib else out


def placement_rules(recipe: Recipe) -> tuple[str, ...]:
    """Rules of which tensors go where; the first that matches wins, so the GPUs come before RAM.

    Layers are named one by one: -ncmoe counts from the front in llama.cpp and differently in ik_llama.cpp.
    """
    hybrid = recipe.hybrid
    if hybrid is None:
        return ()
    if hybrid.ranges or hybrid.split:  # split: experts are with their layers
        return hybrid.ranges
    placed = [
        rf"blk\.({'|'.join(map(str, layers))})\.ffn_.*_exps={hybrid.device}{gpu}"
        for gpu, layers in enumerate(hybrid.experts)
        if layers
    ]
    return (*placed, "exps=CPU")
