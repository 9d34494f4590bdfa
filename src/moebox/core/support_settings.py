"""Whether a setup meets a support row and each of its settings: yes, no, or not to be read from recipe and box."""

import re
from collections.abc import Callable
from typing import Any

from moebox.core.recipe import Flag
from moebox.core.setting import setting_matches
from moebox.core.start_rules import default_attention, default_experts
from moebox.core.support_matrix import Match, Setup, SupportRow, layout_holds

# What names a build that is not the release: a fork, an image, a branch with a pull request.
BUILD_KEYS = frozenset({"fork", "image", "branch", "patch", "patched", "pull", "build", "date"})
# What moebox's own load does: streamed requests, sampled, with prompts longer than a micro-batch.
ALWAYS = {"stream": "true", "temperature": ">0", "prompt": "longer than ubatch"}
OFFLOADS = {
    "native": r"kv-offloading-size|OffloadingConnector",
    "native tiering": r"kv-offloading-backend.*tier|TieringConnector|TieringOffloadingSpec",
    "hicache": r"enable-hierarchical-cache",
    "lmcache": r"LMCache|lmcache",
    "simple": r"SimpleCPUOffload",
}
# Flags of engines that a recipe has a field for.
FIELDS = {"flags.ubatch-size": "hybrid.ubatch", "flags.n-gpu-layers": "hybrid.gpu_layers"}
FIELDS |= {"speculate": "speculate.method", "speculate.tokens": "speculate.tokens", "runtime.kind": "runtime.kind"}
FIELDS |= {"context": "context", "max_seqs": "max_seqs", "memory_utilization": "memory_utilization"}
FIELDS |= {"tool_parser": "tool_parser", "reasoning_parser": "reasoning_parser"}
GB = 10**9


def match_row(row: SupportRow, setup: Setup) -> Match | None:
    """The row with the conditions that stay open, or None if the setup does not meet one."""
    recipe = setup.recipe
    if row.layout and not layout_holds(row.layout, recipe.parallel, recipe.gpus_per_node):
        return None
    if row.kv and setup.kv not in row.kv:
        return None
    open_conditions = []
    for key, wanted in row.settings.items():
        holds = setting_holds(key, wanted, setup)
        if holds is False:
            return None
        if holds is None:
            open_conditions.append(f"{key} = {wanted}")
    return Match(row=row, conditions=tuple(open_conditions))


def setting_holds(key: str, wanted: Flag, setup: Setup) -> bool | None:
    """Whether the setup has the setting; None if neither the recipe nor the box shows it."""
    if isinstance(wanted, list):
        held = [setting_holds(key, value, setup) for value in wanted]
        return True if True in held else None if None in held else False
    text = str(wanted)
    if key in BUILD_KEYS:
        return bool(setup.fork) and text.lower() in setup.fork.lower()
    if key in ALWAYS:
        return ALWAYS[key] == text
    if key in SPECIAL:
        return SPECIAL[key](text, setup)
    if key.startswith(("flags.", "env.")) and key not in FIELDS:
        return setting_matches(_flag_value(key, setup), text)
    if key in FIELDS:
        value = setup.recipe.get(FIELDS[key])
        if text == "< layers":
            return bool(setup.model and value is not None and value < setup.model.layers)
        return setting_matches(value, text)
    return None


def _flag_value(key: str, setup: Setup) -> Any:
    """A flag or variable as the recipe sets it, or as the launch gets it."""
    value = setup.recipe.get(key)
    if value is None and key.startswith("flags.") and setup.rendered_flags:
        return setup.rendered_flags().get(key.removeprefix("flags."))
    return value


def _backend_holds(wanted: str, setup: Setup, default: Callable[[Setup], str], *flags: str) -> bool | None:
    """The backend that the recipe names, or the one that the engine chooses by itself if its release was read."""
    named = next(filter(None, map(setup.recipe.flags.get, flags)), None)
    if wanted == "auto":
        return named in (None, "auto")
    chosen = str(named or default(setup))
    return chosen.lower() == wanted.lower() if chosen else None


def _offload(wanted: str, setup: Setup) -> bool:
    """KV cache or experts beside the GPUs."""
    if wanted == "cpu experts":
        return setup.recipe.hybrid is not None
    pattern = OFFLOADS.get(wanted)
    flags = {**(setup.rendered_flags() if setup.rendered_flags else {}), **setup.recipe.flags}
    given = " ".join(f"{key}={value}" for key, value in flags.items() if value not in (0, False, "0"))
    return bool(pattern and re.search(pattern, given))


def _prefix_caching(wanted: str, setup: Setup) -> bool | None:
    """On unless the recipe turns it off; for linear layers the engines' defaults differ."""
    value = setup.recipe.prefix_caching
    if value is None and "linear" in setup.layer_kinds:
        return None
    return (value is not False) == (wanted == "true")


