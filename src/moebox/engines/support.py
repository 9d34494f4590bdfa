"""What the support matrix and the engine's own checks know of a deployment, as warnings of a plan."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.core.setting import get_setting
from moebox.core.support import Support, known_to_run, support_for
from moebox.core.support_matrix import STATE_TEXT, Setup, SupportRow, build_of
from moebox.core.symptom import changes_text, choose_remedy
from moebox.engines.flags import version_or_newest

# Answers by deployment: a plan asks for the refusals, the forecast and the discounts of each candidate.
_RECENT: dict[int, tuple[Deployment, list[tuple[Setup, Support]]]] = {}
MOST_RECENT = 512
# Threads on setups that should start by the engine's checks, or its list of models: those that did, and all.
BY_CHECKS, BY_LIST = (143, 198), (42, 75)
MOST_POSSIBLE = 3  # rows under further conditions that are shown, the newest first


def deployment_setups(deployment: Deployment) -> list[Setup]:
    """A setup for each kind of GPU that a deployment uses."""
    recipe, box, model = deployment.recipe, deployment.box, deployment.known_model
    kv = recipe.kv
    if kv in ("", "auto"):
        kv = "fp8" if model is not None and model.has_compressed_cache else deployment.engine.kv_auto
    setup = Setup(
        engine=recipe.engine,
        version=version_or_newest(recipe),
        fork=build_of(recipe, deployment.engine.image),
        model=model,
        checkpoint=deployment.known_checkpoint,
        kv=kv,
        recipe=recipe,
        ram=box.ram if box else 0,
        driver=box.host.driver if box and box.host else "",
        cuda=box.host.cuda if box and box.host else "",
        # Engines with experts in RAM set flags of their own that rows name; rendering them takes a while.
        rendered_flags=functools.cache(lambda: _rendered_flags(deployment))
        if deployment.engine.offloads_experts or recipe.kv_tiers
        else None,
    )
    names = [f"sm{gpu.sm.replace('.', '')}" if gpu.sm[:1].isdigit() else gpu.sm for gpu in deployment.gpu_kinds]
    gpus = zip(names, deployment.gpu_kinds, strict=True)
    return [replace(setup, gpu=name, gpu_title=gpu.title) for name, gpu in gpus] or [setup]


def _rendered_flags(deployment: Deployment) -> Mapping[str, str]:
    from moebox.engines.engine import load_engine  # which imports the refusals of every engine

    words = load_engine(deployment.engine.name).arguments(deployment)
    return {word[0].lstrip("-"): word[1] if len(word) > 1 else "true" for word in words}


def deployment_support(deployment: Deployment) -> list[tuple[Setup, Support]]:
    """What is known of a deployment on each kind of GPU that it uses."""
    kept = _RECENT.get(id(deployment))
    if kept is None or kept[0] is not deployment:
        if len(_RECENT) >= MOST_RECENT:
            del _RECENT[next(iter(_RECENT))]
        found = [(setup, support_for(setup)) for setup in deployment_setups(deployment)]
        kept = _RECENT[id(deployment)] = (deployment, found)
    return kept[1]


def speed_factor(deployment: Deployment) -> float:
    """The share of the usual speed that measured slow rows leave; 1.0 if there is none."""
    return min((support.factor for _, support in deployment_support(deployment)), default=1.0)


def estimated_slow_rows(deployment: Deployment) -> list[SupportRow]:
    """Slow rows whose factor was not measured, which therefore enter no forecast."""
    found = (match.row for _, support in deployment_support(deployment) for match in support.matches)
    return [row for row in found if row.state == "slow" and row.estimated]


def failures_fixed_by_flags(deployment: Deployment) -> list[SupportRow]:
    """Certain failures whose fix is only flags or variables, which the recipe leaves open."""

    def leaves_open(path: str) -> bool:
        return path.startswith(("flags.", "env.")) and get_setting(deployment.recipe, path) is None

    found = [match.row for _, support in deployment_support(deployment) for match in support.matches]
    return [row for row in found if row.change and is_fatal(row) and all(map(leaves_open, row.change))]


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
        yield PlanWarning(text=refusal.text, remedy=refusal.remedy, severity="fatal", source=source)
    for match in support.matches:
        if match.row.state != "runs":
            without = " The forecast is without it: how much was not measured." * match.row.estimated
            yield _warning(setup, match.row, "fatal" if is_fatal(match.row) else "warning", match.row.text + without)
    # Rows on this GPU or architecture that hold if something holds that neither the recipe nor the box shows.
    shown = [each for each in support.possible if each.row.state != "runs" and (each.row.gpu or each.row.architecture)]
    for match in sorted(shown, key=lambda match: match.row.date, reverse=True)[:MOST_POSSIBLE]:
        conditions = " and ".join(re.sub("^(driver|host) = ", r"the \1 has ", text) for text in match.conditions)
        text = f"{match.row.text} Only if {conditions or f'this build behaves like the release {setup.version}'}."
        yield replace(_warning(setup, match.row, "note", text), symptom="")


def _warning(setup: Setup, row: SupportRow, severity: Literal["note", "warning", "fatal"], text: str) -> PlanWarning:
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
            other = f", but {good.engine} {good.versions} runs its architecture here" if good else ""
            basis = f"; {support.basis}" * (not brief)
            evidence = f" (no report{other}; {started} of {count} such setups started{basis})"
        lines.append(f"{where}: {state}{evidence}")
        if support.note and not brief:
            lines.append(support.note)
    return "; ".join(lines)
