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

# Commands with subcommands: name -> help.
GROUPS: dict[str, str] = {
    "runs": "List runs, show one, or delete some.",
    "bench": "Measure throughput and latency, and report if the client was the limit.",
    "models": "List, show, search and add models: catalogue, Hub or path.",
    "calibrations": "List, show, share and remove what `rehearse --measure` timed on this box.",
    "doctor": "Find problems of the machine, in a log, or in an engine's kernels or package.",
    "engines": "List, install and remove versions of engines.",
    "upgrade": "Judge another version or setting, switch to it, return, or bisect.",
}

# name -> ("module:function", help). "doctor box" is the subcommand `box` of `doctor`; the entry of a group is what runs
# without a subcommand.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("moebox.cli.run:run", "Plan, start, verify, climb, measure and report, in one command."),
    "runs": ("moebox.cli.runs:runs", ""),
    "runs show": ("moebox.cli.runs:show", "Show one run: what it is, how it went, what is missing."),
    "runs history": ("moebox.cli.runs:history", "Show what ran of a recipe, on which version, how well."),
    "runs rm": ("moebox.cli.runs:rm", "Delete runs."),
    "report": ("moebox.cli.runs:report", "Write the report of one run, or of several side by side."),
    "ui": ("moebox.web.command:ui", "Open a local page: plan, start, follow, chat, tune, compare."),
    "completion": ("moebox.cli.completion:completion", "Print shell completion for bash, zsh or fish."),
    "pack": ("moebox.cli.runs:pack", "Put runs into a folder or archive to publish."),
    "box": ("moebox.cli.box:box", "Show this machine, or a described one."),
    "models": ("moebox.cli.models:models", ""),
    "models show": ("moebox.cli.models:show", "Show one model, by name, repository or path."),
    "models add": ("moebox.cli.models:add", "Read a repository of the Hub and keep its row."),
    "models search": ("moebox.cli.models:search", "Search the Hub."),
    "fetch": ("moebox.cli.fetch:fetch", "Download what a recipe needs, and verify every byte."),
    "plan": ("moebox.cli.plan:plan", "Find what fits, how, and how fast."),
    "forecast": ("moebox.cli.forecast:forecast", "Forecast speed by concurrency and context, in virtual time."),
    "rehearse": ("moebox.cli.rehearse:rehearse", "Boot the real engine with few layers and dummy weights."),
    "calibrations": ("moebox.cli.rehearse:calibrations", ""),
    "calibrations show": ("moebox.cli.rehearse:show", "Show one, and what it means for the whole model."),
    "calibrations remove": ("moebox.cli.rehearse:remove", "Remove one; forecasts use fitted constants again."),
    "calibrations export": ("moebox.cli.rehearse:export", "Write one to a file, for other users of the same box."),
    "calibrations import": ("moebox.cli.rehearse:import_", "Read one from a file."),
    "twin": ("moebox.cli.twin:twin", "Serve a simulation of a box you do not own, in real time."),
    "recipes": ("moebox.cli.recipes:recipes", "List recipes: shipped, saved, of runs; and how each did."),
    "up": ("moebox.cli.up:up", "Start a recipe's engine and wait until it answers."),
    "switch": ("moebox.cli.twin:switch", "Serve several models at one address, as many at a time as fit."),
    "ps": ("moebox.cli.ps:ps", "List the engines that moebox started."),
    "logs": ("moebox.cli.ps:logs", "Print or follow an engine's log."),
    "down": ("moebox.cli.ps:down", "Stop an engine and everything it started."),
    "doctor box": ("moebox.cli.doctor:box", "Check this machine before an engine is started."),
    "doctor engine": ("moebox.cli.doctor:engine", "Check that an engine's package has what moebox needs."),
    "doctor logs": ("moebox.cli.doctor:logs", "Find the cause of a failure in an engine's log, and how to fix it."),
    "engines": ("moebox.cli.engines:engines", ""),
    "engines install": ("moebox.cli.engines:install", "Install a version beside those that are there."),
    "engines remove": ("moebox.cli.engines:remove", "Remove a version that moebox installed."),
    "climb": ("moebox.cli.climb:climb", "Try one setting at a time; keep what is verified and better."),
    "tune": ("moebox.cli.climb:tune", "Search the engine's settings for the fastest that answer correctly."),
    "upgrade": ("moebox.cli.engines:upgrade", ""),
    "upgrade apply": ("moebox.cli.engines:apply", "Judge a change, and switch to it if it is as good."),
    "upgrade rollback": ("moebox.cli.engines:rollback", "Return from the last applied upgrade."),
    "upgrade bisect": ("moebox.cli.engines:bisect", "Find the first bad version between a good and a bad one."),
    "compare": ("moebox.cli.compare:compare", "Compare two recipes or servers: correctness and speed."),
    "bench": ("moebox.cli.bench:bench", ""),
    "bench import": ("moebox.cli.bench:import_", "Read results of vLLM's, SGLang's and other benchmarks."),
    "task": ("moebox.cli.task:task", "Let an agent do coding jobs with tools in a sandbox, and score them."),
    "verify": ("moebox.cli.verify:verify", "Check that a server answers correctly: 22 correctness checks."),
    "quality": ("moebox.cli.verify:quality", "Measure how far a server's model is from a reference."),
    "watch": ("moebox.cli.watch:watch", "Watch an endpoint live: charts, alerts, regular checks."),
    "render": ("moebox.cli.render:render", "Write a recipe as a file that runs without moebox."),
    "connect": ("moebox.cli.connect:connect", "Point Claude Code, Zed, opencode or an SDK at a live endpoint."),
}
# The overview: section -> commands.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start here": ("run", "ui"),
    "Plan": ("plan", "forecast", "box", "models", "recipes", "fetch", "twin", "rehearse", "calibrations"),
    "Serve": ("doctor", "up", "switch", "ps", "logs", "down", "engines", "render", "connect", "watch"),
    "Prove": ("verify", "quality", "climb", "tune", "upgrade", "compare", "bench", "task"),
    "Show": ("runs", "report", "pack"),
}
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
            taken = sorted(COMMANDS.keys() & package.COMMANDS.keys())
            if taken:
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
    from moebox.cli.app import call_command

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
