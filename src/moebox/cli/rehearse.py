"""`moebox rehearse`: boot the real engine with few layers and dummy weights.

`moebox calibrations` lists, shows, removes, exports and imports what rehearsals measured.
"""

from dataclasses import replace
from pathlib import Path

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import flags
from moebox.cli.display import WaitingLine, make_group, make_table
from moebox.cli.flags import AsJson, Settings, Switch
from moebox.cli.output import Part, print_lines, print_note, print_parts, print_result
from moebox.cli.signals import interrupt_message
from moebox.core.calibration import Calibration
from moebox.core.setting import split_settings
from moebox.errors import AnswerIsNo, refuse_if
from moebox.loose import Document
from moebox.report.calibration import depths_text, error_text, full_depth, is_solved, step_times
from moebox.serve.where import NodeSettings
from moebox.store import Run
from moebox.store import calibrations as store
from moebox.units import format_count, format_gib, format_seconds

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
    from moebox.cli.up import StartupPhases, known_problems
    from moebox.flows import recipes
    from moebox.flows import rehearse as flow
    from moebox.flows.calibrate import calibrate
    from moebox.serve.faults import LaunchFailed
    from moebox.serve.order import require_engine

    starting, others = split_settings(NodeSettings(), settings)
    patience_s = starting.patience_s
    deployment = recipes.load_deployment(recipe, others)
    chosen = deployment.recipe
    budget_s = flags.parse_duration("--budget", budget or DEFAULT_BUDGET)
    depths = flags.parse_counts("--layers", layers, like="4,8")
    refuse_if(measure and phantom, "--measure needs the real model's shapes; leave --phantom out")
    if not measure:
        flags.refuse_without("--measure", budget=budget)
    if phantom:
        flags.refuse_unused("--phantom has its own few layers", layers=layers)
    refuse_if(len(depths) > 1 and not measure, f"--layers {layers}: two depths are for --measure")
    require_engine(deployment)
    print_lines(
        (f"{problem.severity}: {problem.text_with_remedy}" for problem in known_problems(deployment)), stderr=True
    )
    run = Run.create(f"{'measure' if measure else 'rehearse'}-{chosen.name}")
    try:
        if measure:
            key = f"measure {chosen.engine} {chosen.model} {chosen.runtime.kind} {','.join(map(str, depths))}".rstrip()
            waiting = WaitingLine(f"measuring {chosen.name}", key, limit_s=budget_s)
            with interrupt_message(f"what was measured is in {run.path}"), waiting:
                calibration = calibrate(
                    chosen, run, layers=depths, budget_s=budget_s, notify=print_note, patience_s=patience_s
                )
        else:
            kept = depths[0] if depths else 0
            with StartupPhases(f"rehearse {chosen.engine} {chosen.model} {kept or ''} {phantom}") as phases:
                rehearsal = flow.rehearse(
                    deploy(chosen), run, layers=kept, phantom=phantom, listener=phases, patience_s=patience_s
                )
    except LaunchFailed as problem:
        raise AnswerIsNo(problem.message, hint=problem.hint) from None
    if measure:
        more = {"run": str(run.path), "notes": calibration.notes, "unseen": calibration.unseen}
        lines = [f"\n{full_depth(calibration).text}", *(f"  not measured: {line}" for line in calibration.unseen)]
        lines.append(f"kept as {calibration.id}; plan and forecast use it")
        document = calibration_summary(calibration) | more
        return print_result(json, document, lambda: print_lines([step_table(calibration), *lines]))
    about = {"recipe": chosen.name, "engine": chosen.engine, "layers": rehearsal.layers, "verdict": "pass"}
    about |= {"steps": rehearsal.steps, "facts": rehearsal.facts, "not_rehearsed": rehearsal.not_rehearsed}
    lines = []
    for step in rehearsal.steps:
        took = format_seconds(step.seconds) if step.seconds else ""
        lines.append(f"✓ {step.name:<12} {step.detail}  {took}".rstrip())
    lines += ["\nnot rehearsed:", *(f"  {note}" for note in rehearsal.not_rehearsed)]
    return print_result(json, {**about, "run": str(run.path)}, lambda: print_lines(lines))


