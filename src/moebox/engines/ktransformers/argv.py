"""A deployment to KTransformers' command line: that of the SGLang fork, and what kt-kernel needs."""

from dataclasses import replace

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, add_recipe_flags
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.sglang import argv as sglang

FIELDS = sglang.FIELDS
HYBRID_FIELDS = {
    "--kt-cpuinfer": "hybrid.threads",
    "--kt-threadpool-count": "hybrid.pools",
    "--kt-num-gpu-experts": "hybrid.gpu_experts",
}
VARIABLES = sglang.VARIABLES | {"--kt-weight-path": "MODEL_PATH"}
# CPU and GPUs read the same files in these formats (Native-Precision-Tutorial.md).
METHODS = {"int4-g32": "RAWINT4", "fp8-block": "FP8", "bf16": "BF16"}
# From this many tokens on a prompt is read on the GPUs, layer by layer (Kimi-K2-Thinking-Native.md).
THRESHOLD = 400


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """Command-line arguments after the entry; drafts beside kt-kernel are not proven, and refused."""
    recipe, checkpoint = deployment.recipe, deployment.known_checkpoint
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    undrafted = deployment.with_recipe(replace(recipe, speculate=None))
    out = sglang.base_arguments(undrafted, node=node, host=host)
    method = METHODS.get(checkpoint.quant if checkpoint else "", "AMXINT4")  # precision of experts on the CPU
    out += [("--kt-weight-path", deployment.weights_path), ("--kt-method", method)]
    for flag, path in HYBRID_FIELDS.items():
        value = getattr(recipe.hybrid, path.removeprefix("hybrid.")) if recipe.hybrid else None
        if value is not None:
            out.append((flag, str(value)))
    out += [("--kt-gpu-prefill-token-threshold", str(THRESHOLD)), ("--disable-shared-experts-fusion",)]
    return add_recipe_flags(out, recipe.flags, known)


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The command that starts it on this machine: the fork's module, because both packages install `sglang`."""
    return python_entry(recipe, program=("python3", "-m", sglang.MODULE), module=("-m", sglang.MODULE))
