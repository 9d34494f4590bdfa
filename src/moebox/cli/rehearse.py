"""`moebox rehearse`: boot the real engine with few layers and dummy weights."""

from moebox.checkpoint import deploy
from moebox.cli import flags
from moebox.cli.display import WaitingLine
from moebox.cli.flags import AsJson, Settings, Switch
from moebox.cli.output import print_lines, print_result, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.core.setting import split_settings
from moebox.errors import AnswerIsNo, refuse_if
from moebox.serve.where import NodeSettings
from moebox.units import format_seconds

DEFAULT_BUDGET = "10m"  # of --measure


def rehearse(
    recipe: str,
    *,
    layers: str = "",
    measure: Switch = False,
    budget: str = "",
    phantom: Switch = False,
    settings: Settings = (),
    json: AsJson = False,
) -> int:
    """Boot RECIPE's engine with its own flags, few layers and dummy weights; prompt it, decode, and stop it.

    Catches what breaks at start or at the first long prompt, before the weights are downloaded. Exits 1 if it breaks,
    with the cause.

    With --measure it boots with few and with more layers, times prompts and decode steps through the endpoint, and
    keeps a calibration for this box: plan and forecast use it from then on. `moebox calibrations` shows them.

    Args:
        recipe: A recipe file, or the name of one that ships with moebox.
        layers: How many layers to keep. Default: one of each kind. Two depths with --measure, such as 4,8.
        measure: Calibrate the forecast for this box.
        budget: Time limit of --measure. Default: 10m.
        phantom: Use the phantom's weights, which give meaningful answers, instead of dummy ones.
        settings: Another value of the recipe, such as runtime.kind=docker; or patience_s=15m, the longest time
            without progress while starting; repeatable.
    """
    from moebox.cli.calibrations import calibration_summary, step_table
    from moebox.cli.up import StartupPhases, known_problems
    from moebox.flows import recipes
    from moebox.flows import rehearse as flow
    from moebox.flows.calibrate import calibrate
    from moebox.report.calibration import full_depth
    from moebox.serve.faults import LaunchFailed
    from moebox.serve.order import require_engine
    from moebox.store import Run

    starting, others = split_settings(NodeSettings(), settings)
    chosen = recipes.load_recipe(recipe, others)
    budget_s = flags.parse_duration("--budget", budget or DEFAULT_BUDGET)
    words = flags.split_names(layers)
    wrong = f"--layers {layers}: must be a number of layers, or two with --measure, such as 4,8"
    refuse_if(not all(map(str.isdigit, words)), wrong)
    depths = flags.parse_numbers(words, int, lambda depth: depth > 0, not_numbers=wrong)
    refuse_if(measure and phantom, "--measure needs the real model's shapes; leave --phantom out")
    if not measure:
        flags.refuse_without("--measure", budget=budget)
    if phantom:
        flags.refuse_unused("--phantom has its own few layers", layers=layers)
    refuse_if(len(depths) > 1 and not measure, f"--layers {layers}: two depths are for --measure")
    deployment = deploy(chosen)
    require_engine(deployment)
    print_lines((f"warning: {problem.text_with_remedy}" for problem in known_problems(deployment)), stderr=True)
    run = Run.create(f"{'measure' if measure else 'rehearse'}-{chosen.name}")
    try:
        if measure:
            key = f"measure {chosen.engine} {chosen.model} {chosen.runtime.kind} {','.join(map(str, depths))}".rstrip()
            waiting = WaitingLine(f"measuring {chosen.name}", key, limit_s=budget_s)
            with interrupt_message(f"what was measured is in {run.path}"), waiting:
                calibration = calibrate(
                    chosen,
                    run,
                    layers=depths,
                    budget_s=budget_s,
                    patience_s=starting.patience_s,
                    notify=lambda line: print_lines([line], stderr=True),
                )
        else:
            kept = depths[0] if depths else 0
            with StartupPhases(f"rehearse {chosen.engine} {chosen.model} {kept or ''} {phantom}") as phases:
                rehearsal = flow.rehearse(
                    deploy(chosen), run, layers=kept, phantom=phantom, patience_s=starting.patience_s, listener=phases
                )
    except LaunchFailed as problem:
        raise AnswerIsNo(problem.message, hint=problem.hint) from None
    if measure:
        more = {"run": str(run.path), "notes": calibration.notes, "unseen": calibration.unseen}
        lines = [f"\n{full_depth(calibration).text}", *(f"  not measured: {line}" for line in calibration.unseen)]
        lines.append(f"kept as {calibration.id}; plan and forecast use it")

        def show() -> None:
            stdout_console().print(step_table(calibration))
            print_lines(lines)

        return print_result(json, calibration_summary(calibration) | more, show)
    about = {"recipe": chosen.name, "engine": chosen.engine, "layers": rehearsal.layers, "verdict": "pass"}
    about |= {"steps": rehearsal.steps, "facts": rehearsal.facts, "not_rehearsed": rehearsal.not_rehearsed}
    lines = []
    for step in rehearsal.steps:
        took = format_seconds(step.seconds) if step.seconds else ""
        lines.append(f"✓ {step.name:<12} {step.detail}  {took}".rstrip())
    lines += ["\nnot rehearsed:", *(f"  {note}" for note in rehearsal.not_rehearsed)]
    return print_result(json, {**about, "run": str(run.path)}, lambda: print_lines(lines))
