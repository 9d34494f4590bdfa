"""The command line: one file per command, imported only when it is called.

A command parses its flags, calls a function of a lower package, and shows the result. Errors become one line here.
"""

import atexit
import errno
import gc
import glob
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import metadata

from moebox import __version__
from moebox.data import load_table
from moebox.errors import (
    IMPORT_ERRORS,
    INTERRUPTED,
    BadInput,
    ExternalError,
    MoeboxError,
    exhausted_limit,
    is_interrupt,
)
from moebox.escape import escape_invisible, printable_line, spell_out_unprintable
from moebox.redact import hide_known_keys

_ROWS = load_table("commands")
# name -> ("module:function", help)
COMMANDS: dict[str, tuple[str, str]] = {
    name: (f"moebox.{target}", about) for rows in _ROWS.values() for name, (target, about) in rows.items() if target
}
# Commands with subcommands: name -> help.
GROUPS: dict[str, str] = {
    name: rows[name][1] for rows in _ROWS.values() for name in rows if any(each.startswith(f"{name} ") for each in rows)
}
# The overview: section -> commands.
SECTIONS = {title: tuple(name for name in rows if " " not in name) for title, rows in _ROWS.items() if title != "More"}
PLUGINS = "moebox.commands"  # entry points of packages that have COMMANDS, and GROUPS and SECTIONS if they need them
MAX_WIDTH, NAME_WIDTH = 100, 16
ABOUT = """from your box and a model to a checked, measured endpoint
  moebox plan MODEL   what fits on this machine, and how fast; --box for another
  moebox run MODEL    plan, start, verify, climb, measure and report
  moebox ui           the same on a local page
  moebox --help       all commands; `moebox models` lists models"""
END = """
`moebox help` has a sentence on each, `moebox COMMAND --help` explains one.
--json prints one document for scripts, --runs FOLDER uses another folder of
runs, --plain has no colour and live views, --debug prints tracebacks. Exit
codes: 0 good, 1 the answer is no, 2 bad input, 3 outside failure, 130 Ctrl-C."""


def add_plugins() -> list[str]:
    """Add the commands of other packages to the tables; return why some were left out."""
    problems = []
    for point in sorted(metadata.entry_points(group=PLUGINS)):
        try:
            package = point.load()
            if taken := sorted(COMMANDS.keys() & package.COMMANDS.keys()):
                raise ImportError(f"moebox has `{taken[0]}` already")
            COMMANDS.update(package.COMMANDS)
            GROUPS.update(getattr(package, "GROUPS", {}))
            for section, names in getattr(package, "SECTIONS", {}).items():
                SECTIONS[section] = (*SECTIONS.get(section, ()), *names)
        except IMPORT_ERRORS as problem:
            problems.append(f"commands of {point.value} are left out: {type(problem).__name__}: {problem}")
    return problems


PLUGIN_PROBLEMS = add_plugins()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(200_000)  # collecting while modules load and plans are rated costs 7 % of a `plan`, 3 % at 50,000
    atexit.register(gc.freeze)  # and looking for cycles in all that was loaded, when the process ends, 10 %
    for stream in (sys.stdout, sys.stderr):
        spell_out_unprintable(stream)
    code = 0
    try:
        if not words:
            print(start_text())
        elif words in (["--help"], ["-h"], ["help"]):
            print(overview_text(sentences=words == ["help"]))
        elif words[0] == "--complete":
            from moebox.cli.completion import complete

            print("\n".join(complete(words[1:])))
        else:
            code = _run_command(words)
        if sys.stdout:  # None after `>&-`
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as problem:
        # Files that commands write name themselves in their errors; what is left is standard output
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) or problem.filename:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest when it exits
        print(f"error: standard output cannot be written: {problem.strerror}", file=sys.stderr)
        return ExternalError.exit_code


