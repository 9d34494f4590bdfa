"""The command line: one small file per command, loaded only when it is called.

Each command parses, calls one function below it, and shows the result. Errors become one line here.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from moebox.errors import INTERRUPTED, BadInput, MoeboxError, UnknownName
from moebox.escape import escape_invisible, printable_line
from moebox.redact import hide_known_keys

if TYPE_CHECKING:
    from cyclopts import CycloptsError
    from cyclopts.argument import Argument

NUMBER_KINDS: dict[object, str] = {int: "a whole number", float: "a number"}

# Commands with subcommands: name -> help.
GROUPS: dict[str, str] = {
    "runs": "List runs, show one, or delete some.",
    "bench": "Measure throughput and latency, and say where the client was the limit.",
    "models": "List the models that moebox knows; `models show` shows one, by name or path.",
    "calibrations": "List, show, share and remove what `rehearse --measure` timed on this box.",
    "fleet": "Plan, render, start, verify and measure several boxes behind a router.",
    "doctor": "Find out what is wrong with the machine, a log or an engine's kernels.",
}

# name -> ("module:function", help). A command stands here once it works; "doctor box" is `box` of the group `doctor`,
# and a group's own name is what it does when called bare.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("moebox.cli.run:run", "Plan, start, verify, climb, measure and report, in one command."),
    "doctor kernels": ("moebox.cli.kernels:kernels", "Find the kernels that will not launch, without a GPU."),
    "runs": ("moebox.cli.runs:runs", ""),
    "runs show": ("moebox.cli.runs:show", "Show one run: what it is, how it went, what is missing."),
    "runs rm": ("moebox.cli.runs:rm", "Delete runs for good."),
    "report": ("moebox.cli.report:report", "Write the report of one run, or of several side by side."),
    "ui": ("moebox.web.command:ui", "Open a local page: plan, start and follow runs, chat, compare."),
    "completion": ("moebox.cli.completion:completion", "Print shell completion for bash, zsh or fish."),
    "pack": ("moebox.cli.pack:pack", "Put runs into a folder or archive to publish."),
    "box": ("moebox.cli.box:box", "Show this machine, or a described one."),
    "models": ("moebox.cli.models:models", ""),
    "models show": ("moebox.cli.models:show", "Show one model, by name or path."),
    "plan": ("moebox.cli.plan:plan", "Find what fits, how, and how fast."),
    "forecast": ("moebox.cli.forecast:forecast", "Forecast speed by concurrency and context, in virtual time."),
    "rehearse": ("moebox.cli.rehearse:rehearse", "Boot the real engine with few layers and dummy weights."),
    "calibrations": ("moebox.cli.calibrations:calibrations", ""),
    "calibrations show": (
        "moebox.cli.calibrations:show",
        "Show what one measured, and what that means for the whole model.",
    ),
    "calibrations remove": ("moebox.cli.calibrations:remove", "Remove one; forecasts go back to fitted constants."),
    "calibrations export": ("moebox.cli.calibrations:export", "Write one to a file, for others with the same box."),
    "calibrations import": ("moebox.cli.calibrations:import_", "Read one from a file."),
    "twin": ("moebox.cli.twin:twin", "Serve a simulation of a box you do not own, in real time."),
    "up": ("moebox.cli.up:up", "Start a recipe's engine and wait until it answers."),
    "ps": ("moebox.cli.ps:ps", "List the engines that moebox started."),
    "logs": ("moebox.cli.logs:logs", "Print or follow an engine's log."),
    "down": ("moebox.cli.down:down", "Stop an engine and everything it started."),
    "doctor box": ("moebox.cli.doctor:box", "Check this machine before an engine is started on it."),
    "doctor logs": ("moebox.cli.doctor:logs", "Find the cause of a failure in an engine's log, and its remedy."),
    "climb": ("moebox.cli.climb:climb", "Try one setting at a time; keep what is verified and better."),
    "compare": ("moebox.cli.compare:compare", "Compare two recipes or servers: same answers, as right, faster?"),
    "bench": ("moebox.cli.bench:bench", ""),
    "bench import": ("moebox.cli.bench_import:import_", "Read results of vLLM's, SGLang's and other benchmarks."),
    "task": ("moebox.cli.task:task", "Let an agent do seeded coding jobs with tools in a sandbox, and score them."),
    "verify": ("moebox.cli.verify:verify", "Check that a server answers right: 18 correctness checks."),
    "fleet plan": ("moebox.cli.fleet:plan", "Find how many boxes, and which, serve a number of users."),
    "fleet render": ("moebox.cli.fleet:render", "Write router configuration, Compose, Kubernetes or Slurm files."),
    "fleet up": ("moebox.cli.fleet:up", "Start the members and the router in front of them."),
    "fleet ps": ("moebox.cli.fleet:ps", "List fleets and whether their members answer."),
    "fleet down": ("moebox.cli.fleet:down", "Stop a fleet."),
    "fleet verify": ("moebox.cli.fleet:verify", "Check answers through the router; kill a member under load."),
    "fleet bench": ("moebox.cli.fleet:bench", "Measure scaling, and what the router costs."),
    "watch": ("moebox.cli.watch:watch", "Watch an endpoint live: charts, alerts, a check now and then."),
    "render": ("moebox.cli.render:render", "Write a recipe as a file that needs no moebox to run."),
    "connect": ("moebox.cli.connect:connect", "Point Claude Code, Zed, opencode or an SDK at a live endpoint."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a console script passes it to sys.exit."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return print_overview() if _asks_nothing(words) else _command(words)
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _asks_nothing(words: Sequence[str]) -> bool:
    return not words or list(words) in (["--help"], ["-h"], ["help"])


def _command(words: list[str]) -> int:
    if words[0] == "--complete":
        from moebox.cli.completion import complete

        print("\n".join(complete(words[1:])))
        return 0
    if "--plain" in words:
        os.environ |= {"NO_COLOR": "1", "TERM": "dumb"}
    asked = [word for word in words if word not in ("--debug", "--plain")]
    try:
        return _called(asked) if "--debug" in words else _quietly(asked)
    finally:
        print_engine_problems()


def _quietly(words: list[str]) -> int:
    """The exit code; what goes wrong is one line, not a traceback."""
    try:
        return _called(words)
    except MoeboxError as problem:
        print_error(problem)
        return problem.exit_code
    except KeyboardInterrupt as interrupt:
        print(f"interrupted{f'; {interrupt}' if interrupt.args else ''}", file=sys.stderr)
        return INTERRUPTED


def _called(words: list[str]) -> int:
    """The command's exit code; BadInput for words that do not make one."""
    from cyclopts import CycloptsError

    from moebox.cli.app import build_app
    from moebox.cli.signals import signals_as_interrupt

    check_command(words)
    app = build_app(tuple(word for word in words if not word.startswith("-")))
    try:
        with signals_as_interrupt(words):
            code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as problem:
        hint = "`--help` after the command shows what it takes"
        raise BadInput(usage_error(problem), hint=hint) from None
    return code if isinstance(code, int) else 0


