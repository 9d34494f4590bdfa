"""Jobs of an agent: how many were solved, where the others failed, and one job turn by turn."""

from collections.abc import Sequence

from moebox.assess.assessment import Tone
from moebox.assess.format import short_number
from moebox.report.block import Block, ReportChart, Section, chart_blocks
from moebox.report.charts import ChartAxis, ChartSeries, line_chart
from moebox.report.table import TableCell, figure_cell, table_blocks
from moebox.runs.record import RunRecord
from moebox.tasks.result import END_TITLES, TaskRun
from moebox.tasks.score import family_scores, solved_score

MAX_FAILED_JOBS = 40  # that are listed


def tasks_section(records: Sequence[RunRecord]) -> Section:
    """Scores, failures and the longest job of each run that has any."""
    blocks: list[Block] = []
    sentences = []
    for record in records:
        task_run = record.tasks
        if task_run and task_run.finished_results:
            blocks += scores_table(task_run, record.page_label)
            blocks += failures_table(task_run, record.title_suffix)
            blocks += timeline_charts(task_run)
            score = solved_score(task_run.finished_results).text
            sentences.append(f"{record.sentence_prefix}{score} jobs solved by {task_run.worker_title}.")
    return Section(id="tasks", title="Agents at work", lead=" ".join(sentences), blocks=blocks)


def scores_table(task_run: TaskRun, caption: str) -> Sequence[Block]:
    """A row for each family; the note compares the speed at the end of jobs with that at their beginning."""
    heads = ("Family", "Solved", "Hidden tests", "Valid calls", "Repaired", "Turns", "Tokens", "Seconds", "tok/s")
    rows = []
    for score in family_scores(task_run.finished_results):
        tone: Tone = "good" if score.solved.passed == score.solved.trials else ""
        shares = [
            TableCell(text=f"{share.share:.0%}", value=share.share) if share.trials else TableCell(text="")
            for share in (score.hidden, score.valid_calls)
        ]
        row = (
            f"{score.family}, {score.level}",
            TableCell(text=score.solved.text, value=score.solved.share, tone=tone),
            *shares,
            score.repaired_calls,
            figure_cell(score.turns, digits=1),
            figure_cell(score.output_tokens, digits=0),
            figure_cell(score.seconds, digits=1),
            score.tok_s,
        )
        rows.append(row)
    note = "Intervals are 95% (Wilson). Turns, tokens and seconds are means of a job."
    speeds = [(result.first_tok_s, result.last_tok_s) for result in task_run.finished_results]
    kept = [last / first for first, last in speeds if first and last]
    if kept:
        share = sum(kept) / len(kept)
        note += f" Speed over the last tenth of a job: {share:.0%} of that over the first, mean of {len(kept)} jobs."
    return table_blocks(heads, rows, caption=caption, note=note)


def failures_table(task_run: TaskRun, suffix: str) -> Sequence[Block]:
    """Jobs that were not solved, and where they went wrong; nothing if all were solved."""
    failed = [result for result in task_run.finished_results if not result.solved]
    rows = [
        (result.id, END_TITLES[result.end], result.wrong_turn, " ".join(result.wrong.split())[:300], result.transcript)
        for result in failed[:MAX_FAILED_JOBS]
    ]
    more = f"{len(failed) - MAX_FAILED_JOBS} more in tasks.json." if len(failed) > MAX_FAILED_JOBS else ""
    heads = ("Job", "Ended", "Turn", "What happened", "Transcript")
    caption, folded = f"Where jobs went wrong{suffix}", len(rows) > 12
    return table_blocks(heads, rows, text=(0, 1, 3, 4), caption=caption, note=more, folded=folded)


def timeline_charts(task_run: TaskRun) -> Sequence[Block]:
    """Speed and context by turn of the job with the most turns."""
    result = max(task_run.finished_results, key=lambda result: (len(result.turns), result.output_tokens))
    charts: list[ReportChart | None] = []
    x = ChartAxis(title="turn", log=False)
    speeds = tuple((float(turn.number), turn.tok_s) for turn in result.turns if turn.tok_s)
    if len(speeds) > 1:
        title = f"Speed by turn: {result.id}"
        series = [ChartSeries(name="tok/s", colour=1, points=speeds)]
        charts.append(line_chart(title, series, x=x, y=ChartAxis(title="tok/s"), label=title))
    turns = [turn for turn in result.turns if turn.prompt_tokens]
    if len(turns) > 1:
        title = f"Context by turn: {result.id}"
        tokens = [
            (float(turn.number), float((turn.prompt_tokens or 0) + (turn.completion_tokens or 0))) for turn in turns
        ]
        cached = [(float(turn.number), float(turn.cached_tokens)) for turn in turns if turn.cached_tokens is not None]
        series = [
            ChartSeries(name="conversation", colour=1, points=tuple(tokens)),
            ChartSeries(name="from the cache", colour=2, points=tuple(cached), dashed=True),
        ]
        caption = f"The server's context is {task_run.context:,} tokens." if task_run.context else ""
        y = ChartAxis(title="tokens", format=short_number)
        charts.append(line_chart(title, series, x=x, y=y, label=title, caption=caption))
    return chart_blocks(charts)
