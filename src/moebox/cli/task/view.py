"""Jobs as they run: a live table on a terminal, a line for each job elsewhere, and the scores at the end."""

import textwrap
import threading
import time
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from moebox.cli.display import VERDICT_MARKS, LiveDisplay, make_group, make_table
from moebox.cli.output import Part, print_lines, print_note, print_parts, print_result, stdout_console
from moebox.store import Run
from moebox.tasks.result import END_TITLES, UNFINISHED, JobName, JobResult, TaskRun, TurnRecord
from moebox.tasks.score import family_scores, solved_score
from moebox.units import format_count, format_seconds, format_tok_s, plural

SHOWN = 12  # finished jobs in the live view
INDENT, MAX_LINES = 4, 4  # of the reason below a job; its transcript has all of it


class TaskView(LiveDisplay):
    """Follows jobs of several threads."""

    def __init__(self, task_run: TaskRun, *, quiet: bool) -> None:
        self.console = stdout_console()
        self.quiet, self.total, self.before = quiet, len(task_run.wanted), len(task_run.finished_results)
        self.running: dict[str, tuple[float, int, str]] = {}  # job: start, turns, current tool
        self.done: list[JobResult] = []
        self.lock = threading.Lock()

    def print_final(self) -> None:
        """Print every job, and the reason if it is not solved."""
        print_jobs(self.done)

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
            print_jobs([result])

    def __rich__(self) -> RenderableType:
        with self.lock:
            rows: list[Part] = [job_line(result, stdout_console().width) for result in self.done[-SHOWN:]]
            now = time.monotonic()
            for name, (since, turns, tool) in self.running.items():
                rows.append((f"· {name:<24} {format_seconds(now - since):>7}  turn {turns} {tool}", "dim"))
            solved = sum(result.solved for result in self.done)
            head = f"{len(self.done) + self.before} of {self.total} jobs, {solved} solved"
        return make_group(*rows, (head, "bold"))


def print_jobs(results: Iterable[JobResult]) -> None:
    print_parts(*(job_line(result, stdout_console().width) for result in results))


def show_scores(task_run: TaskRun, run: Run, *, jobs: Iterable[JobResult] = (), json: bool) -> int:
    """Print `jobs` and scores by family, the sum, unfinished jobs, and the path of the transcripts.

    The exit code is good if a job was solved.
    """
    results = task_run.finished_results
    solved, families, left = solved_score(results), family_scores(results), task_run.unfinished_jobs
    document = {name: getattr(task_run, name) for name in ("url", "model", "agent", "agent_version", "api", "sandbox")}
    document |= {"solved": solved, "families": families, "left": [name.id for name in left], "jobs": task_run.results}

    def show() -> None:
        print_jobs(jobs)
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
            for row in families
        ]
        if rows:
            heads = ("family", "solved", "tests", "calls ok", "turns", "tokens", "time", "tok/s")
            print_parts("", make_table(heads, rows, left_columns=("family",), gap=1))
        print_lines([f"solved: {solved.text}"])
        if left:
            print_lines([f"{plural(len(left), 'job')} unfinished: moebox task --resume {run.id}"])
        print_note(f"transcripts: {run.path / 'tasks'}")

    return print_result(json, {**document, "run": str(run.path)}, show, good=any(each.solved for each in results))


def job_line(result: JobResult, width: int = 80) -> Text:
    """Return one line for a job; below it the reason if it is not solved, in lines of at most `width` columns."""
    mark, style = VERDICT_MARKS["pass" if result.solved else "skip" if result.end in UNFINISHED else "fail"]
    reason = ""
    if result.end in UNFINISHED:
        reason = f"left for --resume: {END_TITLES[result.end]}"
    elif result.wrong:
        turn = f"turn {result.wrong_turn}: " if result.wrong_turn else ""
        reason = turn + " ".join(result.wrong.split())
    passed, total = result.hidden_tests
    took, turns = format_seconds(result.seconds), plural(len(result.turns), "turn")
    text = Text(f"{mark} {result.id:<24} {took:>7}  {turns:>8}  {passed}/{total} tests", style=style)
    for line in textwrap.wrap(reason, max(width - INDENT, 20), max_lines=MAX_LINES, placeholder=" …"):
        text.append(f"\n{' ' * INDENT}{line}", style="dim")
    return text
