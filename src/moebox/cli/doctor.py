"""`moebox doctor`: check the machine or an engine's package, and find the cause of a failure in an engine's log."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

from moebox import codec, detect
from moebox.checkpoint import deploy
from moebox.cli import flags
from moebox.cli.display import VERDICT_MARKS, make_grid
from moebox.cli.flags import AsJson, Switch
from moebox.cli.output import Part, print_parts, print_result, stderr_console
from moebox.core import registry
from moebox.core.plan import PlanWarning
from moebox.core.recipe import EngineName, Recipe
from moebox.core.validation import read_recipe
from moebox.doctor.box import HostCheck, check_box, check_this_machine, compare_boxes
from moebox.doctor.logs import LogSearch, feed_file, search_file
from moebox.engines.package_check import PackageCheck, check_package
from moebox.engines.support import support_warnings
from moebox.errors import MoeboxError, refuse_if, require_known
from moebox.serve.state import state_dir
from moebox.site import read_site
from moebox.store import Run, plain, runs_dir
from moebox.store.calibrations import calibrations_dir
from moebox.store.log import log_pieces
from moebox.units import parse_size, plural

Checks: TypeAlias = Sequence[HostCheck | PackageCheck]
_MARKS = VERDICT_MARKS | {"unknown": ("?", "dim"), "note": ("·", "dim")}


def logs(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    engine: EngineName | None = None,
    every: Switch = False,
    json: AsJson = False,
) -> int:
    """Search an engine's log for known failures; the first cause comes first, with its remedy.

    Exits 1 if a cause of failure is found or the log ends with an error, 0 if not.

    Args:
        file: A log file, "-" for standard input, or a run by folder or name; latest is the newest one.
        engine: Look only for this engine's symptoms.
        every: Show notes and consequences too.
    """
    known: list[PlanWarning] = []
    if engine:
        require_known("engine", engine, registry.engine_names())
    if not file.exists() and (str(file) == "latest" or (runs_dir() / file).is_dir()):
        file = Run.open(str(file)).path
    if file.is_dir():
        pieces = log_pieces(file / "engine.log")
        refuse_if(not pieces, f"{file}: has no engine.log")
        recipe, known = known_of_run(file)
        found = LogSearch(engine=engine or (recipe.engine if recipe else ""), recipe=recipe)
        for piece in pieces:
            plain.refuse_unusual(piece)
            feed_file(found, piece)
        found.finish()
    else:
        found = search_file(file, engine=engine or "")
    findings = found.findings.values()
    document = {
        "lines": found.lines,
        "cause": found.cause,
        "first_exception": {"text": found.exception, "line": found.exception_line} if found.exception else None,
        "findings": [{**codec.to_plain(finding), "count": found.counts[finding.symptom]} for finding in findings],
        "known_of_setup": known,
    }
    lines = search_lines(found, every=every)
    for warning in known:
        lines += [f"\nknown of this setup: {warning.text}", *[f"  remedy: {warning.remedy}"] * bool(warning.remedy)]
        lines.append(f"  source: {warning.source}")
    good = not (found.cause or found.exception or found.ends_with_error)
    return print_result(json, document, lambda: print_parts(*lines), good=good)


def known_of_run(folder: Path) -> tuple[Recipe | None, list[PlanWarning]]:
    """The recipe of a run folder, and what the support matrix knows of it on that run's box."""
    if not (folder / "recipe.toml").is_file():
        return None, []
    try:
        recipe = read_recipe(folder / "recipe.toml")
        deployment = deploy(recipe)
        if (folder / "box.toml").is_file():
            deployment = deployment.on_box(detect.load_box(str(folder / "box.toml")))
        return recipe, [warning for warning in support_warnings(deployment) if warning.severity != "note"]
    except MoeboxError:  # of another version of moebox, or weights that are gone: the log is read without it
        return None, []


