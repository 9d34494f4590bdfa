"""`moebox rehearse`: the real engine with few layers and dummy weights."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.cli import up_view
from moebox.cli.output import emit, people
from moebox.core.recipe import RuntimeKind
from moebox.errors import AnswerIsNo, BadInput
from moebox.units import parse_seconds, seconds


def rehearse(
    recipe: str,
    *,
    layers: int = 0,
    phantom: Annotated[bool, Parameter(negative=())] = False,
    runtime: RuntimeKind | None = None,
    patience: str = "15m",
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Boot RECIPE's engine with its own flags, few layers and dummy weights; prompt it, decode, and stop it.

    Catches what breaks at start or at the first long prompt, before the weights are downloaded. Exits 1 when it
    breaks, with the cause.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox.
        layers: Keep so many layers; one of each kind when left out.
        phantom: Use the phantom's weights, which answer sensibly, instead of dummy ones.
        runtime: Run it natively, in docker or podman, or embedded, whatever the recipe says.
        patience: How long it may stand still while starting.
        runs: Where run folders live.
        json: Print JSON.
    """
    from moebox.cli.up import heed_sigterm, settled
    from moebox.flows import rehearse as flow
    from moebox.serve.faults import LaunchFailed
    from moebox.serve.recipes import read_recipe
    from moebox.store import Run

    asked = settled(read_recipe(recipe), port=None, host="", runtime=runtime)
    try:
        patience_s = parse_seconds(patience)
    except ValueError as problem:
        raise BadInput(f"--patience: {problem}") from None
    if layers < 0:
        raise BadInput(f"--layers {layers}: must not be negative")
    heed_sigterm()
    run = Run.create(f"rehearse-{asked.name}", runs=runs)
    try:
        with up_view.Phases() as phases:
            found = flow.rehearse(asked, run, layers=layers, phantom=phantom, patience_s=patience_s, listener=phases)
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
