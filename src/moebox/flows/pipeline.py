"""Begin, save and resume the pipeline of a `moebox run`.

RUN/pipeline.json is written before and after every step, so that a killed run shows in which step it was, and can go
on after the last one that was done.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from errno import ENOSPC
from itertools import islice
from os import strerror

from moebox import codec
from moebox.core.event import PipelineBegan, PipelineResumed
from moebox.core.pipeline import STEPS, Pipeline, PipelineStep, RunRequest, StepName
from moebox.errors import BadInput, ExternalError, UnknownName
from moebox.store import DISK_FULL_ERRORS, PIPELINE, Run, plain
from moebox.units import format_seconds

LOOKED_AT = 100  # earlier runs that are read to estimate the time left
REPORT = "report.html"
BY_HAND = "left out by --skip"
# Seconds of the demo's steps before its first run here: 17 November 2026, two quiet Arm cores, one thread.
DEMO_STEP_S: dict[str, float] = dict(zip(STEPS, (3.0, 0, 25, 2, 164, 45, 42, 11, 1), strict=True))


def check_step_names(names: Iterable[str]) -> None:
    """Raise UnknownName for a step that does not exist."""
    for name in names:
        if name not in STEPS:
            raise UnknownName("step", name, STEPS, hint=f"the steps are {', '.join(STEPS)}")


class DiskFull(ExternalError):
    """The disk is full. No file is half-written, and the run can be resumed."""


@contextmanager
def raise_disk_full(run: Run) -> Iterator[None]:
    """Raise DiskFull if a write in the block fails because the disk is full."""
    try:
        yield
        if run.lost:
            raise OSError(ENOSPC, strerror(ENOSPC))
    except (OSError, ExternalError) as problem:
        cause = problem.__cause__ if isinstance(problem, ExternalError) else problem
        if not isinstance(cause, OSError) or cause.errno not in DISK_FULL_ERRORS:
            raise
        hint = f"free some space, then `moebox run --resume {run.id}`; what was measured is kept"
        raise DiskFull(f"{run.path} cannot be written: {cause.strerror}", hint=hint) from problem


def begin_pipeline(request: RunRequest, run: Run) -> Pipeline:
    run.strict = True
    asked = {name: getattr(request, name) for name in PipelineBegan.__struct_fields__ if name != "simulation"}
    run.add_event(PipelineBegan(simulation=request.twin, **asked), sync=True)
    return save_pipeline(Pipeline(request=request, simulated=request.twin), run)


def resume_pipeline(run: Run, *, until: StepName | None = None) -> Pipeline:
    """Load the pipeline of a run to go on `until` a step. Interrupted, failed and lost steps are repeated."""
    run.strict = True
    for half in run.path.rglob(".*.part"):  # of killed writers; this process holds the lock
        half.unlink(missing_ok=True)
    document = run.read_pipeline()
    if document is None:
        raise BadInput(f"{run.path} was not made by `moebox run`", hint="only such runs can be resumed")
    pipeline = codec.decode(Pipeline, document, where=str(run.path / PIPELINE))
    pipeline = replace(pipeline, request=replace(pipeline.request, until=until or pipeline.request.until))
    finished = {step.name: step for step in pipeline.steps if _is_finished(step, run)}
    # an earlier moebox had fewer steps
    *before, report = (finished.get(name, PipelineStep(name=name)) for name in STEPS)
    if report.state == "done" and any(step.state == "waiting" for step in before):  # the report is out of date
        report = PipelineStep(name=report.name)
    steps = (*before, report)
    run.add_event(PipelineResumed(done=tuple(step.name for step in steps if step.state == "done")))
    return save_pipeline(replace(pipeline, steps=steps), run)


def _is_finished(step: PipelineStep, run: Run) -> bool:
    """Whether a step need not be repeated: its results can still be read."""
    if step.state != "done":
        return step.state not in ("running", "failed")
    try:
        if step.name == "verify":
            names = [path.name for path in plain.list_entries(run.path / "verdicts", "*.json")]
            files = ["verify.json", *(f"verdicts/{name}" for name in names)]
            return all(run.read_json(file) is not None for file in files)
        if step.name == "bench":
            from moebox.flows.measure import are_measurements_readable

            return are_measurements_readable(run)
    except BadInput:
        return False
    return step.name != "report" or (run.path / REPORT).exists()


def save_pipeline(pipeline: Pipeline, run: Run) -> Pipeline:
    run.write_json(PIPELINE, pipeline)
    return pipeline


def expected_step_seconds(run: Run) -> dict[str, float]:
    """Seconds of each step in the last run on this machine with the same request that reached it.

    Before the first run they are known for the demo only.
    """
    others = (folder for folder in sorted(run.path.parent.iterdir(), reverse=True) if folder != run.path)
    request, _ = _read_times(run)
    took: dict[str, float] = {}
    for other in map(Run, islice(others, LOOKED_AT)):
        other_request, seconds = _read_times(other)
        if other_request == request:
            took = {**seconds, **took}
        if took.keys() >= set(STEPS):
            break
    return took if any(request) else {**DEMO_STEP_S, **took}


def _read_times(run: Run) -> tuple[tuple[object, ...], dict[str, float]]:
    """The part of a run's request that decides how long steps take, and the seconds of each step."""
    try:
        found = codec.decode(Pipeline, run.read_pipeline() or {"request": {}}, where=run.id)
    except BadInput:  # damaged, or of an earlier moebox
        found = Pipeline(request=RunRequest())
    request = found.request
    done = [step for step in found.steps if step.state == "done" or (step.state == "skipped" and step.why != BY_HAND)]
    seconds: dict[str, float] = {step.name: step.seconds for step in done}
    return (request.model, request.recipe, request.box, request.twin, request.quick), seconds


def time_left_text(
    steps: Iterable[PipelineStep], request: RunRequest, took: Mapping[str, float], *, past_s: float
) -> str:
    """The estimated time left, `past_s` into the running step; "" if it is unknown."""
    due = {*request.wanted_steps} - {*request.skip}
    left_s = 0.0
    for step in steps:
        if step.name in due and step.state in ("waiting", "running"):
            if step.name not in took:
                return ""
            left_s += max(0.0, took[step.name] - (past_s if step.state == "running" else 0.0))
    return f"about {format_seconds(left_s)} left" if left_s >= 1 else ""
