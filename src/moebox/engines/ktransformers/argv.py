"""Deployment to KTransformers' command line and back: the fork's own, and what kt-kernel is told."""

from dataclasses import replace

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, drop_disabled, flag_arguments, merge_arguments
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.reading import Reading
from moebox.engines.sglang import argv as sglang

FIELDS = sglang.FIELDS
HYBRID = {
    "--kt-cpuinfer": "hybrid.threads",
    "--kt-threadpool-count": "hybrid.pools",
    "--kt-num-gpu-experts": "hybrid.gpu_experts",
}
READS = FIELDS | HYBRID
VARIABLES = sglang.VARIABLES | {"--kt-weight-path": "MODEL_PATH"}
# CPU and GPUs read the same files in these forms (Native-Precision-Tutorial.md).
METHODS = {"int4-g32": "RAWINT4", "fp8-block": "FP8", "bf16": "BF16"}
# From this many tokens on a prompt is read on the GPUs, layer by layer (Kimi-K2-Thinking-Native.md).
THRESHOLD = 400


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """The command line after the entry, word by word."""
    recipe = deployment.recipe
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    undrafted = deployment.with_recipe(replace(recipe, speculate=None))  # see `speculation`
    out = [*sglang.base_arguments(undrafted, node=node, host=host), *kernel_arguments(deployment)]
    return merge_arguments(drop_disabled(out, recipe.flags, known), flag_arguments(recipe.flags, known), known)


def kernel_arguments(deployment: Deployment) -> list[Argument]:
    """What kt-kernel is told: where the experts are, in which form, and who computes them."""
    hybrid = deployment.recipe.hybrid
    out: list[Argument] = [("--kt-weight-path", deployment.weights_path), ("--kt-method", method(deployment))]
    for flag, path in HYBRID.items():
        value = getattr(hybrid, path.removeprefix("hybrid.")) if hybrid else None
        if value is not None:
            out.append((flag, str(value)))
    out.append(("--kt-gpu-prefill-token-threshold", str(THRESHOLD)))
    return [*out, ("--disable-shared-experts-fusion",)]


def method(deployment: Deployment) -> str:
    """The precision kt-kernel computes experts in."""
    known = deployment.known_checkpoint
    return METHODS.get(known.quant if known else "", "AMXINT4")


def draft_arguments(recipe: Recipe) -> list[Argument]:
    """Nothing: drafts beside kt-kernel are not proven, and `refusals` says so."""
    return []


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine: the fork's module, for both packages bring `sglang`."""
    return sglang.module_entry(recipe)


environment = sglang.environment
hide_api_key = sglang.hide_api_key


def understood(word: Argument, name: str, reading: Reading) -> bool:
    """Take a word that is more than one field, or follows from others, into `reading`."""
    if name in ("--kt-weight-path", "--kt-method", "--disable-shared-experts-fusion"):
        return True
    if name == "--kt-gpu-prefill-token-threshold" and word[-1] == str(THRESHOLD):
        return True
    return sglang.understood(word, name, reading)


finished = sglang.finished
