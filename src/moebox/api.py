"""Public Python functions: the steps of the command line, with typed arguments and results.

Errors are `moebox.errors.MoeboxError`: one line in `message`, a fix in `hint`. docs/api.md has an example of each
function. Parameters are only added in later versions, always with a default; everything else in moebox may change.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.measure import Load, Slo, Workload
from moebox.core.recipe import Recipe
from moebox.errors import refuse_if

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moebox.checkpoint import ResolvedModel
    from moebox.core.box import Box
    from moebox.core.plan import Plan
    from moebox.core.result import Measurement
    from moebox.core.verdict import CheckResults
    from moebox.flows.compare import CompareEffort, Comparison
    from moebox.planner.constraints import Constraints
    from moebox.planner.forecast import ForecastRow
    from moebox.planner.simulate import SimulatedWorkload
    from moebox.quality.measure import QualityResult
    from moebox.quality.reader import Progress
    from moebox.quality.reference import Reference
    from moebox.quality.texts import QualityText
    from moebox.render import LaunchFormat, OtherFormat
    from moebox.runs.record import RunRecord
    from moebox.serve.session import EngineSession
    from moebox.store import Run
    from moebox.verify.options import VerifyOptions
    from moebox.verify.runner import OnCheck, OnProgress

__all__ = [
    "Endpoint",
    "Load",
    "Recipe",
    "Slo",
    "Workload",
    "bench",
    "compare",
    "detect_box",
    "endpoint_from_url",
    "forecast",
    "load_run",
    "plan",
    "quality",
    "render",
    "report",
    "up",
    "verify",
]
CONTEXTS = (0, 16384, 65536)  # tokens of a forecast, as far as the recipe allows them
STREAMS = (1, 8, 32)
UNLOADABLE = ("no engine is known", "(pickle)")  # in notes on a model that are warnings


def detect_box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """Return this machine, or the box called `name` (COUNTxGPU or a TOML file), with its calibrations."""
    from moebox.flows import recipes

    return recipes.calibrated_box(name, ram=ram, ram_bandwidth=ram_bandwidth)


def plan(
    model: str | ResolvedModel,
    *,
    box: str | None = None,
    ram: str = "",
    ram_bandwidth: str = "",
    constraints: Constraints | None = None,
) -> Plan:
    """Return the best plan for a model on this machine, or on the box called `box`.

    Raise DoesNotFit with the bytes that are missing if nothing fits.
    """
    from moebox.checkpoint import FORMATS_SEEN, look_up_model
    from moebox.core import validation
    from moebox.core.plan import PlanWarning
    from moebox.flows import recipes
    from moebox.planner.choose import choose_plan
    from moebox.planner.constraints import Constraints

    place = detect_box(box, ram=ram, ram_bandwidth=ram_bandwidth)
    if isinstance(model, str) and recipes.is_phantom(model):
        fixed = constraints is not None and constraints != Constraints(goal=constraints.goal, bold=constraints.bold)
        refuse_if(fixed, "the phantom has one plan for any machine", hint="leave its settings out")
        refuse_if(box, "the phantom runs on this machine's CPU", hint="leave out --box")
        return recipes.plan_phantom(place)
    known = look_up_model(model) if isinstance(model, str) else model
    chosen = choose_plan(place, known.model, known.checkpoints, constraints or Constraints())
    name = chosen.recipe.checkpoint
    quants = (each.quant for each in known.checkpoints if name in (each.name, each.path, each.repo))
    used = name.partition(":")[2] or next(quants, name)
    texts = (f"{note}; this plan uses {used}" if note.startswith(FORMATS_SEEN) else note for note in known.notes)
    notes = tuple(
        PlanWarning(symptom="", text=text, severity="warning" if any(map(text.count, UNLOADABLE)) else "note")
        for text in texts
    )
    chosen = replace(chosen, warnings=(*notes, *chosen.warnings))
    chosen = recipes.with_planned_box(chosen, box, ram=ram, ram_bandwidth=ram_bandwidth)
    validation.validate_recipe(chosen.recipe)  # `up` would refuse it
    return chosen


def forecast(
    recipe: Recipe | str,
    *,
    box: str | None = None,
    contexts: Sequence[int] = (),
    streams: Sequence[int] = (),
    workloads: Sequence[SimulatedWorkload] = (),
) -> list[ForecastRow]:
    """Return decode speeds by context and concurrency with their ranges; or simulate serving `workloads`.

    The box is the named one, the one that the recipe was planned for, or this machine.
    """
    from moebox.checkpoint import deploy
    from moebox.engines import check_recipe, memory_budget
    from moebox.flows import recipes
    from moebox.planner.forecast import decode_rows, serving_rows
    from moebox.planner.kv_tiers import cache_tiers
    from moebox.planner.rate import sizes_up_to
    from moebox.planner.simulate import scheduler_rules
    from moebox.planner.speed import Speed

    recipe = _load_recipe(recipe)
    deployment = deploy(recipe, recipes.planned_box(recipe.planned_for, box))
    check_recipe(deployment)
    deployment = deployment.with_default_context()
    memory, speed = memory_budget(deployment), Speed.for_deployment(deployment)
    if workloads:
        rules = scheduler_rules(deployment.recipe, memory.kv_tokens, speed, memory)
        return serving_rows(speed, rules, workloads, cache_tiers(deployment, deployment.recipe.tiers))
    lengths = tuple(contexts) or sizes_up_to(deployment.recipe.context, CONTEXTS)
    return decode_rows(speed, lengths, streams or STREAMS, memory, deployment.recipe)


def render(recipe: Recipe | str, file_format: LaunchFormat | OtherFormat = "script") -> dict[str, str]:
    """Return the files that run a recipe without moebox, by name; a single file has the name ""."""
    from moebox import render as rendering
    from moebox.checkpoint import deploy

    return rendering.render_files(deploy(_load_recipe(recipe)), file_format)


def up(recipe: Recipe | str, *, runs: Path | None = None, patience_s: float = 900.0) -> EngineSession:
    """Start a recipe's engine and wait until it answers a chat.

    The session is a context manager that stops the engine; `stop()` does too. Raise LaunchFailed with the cause if the
    engine ends or makes no progress for `patience_s`.
    """
    from moebox.checkpoint import deploy
    from moebox.serve.order import require_engine
    from moebox.serve.session import launch_engine, prepare_launch
    from moebox.store import Run

    deployment = deploy(_load_recipe(recipe))
    require_engine(deployment)
    run = Run.create(deployment.recipe.name, runs=runs)
    session = launch_engine(prepare_launch(deployment, name=run.id), run)
    session.wait_ready(patience_s=patience_s)
    return session


def verify(
    endpoint: Endpoint,
    *,
    options: VerifyOptions | None = None,
    only: Sequence[str] = (),
    start: str = "",
    keep_going: bool = False,
    run: Run | None = None,
    on_check: OnCheck | None = None,
    on_progress: OnProgress | None = None,
    restart: bool = False,
) -> CheckResults:
    """Run the correctness checks: all, `only` some, or those from `start` on; `run` keeps the evidence.

    `restart` stops and starts the engine, which moebox must have started, before conversations come back.
    """
    from moebox.core.event import VerifyBegan, VerifyEnded
    from moebox.flows.switch import restart_instance
    from moebox.serve.state import hold_endpoint
    from moebox.verify.options import CHECK_NAMES, VerifyOptions
    from moebox.verify.runner import run_checks, select_checks

    checks = tuple(check.name for check in select_checks(only, start))
    with hold_endpoint(endpoint.base_url, "moebox verify"):
        if run:
            server = {"url": endpoint.base_url, "model": endpoint.model, "key_env": endpoint.key_env}
            run.add_event(VerifyBegan(**server, checks=checks, of=len(CHECK_NAMES)))
        results = run_checks(
            endpoint,
            options or VerifyOptions(),
            only=only,
            start=start,
            keep_going=keep_going,
            run=run,
            on_check=on_check,
            on_progress=on_progress,
            restart=restart_instance(endpoint.base_url) if restart else None,
        )
    if run:
        run.add_event(VerifyEnded(verdict=results.verdict, stopped=results.stopped))
    return results


def quality(
    endpoint: Endpoint,
    *,
    references: Sequence[Reference] = (),
    own_text: QualityText | None = None,
    limit: float | None = None,
    run: Run | None = None,
    on_progress: Progress | None = None,
) -> tuple[QualityResult, bytes]:
    """Score a server's log-probabilities and judge them; the bytes are a reference file of it."""
    from moebox.quality.measure import measure_quality
    from moebox.serve.state import hold_endpoint

    with hold_endpoint(endpoint.base_url, "moebox quality"):
        return measure_quality(endpoint, references, own_text, limit=limit, run=run, on_progress=on_progress)


