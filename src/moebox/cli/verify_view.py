"""What people see of a ladder: what runs now, each check as it is done, the slips with what they mean."""

import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from rich.markup import escape
from rich.status import Status

from moebox.cli.output import stderr_console, stdout_console
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Mark, Probe
from moebox.escape import one_line
from moebox.units import format_seconds
from moebox.verify.runner import CheckProgress
from moebox.verify.statistics import describe_failure

SIGNS: dict[Mark, str] = {"pass": "[green]✓[/]", "warn": "[yellow]![/]", "fail": "[red]✗[/]", "skip": "[dim]–[/]"}
COLOURS: dict[Mark, str] = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
EVERY_S = 20.0  # between lines of progress where no terminal can redraw one


class VerifyView:
    """Follows a ladder on the terminal: a line that is redrawn, or one now and then where that cannot be."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.live = not quiet and stderr_console().is_terminal
        self.status: Status | None = None
        self.last = time.monotonic()

    def __enter__(self) -> "VerifyView":
        if self.live:
            self.status = stderr_console().status("asking …")
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status:
            self.status.stop()
            self.status = None

    def show_progress(self, progress: CheckProgress) -> None:
        """Something was asked."""
        if self.status:
            self.status.update(escape(progress_text(progress)))
        elif time.monotonic() - self.last > EVERY_S:
            self.last = time.monotonic()
            stderr_console().print(f"  … {escape(progress_text(progress))}", style="dim")

    def print_check(self, verdict: CheckVerdict) -> None:
        """One line as each check is done, and one for each probe that did not pass."""
        self.last = time.monotonic()
        asked = sum(probe.requests for probe in verdict.probes)
        note = f"{format_seconds(verdict.seconds)}, {asked} requests" if verdict.probes else "not tried"
        stdout_console().print(f"{SIGNS[verdict.verdict]} {verdict.name:<13} [dim]{note}[/]")
        for probe in verdict.probes:
            if probe.verdict != "pass":
                _probe(probe)
        for habit in verdict.habits:
            stdout_console().print(f"    known habit of {habit}", style="dim", markup=False)
        for slip in _deciding(verdict):
            _slip(slip)

    def print_summary(self, ladder: CheckResults, folder: Path) -> None:
        """The verdict, and every slip with what it means."""
        met = [slip for slip in ladder.slips if slip.seen]
        if met:
            stdout_console().print("\nSlips over all checks:")
        for slip in met:
            _slip(slip)
        stdout_console().print(
            f"[{COLOURS[ladder.verdict]}]{ladder.verdict}[/]: {_counted(ladder)}; {_sure(ladder)}", soft_wrap=True
        )
        for note in ladder.notes:
            stdout_console().print(escape(one_line(note)))
        if ladder.stopped:
            stdout_console().print(escape(one_line(ladder.stopped)))
        stderr_console().print(f"evidence: {escape(str(folder / 'verdicts'))}", soft_wrap=True)


def _deciding(verdict: CheckVerdict) -> list[Failure]:
    """The slips that a verdict rests on, where no probe already says so."""
    said = any(probe.verdict == verdict.verdict for probe in verdict.probes)
    if said or verdict.verdict == "pass":
        return []
    return [slip for slip in verdict.slips if slip.verdict == verdict.verdict]


def _counted(ladder: CheckResults) -> str:
    """ "15 of 17 checks passed, 2 with warnings, 1 skipped"."""
    count = Counter(verdict.verdict for verdict in ladder.rungs)
    words: dict[Mark, str] = {"warn": "with warnings", "fail": "failed", "skip": "skipped"}
    tried = len(ladder.rungs) - count["skip"]
    rest = [f"{count[mark]} {word}" for mark, word in words.items() if count[mark]]
    return ", ".join([f"{count['pass']} of {tried} checks passed", *rest])


def _sure(ladder: CheckResults) -> str:
    """How much was asked."""
    return f"{ladder.requests} requests in {format_seconds(ladder.seconds)}"


def _probe(probe: Probe) -> None:
    stdout_console().print(f"    {SIGNS[probe.verdict]} {probe.name}: {escape(one_line(probe.reason))}")


def _slip(slip: Failure) -> None:
    stdout_console().print(f"    {SIGNS[slip.verdict]} {escape(slip.kind)}: {escape(describe_failure(slip))}")
    stdout_console().print(f"      [dim]{escape(one_line(slip.example, 140))}[/]")


def progress_text(progress: CheckProgress) -> str:
    """ "tools: streamed, 7 of 12 · 133 requests · 41 s · about 35 s left"."""
    trial = f", {progress.trial} of {progress.trials}" if progress.trials else ""
    parts = [
        f"{progress.check}: {progress.probe}{trial}",
        f"{progress.requests} requests",
        format_seconds(progress.seconds),
    ]
    if progress.seconds_left is not None:
        parts.append(f"about {format_seconds(progress.seconds_left)} left")
    return " · ".join(parts)
