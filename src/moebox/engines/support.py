"""What is known to go wrong with a deployment: refusals that hold for every engine, and the support matrix.

"fatal": it does not start, or fails at the first long prompt; "warning": it runs, worse than expected; "note": good to
know. A plan never has a fatal issue; a recipe that a user wrote is launched as it is. Every reason has its source.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from moebox.core import families, registry
from moebox.core.deployment import Deployment
from moebox.core.model import format_names
from moebox.core.plan import PlanWarning
from moebox.core.support import Support, known_to_run, support_for
from moebox.core.support_matrix import STATE_TEXT, Setup, SupportRow, build_of
from moebox.core.symptom import Severity, changes_text, choose_remedy
from moebox.core.versions import are_comparable
from moebox.engines.arguments import full_flag_name
from moebox.engines.flags import flag_catalogue, may_be_newer, newest_version
from moebox.sizing.layout import layout_problem
from moebox.units import format_gb

PATCHABLE_SYMPTOMS = ("smem-vllm-mla-fp8",)  # of a decode kernel that a patch fixes
# Threads on setups that should start by the engine's checks, or its list of models: those that did, and all.
BY_CHECKS, BY_LIST = (143, 198), (42, 75)
MOST_POSSIBLE = 3  # rows under further conditions that are shown, the newest first


def plan_warning(severity: Severity, text: str, remedy: str = "", source: str = "") -> PlanWarning:
    """Return a PlanWarning from positional arguments."""
    return PlanWarning(text=text, remedy=remedy, severity=severity, source=source)


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
    if may_be_newer(engine.name, recipe.engine_version):
        newest, table = newest_version(engine.name), flag_catalogue(engine.name, recipe.engine_version)
        new_flags = [name for key in recipe.flags if not table.find_spec(name := full_flag_name(key, table))]
        relation, what = "may be", "flags and forecasts"  # a branch or a commit
        if are_comparable(recipe.engine_version, newest):
            relation, what = "is", "flags, known problems and forecasts"
        text = f"{engine.title} {recipe.engine_version} {relation} newer than {newest}, the newest that moebox knows: "
        text += f"{what} are those of {newest}"
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


def deployment_setups(deployment: Deployment) -> list[Setup]:
    """A setup for each kind of GPU that a deployment uses."""
    recipe, box, model = deployment.recipe, deployment.box, deployment.known_model
    kv = recipe.kv
    if kv in ("", "auto"):
        kv = "fp8" if model is not None and model.has_compressed_cache else deployment.engine.kv_auto
    make_setup = functools.partial(
        Setup,
        engine=recipe.engine,
        version=recipe.engine_version or newest_version(recipe.engine),
        fork=build_of(recipe.engine_version, recipe.runtime, deployment.engine.image),
        model=model,
        checkpoint=deployment.known_checkpoint,
        kv=kv,
        recipe=recipe,
        ram=box.ram if box else 0,
        driver=box.host.driver if box and box.host else "",
        cuda=box.host.cuda if box and box.host else "",
        cpu_features=box.cpu.features if box else (),
        # Engines with experts in RAM set flags of their own that rows name; rendering them takes a while.
        rendered_flags=functools.cache(lambda: _rendered_flags(deployment))
        if deployment.engine.offloads_experts or recipe.kv_tiers
        else None,
    )
    names = [f"sm{gpu.sm.replace('.', '')}" if gpu.sm[:1].isdigit() else gpu.sm for gpu in deployment.gpu_kinds]
    gpus = zip(names, deployment.gpu_kinds, strict=True)
    return [make_setup(gpu=name, gpu_title=gpu.title) for name, gpu in gpus] or [make_setup()]


def _rendered_flags(deployment: Deployment) -> Mapping[str, str]:
    from moebox.engines.engine import load_engine  # which imports the refusals of every engine

    words = load_engine(deployment.engine.name).arguments(deployment)
    return {word[0].lstrip("-"): word[1] if len(word) > 1 else "true" for word in words}


@functools.lru_cache(maxsize=512)  # a plan asks for the refusals, the forecast and the discounts of each candidate
def deployment_support(deployment: Deployment) -> list[tuple[Setup, Support]]:
    """What is known of a deployment on each kind of GPU that it uses."""
    return [(setup, support_for(setup)) for setup in deployment_setups(deployment)]


def speed_factor(deployment: Deployment) -> float:
    """The share of the usual speed that measured slow rows leave; 1.0 if there is none."""
    return min((support.factor for _, support in deployment_support(deployment)), default=1.0)


def estimated_slow_rows(deployment: Deployment) -> list[SupportRow]:
    """Slow rows whose factor was not measured, which therefore enter no forecast."""
    found = (match.row for _, support in deployment_support(deployment) for match in support.matches)
    return [row for row in found if row.state == "slow" and row.estimated]


def failures_fixed_by_settings(deployment: Deployment, *, with_share: bool = False) -> list[SupportRow]:
    """Failures whose fix is only flags or variables, which the recipe leaves open, or `with_share` less memory used."""

    def is_open(path: str) -> bool:
        if path == "memory_utilization":
            return with_share
        return path.startswith(("flags.", "env.")) and deployment.recipe.get(path) is None

    rows = [match.row for _, support in deployment_support(deployment) for match in support.matches if match.row.change]
    return [row for row in rows if (is_fatal(row) or row.state == "crashes") and all(map(is_open, row.change))]


def is_fatal(row: SupportRow) -> bool:
    """What does not start, crashes, hangs or answers wrongly is no plan; parsing can be worked around."""
    return row.state not in ("runs", "slow") and not row.concerns_parsing and not row.sometimes


def support_warnings(deployment: Deployment) -> list[PlanWarning]:
    """Everything known to go wrong, each row once: certain rows first, then those under further conditions."""
    found: dict[str, PlanWarning] = {}
    for setup, support in deployment_support(deployment):
        for warning in _warnings(setup, support):
            found.setdefault(warning.text, warning)
    return [*found.values()]


def _warnings(setup: Setup, support: Support) -> Iterator[PlanWarning]:
    for refusal in support.refusals:
        source = f"{refusal.at} of {setup.engine} {refusal.release}" if refusal.release else refusal.at
        yield plan_warning("fatal", refusal.text, refusal.remedy, source)
    for match in support.matches:
        if match.row.state != "runs":
            without = " The forecast is without it: how much was not measured." * match.row.estimated
            yield _warning(setup, match.row, "fatal" if is_fatal(match.row) else "warning", match.row.text + without)
    # Rows on this GPU or architecture that hold if something holds that neither the recipe nor the box shows.
    shown = [each for each in support.possible if each.row.state != "runs" and (each.row.gpu or each.row.architecture)]
    for match in sorted(shown, key=lambda match: match.row.date, reverse=True)[:MOST_POSSIBLE]:
        conditions = " and ".join(re.sub("^(driver|host) = ", r"the \1 has ", text) for text in match.conditions)
        release = "the newest release" if setup.version == setup.fork else f"the release {setup.version}"
        text = f"{match.row.text} Only if {conditions or f'this build behaves like {release}'}."
        yield replace(_warning(setup, match.row, "note", text), symptom="")


def _warning(setup: Setup, row: SupportRow, severity: Severity, text: str) -> PlanWarning:
    """The row with its fix, or with what is known to run if the recipe has that fix already."""
    wanted = row.change
    if setup.recipe.kv_tiers and {"offload", "flags.cache-ram"} & set(row.settings):
        wanted = {"kv_tiers.ram_gib": 0, "kv_tiers.disk_gib": 0}
    remedy, change = choose_remedy(setup.recipe, remedy=row.fix, change=wanted)
    if row.change and not change and (good := known_to_run(setup)):
        remedy = f"{remedy.partition(';')[0]}; {good.engine} {good.versions} is known to run: {good.source}"
    changes = changes_text(change)
    remedy = f"{remedy} ({changes})" if remedy and changes else remedy or changes
    return PlanWarning(symptom=row.symptom, text=text, remedy=remedy, severity=severity, source=row.source)


def support_text(deployment: Deployment, *, brief: bool = False) -> str:
    """The state in one line: what is known, or that nothing is; `brief` leaves out the GPU and the engine's checks."""
    lines = []
    for setup, support in deployment_support(deployment):
        where = f"{deployment.engine.title} {setup.version}" + f" on {setup.gpu_title or 'a CPU'}" * (not brief)
        rows = [match.row for match in support.answers if match.row.state == support.state]
        state, evidence = STATE_TEXT[support.state], f" ({rows[0].source})" if rows else ""
        if support.state == "accepted":
            by_checks = support.basis.startswith("its own checks")
            started, count, state = (*BY_CHECKS, state) if by_checks else (*BY_LIST, "may start")
            good = known_to_run(setup)
            other = ""
            if good:  # such as "SGLang 0.5.12"; ranges stay as they are written
                title = registry.engine_traits(good.engine).title
                other = f", but {title} {good.versions.removeprefix('==')} runs its architecture here"
            basis = f"; {support.basis}" * (not brief)
            evidence = f" (no report{other}; {started} of {count} such setups started{basis})"
        lines.append(f"{where}: {state}{evidence}")
        if support.note and not brief:
            lines.append(support.note)
    return "; ".join(lines)
