"""What holds for every engine: formats, shapes and GPUs. Every reason carries its source.

"fatal": it does not start, or fails at the first long prompt; "warning": it runs, worse than it seems; "note": good
to know. A plan is never of what is fatal; a recipe that a person wrote is still launched as it stands.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from moebox.core import registry, support
from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Model, format_names
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Recipe

Severity = Literal["note", "warning", "fatal"]
MLA_FP8 = "smem-vllm-mla-fp8"  # the symptom of a decode kernel that a patch fixes
PATCHABLE_SYMPTOMS = (MLA_FP8,)


def plan_warning(severity: Severity, text: str, remedy: str = "", source: str = "", symptom: str = "") -> PlanWarning:
    """A Caution, written shortly."""
    return PlanWarning(symptom=symptom, text=text, remedy=remedy, severity=severity, source=source)


def major(gpu: Gpu | None) -> str:
    """The first number of a GPU's compute capability; "" without one."""
    return gpu.sm.split(".")[0] if gpu and "." in gpu.sm else ""


def sm_majors(deployment: Deployment) -> set[str]:
    """The same of every GPU that is used."""
    return {major(gpu) for gpu in deployment.gpu_kinds} - {""}


def common_refusals(deployment: Deployment) -> list[PlanWarning]:
    """What holds for every engine."""
    recipe, box, engine = deployment.recipe, deployment.box, deployment.engine
    found = layout_refusals(recipe, deployment.known_model) if deployment.known_model else []
    found += _format(deployment)
    if box and (reason := engine.hardware_problem(deployment.gpu_kinds, deployment.known_model)):
        found.append(plan_warning("fatal", reason))
    refused, source = support.unsupported_reason(
        engine.name, engine.title, deployment.known_model, recipe.engine_version
    )
    if refused:
        found.append(plan_warning("fatal", refused, others_that_run(deployment), source))
    found += _enough_gpus(recipe, box) if box else []
    if recipe.listen.port > engine.last_port:
        text = f"{engine.title} also listens {max(engine.ports):,} ports above {recipe.listen.port}, beyond 65,535"
        found.append(plan_warning("fatal", text, f"listen.port = {engine.last_port} or less"))
    return found


def _enough_gpus(recipe: Recipe, box: Box) -> list[PlanWarning]:
    have, wanted = len(box.gpus) * box.nodes, recipe.parallel.gpu_count
    if have == 0 or have >= wanted:
        return []
    return [plan_warning("fatal", f"it spreads over {wanted} GPUs and {box.name} has {have}")]


def others_that_run(deployment: Deployment) -> str:
    """Engines that run the model's architecture, as a remedy."""
    model = deployment.known_model
    every = registry.all_traits()
    able = [traits.title for traits in every if not support.unsupported_reason(traits.name, traits.title, model)[0]]
    own = deployment.engine.title
    return f"a newer {own}" if own in able else " or ".join(able)


def _format(deployment: Deployment) -> list[PlanWarning]:
    """A checkpoint that the engine does not read."""
    engine, known = deployment.engine, deployment.known_checkpoint
    form = checkpoint_format(deployment)
    if form and form not in engine.formats:
        text = f"{engine.title} reads {format_names(*engine.formats)}, not {format_names(form)}"
        return [plan_warning("fatal", text, f"a checkpoint in {format_names(*engine.formats)}")]
    if known and known.engines and engine.name not in known.engines:
        return [plan_warning("fatal", f"{known.name} loads in {', '.join(known.engines)} only", source=known.source)]
    return []


def checkpoint_format(deployment: Deployment) -> str:
    """The checkpoint's format: as known, or by the file's ending; "" where neither tells."""
    if deployment.known_checkpoint:
        return deployment.known_checkpoint.format
    return "gguf" if deployment.recipe.checkpoint.endswith(".gguf") else ""


