"""What both llama.cpp servers share. Rehearsals write a sparse GGUF for them (serve/dummy.py)."""

from abc import abstractmethod

from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Hybrid, Recipe
from moebox.engines.arguments import LaunchNode, add_recipe_flags, field_arguments, hybrid_arguments, thinking_off_json
from moebox.engines.engine import Engine
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.ggml import memory
from moebox.engines.kv_store import store_folder
from moebox.engines.support import plan_warning
from moebox.sizing.kv import keeps_all_heads, token_bytes
from moebox.units import format_gib

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
UNLOCKED = "GGML_CUDA_NO_PINNED"  # a variable that leaves weights out of page-locked memory
ALL_LAYERS = 999  # more than any model has: every layer's dense part on the GPUs
NOTICED = 2**30  # bytes of cache that are worth a warning


def layer_arguments(recipe: Recipe) -> list[Argument]:
    """Arguments of context, threads, batches and placement; without [hybrid] everything is on the GPUs."""
    # The server divides -c over its slots, so it gets the context times the slots.
    out: list[Argument] = [("-c", str(recipe.context * recipe.slots))] if recipe.context else []
    if recipe.hybrid is None:
        return [*out, ("-ngl", str(ALL_LAYERS))]
    out += hybrid_arguments(recipe, HYBRID_FIELDS)
    if recipe.hybrid.split:
        out.append(("-ts", ",".join(map(str, recipe.hybrid.split))))
    return out + [("-ot", rule) for rule in placement_rules(recipe.hybrid)]


def tier_arguments(deployment: Deployment) -> list[Argument]:
    """Return the prompt cache in RAM, and the folder in which slots are saved on request."""
    tiers = deployment.recipe.tiers
    out: list[Argument] = [("--cache-ram", str(int(tiers.ram_gib * 1024)))] if tiers.ram_gib else []
    return [*out, ("--slot-save-path", store_folder(deployment))] if tiers.disk_gib else out


def placement_rules(hybrid: Hybrid) -> tuple[str, ...]:
    """Rules of which tensors go where; the first that matches wins, so the GPUs come before RAM.

    Layers are named one by one: -ncmoe counts from the front in llama.cpp and differently in ik_llama.cpp.
    """
    if hybrid.ranges or hybrid.split:  # split: experts are with their layers
        return hybrid.ranges
    placed = [
        rf"blk\.({'|'.join(map(str, layers))})\.ffn_.*_exps={hybrid.device}{gpu}"
        for gpu, layers in enumerate(hybrid.experts)
        if layers
    ]
    return (*placed, "exps=CPU")


