"""Jobs as they go: a live table on a terminal, a line a job elsewhere, and the scores at the end."""

import textwrap
import threading
import time
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from moebox import codec
from moebox.cli.drawn import LiveDisplay
from moebox.cli.output import stderr_console, stdout_console
from moebox.cli.tables import make_table
from moebox.core.verdict import Score
from moebox.loose import Document
from moebox.tasks import runner
from moebox.tasks.result import END_TITLES, UNFINISHED, FamilyScore, JobName, JobResult, TaskRun, TurnRecord
from moebox.tasks.score import family_scores, solved_score
from moebox.units import format_count, format_seconds, format_tok_s, plural

SHOWN = 12  # finished jobs kept in the live view
INDENT, MOST_LINES = 4, 4  # of the reason below a job; its transcript has all of it


class TaskView(LiveDisplay):
    """Hears of jobs from several threads."""

    def __init__(self, task_run: TaskRun, *, quiet: bool) -> None:
        self.quiet, self.total, self.before = quiet, len(task_run.wanted), len(task_run.finished_results)
        self.running: dict[str, tuple[float, int, str]] = {}  # job: since, turns, what it does
        self.done: list[JobResult] = []
        self.lock = threading.Lock()

    def make_listener(self) -> runner.JobListener:
        """What the runner tells."""
        return runner.JobListener(on_begin=self.job_began, on_turn=self.turn_ended, on_end=self.job_ended)

    def __enter__(self) -> "TaskView":
        if not self.quiet and stdout_console().is_terminal:
            self.live = Live(self, console=stdout_console(), refresh_per_second=4, transient=True)
            self.live.__enter__()
        return self

    def leave(self) -> None:
        """Every job, and why it is not solved."""
        for result in self.done:
            stdout_console().print(job_line(result, stdout_console().width))

    def job_began(self, name: JobName) -> None:
        """A job begins."""
        with self.lock:
            self.running[name.id] = (time.monotonic(), 0, "")

    def turn_ended(self, name: JobName, turn: TurnRecord) -> None:
        """A reply is over."""
        doing = turn.calls[-1].tool if turn.calls else "…"
        with self.lock:
            self.running[name.id] = (self.running[name.id][0], turn.number, doing)

    def job_ended(self, result: JobResult) -> None:
        """A job has its result."""
        with self.lock:
            self.running.pop(result.id, None)
            self.done.append(result)
        if not self.live and not self.quiet:
            stdout_console().print(job_line(result, stdout_console().width))

    def __rich__(self) -> RenderableType:
        with self.lock:
            rows = [job_line(result, stdout_console().width) for result in self.done[-SHOWN:]]
            now = time.monotonic()
            for name, (since, turns, doing) in self.running.items():
                rows.append(Text(f"· {name:<24} {format_seconds(now - since):>7}  turn {turns} {doing}", style="dim"))
            solved = sum(result.solved for result in self.done)
            head = f"{len(self.done) + self.before} of {self.total} jobs, {solved} solved"
        return Group(*rows, Text(head, style="bold"))

    def print_scores(self, task_run: TaskRun, folder: Path) -> None:
        """Scores by family, and where the rest is."""
        print_scores(task_run, folder)


def print_results(task_run: TaskRun, folder: Path) -> None:
    """Results that came all at once."""
    for result in task_run.results:
        stdout_console().print(job_line(result, stdout_console().width))
    print_scores(task_run, folder)


def print_scores(task_run: TaskRun, folder: Path) -> None:
    """Scores by family, the sum, what is left, and where the transcripts are."""
    results = task_run.finished_results
    if results:
        stdout_console().print()
        stdout_console().print(score_table(results))
    stdout_console().print(f"solved: {score_text(solved_score(results))}")
    if task_run.unfinished_jobs:
        stdout_console().print(
            f"{plural(len(task_run.unfinished_jobs), 'job')} left: moebox task --resume {escape(folder.name)}",
            soft_wrap=True,
        )
    stderr_console().print(f"transcripts: {escape(str(folder / 'tasks'))}", soft_wrap=True)


def job_line(result: JobResult, width: int = 80) -> Text:
    """One job in one line; why it is not solved stands below, in lines of at most `width` columns."""
    passed, of = result.hidden_tests
    mark, style = _marked(result)
    took, turns = format_seconds(result.seconds), plural(len(result.turns), "turn")
    head = f"{mark} {result.id:<24} {took:>7}  {turns:>8}  {passed}/{of} tests"
    text = Text(head, style=style)
    for reason in textwrap.wrap(_reason(result), max(width - INDENT, 20), max_lines=MOST_LINES, placeholder=" …"):
        text.append(f"\n{' ' * INDENT}{reason}", style="dim")
    return text


def _marked(result: JobResult) -> tuple[str, str]:
    """A sign and its colour: solved, not finished, or wrong."""
    if result.solved:
        return "✓", "green"
    return ("–", "dim") if result.end in UNFINISHED else ("✗", "red")


def _reason(result: JobResult) -> str:
    """Why a job is not solved; "" where it is."""
    if result.end in UNFINISHED:
        return f"left for --resume: {END_TITLES[result.end]}"
    if not result.wrong:
        return ""
    place = f"turn {result.wrong_turn}: " if result.wrong_turn else ""
    return place + " ".join(result.wrong.split())


def score_table(results: list[JobResult]) -> Table:
    """Families down."""
    heads = ("family", "solved", "tests", "calls ok", "turns", "tokens", "time", "tok/s")
    return make_table(heads, map(_line, family_scores(results)), left_columns=("family",), gap=1)


def _line(row: FamilyScore) -> tuple[str, ...]:
    return (
        f"{row.family} {row.level}",
        score_text(row.solved),
        percentage(row.hidden),
        percentage(row.valid_calls),
        f"{row.turns:.0f}",
        format_count(round(row.output_tokens)),
        format_seconds(row.seconds),
        format_tok_s(row.tok_s).removesuffix(" tok/s") if row.tok_s else "",
    )


def score_text(score: Score) -> str:
    """Such as "3 of 4 (30-95%)"."""
    if not score.trials:
        return "none tried"
    return f"{score.passed} of {score.trials} ({score.low * 100:.0f}-{score.high * 100:.0f}%)"


def percentage(score: Score) -> str:
    """A share in per cent; blank where nothing was tried."""
    return f"{score.share * 100:.0f}%" if score.trials else ""


def task_document(task_run: TaskRun) -> Document:
    """The JSON document."""
    results = task_run.finished_results
    document: Document = {"solved": solved_score(results)}
    document |= {
        "families": family_scores(results),
        "left": [name.id for name in task_run.unfinished_jobs],
        "jobs": task_run.results,
    }
    document |= {
        "url": task_run.url,
        "model": task_run.model,
        "agent": task_run.agent,
        "agent_version": task_run.agent_version,
        "api": task_run.api,
        "sandbox": task_run.sandbox,
    }
    plain: Document = codec.to_plain(document)
    return plain