def bench(
    endpoint: Endpoint,
    *,
    workload: Workload | None = None,
    load: Load | None = None,
    slo: Slo | None = None,
    warmup: int = 0,
) -> Measurement:
    """Send one load and return its figures; without a load, 32 requests one after the other."""
    from moebox.bench.measure import measure_load
    from moebox.bench.probe import probe_endpoint
    from moebox.serve.state import hold_endpoint

    workload, load = workload or Workload(), load or Load(concurrency=1, requests=32)
    with hold_endpoint(endpoint.base_url, "moebox bench"):
        probed = probe_endpoint(endpoint, api=workload.api, timeout_s=load.timeout_s)
        return measure_load(probed, workload, load, slo=slo, warmup=warmup).result


def compare(
    a: Endpoint | Recipe, b: Endpoint | Recipe, *, effort: CompareEffort | None = None, run: Run | None = None
) -> Comparison:
    """Judge B against A by answers, speed and an optional quality limit; engines of recipes are started and stopped."""
    from moebox.flows.compare import CompareEffort, SideListener, compare_sides, compare_targets, target_names
    from moebox.store import Run

    effort, run = effort or CompareEffort(), run or Run.create("compare")
    listener = SideListener(effort)
    sides = compare_targets(a, b, run, effort, listener)
    found = compare_sides(*sides, listener.judged)
    run.write_json("compare.json", {"comparison": found, "sides": sides, "seed": effort.seed, **target_names(a, b)})
    return found


def load_run(name: str = "latest", *, runs: Path | None = None) -> RunRecord:
    """Return everything in a run folder, by name, beginning of a name, or path; unreadable files are in `gaps`."""
    from moebox.runs.reader import read_run
    from moebox.store import Run

    return read_run(Run.open(name, runs=runs))


def report(
    names: Sequence[str] = ("latest",),
    output: Path | None = None,
    *,
    pdf: bool = False,
    markdown: bool = False,
    title: str = "",
    runs: Path | None = None,
) -> list[Path]:
    """Write the report of one or several runs; return the files. Without `output`: into the first run's folder."""
    from moebox.report.files import write_report
    from moebox.store import Run

    found = [Run.open(name, runs=runs) for name in names]
    target = output or found[0].path / ("report.html" if len(found) == 1 else f"report-of-{len(found)}.html")
    return write_report(found, target, pdf=pdf, markdown=markdown, title=title)


def _load_recipe(recipe: Recipe | str) -> Recipe:
    """Return a recipe, the file, or the shipped or saved one of that name."""
    from moebox.flows import recipes

    return recipe if isinstance(recipe, Recipe) else recipes.load_recipe(recipe)
