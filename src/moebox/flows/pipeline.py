"""The pipeline of one `moebox run`: what was asked, how far it came, and how it is resumed.

RUN/pipeline.json holds both; it is written whole before and after every step, so that a run killed at any moment says
in which step, and goes on from the last one that was done.
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
from moebox.loose import Json, get_number, get_object, get_objects, get_text
from moebox.store import DISK_FULL_ERRORS, PIPELINE, Run, plain
from moebox.units import format_seconds

LOOKED_AT = 100  # runs that are read for how long this one takes
REPORT = "report.html"
BY_HAND = "left out by --skip"


def check_step_names(names: Iterable[str]) -> None:
    """UnknownName for a step that does not exist."""
    for name in names:
        if name not in STEPS:
            raise UnknownName("step", name, STEPS, hint=f"the steps are {', '.join(STEPS)}")


class DiskFull(ExternalError):
    """The disk is full; nothing is half-written, and the run can go on from where it was."""


@contextmanager
def raise_disk_full(run: Run) -> Iterator[None]:
    """NoRoom for what a full disk refused in the block."""
    try:
        yield
        if run.lost:
            raise OSError(ENOSPC, strerror(ENOSPC))
    except (OSError, ExternalError) as problem:
        refused = _refused(problem)
        if refused is None:
            raise
        hint = f"free some space, then `moebox run --resume {run.id}`; what was measured is kept"
        raise DiskFull(f"{run.path} cannot be written: {refused.strerror}", hint=hint) from problem


def _refused(problem: OSError | ExternalError) -> OSError | None:
    """What a full disk said, where it is behind the problem."""
    cause = problem.__cause__ if isinstance(problem, ExternalError) else problem
    return cause if isinstance(cause, OSError) and cause.errno in DISK_FULL_ERRORS else None


def begin_pipeline(request: RunRequest, run: Run) -> Pipeline:
    """A new pipeline in a new run."""
    run.strict = True
    pipeline = Pipeline(request=request, simulated=request.twin)
    asked = {name: getattr(request, name) for name in PipelineBegan.__struct_fields__ if name != "simulation"}
    run.add_event(PipelineBegan(simulation=request.twin, **asked), sync=True)
    return save_pipeline(pipeline, run)


def resume_pipeline(run: Run, *, until: StepName | None = None) -> Pipeline:
    """The pipeline in a run folder, to go on `until` a step; what was cut off or failed is to be done again."""
    run.strict = True
    run.remove_partial_files()
    document = run.read_pipeline()
    if document is None:
        raise BadInput(f"{run.path} was not made by `moebox run`", hint="only such runs can be resumed")
    pipeline = codec.decode(Pipeline, document, where=str(run.path / PIPELINE))
    pipeline = replace(pipeline, request=replace(pipeline.request, until=until or pipeline.request.until))
    steps = _resumed(pipeline, run)
    run.add_event(PipelineResumed(done=tuple(step.name for step in steps if step.state == "done")))
    return save_pipeline(replace(pipeline, steps=steps), run)


def _resumed(pipeline: Pipeline, run: Run) -> tuple[PipelineStep, ...]:
    """All steps; what was cut off, failed or lost waits again."""
    there = {step.name: step for step in pipeline.steps if _stays(step, run)}
    *steps, report = (there.get(name, PipelineStep(name=name)) for name in STEPS)  # an earlier moebox had fewer steps
    waiting = any(step.state == "waiting" for step in steps)
    if waiting and report.state == "done":  # a report of what was there is not one of what will be
        report = PipelineStep(name=report.name)
    return (*steps, report)


def _stays(step: PipelineStep, run: Run) -> bool:
    if step.state == "done":
        return _kept(step.name, run)
    return step.state not in ("running", "failed")


def _kept(name: StepName, run: Run) -> bool:
    """Whether what a step found is still there, and can be read."""
    look = {"verify": _verdicts_whole, "bench": _measurements_whole, "report": _report_whole}.get(name)
    try:
        return look is None or look(run)
    except BadInput:
        return False


def _verdicts_whole(run: Run) -> bool:
    each = [run.read_json(f"verdicts/{path.name}") for path in plain.list_entries(run.path / "verdicts", "*.json")]
    return run.read_json("verify.json") is not None and None not in each


def _measurements_whole(run: Run) -> bool:
    from moebox.flows.measure import are_measurements_readable

    return are_measurements_readable(run)


def _report_whole(run: Run) -> bool:
    return (run.path / REPORT).exists()


def save_pipeline(pipeline: Pipeline, run: Run) -> Pipeline:
    """Write it down."""
    run.write_json(PIPELINE, pipeline)
    return pipeline


def expected_step_seconds(run: Run) -> dict[str, float]:
    """Seconds that each step took the last time a pipeline like this one came to it, on this machine."""
    others = (folder for folder in sorted(run.path.parent.iterdir(), reverse=True) if folder != run.path)
    asked = _asked(_document(run))
    took: dict[str, float] = {}
    for document in map(_document, map(Run, islice(others, LOOKED_AT))):
        if _asked(document) == asked:
            took = {**_seconds(document), **took}
        if took.keys() >= set(STEPS):
            break
    return took


def _asked(document: object) -> tuple[object, ...]:
    """What makes two pipelines take alike."""
    request = get_object(document, "request")
    return tuple(request.get(name) or "" for name in ("model", "recipe", "box", "twin", "quick"))


def _seconds(document: object) -> dict[str, float]:
    """How long each step took that was done; none where it is left out of every pipeline like this one."""
    return {
        get_text(row, "name"): get_number(row, "seconds") or 0.0
        for row in get_objects(document, "steps")
        if _was_due(row)
    }


def _was_due(row: Json) -> bool:
    """Whether a step came to its turn, and was not left out by hand."""
    state = get_text(row, "state")
    return state == "done" or (state == "skipped" and get_text(row, "why") != BY_HAND)


def time_left_text(
    steps: Iterable[PipelineStep], request: RunRequest, took: Mapping[str, float], *, past_s: float
) -> str:
    """How long the steps take that are still to be done, `past_s` into the running one; "" when nobody knows."""
    ahead = _ahead(steps, request)
    if any(step.name not in took for step in ahead):
        return ""
    left = sum(_rest(step, took[step.name], past_s) for step in ahead)
    return f"about {format_seconds(left)} left, going by earlier runs" if left >= 1 else ""


def _ahead(steps: Iterable[PipelineStep], request: RunRequest) -> list[PipelineStep]:
    due = {*request.wanted_steps} - {*request.skip}
    return [step for step in steps if step.name in due and step.state in ("waiting", "running")]


def _rest(step: PipelineStep, lasts: float, past_s: float) -> float:
    return max(0.0, lasts - past_s) if step.state == "running" else lasts


def _document(run: Run) -> object:
    try:
        return run.read_pipeline()
    except BadInput:
        return None
