"""`moebox rehearse`: the real engine with few layers and dummy weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.checkpoint import deploy
from moebox.cli import flags, up_view
from moebox.cli.eta import WaitingLine
from moebox.cli.output import print_result, stderr_console, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.core.recipe import Recipe, RuntimeKind
from moebox.errors import AnswerIsNo, refuse_if
from moebox.units import format_seconds

if TYPE_CHECKING:
    from moebox.core.calibration import Calibration
    from moebox.flows.rehearse import Rehearsal

BUDGET = "10m"  # of --measure


def rehearse(
    recipe: str,
    *,
    layers: str = "",
    measure: Annotated[bool, Parameter(negative=())] = False,
    budget: str = "",
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
        layers: How many layers to keep; one of each kind when left out. Two depths with --measure, such as 4,8.
        measure: Calibrate the forecast for this box.
        budget: Time limit of --measure; 10m when left out.
        phantom: Use the phantom's weights, which answer sensibly, instead of dummy ones.
        runtime: Run it natively, in docker or podman, or embedded, instead of what the recipe says.
        patience: Longest time without progress while starting.
        runs: Where run folders live.
        json: Print JSON.
    """
    from moebox.cli.signals import stop_event
    from moebox.cli.up import apply_flags
    from moebox.flows import recipes
    from moebox.serve.order import require_engine

    chosen = apply_flags(recipes.load_recipe(recipe), port=None, host="", runtime=runtime)
    patience_s, budget_s = (
        flags.parse_duration("--patience", patience),
        flags.parse_duration("--budget", budget or BUDGET),
    )
    depths = parse_layers(layers)
    refuse_if(measure and phantom, "--measure needs the real model's shapes; leave --phantom out")
    if not measure:
        flags.refuse_without("--measure", budget=budget)
    if phantom:
        flags.refuse_unused("--phantom has few layers of its own", layers=layers)
    refuse_if(len(depths) > 1 and not measure, f"--layers {layers}: two depths are for --measure")
    stop_event()
    require_engine(deploy(chosen))
    if measure:
        return rehearse_measured(chosen, depths, budget_s=budget_s, patience_s=patience_s, runs=runs, json=json)
    kept = depths[0] if depths else 0
    return rehearse_boot(chosen, kept, phantom=phantom, patience_s=patience_s, runs=runs, json=json)


def parse_layers(text: str) -> tuple[int, ...]:
    """`--layers` as numbers."""
    words = flags.split_names(text)
    wrong = f"--layers {text}: must be a number of layers, or two with --measure, such as 4,8"
    refuse_if(not all(map(str.isdigit, words)), wrong)
    return flags.parse_numbers(words, int, lambda depth: depth > 0, not_numbers=wrong)


def rehearse_boot(
    recipe: Recipe, layers: int, *, phantom: bool, patience_s: float, runs: Path | None, json: bool
) -> int:
    """One boot with dummy weights, prompted and stopped."""
    from moebox.flows import rehearse as flow
    from moebox.serve.faults import LaunchFailed
    from moebox.store import Run

    run = Run.create(f"rehearse-{recipe.name}", runs=runs)
    try:
        with up_view.StartupPhases(f"rehearse {recipe.engine} {recipe.model} {layers or ''} {phantom}") as phases:
            rehearsal = flow.rehearse(
                deploy(recipe), run, layers=layers, phantom=phantom, patience_s=patience_s, listener=phases
            )
    except LaunchFailed as problem:
        raise AnswerIsNo(problem.message, hint=problem.hint) from None
    about = {"recipe": recipe.name, "engine": recipe.engine, "layers": rehearsal.layers, "verdict": "pass"}
    seen = {"steps": rehearsal.steps, "facts": rehearsal.facts, "not_rehearsed": rehearsal.not_rehearsed}
    print_result(json, {**about, **seen, "run": str(run.path)}, lambda: _show(rehearsal))
    return 0


def _show(rehearsal: "Rehearsal") -> None:
    """Each step, and what only the whole model can show."""
    for step in rehearsal.steps:
        took = format_seconds(step.seconds) if step.seconds else ""
        stdout_console().print(f"✓ {step.name:<12} {step.detail}  {took}".rstrip(), markup=False)
    stdout_console().print("\nnot rehearsed:")
    for note in rehearsal.not_rehearsed:
        stdout_console().print(f"  {note}", markup=False)


def rehearse_measured(
    recipe: Recipe, depths: tuple[int, ...], *, budget_s: float, patience_s: float, runs: Path | None, json: bool
) -> int:
    """`rehearse --measure`: time the steps, then show what they say of the whole model."""
    from moebox.cli.calibrations import calibration_summary
    from moebox.flows.calibrate import calibrate
    from moebox.serve.faults import LaunchFailed
    from moebox.store import Run

    run = Run.create(f"measure-{recipe.name}", runs=runs)

    def tell(line: str) -> None:
        stderr_console().print(line, markup=False, soft_wrap=True)

    key = f"measure {recipe.engine} {recipe.model} {recipe.runtime.kind} {','.join(map(str, depths))}".rstrip()
    kept = interrupt_message(f"what was measured is in {run.path}")
    try:
        with kept, WaitingLine(f"measuring {recipe.name}", key, limit_s=budget_s):
            calibration = calibrate(recipe, run, layers=depths, budget_s=budget_s, patience_s=patience_s, notify=tell)
    except LaunchFailed as problem:
        raise AnswerIsNo(problem.message, hint=problem.hint) from None
    told = {"run": str(run.path), "notes": calibration.notes, "unseen": calibration.unseen}
    print_result(json, calibration_summary(calibration) | told, lambda: _show_measured(calibration))
    return 0


def _show_measured(calibration: "Calibration") -> None:
    """What the measurement says of the whole model."""
    from moebox.cli.calibrations import step_table
    from moebox.report.calibration import full_depth

    stdout_console().print(step_table(calibration))
    stdout_console().print(f"\n{full_depth(calibration).text}", markup=False)
    for line in calibration.unseen:
        stdout_console().print(f"  not seen: {line}", markup=False)
    stdout_console().print(f"kept as {calibration.id}; plan and forecast use it", markup=False, soft_wrap=True)