def search_lines(found: LogSearch, *, every: bool) -> list[str]:
    """Return the cause with its remedy, then the other findings in the order of the log."""
    cause = found.cause
    shown = [("cause", cause)] if cause else []
    if shown:
        lines = []
    elif found.exception:
        lines = [f"no known symptom; the first exception is on line {found.exception_line}:", f"  {found.exception}"]
    elif found.complaint:
        lines = ["no known symptom; the last error in it:", f"  {found.complaint}"]
    elif found.survived:
        lines = ["no failure: the server became ready or served after it wrote this error:", f"  {found.survived}"]
    else:
        lines = ["no known failure in it" if found.lines else "the log is empty"]
    others = [finding for finding in found.findings.values() if finding is not cause]
    every = every or not (cause or found.unknown_failure)  # what is harmless where something failed may be all there is
    shown += [(finding.severity, finding) for finding in others if every or finding.severity == "warning"]
    for title, finding in shown:
        lines += [f"{title}: {finding.cause}", f"  line {finding.line}: {finding.text}"]
        lines.append(f"  remedy: {finding.remedy}")
        lines += [f"  in the recipe: {finding.change_text}"] if finding.change else []
        lines.append(f"  source: {finding.source}  [{finding.symptom}]")
    return [*lines, f"{plural(found.lines, 'line')} read"]


def box(
    *, box: str | None = None, need: str = "", test: Switch = False, against: Path | None = None, json: AsJson = False
) -> int:
    """Check this machine before an engine is started on it, and show how to fix problems.

    Exits 1 if something is bound to fail.

    Args:
        box: Check a described or captured box instead; its host is checked if the file describes one.
        need: Disk space that a checkpoint will need, like 595GB.
        test: Test instead of reading settings: all-reduce, copies, load, errors, memory and disk; takes minutes.
        against: Name what changed since this capture: a folder of `moebox box --save`, or its box.toml.
    """
    size = flags.parse_value("--need", need, parse_size) if need else 0
    refuse_if(0 < size < 10**6, f"--need {need} is less than 1 MB", hint=f"write it like {need}GB")
    refuse_if(against and not against.exists(), f"--against {against}: no such file or folder")
    flags.refuse_unused("--test tests this machine", box=box if test else None)
    old = detect.load_box(str(against / "box.toml" if against.is_dir() else against)) if against else None
    place = detect.load_box(box)
    if place.host is None:
        flags.refuse_unused(f"{place.name} is described without a disk", need=need)
    read_site()  # a mistake in it is one line, here and wherever it is used
    if old:
        checks = compare_boxes(place, old)
    elif box:
        checks = check_box(place, need=size)
    else:
        checks = check_this_machine(place, need=size, folders=[runs_dir(), calibrations_dir(), state_dir()])
    if test:
        from moebox.flows.box_test import run_box_tests

        with stderr_console().status("testing this machine …") as status:
            checks += run_box_tests(place, on_step=lambda text: status.update(f"testing: {text} …"))
    counts = Counter(check.verdict for check in checks)
    summary = f"{len(checks)} checks: {counts['fail']} failed, {counts['warn']} with warnings"
    summary += f", {counts['unknown']} could not be made" * bool(counts["unknown"])
    return _print_checks({"box": place.name}, checks, checks, summary, json=json)


def _print_checks(about: dict[str, object], checks: Checks, shown: Checks, summary: str, *, json: bool) -> int:
    """Print a line for each of the checks `shown`, with what was expected and the fix below."""
    good = not any(check.verdict == "fail" for check in checks)

    def show() -> None:
        rows: list[list[Part]] = []
        for check in shown:
            rows.append([_MARKS[check.verdict], f"{check.name:<15}", check.found])
            if expected := getattr(check, "expected", ""):
                rows.append(["", "", (f"expected: {expected}", "dim")])
            rows += [["", "", check.fix]] if check.fix else []
        print_parts(summary, make_grid(rows, whole=2))

    return print_result(json, {**about, "checks": checks, "verdict": "pass" if good else "fail"}, show, good=good)


def engine(name: str, /, *, json: AsJson = False) -> int:
    """Check that an engine's package has what moebox needs, and name the optional parts that it leaves out.

    Exits 1 if something required is missing or fails.

    Args:
        name: The engine's name, as its entry point declares it.
    """
    checks = check_package(name)
    shown = [check for check in checks if check.verdict != "note" and check.found != "present"]
    if left_out := [check.name for check in checks if check.verdict == "note"]:
        text = f"at their defaults: {', '.join(left_out)}"
        shown.append(PackageCheck(name="optional parts", verdict="note", found=text))
    summary = f"{len(checks)} checks: {sum(check.verdict == 'fail' for check in checks)} failed"
    return _print_checks({"engine": name}, checks, shown, summary, json=json)