def check_command(words: Sequence[str]) -> None:
    """UnknownName for a command that does not exist; options, and what a command does with its words, come later."""
    first, second = (*words, "", "")[:2]
    known = {name.partition(" ")[0] for name in COMMANDS}
    if not first.startswith("-") and first not in known:
        raise UnknownName("command", first, known)
    bare = first in COMMANDS or second.startswith("-")
    if first in GROUPS and not bare and second not in ("", *subcommands(first)):
        raise UnknownName(f"{first} command", second, subcommands(first))


def subcommands(group: str) -> list[str]:
    """The commands of a group."""
    return [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{group} ")]


def usage_error(problem: "CycloptsError") -> str:
    """One line for words that do not make a command; an argument that has a place is called by it, as in the usage."""
    from cyclopts import CoercionError, MissingArgumentError, UnusedCliTokensError

    argument = problem.argument
    if isinstance(problem, UnusedCliTokensError) and problem.unused_tokens:
        return f"{' '.join(problem.unused_tokens)!r} is one argument too many"
    if isinstance(problem, CoercionError) and problem.token and argument:
        return _wrong_value_text(problem.token.keyword or _argument_name(argument), problem.token.value, argument.hint)
    if isinstance(problem, MissingArgumentError) and argument:
        return f"{problem.keyword} needs a value" if problem.keyword else f"{_argument_name(argument)} is missing"
    return " ".join(str(problem).split())


def _argument_name(argument: "Argument") -> str:
    """MODEL for an argument that has a place, --box for an option."""
    field = argument.field_info
    return field.name.upper() if field.is_positional else argument.name


def _wrong_value_text(flag: str, value: str, kind: object) -> str:
    """What such a flag takes instead."""
    kinds = [kind, *get_args(kind)]
    choices = [str(choice) for each in kinds if get_origin(each) is Literal for choice in get_args(each)]
    if choices:
        return f"{flag} {value!r}: choose {', '.join(choices[:-1])} or {choices[-1]}"
    wanted = next((words for each, words in NUMBER_KINDS.items() if each in kinds), "a value of another kind")
    return f"{flag} {value!r}: must be {wanted}"


def print_engine_problems() -> None:
    """One line for each engine of another package that was left out, if engines were asked for at all."""
    module = sys.modules.get("moebox.core.registry")
    for problem in module.load_problems() if module else ():
        print(f"warning: {printable_line(str(problem))}", file=sys.stderr)


def print_overview() -> int:
    """Every command, grouped; nothing else is loaded for it."""
    from moebox import __version__
    from moebox.cli.overview import overview_text

    about = {name: sentence for name, (_, sentence) in COMMANDS.items() if " " not in name}
    print(overview_text(about | GROUPS, __version__))
    return 0


def print_error(problem: MoeboxError) -> None:
    """One line for the error, and one for how to fix it."""
    print(f"error: {printable_line(hide_known_keys(problem.message))}", file=sys.stderr)
    if problem.hint:
        print(f"\nhint: {escape_invisible(hide_known_keys(problem.hint))}", file=sys.stderr)
