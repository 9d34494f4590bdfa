"""A report as Markdown: the same sections, tables as tables, drawings by their captions."""

from collections.abc import Mapping, Sequence
from typing import Any

from moebox.assess.assessment import Recommendation
from moebox.escape import code_block
from moebox.escape import escape_markdown as escape
from moebox.report.block import Block, Bullets, Charts, CustomBlock, Prose, ReportTable, TableCell, Tiles
from moebox.report.page import ReportPage
from moebox.report.sections.checks import SIGNS, CheckView
from moebox.report.sections.hardware import TopologyDrawing
from moebox.report.sections.launches import ProblemEntry
from moebox.runs.record import LaunchAttempt


def render_markdown(page: ReportPage) -> str:
    lines = [f"# {escape(page.title)}", "", " · ".join(filter(None, (page.date, escape(page.subtitle)))), ""]
    if page.simulated_runs:
        lines += [f"> **Simulation:** {escape(page.simulated_runs)} No GPU produced these figures.", ""]
    lines += assessment_lines(page)
    for section in page.sections:
        lines += [f"## {escape(section.title)}{' (simulated)' if page.simulated_runs else ''}", ""]
        lines += [escape(section.lead), ""] if section.lead else []
        for block in section.blocks:
            lines += block_lines(block)
    lines += [f"Made by moebox on {page.made} from {', '.join(escape(record.id) for record in page.records)}.", ""]
    return "\n".join(lines)


def assessment_lines(page: ReportPage) -> list[str]:
    """The assessment of each run; a command as code, unless it has ticks of its own."""
    lines: list[str] = []
    for record, assessment in zip(page.records, page.assessments, strict=True):
        lines += heading_lines(record.page_label)
        lines += [f"**{escape(assessment.headline)}**", ""] if assessment.headline else []
        for cell in assessment.cells:
            text = f"`{cell.text}`" if cell.command and "`" not in cell.text else escape(cell.text)
            lines.append(f"- **{cell.name}**: {text}{f' ({escape(cell.detail)})' if cell.detail else ''}")
        lines += [f"- **warning**: {escape(warning)}" for warning in assessment.warnings]
        lines.append("")
    return lines


def heading_lines(text: str) -> list[str]:
    """A title above a block; nothing if it is empty."""
    return [f"**{escape(text)}**", ""] if text else []


def block_lines(block: Block) -> list[str]:
    match block:
        case ReportTable():
            return table_lines(block)
        case Tiles():
            texts = [(f"{escape(tile.figure)} {escape(tile.unit)}", tile) for tile in block.tiles]
            return [*(f"- **{figure}** {escape(tile.label)}, {escape(tile.detail)}" for figure, tile in texts), ""]
        case Prose():
            return [line for text in block.paragraphs if text for line in (escape(text), "")]
        case Bullets():
            return [*heading_lines(block.title), *(f"- {escape(item)}" for item in block.items), ""]
        case Charts():
            captions = [f": {escape(chart.caption)}" if chart.caption else "" for chart in block.charts]
            return [f"*{escape(chart.title)}*{text}\n" for chart, text in zip(block.charts, captions, strict=True)]
        case CustomBlock():
            return custom_lines(block)


def table_lines(table: ReportTable) -> list[str]:
    """A table with its alignment; the best figure of a column is bold."""

    def cell_text(cell: TableCell) -> str:
        text = f"**{escape(cell.text)}**" if cell.tone == "best" else escape(cell.text)
        return f"{text} ({escape(cell.aside)})" if cell.aside else text

    rows = [[escape(column.title) or " " for column in table.columns]]
    rows.append(["---:" if column.numeric else "---" for column in table.columns])
    rows += [[cell_text(cell) for cell in row] for row in table.rows]
    lines = [*heading_lines(table.caption), *(f"| {' | '.join(row)} |" for row in rows), ""]
    return [*lines, escape(table.note), ""] if table.note else lines


def custom_lines(block: CustomBlock) -> list[str]:
    """A block with a template of its own; nothing for one that is only a picture."""
    data = block.data
    match block.kind:
        case "code":
            lines = [f"**{escape(data['title'])}**", "", *code_block(data["text"])]
        case "topology":
            drawing: TopologyDrawing = data
            facts = [f"- {escape(name)}: {escape(value)}" for name, value in drawing.facts]
            lines = [f"**{escape(drawing.title)}**", "", *facts]
        case "checks":
            lines = check_lines(data["name"], data["checks"])
        case "attempts":
            lines = attempt_lines(data)
        case "problems":
            lines = problem_lines(data)
        case "recommendations":
            rows: list[Recommendation] = [row["advice"] for row in data]
            lines = [f"- **{escape(row.title)}.** {escape(row.text)} *Rule: {escape(row.rule)}*" for row in rows]
        case "sources":
            lines = [f"- {escape(title)}{f': <{quote_url(url)}>' if url else ''}" for title, url in data]
        case _:
            return []
    return [*lines, ""]


def check_lines(name: str, checks: Sequence[CheckView]) -> list[str]:
    """Each check with its verdict, and the known quirks it shows."""
    lines = heading_lines(name)
    for check in checks:
        text = f"- {SIGNS[check.mark]} **{escape(check.name)}** {escape(check.detail)} {escape(check.score)}"
        quirks = [f"    - known quirk of {escape(quirk)}" for quirk in check.quirks]
        lines.append("\n".join([text.rstrip(), *quirks]))
    return lines


def attempt_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        attempt: LaunchAttempt = row["attempt"]
        parts = filter(None, (row["run"] or attempt.model, attempt.configuration, attempt.reason))
        lines.append(f"{attempt.number}. **{attempt.outcome}** {escape(': '.join(parts))}")
    return lines


def problem_lines(entries: Sequence[ProblemEntry]) -> list[str]:
    """Each problem with cause, remedy and excerpt."""
    lines: list[str] = []
    for entry in entries:
        problem = entry.problem
        lines += [f"### {escape(problem.title)}", ""]
        lines += [f"Cause: {escape(problem.cause)}", ""] if problem.cause else []
        lines += [f"Remedy: {escape(problem.remedy)}", ""] if problem.remedy else []
        lines += [*code_block(problem.excerpt), ""] if problem.excerpt else []
    return lines[:-1]


def quote_url(url: str) -> str:
    """A URL that cannot leave the angle brackets around it."""
    return "".join(letter if letter.isprintable() and letter not in "<> " else "%20" for letter in url)