def calibrations(*, json: AsJson = False) -> int:
    """List the calibrations that plan and forecast use."""
    stored = store.stored_calibrations()

    def show() -> None:
        print_lines((f"warning: {line}" for line in stored.unreadable), stderr=True)
        rows = [
            (found.id, found.place.text, f"{found.layers} from {depths_text(found)}", error_text(found))
            for found in stored.calibrations
        ]
        heads = ("id", "box", "layers from", "error")
        table = make_table(heads, rows, wrapped=heads)
        print_parts(table if rows else "none yet: `moebox rehearse RECIPE --measure` makes one")

    document = {"calibrations": [*map(calibration_summary, stored.calibrations)], "unreadable": stored.unreadable}
    return print_result(json, document, show)


def show(name: str, *, json: AsJson = False) -> int:
    """Show what a calibration measured, and what that means for the whole model.

    Args:
        name: Its id, or the beginning of it.
    """
    found = store.find_calibration(name)
    return print_result(json, found, lambda: _print_calibration(found))


def _print_calibration(found: Calibration) -> None:
    lines: list[Part] = [found.id, f"  {found.model}, {found.quant}, {found.engine} {found.version}"]
    lines.append(f"  {found.place.text}; {found.layout.text}; measured {found.date}")
    for boot in found.boots:
        parts = [f"{boot.layers} layers", f"started in {format_seconds(boot.startup_s)}"]
        parts += [f"weights {format_gib(boot.weights_bytes)}"] if boot.weights_bytes else []
        parts += [f"cache {format_count(boot.cache_tokens)} tokens"] if boot.cache_tokens else []
        lines.append(f"  boot: {', '.join(parts)}")
    if is_solved(found):
        lines.append(step_table(found))
        if tokens := full_depth(found).cache_tokens:
            lines.append(f"  cache of {found.layers} layers: {format_count(tokens)} tokens")
    print_lines([*lines, *(f"  {line}" for line in found.notes), *(f"  not measured: {line}" for line in found.unseen)])


def remove(name: str, *, json: AsJson = False) -> int:
    """Remove a calibration; forecasts use constants fitted to published measurements again.

    Args:
        name: Its id, or the beginning of it.
    """
    removed = store.remove_calibration(name)
    return print_result(json, {"removed": removed}, lambda: print_note(f"removed {removed}"))


def export(name: str, path: Path, *, json: AsJson = False) -> int:
    """Write a calibration to a file for other users of the same box. It names no machine, path or user.

    Args:
        name: Its id, or the beginning of it.
        path: The file to write.
    """
    found = store.find_calibration(name)
    store.write_calibration(found, path)
    return print_result(json, {"exported": found.id, "path": str(path)}, lambda: print_note(f"wrote {path}"))


def import_(path: Path, *, json: AsJson = False) -> int:
    """Read a calibration from a file; it is used if box, engine, model shape and layout are the same.

    Args:
        path: A file that `moebox calibrations export` wrote.
    """
    found = store.read_calibration(path)
    unsolved = f"{path}: no two depths with a step in common"
    refuse_if(not is_solved(found), unsolved, hint="export it after a finished rehearsal")
    store.store_calibration(replace(found, imported=path.name))
    line = f"imported {found.id}: {found.place.text}, {found.layout.text}"
    return print_result(json, {"imported": found.id}, lambda: print_note(line))


def calibration_summary(calibration: Calibration) -> Document:
    """Return a calibration under the keys that scripts rely on."""
    reading = full_depth(calibration)
    names = ("id", "date", "engine", "version", "model", "quant", "layers", "depths", "imported")
    return {
        **codec.pick_fields(calibration, names),
        "box": calibration.place.text,
        "layout": calibration.layout.text,
        "error": round(reading.decode_error, 4) if reading.decode_times else None,
    }


def step_table(calibration: Calibration) -> Part:
    """Return the steps of the whole model at the measured loads."""
    rows = []
    for step in step_times(calibration):
        rate = f"{step.tok_s:,.1f}" if step.kind == "decode" else f"{step.tok_s:,.0f}"
        rows.append((step.kind, str(step.streams), format_count(step.tokens), format_seconds(step.seconds), rate))
    table = make_table(("", "streams", "context", "step", "tok/s"), rows, left_columns=("",))
    return make_group(f"{calibration.layers} layers", table)