class GgmlEngine(Engine):
    """One slot unless the recipe has more; slots share one micro-batch of prompts at a time."""

    fields = FIELDS
    hybrid_fields = HYBRID_FIELDS
    variables = VARIABLES
    memory_lines = staticmethod(memory.memory_lines)
    default_max_seqs = 1
    cache_flags: tuple[str, ...]  # that take the type of the cache

    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        recipe, weights = deployment.recipe, deployment.weights_path
        known = flag_catalogue(self.traits.name, recipe.engine_version)
        is_file = weights.endswith(".gguf") or weights.startswith(("/", "~", ".", "$"))  # $: a variable that holds one
        out: list[Argument] = [("-m", weights)] if is_file else self.hub_arguments(deployment)
        out += field_arguments(recipe, FIELDS, known, host=host)
        out += [*layer_arguments(recipe), *tier_arguments(deployment)]
        if recipe.kv != "auto":
            out += [(flag, recipe.kv) for flag in self.cache_flags]
        out += [(flag,) for flag in ALWAYS_ON]
        if not recipe.thinking:
            out.append(self.thinking_off(deployment))
        return add_recipe_flags([*out, *self.more_arguments(deployment, node)], recipe.flags, known)

    @abstractmethod
    def hub_arguments(self, deployment: Deployment) -> list[Argument]:
        """Return the arguments for weights that the server downloads."""

    def thinking_off(self, deployment: Deployment) -> Argument:
        return ("--chat-template-kwargs", thinking_off_json(deployment))

    def more_arguments(self, deployment: Deployment, node: LaunchNode | None) -> list[Argument]:
        """Return arguments that only one of the servers has."""
        return []

    def build_commands(self, source: str, folder: str, box: Box, jobs: int) -> list[tuple[str, ...]]:
        """Configure for this machine alone, build the server statically and copy it.

        Options by docs/build.md of llama.cpp; ik_llama.cpp has the same names. The web page needs npm or a download.
        """
        options = ["CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF"]
        options += [f"LLAMA_{name}=OFF" for name in ("CURL", "BUILD_TESTS", "BUILD_UI")]
        options += ["LLAMA_BUILD_COMMIT=moebox", "GIT_EXE=OFF"]  # a macro of every file: each commit would compile all
        if "amx_tile" in box.cpu.features:
            # GCC before 13.3 drops stores that its AMX intrinsics read; llama.cpp from 20 June 2026 (b9735) then ends
            # in an illegal instruction (ggml-org/llama.cpp pull 26954)
            options += ["CMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG -fno-dse -fno-tree-dse"]
        kinds = sorted({gpu.sm for gpu in box.gpus})
        if kinds and kinds[0].startswith("gfx"):
            options += ["GGML_HIP=ON", f"AMDGPU_TARGETS={';'.join(kinds)}"]
        elif kinds:
            numbers = ";".join(sm.replace(".", "") for sm in kinds)
            options += ["GGML_CUDA=ON", f"CMAKE_CUDA_ARCHITECTURES={numbers}"]
        build = f"{folder}/build"
        return [
            ("cmake", "-S", source, "-B", build, *(f"-D{option}" for option in options)),
            ("cmake", "--build", build, "--config", "Release", "-j", str(jobs), "--target", "llama-server"),
            ("cp", f"{build}/bin/llama-server", f"{folder}/bin/llama-server"),
        ]

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        usual = recipe.hybrid.ubatch if recipe.hybrid else self.traits.step_tokens
        return recipe.batched_tokens or usual

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, model, found = deployment.recipe, deployment.known_model, super().find_refusals(deployment)
        if "special" in recipe.flags and recipe.flags.get("jinja", True):
            text = "--special with --jinja breaks tool calls: the markers reach the parser as text"
            source = "tried on b11669 and ik of August 2026"
            found.append(plan_warning("warning", text, "leave flags.special out", source))
        if {"ncmoe", "n-cpu-moe"} & set(recipe.flags):
            text = "-ncmoe counts the first layers in llama.cpp and the last, or a share per GPU, in ik_llama.cpp"
            found.append(plan_warning("warning", text, "hybrid.experts names the layers", "tried, November 2026"))
        if recipe.kv == "fp8":
            found.append(plan_warning("fatal", f"{deployment.engine.title} has no fp8 cache", 'kv = "q8_0"'))
            return found
        if model is None or model.mla is None or not keeps_all_heads(model.mla, recipe):
            return found
        held = token_bytes(model, recipe) * memory.cache_tokens(recipe)
        latent = held * model.mla.kv_width / model.mla.heads_width
        if held - latent < NOTICED:
            return found
        cost = f"{format_gib(held)} of cache at {recipe.context:,} tokens; the latent takes {format_gib(latent)}"
        if recipe.hybrid and recipe.hybrid.mla == 0:
            text = f"-mla 0 keeps every head's keys and values: {cost}"
            found.append(plan_warning("warning", text, "hybrid.mla = 3"))
        else:
            text = f"the file has keys and values in one matrix, so llama.cpp keeps them for every head: {cost}"
            remedy = "a GGUF made since April 2025 has them apart; ik_llama.cpp separates them"
            source = "llama.cpp b21e4de deepseek2.cpp: without attention.key_length_mla there is no latent cache"
            found.append(plan_warning("warning", text, remedy, source))
        return found
