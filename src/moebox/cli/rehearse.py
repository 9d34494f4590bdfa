"""`moebox rehearse`: the real engine with few layers and dummy weights."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.checkpoint import deploy
from moebox.cli import up_view
from moebox.cli.output import emit, people, talk
from moebox.core.recipe import Recipe, RuntimeKind
from moebox.errors import AnswerIsNo, BadInput
from moebox.units import parse_seconds, seconds


def rehearse(
    recipe: str,
    *,
    layers: str = "",
    measure: Annotated[bool, Parameter(negative=())] = False,
    budget: str = "10m",
    phantom: Annotated[bool, Parameter(negative=())] = False,
    runtime: RuntimeKind | None = None,
    patience: str = "15m",
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Boot RECIPE's engine with its own flags, few layers and dummy weights; prompt it, decode, and stop it.

    Catches what breaks at start or at the first long prompt, before the weights are downloaded. Exits 1 when it
    breaks, with the cause.

    With --measure it boots with few and with more layers, times prompts and decode steps through the endpoint, and
    keeps a calibration for this box: plan and forecast use it from then on. `moebox calibrations` shows them.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox.
        layers: Keep so many layers; one of each kind when left out. Two depths with --measure, such as 4,8.
        measure: Calibrate the forecast for this box.
        budget: The most that --measure may take.
        phantom: Use the phantom's weights, which answer sensibly, instead of dummy ones.
        runtime: Run it natively, in docker or podman, or embedded, whatever the recipe says.
        patience: How long it may stand still while starting.
        runs: Where run folders live.
        json: Print JSON.
    """
    from moebox.cli.up import heed_sigterm, settled
    from moebox.flows import recipes
    from moebox.flows import rehearse as flow
    from moebox.serve.faults import LaunchFailed
    from moebox.serve.order import refuse_missing
    from moebox.store import Run

    asked = settled(recipes.read(recipe), port=None, host="", runtime=runtime)
    try:
        patience_s = parse_seconds(patience)
    except ValueError as problem:
        raise BadInput(f"--patience: {problem}") from None
    depths = counts(layers)
    if measure and phantom:
        raise BadInput("--measure needs the real model's shapes; leave --phantom out")
    heed_sigterm()
    refuse_missing(deploy(asked))
    if measure:
        return measured(asked, depths, budget=budget, patience_s=patience_s, runs=runs, json=json)
    if len(depths) > 1:
        raise BadInput(f"--layers {layers}: two depths are for --measure")
    run = Run.create(f"rehearse-{asked.name}", runs=runs)
    try:
        with up_view.Phases(f"rehearse {asked.engine} {asked.model} {layers} {phantom}") as phases:
            kept = depths[0] if depths else 0
            found = flow.rehearse(
                deploy(asked), run, layers=kept, phantom=phantom, patience_s=patience_s, listener=phases
            )
    except LaunchFailed as problem:
        raise AnswerIsNo(problem.message, hint=problem.hint) from None
    if json:
        told = {"steps": found.steps, "facts": found.facts, "not_rehearsed": found.not_rehearsed, "run": str(run.path)}
        emit({"recipe": asked.name, "engine": asked.engine, "layers": found.layers, "verdict": "pass", **told})
        return 0
    for step in found.steps:
        people().print(
            f"✓ {step.name:<12} {step.detail}  {seconds(step.seconds) if step.seconds else ''}", markup=False
        )
    people().print("\nnot rehearsed:")
    for note in found.not_rehearsed:
        people().print(f"  {note}", markup=False)
    return 0


def counts(text: str) -> tuple[int, ...]:
    """`--layers` as numbers."""
    words = [word for word in text.split(",") if word.strip()]
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise BadInput(f"--layers {text}: must be a number of layers, or two with --measure, such as 4,8")
    return tuple(int(word) for word in words)


def measured(
    recipe: Recipe, depths: tuple[int, ...], *, budget: str, patience_s: float, runs: Path | None, json: bool
) -> int:
    """`rehearse --measure`: time the steps, then show what they say of the whole model."""
    from moebox.cli.calibrations import brief, table_of
    from moebox.flows.calibrate import calibrate
    from moebox.report.calibration import reading_of
    from moebox.serve.faults import LaunchFailed
    from moebox.store import Run

    try:
        budget_s = parse_seconds(budget)
    except ValueError as problem:
        raise BadInput(f"--budget: {problem}") from None
    run = Run.create(f"measure-{recipe.name}", runs=runs)

    def tell(line: str) -> None:
        talk().print(line, markup=False, soft_wrap=True)

    try:
        found = calibrate(recipe, run, layers=depths, budget_s=budget_s, patience_s=patience_s, tell=tell)
    except LaunchFailed as problem:
        raise AnswerIsNo(problem.message, hint=problem.hint) from None
    except KeyboardInterrupt:
        tell(f"interrupted; what was measured is in {run.path}")
        raise
    if json:
        emit({**brief(found), "run": str(run.path), "notes": found.notes, "unseen": found.unseen})
        return 0
    people().print(table_of(found))
    people().print(f"\n{reading_of(found).text}", markup=False)
    for line in found.unseen:
        people().print(f"  not seen: {line}", markup=False)
    people().print(f"kept as {found.id}; plan and forecast use it", markup=False, soft_wrap=True)
    return 0