def _cudagraph_mode(wanted: str, setup: Setup) -> bool:
    flags = setup.recipe.flags
    named = " ".join(f"{key}={value}" for key, value in flags.items() if key.startswith("compilation-config"))
    if flags.get("enforce-eager"):
        return False
    mode = re.search(r"cudagraph_mode\W+(\w+)", named)
    return (mode[1] if mode else "FULL_AND_PIECEWISE") == wanted  # vLLM's default since 0.11


def _ram(wanted: str, setup: Setup) -> bool | None:
    """The RAM of the box against "<600GB"; a size alone means no more than that."""
    bound = re.fullmatch(r"<?(\d+)GB", wanted)
    return setup.ram <= int(bound[1]) * GB * 1.1 if setup.ram and bound else None


def _cpu(wanted: str, setup: Setup) -> bool | None:
    """Whether the CPU has a set of instructions ("amx_tile"), or lacks it ("no avx512f")."""
    known, name = setup.cpu_features, wanted.removeprefix("no ")
    return (name in known) == (name == wanted) if known else None


def _version_holds(have: str, wanted: str) -> bool | None:
    """Whether a version of the host is "13.0" or "<575"; None if it or the bound is not known."""
    bound = re.fullmatch(r"(<)?([\d.]+)", wanted)
    if not have or not bound:
        return None
    here, there = ([*map(int, text.split(".")[:2])] for text in (have, bound[2]))
    return here < there if bound[1] else here == there


def _experts_in_ram(wanted: str, setup: Setup) -> bool:
    """Whether experts of some layers are computed by the CPU."""
    hybrid, model = setup.recipe.hybrid, setup.model
    if hybrid is None or model is None:
        return False
    return sum(map(len, hybrid.experts)) < model.moe_layers and not hybrid.split


def _expert_width(wanted: str, setup: Setup) -> bool:
    """Whether a rank's slice of an expert is not a multiple of a number: "not 256"."""
    moe, parallel = setup.model.moe if setup.model else None, setup.recipe.parallel
    return moe is not None and moe.intermediate // (1 if parallel.ep else parallel.tp) % int(wanted.split()[-1]) != 0


def _shared_experts(wanted: str, setup: Setup) -> bool:
    """Whether a rank's slice of shared experts in FP8 is not whole blocks: "not 128"; EP divides them too."""
    moe, parallel = setup.model.moe if setup.model else None, setup.recipe.parallel
    if moe is None or (checkpoint := setup.checkpoint) is None or parallel.dp > 1:
        return False
    in_blocks = checkpoint.quant == "fp8-block" or checkpoint.name == "fp8-mxfp4"
    return in_blocks and moe.shared_width // parallel.tp % int(wanted.split()[-1]) != 0


def _attention_heads(setup: Setup) -> int:
    return max((getattr(layers.kind, "heads", 0) for layers in setup.model.stack), default=0) if setup.model else 0


SPECIAL: dict[str, Callable[[str, Setup], bool | None]] = {
    "attention_backend": lambda text, setup: _backend_holds(text, setup, default_attention, "attention-backend"),
    "moe_backend": lambda text, setup: _backend_holds(
        text, setup, default_experts, "moe-backend", "moe-runner-backend"
    ),
    "offload": _offload,
    "hicache_storage": lambda text, setup: setup.recipe.flags.get("hicache-storage-backend") == text,
    "prefix_caching": _prefix_caching,
    "cudagraph_mode": _cudagraph_mode,
    # Requests at once: the recipe's limit; an engine without one takes as many as come.
    "concurrency": lambda text, setup: setting_matches(setup.recipe.max_seqs or 256, text),
    "expert_width": _expert_width,
    "shared_experts": _shared_experts,
    "heads_per_rank": lambda text, setup: setting_matches(_attention_heads(setup) // setup.recipe.parallel.tp, text),
    "ram": _ram,
    "cpu": _cpu,
    "cuda": lambda text, setup: _version_holds(setup.cuda, text),
    "driver": lambda text, setup: _version_holds(setup.driver, text),
    "gpus": lambda text, setup: (not setup.gpu) == (text == "0"),
    "dtype": lambda text, setup: setup.recipe.flags.get("dtype", "bfloat16") == text,
    "dp_attention": lambda _, setup: bool(setup.recipe.flags.get("enable-dp-attention")),
    "slot_save": lambda _, setup: _flag_value("flags.slot-save-path", setup) is not None,
    "linear_attention": lambda text, setup: setup.recipe.flags.get("linear-attn-backend") == text,
    "quantization": lambda text, setup: None if setup.checkpoint else False,
    "flags.cpu-moe": _experts_in_ram,
    "flags.n-cpu-moe": _experts_in_ram,
}
