"""`moebox run`: the whole pipeline in one command."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags
from moebox.cli.output import confirm, exit_code, print_json, stderr_console
from moebox.core.pipeline import STEPS, Pipeline, RunRequest, display_state
from moebox.core.traits import LAST_PORT
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.flows import boxes, recipes
from moebox.flows import pipeline as pipelines
from moebox.store import Run

Switch = Annotated[bool, Parameter(negative=())]
Words = Annotated[list[str] | None, Parameter(negative=())]
MOST_STREAMS = 65_536


def run(
    model: str = "",
    /,
    *,
    box: str = "",
    recipe: str = "",
    ram: str = "",
    ram_bandwidth: str = "",
    twin: Switch = False,
    until: str = "",
    skip: Words = None,
    concurrency: str = "",
    port: int | None = None,
    keep: Switch = False,
    quick: Switch = False,
    yes: Switch = False,
    resume: str = "",
    runs: Path | None = None,
    json: Switch = False,
) -> int:
    """Plan, check the machine, rehearse, start, verify, climb, measure and report, in one command.

    Without a model: the phantom, a rehearsal model with Kimi's anatomy, on the embedded engine, on any machine.

    Args:
        model: A model from the catalogue, a folder with config.json, or a .gguf file.
        box: Plan for this box instead of the machine at hand (with --twin, or to plan only).
        recipe: Start from this recipe instead of a plan: a file, or the name of a saved or shipped one.
        ram: Memory to assume, such as 768GiB.
        ram_bandwidth: Its bandwidth, such as 614GB/s.
        twin: Run against a simulation of the box; every result is marked as simulated.
        until: The last step: plan, doctor, rehearse, up, verify, climb, bench, task or report; --resume may go further.
        skip: Steps to leave out (comma-separated or repeated).
        concurrency: Streams to measure at, such as 1,8,32.
        port: Listen here; a free port is taken when it is in use.
        keep: Leave the engine up at the end.
        quick: Fewer trials, shorter prompts and measurements, no jobs. The phantom always runs so, with two jobs.
        yes: Do not prompt.
        resume: Go on with this run, by folder or name; `latest` is the newest one.
        runs: Where run folders live.
        json: Print the run as one JSON document at the end.
    """
    if resume:
        again = "--resume goes on as the run was begun"
        refuse_if(model, f"{again}: it does not take {model}")
        flags.refuse_unused(again, box=box, recipe=recipe, ram=ram, ram_bandwidth=ram_bandwidth, twin=twin, skip=skip)
        flags.refuse_unused(again, concurrency=concurrency, port=port, keep=keep, quick=quick)
        folder, pipeline = resume_run(resume, until, runs)
    else:
        request = RunRequest(
            model="" if recipes.is_phantom(model) else model,
            recipe=str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe,
            box=box,
            ram=ram,
            ram_bandwidth=ram_bandwidth,
            twin=twin,
            until=until or "report",  # type: ignore[arg-type]
            skip=tuple(flags.split_names(*(skip or ()))),  # type: ignore[arg-type]
            concurrency=parse_concurrency(concurrency),
            keep=keep,
            port=port,
            quick=quick,
        )
        refuse_request(request)
        check_names(request)
        folder, pipeline = begin_run(request, runs)
    return follow_run(folder, pipeline, yes=yes, json=json)


def resume_run(name: str, until: str, runs: Path | None) -> tuple[Run, Pipeline]:
    """A run to go on with, held against any other moebox."""
    folder = Run.resume(name, runs=runs)
    pipelines.check_step_names([until] if until else [])
    with pipelines.raise_disk_full(folder):
        return folder, pipelines.resume_pipeline(folder, until=until or None)  # type: ignore[arg-type]


def begin_run(request: RunRequest, runs: Path | None) -> tuple[Run, Pipeline]:
    """A new run in a folder named after its model or recipe."""
    name = Path(request.model).name.removesuffix(".gguf") or Path(request.recipe).stem or "phantom"
    folder = Run.create(f"run-{name}", runs=runs)
    with pipelines.raise_disk_full(folder):
        return folder, pipelines.begin_pipeline(request, folder)


def follow_run(folder: Run, pipeline: Pipeline, *, yes: bool, json: bool) -> int:
    """Run it to its end, showing every step."""
    from moebox.cli.run_view import RunView
    from moebox.flows.run import Runner
    from moebox.stream.awake import AwakeClock

    awake = AwakeClock()
    view = RunView(pipeline, folder, pipelines.expected_step_seconds(folder), now=awake.active_now, quiet=json)
    runner = Runner(
        folder, pipeline, awake=awake, notify=view.handle_event, confirm=lambda question: yes or confirm_or_no(question)
    )
    try:
        with awake, view:
            ended = runner.run_steps()
    except KeyboardInterrupt:
        stderr_console().print(f"\ngo on with: moebox run --resume {folder.id}", soft_wrap=True)
        raise
    finally:
        folder.release_lock()
        if json:
            print_json({"run": str(folder.path), **codec.to_document(runner.pipeline)})
    if not json:
        view.print_summary(ended, runner)
    return exit_code(not any(display_state(step.state, step.figures) == "failed" for step in ended.steps))


def parse_concurrency(text: str) -> tuple[int, ...]:
    """`--concurrency` as numbers."""
    return flags.parse_numbers(
        text.split(",") if text else (),
        int,
        lambda level: 1 <= level <= MOST_STREAMS,
        not_numbers=f"--concurrency {text!r}: write it like 1,8,32",
        out_of_range=f"--concurrency {text}: each is from 1 to {MOST_STREAMS:,}",
    )


def refuse_request(request: RunRequest) -> None:
    """BadInput for steps and ports that do not exist, and for a box that is neither here nor simulated."""
    pipelines.check_step_names([request.until, *request.skip])
    refuse_out_of_range("--port", request.port, 0, LAST_PORT)
    refuse_if(request.model and request.recipe, f"--recipe names its model: it does not take {request.model}")
    if request.twin:
        flags.refuse_unused("--twin has a port of its own and ends with the run", port=request.port, keep=request.keep)
    if request.box:
        _refuse_elsewhere(request)
    named = request.box or request.recipe or request.model
    refuse_if(request.twin and not named, "--twin simulates a box: name one with --box, and a model")


def _refuse_elsewhere(request: RunRequest) -> None:
    """BadInput for a box that does not exist, or that something would be started on."""
    boxes.calibrated_box(request.box)
    started = not request.twin and request.until != STEPS[0]
    hint = "add --twin to simulate it, or --until plan"
    refuse_if(started, f"{request.box} is not this machine", hint=hint)


def check_names(request: RunRequest) -> None:
    """BadInput or UnknownName for a box, recipe or model that does not exist: before a run folder is made."""
    from moebox.checkpoint import resolve_model

    if request.box or request.ram or request.ram_bandwidth:
        boxes.calibrated_box(request.box or None, ram=request.ram, ram_bandwidth=request.ram_bandwidth)
    if request.recipe:
        recipes.load_recipe(request.recipe)
    elif request.model:
        resolve_model(request.model)


def confirm_or_no(question: str) -> bool:
    """Ask a person; where there is none, the answer is no."""
    if not sys.stdin.isatty():
        stderr_console().print(f"{question} Not a terminal, so the answer is no; `--yes` continues.")
        return False
    return confirm(question)
