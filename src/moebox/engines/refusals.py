"""Refusals that hold for every engine: formats, layouts and GPUs. Every reason has its source.

"fatal": it does not start, or fails at the first long prompt; "warning": it runs, worse than expected; "note": good to
know. A plan never has a fatal issue; a recipe that a user wrote is launched as it is.
"""

import json
import re
from collections.abc import Iterator
from typing import Literal

from moebox.core import families, registry
from moebox.core.deployment import Deployment
from moebox.core.model import format_names
from moebox.core.plan import PlanWarning
from moebox.engines.arguments import full_flag_name
from moebox.engines.flags import flag_catalogue, is_newer_than_known, newest_version
from moebox.engines.support import support_warnings
from moebox.sizing.layout import layout_problem
from moebox.units import format_gb

Severity = Literal["note", "warning", "fatal"]
MLA_FP8 = "smem-vllm-mla-fp8"  # the symptom of a decode kernel that a patch fixes
PATCHABLE_SYMPTOMS = (MLA_FP8,)


def plan_warning(severity: Severity, text: str, remedy: str = "", source: str = "", symptom: str = "") -> PlanWarning:
    """Return a PlanWarning from positional arguments."""
    return PlanWarning(symptom=symptom, text=text, remedy=remedy, severity=severity, source=source)


def sm_majors(deployment: Deployment) -> set[str]:
    """First numbers of the compute capabilities of all GPUs used."""
    return {gpu.sm.split(".")[0] for gpu in deployment.gpu_kinds if "." in gpu.sm}


def common_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Return the refusals that hold for every engine."""
    recipe, box, engine, model = deployment.recipe, deployment.box, deployment.engine, deployment.known_model
    checkpoint = deployment.known_checkpoint
    found = []
    if not (model and checkpoint):
        unknown = f"checkpoint {recipe.checkpoint!r}" if model else f"model {recipe.model!r}"
        found.append(plan_warning("warning", f"{unknown} is not known, so whether it fits was not checked"))
    if indivisible := layout_problem(deployment):
        found.append(plan_warning("fatal", indivisible.reason, indivisible.hint))
    if model and recipe.context > model.context:
        text = f"context {recipe.context:,} is beyond the model's own {model.context:,}"
        remedy = f"context = {model.context}: most engines refuse more at the start"
        found.append(plan_warning("warning", text, remedy))
    if is_newer_than_known(engine.name, recipe.engine_version):
        newest, table = newest_version(engine.name), flag_catalogue(engine.name, recipe.engine_version)
        new_flags = [name for key in recipe.flags if not table.find_spec(name := full_flag_name(key, table))]
        text = f"{engine.title} {recipe.engine_version} is newer than {newest}, the newest that moebox knows: "
        text += f"flags, known problems and forecasts are those of {newest}"
        text += f", which does not have {', '.join(new_flags)}" * bool(new_flags)
        found.append(plan_warning("warning", text, "`moebox rehearse RECIPE` starts it without the weights"))
    file_format = "gguf" if recipe.checkpoint.endswith(".gguf") else ""
    file_format = checkpoint.format if checkpoint else file_format
    if file_format and file_format not in engine.formats:
        readable = format_names(*engine.formats)
        text = f"{engine.title} reads {readable}, not {format_names(file_format)}"
        found.append(plan_warning("fatal", text, f"a checkpoint in {readable}"))
    elif checkpoint and checkpoint.engines and engine.name not in checkpoint.engines:
        text = f"{checkpoint.name} loads in {', '.join(checkpoint.engines)} only"
        found.append(plan_warning("fatal", text, source=checkpoint.source))
    if box and (problem := engine.hardware_problem(deployment.gpu_kinds, model)):
        found.append(plan_warning("fatal", problem))
    unsupported, source = families.unsupported_reason(engine.name, engine.title, model, recipe.engine_version)
    if unsupported:
        every = registry.all_traits()
        others = [each.title for each in every if not families.unsupported_reason(each.name, each.title, model)[0]]
        remedy = f"a newer {engine.title}" if engine.title in others else " or ".join(others)
        found.append(plan_warning("fatal", unsupported, remedy, source))
    else:
        found += support_warnings(deployment)
    tables = checkpoint.bytes_by_component.get("ngram", 0) if checkpoint and checkpoint.format == "safetensors" else 0
    if tables:
        text, source = f"its n-gram tables, {format_gb(tables)}, are kept in RAM", "vLLM config/engram.py: cpu_offload"
        short = bool(box and 0 < box.ram < tables)
        found.append(plan_warning("fatal" if short else "note", text + ", which is too small" * short, source=source))
    available = len(box.gpus) * box.nodes if box else 0
    if box and 0 < available < recipe.parallel.gpu_count:
        text = f"it needs {recipe.parallel.gpu_count} GPUs and {box.name} has {available}"
        found.append(plan_warning("fatal", text))
    return found


def require_fp8_cache(source: str) -> PlanWarning:
    """Return the refusal of DeepSeek V4's cache in any type but fp8."""
    text = "DeepSeek V4's kernels keep their compressed cache in fp8 only: with bf16 it does not start"
    return plan_warning("fatal", text, 'kv = "fp8"', source)


def weight_format_refusals(deployment: Deployment) -> Iterator[PlanWarning]:
    """Yield weight formats that older GPUs unpack instead of computing with; the oldest GPU used decides."""
    checkpoint, majors = deployment.known_checkpoint, sm_majors(deployment)
    quant = (checkpoint.quant if checkpoint else deployment.recipe.checkpoint).lower()
    if "nvfp4" in quant and any(gpu.generation == "cdna" for gpu in deployment.gpu_kinds):
        text = "NVFP4 is a format of NVIDIA's GPUs: no kernel for it runs on AMD's"
        yield plan_warning("fatal", text, "a checkpoint in int4, fp8, mxfp4 or bf16")
        return
    if not majors:
        return
    oldest = min(map(int, majors))
    if "nvfp4" in quant and oldest < 10:
        text = "NVFP4 weights need Blackwell; older GPUs unpack them through Marlin, which saves memory but not time"
        yield plan_warning("warning", text)
    if "fp8" in quant and oldest == 8:
        yield plan_warning("warning", "fp8 weights run through Marlin, weight-only, below compute capability 8.9")
    if oldest < 8:
        text = f"compute capability {oldest}.x is too old: Marlin's INT4 kernels begin at 8.0"
        yield plan_warning("fatal", text)


def quantization_of(deployment: Deployment) -> str:
    """Return the checkpoint's quantisation, from the catalogue or the file's name."""
    if deployment.known_checkpoint:
        return deployment.known_checkpoint.quant
    file = deployment.recipe.checkpoint.rpartition("/")[2]
    named = re.search(r"(?:UD-)?(?:I?Q\d\w*|NVFP4|MXFP4|BF16|F16)", file, re.IGNORECASE)
    return named.group(0) if named else ""


def engines_for_format(deployment: Deployment) -> str:
    """Return other engines that read the same format, as a remedy."""
    own = deployment.engine
    others = [traits for traits in registry.all_traits() if traits.name != own.name and traits.formats == own.formats]
    return " or ".join(f'engine = "{traits.name}"' for traits in others)


def layer_override(deployment: Deployment, layers: int) -> str:
    """Return the change to config.json, as JSON, with which an engine builds only that many layers.

    Multimodal models keep the text model's numbers one level down.
    """
    override: dict[str, object] = {"num_hidden_layers": layers}
    return json.dumps({"text_config": override} if deployment.has_vision_tower else override, separators=(",", ":"))
