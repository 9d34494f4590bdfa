"""Jobs as they run: a live table on a terminal, a line for each job elsewhere, and the scores at the end."""

import textwrap
import threading
import time
from pathlib import Path
from typing import Self

from rich.console import Group, RenderableType
from rich.text import Text

from moebox import codec
from moebox.cli.display import LiveDisplay, make_table
from moebox.cli.output import print_lines, stdout_console
from moebox.loose import Document
from moebox.tasks import runner
from moebox.tasks.result import END_TITLES, UNFINISHED, JobName, JobResult, TaskRun, TurnRecord
from moebox.tasks.score import family_scores, solved_score
from moebox.units import format_count, format_seconds, format_tok_s, plural

SHOWN = 12  # finished jobs in the live view
INDENT, MAX_LINES = 4, 4  # of the reason below a job; its transcript has all of it


class TaskView(LiveDisplay):
    """Follows jobs of several threads."""

    def __init__(self, task_run: TaskRun, *, quiet: bool) -> None:
        self.quiet, self.total, self.before = quiet, len(task_run.wanted), len(task_run.finished_results)
        self.running: dict[str, tuple[float, int, str]] = {}  # job: start, turns, current tool
        self.done: list[JobResult] = []
        self.lock = threading.Lock()

    def make_listener(self) -> runner.JobListener:
        return runner.JobListener(on_begin=self.job_began, on_turn=self.turn_ended, on_end=self.job_ended)

    def __enter__(self) -> Self:
        if not self.quiet:
            self.start_live(stdout_console(), per_second=4)
        return self

    def print_final(self) -> None:
        """Print every job, and the reason if it is not solved."""
        for result in self.done:
            stdout_console().print(job_line(result, stdout_console().width))

    def job_began(self, name: JobName) -> None:
        with self.lock:
            self.running[name.id] = (time.monotonic(), 0, "")

    def turn_ended(self, name: JobName, turn: TurnRecord) -> None:
        """Show a job's turn and its last tool."""
        tool = turn.calls[-1].tool if turn.calls else "…"
        with self.lock:
            self.running[name.id] = (self.running[name.id][0], turn.number, tool)

    def job_ended(self, result: JobResult) -> None:
        with self.lock:
            self.running.pop(result.id, None)
            self.done.append(result)
        if not self.live and not self.quiet:
            stdout_console().print(job_line(result, stdout_console().width))

    def __rich__(self) -> RenderableType:
        with self.lock:
            rows = [job_line(result, stdout_console().width) for result in self.done[-SHOWN:]]
            now = time.monotonic()
            for name, (since, turns, tool) in self.running.items():
                rows.append(Text(f"· {name:<24} {format_seconds(now - since):>7}  turn {turns} {tool}", style="dim"))
            solved = sum(result.solved for result in self.done)
            head = f"{len(self.done) + self.before} of {self.total} jobs, {solved} solved"
        return Group(*rows, Text(head, style="bold"))


def print_results(task_run: TaskRun, folder: Path) -> None:
    """Print results that came all at once, and the scores."""
    for result in task_run.results:
        stdout_console().print(job_line(result, stdout_console().width))
    print_scores(task_run, folder)


def print_scores(task_run: TaskRun, folder: Path) -> None:
    """Print scores by family, the sum, unfinished jobs, and the path of the transcripts."""
    results = task_run.finished_results
    if results:
        heads = ("family", "solved", "tests", "calls ok", "turns", "tokens", "time", "tok/s")
        rows = [
            (
                f"{row.family} {row.level}",
                row.solved.text,
                *(f"{score.share * 100:.0f}%" if score.trials else "" for score in (row.hidden, row.valid_calls)),
                f"{row.turns:.0f}",
                format_count(round(row.output_tokens)),
                format_seconds(row.seconds),
                format_tok_s(row.tok_s).removesuffix(" tok/s") if row.tok_s else "",
            )
            for row in family_scores(results)
        ]
        print_lines([""])
        stdout_console().print(make_table(heads, rows, left_columns=("family",), gap=1))
    print_lines([f"solved: {solved_score(results).text}"])
    if left := task_run.unfinished_jobs:
        print_lines([f"{plural(len(left), 'job')} unfinished: moebox task --resume {folder.name}"])
    print_lines([f"transcripts: {folder / 'tasks'}"], stderr=True)


def job_line(result: JobResult, width: int = 80) -> Text:
    """Return one line for a job; below it the reason if it is not solved, in lines of at most `width` columns."""
    mark, style, reason = "✗", "red", ""
    if result.solved:
        mark, style = "✓", "green"
    if result.end in UNFINISHED:
        reason = f"left for --resume: {END_TITLES[result.end]}"
        if not result.solved:
            mark, style = "–", "dim"
    elif result.wrong:
        turn = f"turn {result.wrong_turn}: " if result.wrong_turn else ""
        reason = turn + " ".join(result.wrong.split())
    passed, total = result.hidden_tests
    took, turns = format_seconds(result.seconds), plural(len(result.turns), "turn")
    text = Text(f"{mark} {result.id:<24} {took:>7}  {turns:>8}  {passed}/{total} tests", style=style)
    for line in textwrap.wrap(reason, max(width - INDENT, 20), max_lines=MAX_LINES, placeholder=" …"):
        text.append(f"\n{' ' * INDENT}{line}", style="dim")
    return text


def task_document(task_run: TaskRun) -> Document:
    """Return the scores and jobs under the keys that scripts rely on."""
    results = task_run.finished_results
    document: Document = codec.to_plain(
        {
            "solved": solved_score(results),
            "families": family_scores(results),
            "left": [name.id for name in task_run.unfinished_jobs],
            "jobs": task_run.results,
            **{name: getattr(task_run, name) for name in ("url", "model", "agent", "agent_version", "api", "sandbox")},
        }
    )
    return document
