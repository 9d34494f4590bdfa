"""The pipeline as it is told: a ladder of steps with their state, the figures as they come, and the time left."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from moebox.cli.drawn import LiveDisplay
from moebox.cli.output import stderr_console, stdout_console
from moebox.core.pipeline import Pipeline, PipelineStep, display_state
from moebox.flows.pipeline import REPORT, time_left_text
from moebox.store import Run
from moebox.units import format_count, format_seconds, format_tok_s

if TYPE_CHECKING:
    from moebox.core.verdict import CheckVerdict
    from moebox.flows.run import Runner
    from moebox.flows.walk import ClimbTrial
    from moebox.serve.session import EngineSession

_MARKS = {"waiting": "·", "done": "✓", "failed": "✗", "skipped": "–"}
_STYLES = {"waiting": "dim", "done": "green", "failed": "bold red", "skipped": "dim", "running": "bold"}
_ABOUT = {
    "plan": "what fits, how, how fast",
    "doctor": "known problems of this machine",
    "rehearse": "boot with dummy weights, time its steps",
    "up": "start the engine",
    "verify": "correctness checks",
    "climb": "try one setting at a time, keep what is better",
    "bench": "measure throughput and latency",
    "task": "coding jobs with tools, scored",
    "report": "writing report.html",
}


_CHECK_MARKS = {"pass": "✓", "warn": "!", "fail": "✗", "skip": "–"}


class RunView(LiveDisplay):
    """Hears the pipeline and draws it: live on a terminal, a line a step elsewhere."""

    def __init__(
        self, pipeline: Pipeline, run: Run, expected: dict[str, float], *, now: Callable[[], float], quiet: bool
    ) -> None:
        self.run, self.expected, self.now, self.quiet = run, expected, now, quiet
        self.steps = {step.name: step for step in pipeline.steps}
        self.request, self.simulated = pipeline.request, pipeline.simulated
        self.started: dict[str, float] = {}
        self.lines: list[str] = []  # of the running step
        self.spinner = Spinner("dots")

    def __enter__(self) -> "RunView":
        if not self.quiet and stdout_console().is_terminal:
            self.live = Live(self, console=stdout_console(), refresh_per_second=8, transient=True)
            self.live.__enter__()
        elif not self.quiet:
            stderr_console().print(f"run {self.run.path}", soft_wrap=True)
        return self

    def leave(self) -> None:
        """Every step as it ended."""
        stdout_console().print(self.step_table())

    def __rich__(self) -> RenderableType:
        return self.step_table()

    def handle_event(self, kind: str, what: Any) -> None:
        """One piece of news."""
        if kind == "step":
            self._step(what)
        else:
            self.lines.append(_NEWS.get(kind, str)(what))
        if not self.live and not self.quiet:
            self._print(kind, what)

    def _step(self, step: PipelineStep) -> None:
        """A step began or ended."""
        self.steps[step.name] = step
        self.lines = []
        if step.state == "running":
            self.started[step.name] = self.now()

    def _print(self, kind: str, what: Any) -> None:
        if kind != "step":
            stdout_console().print(f"    {escape(self.lines[-1])}", soft_wrap=True)
        elif what.state == "running":
            stdout_console().print(f"{what.name}: {_ABOUT[what.name]}")
        else:
            stdout_console().print(
                f"{_MARKS[display_state(what.state, what.figures)]} {what.name} {escape(self._told(what))}",
                soft_wrap=True,
            )

    def step_table(self) -> RenderableType:
        """Every step in its state."""
        table = Table.grid(padding=(0, 1))
        for width in (2, 9):
            table.add_column(no_wrap=True, min_width=width)
        table.add_column(overflow="fold")
        for name in self.request.wanted_steps:
            step = self.steps[name]
            if step.state == "running":
                table.add_row(self.spinner, Text(name, style="bold"), self._running(name))
            else:
                state = display_state(step.state, step.figures)
                style = _STYLES[state]
                table.add_row(
                    Text(_MARKS[state], style=style),
                    Text(name, style=style),
                    Text(self._told(step), style=style),
                )
        head = Text(f"{'SIMULATION  ' if self.simulated else ''}run {self.run.id}", style="bold")
        left = self.time_left_text()
        return Group(head, Text(), table, Text(), Text(left, style="dim")) if left else Group(head, Text(), table)

    def _running(self, name: str) -> RenderableType:
        past = format_seconds(self.now() - self.started.get(name, self.now()))
        lines = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in self.lines[-14:]]
        return Group(Text(f"{_ABOUT[name]} ({past})"), *lines)

    def _told(self, step: PipelineStep) -> str:
        if step.state == "waiting":
            return _ABOUT[step.name]
        if step.state in ("skipped", "failed"):
            return step.why
        shown = {name.replace("_", " "): value for name, value in step.figures.items() if name != "report"}
        figures = ", ".join(f"{name} {_figure(value)}" for name, value in shown.items())
        return f"{format_seconds(step.seconds)}{'  ' + figures if figures else ''}"

    def time_left_text(self) -> str:
        """How long it will still take, going by earlier runs; "" when nobody knows."""
        past_s = self.now() - max(self.started.values(), default=self.now())
        return time_left_text(self.steps.values(), self.request, self.expected, past_s=past_s)

    def print_summary(self, pipeline: Pipeline, runner: "Runner") -> None:
        """The four answers, where the files are, and how to reach or start the endpoint."""
        from moebox.cli import decision_view
        from moebox.report.decision import decide_run

        stdout_console().print()
        decision_view.print_decision(decide_run(self.run))
        if pipeline.step("report").state == "done":
            stdout_console().print(f"\nreport    {escape(str(self.run.path / REPORT))}", soft_wrap=True)
        stdout_console().print(f"recipe    {escape(str(self.run.path / 'recipe.toml'))}", soft_wrap=True)
        if not self.simulated:
            _tell_endpoint(runner.engine.live)


def _tell_endpoint(live: "EngineSession | None") -> None:
    """How to reach the engine that was left up, or how to leave it so."""
    if live is not None and live.is_alive:
        stdout_console().print(f"endpoint  {live.endpoint.base_url}  model {escape(live.endpoint.model)}")
        stdout_console().print("connect   moebox connect claude-code | zed | opencode | openai | curl")
        stdout_console().print(f"stop      moebox down {live.instance.id}")
    else:
        stdout_console().print("keep      `moebox run --keep` leaves the engine up at the end")


def _rung(check: "CheckVerdict") -> str:
    return f"{_CHECK_MARKS[check.verdict]} {check.name} {check.reason}".rstrip()


def _trial(trial: "ClimbTrial") -> str:
    kept = "kept" if trial.kept else "dropped"
    return f"{trial.change}: {format_tok_s(trial.output_tok_s)}, {kept} ({trial.why})"


_NEWS: dict[str, Callable[[Any], str]] = {"check": _rung, "trial": _trial}  # anything else is a line already


def _figure(value: Any) -> str:
    return format_count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
