"""Command lines of the two llama.cpp servers: flags that keep their meaning in both."""

import re

from moebox.core.catalogue import models, published_checkpoints
from moebox.core.deployment import Deployment
from moebox.core.recipe import Hybrid, Recipe
from moebox.engines.flags import Argument
from moebox.engines.reading import Reader, Reading, ignored, note_absent
from moebox.errors import BadInput

FIELDS: dict[str, str] = {
    "--alias": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--parallel": "max_seqs",
}
HYBRID: dict[str, str] = {
    "-t": "hybrid.threads",
    "-tb": "hybrid.threads_batch",
    "-b": "hybrid.batch",
    "-ub": "hybrid.ubatch",
    "-ngl": "hybrid.gpu_layers",
    "-mla": "hybrid.mla",
    "-amb": "hybrid.attention_buffer",
}
KV = {"f16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0"}
# The model's own template, and figures for whoever watches: a benchmark, `moebox watch`, Prometheus.
ALWAYS_ON = ("--jinja", "--metrics")
ALL_LAYERS = 999  # more than any model has: every layer's dense part on the GPUs


def mainline_weights(deployment: Deployment) -> list[Argument]:
    """The file to load, or the repository with its quant; mainline finds the first part by itself."""
    weights, found = deployment.weights_path, deployment.known_checkpoint
    if is_local_file(weights):
        return [("-m", weights)]
    return [("-hf", f"{weights}:{found.name}" if found and not found.path else weights)]


def fork_weights(deployment: Deployment) -> list[Argument]:
    """The file to load, or the repository and the file in it, without which the fork refuses to start."""
    weights, found = deployment.weights_path, deployment.known_checkpoint
    if is_local_file(weights):
        return [("-m", weights)]
    return [("--hf-repo", weights), *([("--hf-file", found.file)] if found and found.file else [])]


def is_local_file(weights: str) -> bool:
    """Whether the weights are a file of this machine, or a variable that holds one."""
    return weights.endswith(".gguf") or weights.startswith(("/", "~", ".", "$"))


def context_arguments(recipe: Recipe) -> list[Argument]:
    """The server divides -c over its slots, so it is asked for as many times the context as there are."""
    return [("-c", str(recipe.context * recipe.slots))] if recipe.context else []


def hybrid_arguments(recipe: Recipe) -> list[Argument]:
    """Threads, batches and where the experts go; without a hybrid part everything is on the GPUs."""
    hybrid = recipe.hybrid
    if hybrid is None:
        return [("-ngl", str(ALL_LAYERS))]
    words: list[Argument] = []
    for flag, path in HYBRID.items():
        value = getattr(hybrid, path.removeprefix("hybrid."))
        if value is not None:
            words.append((flag, str(value)))
    if hybrid.split:
        words.append(("-ts", ",".join(map(str, hybrid.split))))
    return words + [("-ot", rule) for rule in placement_rules(recipe)]


def placement_rules(recipe: Recipe) -> tuple[str, ...]:
    """Rules that say which tensors go where; the first that matches wins, so the GPUs come before RAM.

    Layers are named one by one: -ncmoe counts from the front in llama.cpp and otherwise in ik_llama.cpp.
    """
    hybrid = recipe.hybrid
    if hybrid is None:
        return ()
    if hybrid.ranges or hybrid.split:  # split: experts lie with their layers
        return hybrid.ranges
    placed = [
        rf"blk\.({'|'.join(map(str, layers))})\.ffn_.*_exps={hybrid.device}{gpu}"
        for gpu, layers in enumerate(hybrid.experts)
        if layers
    ]
    return (*placed, "exps=CPU")


# GPUs are CUDA0, CUDA1 …, ROCm0 in a HIP build (GGML_CUDA_NAME in ggml-cuda.h), Vulkan0 in a Vulkan one.
RULE = re.compile(r"blk\\\.\((?P<layers>[\d|]+)\)\\\.ffn_\.\*_exps=(?P<device>[A-Za-z]+)(?P<number>\d+)")


def finished(names: set[str], reading: Reading) -> None:
    """What follows from several words together, and from those that are not there."""
    _name_form(reading)
    note_absent(names, reading, *ALWAYS_ON)
    reading.put("context", reading.count("context", 0) // (reading.count("max_seqs", 1) or 1))
    rules = reading.settings.get("hybrid.ranges", [])
    found = experts_of([str(rule) for rule in rules] if isinstance(rules, list) else [])
    if found is not None:
        del reading.settings["hybrid.ranges"]
        device, layers = found
        reading.put("hybrid.device", device)
        reading.put("hybrid.experts", layers)


def _name_form(reading: Reading) -> None:
    """A repository and a file in it that the catalogue knows, as the form they are: REPOSITORY:NAME."""
    repository, file = reading.text("checkpoint"), reading.flags.get("hf-file")
    for model in models() if file else ():
        for form in published_checkpoints(model):
            if (form.repo, form.file) == (repository, file):
                reading.put("checkpoint", f"{repository}:{form.name}")
                del reading.flags["hf-file"]
                return


def _kv(value: str, reading: Reading) -> bool:
    """-ctk"""
    reading.put("kv", value)
    return True


def _context(value: str, reading: Reading) -> bool:
    """-c, of all slots together"""
    if not value.isdecimal():
        raise BadInput(f"-c: {value!r} is no number")
    reading.put("context", int(value))
    return True


def _rule(value: str, reading: Reading) -> bool:
    """-ot, as often as it stands there"""
    before = reading.settings.get("hybrid.ranges", [])
    reading.put("hybrid.ranges", [*map(str, before if isinstance(before, list) else ()), value])
    return True


def _repository(value: str, reading: Reading) -> bool:
    """-hf and --hf-repo"""
    reading.put("checkpoint", value)
    return True


def _file(value: str, reading: Reading) -> bool:
    """--hf-file"""
    reading.flags["hf-file"] = value
    return True


# Words both servers have that are more than one field.
READERS: dict[str, Reader] = {
    **dict.fromkeys(ALWAYS_ON, ignored),
    "-ctk": _kv,
    "-c": _context,
    "-ot": _rule,
    "-hf": _repository,
    "-hfr": _repository,
    "-hff": _file,
}


def experts_of(rules: list[str]) -> tuple[str, list[list[int]]] | None:
    """The GPUs' name and expert layers by GPU, of rules such as `placement` writes; None for anything else."""
    *placed, last = rules or [""]
    found = [match for rule in placed if (match := RULE.fullmatch(rule))]
    devices = {match["device"] for match in found} or {Hybrid().device}
    if last != "exps=CPU" or len(found) < len(placed) or len(devices) > 1:
        return None
    by_gpu = {int(match["number"]): [int(layer) for layer in match["layers"].split("|")] for match in found}
    return devices.pop(), [by_gpu.get(gpu, []) for gpu in range(max(by_gpu, default=-1) + 1)]
