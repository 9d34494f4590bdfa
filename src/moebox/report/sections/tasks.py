"""Agents at work: how many jobs were solved, by family; where the others went wrong; one job turn by turn."""

from collections.abc import Sequence

from moebox.core.verdict import Score
from moebox.report.block import (
    Block,
    Charts,
    ReportChart,
    ReportTable,
    Section,
    TableCell,
    figure_cell,
    table_columns,
    text_cell,
    titled_chart,
)
from moebox.report.charts import ChartAxis, ChartSeries, draw_lines, series_legend
from moebox.report.format import short_number
from moebox.report.record import RunRecord
from moebox.tasks.result import END_TITLES, FamilyScore, JobResult, TaskRun, TurnRecord
from moebox.tasks.score import family_scores, solved_score

MOST_WRONG = 40  # jobs listed of those that were not solved


def section(records: Sequence[RunRecord]) -> Section:
    """Scores, failures and the longest job of each run that has any."""
    worked = [(record.page_label, record.tasks) for record in records if record.tasks and record.tasks.finished_results]
    blocks: list[Block] = []
    for name, task_run in worked:
        blocks += [scores(task_run, name), *failures(task_run, name), *timeline(task_run)]
    lead = " ".join(sentence(task_run, name) for name, task_run in worked)
    return Section(id="tasks", title="Agents at work", lead=lead, blocks=tuple(blocks))


def sentence(task_run: TaskRun, name: str) -> str:
    """How many were solved, by whom."""
    results = task_run.finished_results
    score = score_text(solved_score(results))
    return f"{f'{name}: ' if name else ''}{score} jobs solved by {task_run.worker_title}."


def score_text(score: Score) -> str:
    """Such as "3 of 4 (30–95%)"."""
    return f"{score.passed} of {score.trials} ({score.low * 100:.0f}–{score.high * 100:.0f}%)"


def scores(task_run: TaskRun, name: str) -> ReportTable:
    """A row a family."""
    heads = ("Family", "Solved", "Hidden tests", "Valid calls", "Repaired", "Turns", "Tokens", "Seconds", "tok/s")
    note = f"Intervals are 95% (Wilson). Turns, tokens and seconds are means of a job.{kept_speed(task_run)}"
    rows = tuple(map(row, family_scores(task_run.finished_results)))
    return ReportTable(caption=name, columns=table_columns(*heads, text=(0,)), rows=rows, note=note)


def kept_speed(task_run: TaskRun) -> str:
    """How much slower jobs ended than they began, where that is known."""
    speeds = ((result.first_tok_s, result.last_tok_s) for result in task_run.finished_results)
    kept = [last / first for first, last in speeds if first and last]
    if not kept:
        return ""
    share = sum(kept) / len(kept)
    return f" Speed over the last tenth of a job: {share:.0%} of that over the first, mean of {len(kept)} jobs."


def row(score: FamilyScore) -> tuple[TableCell, ...]:
    """One family."""
    all_solved = score.solved.passed == score.solved.trials
    return (
        text_cell(f"{score.family}, {score.level}"),
        TableCell(text=score_text(score.solved), value=score.solved.share, tone="good" if all_solved else ""),
        percentage(score.hidden),
        percentage(score.valid_calls),
        figure_cell(float(score.repaired_calls), digits=0),
        figure_cell(score.turns, digits=1),
        figure_cell(score.output_tokens, digits=0),
        figure_cell(score.seconds, digits=1),
        figure_cell(score.tok_s),
    )


def percentage(score: Score) -> TableCell:
    """A share in per cent."""
    return TableCell(text=f"{score.share:.0%}", value=score.share) if score.trials else TableCell(text="")


def failures(task_run: TaskRun, name: str) -> list[Block]:
    """Where jobs went wrong; nothing where none did."""
    wrong = [result for result in task_run.finished_results if not result.solved]
    if not wrong:
        return []
    rows = tuple(map(failure, wrong[:MOST_WRONG]))
    more = f"{len(wrong) - MOST_WRONG} more in tasks.json." if len(wrong) > MOST_WRONG else ""
    caption = f"Where jobs went wrong{f': {name}' if name else ''}"
    heads = table_columns("Job", "Ended", "Turn", "What happened", "Transcript", text=(0, 1, 3, 4))
    return [ReportTable(caption=caption, columns=heads, rows=rows, note=more, folded=len(rows) > 12)]


def failure(result: JobResult) -> tuple[TableCell, ...]:
    """One job that was not solved."""
    return (
        text_cell(result.id),
        text_cell(END_TITLES[result.end]),
        figure_cell(float(result.wrong_turn), digits=0),
        text_cell(" ".join(result.wrong.split())[:300]),
        text_cell(result.transcript),
    )


def timeline(task_run: TaskRun) -> list[Block]:
    """Speed and context, turn by turn, of the job that wrote most."""
    result = max(task_run.finished_results, key=lambda one: (len(one.turns), one.output_tokens))
    charts = list(filter(None, (speed(result), context(result, task_run.context))))
    return [Charts(charts=tuple(charts))] if charts else []


def speed(result: JobResult) -> ReportChart | None:
    """Tokens a second of each turn."""
    points = tuple((float(turn.number), turn.tok_s) for turn in result.turns if turn.tok_s)
    if len(points) < 2:
        return None
    series = ChartSeries(name="tok/s", colour=1, points=points)
    title = f"Speed by turn: {result.id}"
    return titled_chart(
        title, draw_lines([series], x=ChartAxis(title="turn", log=False), y=ChartAxis(title="tok/s"), label=title)
    )


def context(result: JobResult, limit: int | None) -> ReportChart | None:
    """Tokens of conversation at each turn, and how many of them came from the cache."""
    turns = [turn for turn in result.turns if turn.prompt_tokens]
    if len(turns) < 2:
        return None
    series = conversation(turns)
    title = f"Context by turn: {result.id}"
    x, y = ChartAxis(title="turn", log=False), ChartAxis(title="tokens", format=short_number)
    caption = f"The server's context is {limit:,} tokens." if limit else ""
    return titled_chart(title, draw_lines(series, x=x, y=y, label=title), caption=caption, legend=series_legend(series))


def conversation(turns: Sequence[TurnRecord]) -> list[ChartSeries]:
    """Tokens of prompt and answer together, and those of the prompt that came from the cache."""
    whole = [(turn.number, (turn.prompt_tokens or 0) + (turn.completion_tokens or 0)) for turn in turns]
    cached = [(turn.number, turn.cached_tokens) for turn in turns if turn.cached_tokens is not None]
    return [
        ChartSeries(name="conversation", colour=1, points=float_points(whole)),
        ChartSeries(name="from the cache", colour=2, points=float_points(cached), dashed=True),
    ]


def float_points(points: Sequence[tuple[int, int]]) -> tuple[tuple[float, float], ...]:
    """Counts as a chart takes them."""
    return tuple((float(at), float(value)) for at, value in points)