def _run_command(words: list[str]) -> int:
    """Run a command; an error is one line and a hint, or a traceback with --debug."""
    if "--plain" in words:
        os.environ |= {"NO_COLOR": "1", "TERM": "dumb"}
    words = ["watch", *words[1:]] if words[0] == "top" else words  # what users of other tools type
    debug = "--debug" in words
    words, folder, home = [*words], "", os.environ.get("MOEBOX_RUNS")
    if "--runs" in words[:-1]:
        place = words.index("--runs")
        folder, words[place : place + 2] = words[place + 1], []
        os.environ["MOEBOX_RUNS"] = folder
    try:
        from moebox.cli.app import call_command  # here, so that Ctrl-C while it loads is an interrupt too

        return call_command([word for word in words if word not in ("--debug", "--plain")])
    except MoeboxError as problem:
        if debug:
            raise
        print(f"error: {printable_line(hide_known_keys(problem.message))}", file=sys.stderr)
        if problem.hint:
            print(f"\nhint: {escape_invisible(hide_known_keys(problem.hint))}", file=sys.stderr)
        return problem.exit_code
    except (KeyboardInterrupt, RuntimeError) as interrupt:
        if debug or not is_interrupt(interrupt):
            raise
        # After an interrupt inside exec() of a text (a dataclass being made) `python -m` ends by SIGINT, whatever its
        # exit code is; another exec() resets that.
        exec("")  # noqa: S102
        message = f"; {interrupt}" if interrupt.args and isinstance(interrupt, KeyboardInterrupt) else ""
        print(f"interrupted{message}", file=sys.stderr)
        return INTERRUPTED
    except (OSError, MemoryError) as problem:
        limit, is_long = exhausted_limit(problem), getattr(problem, "errno", 0) == errno.ENAMETOOLONG
        if debug or not (limit or is_long):
            raise
        if is_long:
            print("error: an argument is too long for the name of a file, a run or a recipe", file=sys.stderr)
            return BadInput.exit_code
        print(f"error: this machine's limits are too low: {limit}", file=sys.stderr)
        return ExternalError.exit_code
    finally:
        if folder:
            os.environ.pop("MOEBOX_RUNS") if home is None else os.environ.update(MOEBOX_RUNS=home)
        registry = sys.modules.get("moebox.core.registry")
        for failure in (*PLUGIN_PROBLEMS, *(registry.load_problems() if registry else ())):
            print(f"warning: {printable_line(str(failure))}", file=sys.stderr)


def subcommands(group: str) -> list[str]:
    return [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{group} ")]


def section_of(command: str) -> str:
    """Return the section of a command in the overview; "More" if no section lists it."""
    return next((title for title, names in SECTIONS.items() if command in names), "More")


def start_text() -> str:
    """Return what `moebox` alone prints: the first commands, and which to type now on this machine."""
    gpus = len(glob.glob("/dev/nvidia[0-9]*"))  # a device file of the driver for each GPU
    amd = not gpus and os.path.exists("/dev/kfd")  # AMD's driver has one for all GPUs
    if gpus or amd:
        found = "AMD GPUs" if amd else f"{gpus} NVIDIA GPU{'s' * (gpus > 1)}"
        now = [f"now, on this machine with {found}: moebox doctor box"]
        now.append("  finds problems of the machine before an engine is started; then plan a model")
    else:
        now = ["now, on this machine without a GPU: moebox run"]
        now.append("  goes through every step with a small model that comes with moebox")
    return "\n".join([f"moebox {__version__}: {ABOUT}", "", *now])


def overview_text(*, sentences: bool) -> str:
    """Return all commands by section, on one screen or with a sentence on each; nothing else is loaded for it."""
    width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    about = {name: sentence for name, (_, sentence) in COMMANDS.items() if " " not in name} | GROUPS
    rest = tuple(name for name in about if section_of(name) == "More")
    lines = [f"moebox {__version__}: {ABOUT}", ""]
    for title, names in {**SECTIONS, "More": rest}.items():
        if not sentences:
            lines += textwrap.wrap(f"{title + ':':<12}{', '.join(names)}", 80, subsequent_indent=" " * 12)
            continue
        lines += ["", title]
        for name in names:
            first, *more = textwrap.wrap(about[name], width - NAME_WIDTH) or [""]
            lines += [f"  {name:<{NAME_WIDTH - 2}}{first}", *(" " * NAME_WIDTH + line for line in more)]
    return "\n".join([*lines, END])
