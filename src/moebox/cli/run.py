"""`moebox run`: the whole pipeline in one command."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.cli.output import emit, people, talk
from moebox.errors import BadInput
from moebox.flows import boxes, recipes
from moebox.flows import pipeline as pipelines
from moebox.store import Run

Switch = Annotated[bool, Parameter(negative=())]
Words = Annotated[list[str] | None, Parameter(negative=())]


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
    from moebox.flows.run import Runner
    from moebox.stream.awake import Awake

    if resume:
        folder = Run.open(resume, runs=runs)
        if not folder.hold():
            raise BadInput(f"{folder.path} is being worked on by another moebox")
        pipelines.check([until] if until else [])
        with pipelines.room(folder):
            pipeline = pipelines.resume(folder, until=until or None)  # type: ignore[arg-type]
    else:
        request = asked(
            model, box, recipe, ram, ram_bandwidth, twin, until or "report", skip, concurrency, port, keep, quick
        )
        check_names(request)
        name = Path(model).name.removesuffix(".gguf") or (Path(recipe).stem if recipe else "phantom")
        folder = Run.create(f"run-{name}", runs=runs)
        with pipelines.room(folder):
            pipeline = pipelines.begin(request, folder)
    from moebox.cli.run_view import View

    awake = Awake()
    view = View(pipeline, folder, pipelines.expected(folder, pipeline.request.model), now=awake.now, quiet=json)
    runner = Runner(folder, pipeline, awake=awake, tell=view.hear, ask=lambda question: yes or confirm(question))
    try:
        with awake, view:
            told = runner.go()
    except KeyboardInterrupt:
        talk().print(f"\ngo on with: moebox run --resume {folder.id}", soft_wrap=True)
        raise
    finally:
        folder.release()
        if json:
            emit({"run": str(folder.path), **codec.document(runner.pipeline)})
    if not json:
        view.close(told, runner)
    return 0


def asked(
    model: str,
    box: str,
    recipe: str,
    ram: str,
    ram_bandwidth: str,
    twin: bool,
    until: str,
    skip: list[str] | None,
    concurrency: str,
    port: int | None,
    keep: bool,
    quick: bool,
) -> pipelines.Request:
    """The words of the command line as a request; BadInput for what cannot be meant."""
    left_out = [name.strip() for part in skip or () for name in part.split(",") if name.strip()]
    pipelines.check([until, *left_out])
    if box:
        boxes.box(box)
    if box and not twin and pipelines.STEPS.index(until) > 0 and not recipe:
        raise BadInput(f"{box} is not this machine", hint="add --twin to simulate it, or --until plan")
    if twin and not (box or recipe) and not model:
        raise BadInput("--twin simulates a box: name one with --box, and a model")
    try:
        levels = tuple(int(part) for part in concurrency.split(",")) if concurrency else ()
    except ValueError:
        raise BadInput(f"--concurrency {concurrency!r}: write it like 1,8,32") from None
    if any(not 1 <= level <= 65_536 for level in levels):
        raise BadInput(f"--concurrency {concurrency}: each is at least 1")
    return pipelines.Request(
        model=model,
        recipe=str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe,
        box=box,
        ram=ram,
        ram_bandwidth=ram_bandwidth,
        twin=twin,
        until=until,  # type: ignore[arg-type]
        skip=tuple(left_out),  # type: ignore[arg-type]
        concurrency=levels,
        keep=keep,
        port=port,
        quick=quick,
    )


def check_names(request: pipelines.Request) -> None:
    """BadInput or UnknownName for a box, recipe or model that does not exist: before a run folder is made."""
    from moebox.checkpoint import resolve

    if request.box or request.ram or request.ram_bandwidth:
        boxes.box(request.box or None, ram=request.ram, ram_bandwidth=request.ram_bandwidth)
    if request.recipe:
        recipes.read(request.recipe)
    elif request.model:
        resolve(request.model)


def confirm(question: str) -> bool:
    """Ask a person; where there is none, the answer is no."""
    if not sys.stdin.isatty():
        talk().print(f"{question} Not a terminal, so the answer is no; `--yes` continues.")
        return False
    return people().input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