def layout_refusals(recipe: Recipe, model: Model) -> list[PlanWarning]:
    """What cannot be divided."""
    spread, found = recipe.parallel, []
    if model.attention.heads % spread.tp:
        text = f"{model.title} has {model.attention.heads} attention heads, which tp = {spread.tp} does not divide"
        found.append(plan_warning("fatal", text, "parallel.tp = 1, 2, 4 or 8"))
    if spread.tp % spread.dcp:
        found.append(plan_warning("fatal", f"dcp = {spread.dcp} does not divide tp = {spread.tp}"))
    if spread.pp > model.layers:
        found.append(plan_warning("fatal", f"pp = {spread.pp} is more than the model's {model.layers} layers"))
    if model.moe and spread.ep and model.moe.experts % (spread.tp * spread.dp):
        found.append(
            plan_warning("fatal", f"{model.moe.experts} experts do not divide over {spread.tp * spread.dp} ranks")
        )
    if recipe.context > model.context:
        text = f"context {recipe.context:,} is beyond the model's own {model.context:,}"
        found.append(plan_warning("warning", text, f"context = {model.context}: most engines refuse more at the start"))
    return found


def fp8_cache_required(source: str) -> PlanWarning:
    """DeepSeek V4's cache in another type than the one its kernels have."""
    text = "DeepSeek V4's kernels hold their compressed cache in fp8 alone: with bf16 it does not start"
    return plan_warning("fatal", text, 'kv = "fp8"', source)


def weight_format_refusals(deployment: Deployment) -> Iterator[PlanWarning]:
    """Weight formats that older GPUs unpack instead of computing with: the oldest one used decides."""
    known, sms = deployment.known_checkpoint, sm_majors(deployment)
    quant = (known.quant if known else deployment.recipe.checkpoint).lower()
    if "nvfp4" in quant and any(gpu.generation == "cdna" for gpu in deployment.gpu_kinds):
        text = "NVFP4 is a format of NVIDIA's GPUs: no kernel for it runs on AMD's"
        yield plan_warning("fatal", text, "a checkpoint in int4, fp8, mxfp4 or bf16")
    elif sms:
        yield from _below(quant, min(map(int, sms)))


def _below(quant: str, sm: int) -> Iterator[PlanWarning]:
    """What a compute capability is too old for."""
    if "nvfp4" in quant and sm < 10:
        text = "NVFP4 weights want Blackwell; older GPUs unpack them through Marlin: the memory is saved, the speed not"
        yield plan_warning("warning", text)
    if "fp8" in quant and sm == 8:
        yield plan_warning("warning", "fp8 weights run through Marlin, weight-only, below compute capability 8.9")
    if sm < 8:
        yield plan_warning("fatal", f"compute capability {sm}.x is too old: Marlin's INT4 kernels begin at 8.0")


def quantization_of(deployment: Deployment) -> str:
    """The checkpoint's quantisation: as known, or out of the file's name."""
    if deployment.known_checkpoint:
        return deployment.known_checkpoint.quant
    file = deployment.recipe.checkpoint.rpartition("/")[2]
    named = re.search(r"(?:UD-)?(?:I?Q\d\w*|NVFP4|MXFP4|BF16|F16)", file, re.IGNORECASE)
    return named.group(0) if named else ""


def layer_override(deployment: Deployment, layers: int) -> str:
    """The change to config.json, as JSON, with which an engine builds only so many layers."""
    override: dict[str, object] = {"num_hidden_layers": layers}
    nested = {"text_config": override} if text_config_nested(deployment) else override
    return json.dumps(nested, separators=(",", ":"))


def text_config_nested(deployment: Deployment) -> bool:
    """Whether config.json keeps the text model's numbers a level down, as multimodal ones do."""
    config = Path(deployment.weights_path).expanduser() / "config.json"
    if config.is_file():
        return '"text_config"' in config.read_text(encoding="utf-8", errors="replace")
    return deployment.has_vision_tower


def engines_for_format(deployment: Deployment) -> str:
    """Other engines that read the same format, as a remedy."""
    own = deployment.engine
    others = [traits for traits in registry.all_traits() if traits.name != own.name and traits.formats == own.formats]
    return " or ".join(f'engine = "{traits.name}"' for traits in others)
