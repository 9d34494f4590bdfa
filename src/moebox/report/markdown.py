"""A report as Markdown: the same sections, tables as tables, drawings by their captions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from moebox.escape import code_block
from moebox.escape import escape_markdown as escape
from moebox.report.block import (
    Block,
    Bullets,
    Charts,
    CustomBlock,
    Prose,
    ReportChart,
    ReportTable,
    Section,
    TableCell,
    Tile,
    Tiles,
)
from moebox.report.decision import Decision, DecisionCell
from moebox.report.page import ReportPage
from moebox.report.record import CheckRow, LaunchAttempt, LogProblem
from moebox.report.rules import Advice
from moebox.report.sections.hardware import TopologyDrawing
from moebox.report.sections.ladder import SIGNS
from moebox.report.sections.problems import ProblemEntry

TemplateData = Mapping[str, Any]  # what a template of blocks.html is given


def render_markdown(page: ReportPage) -> str:
    """The whole document."""
    lines = [f"# {escape(page.title)}", "", " · ".join(filter(None, (page.date, escape(page.subtitle)))), ""]
    if page.simulated_runs:
        lines += [f"> **Simulation:** {escape(page.simulated_runs)} No GPU produced these figures.", ""]
    lines += decision_lines(page)
    for section in page.sections:
        lines += chapter(section, simulated=bool(page.simulated_runs))
    lines += [f"Made by moebox on {page.made} from {', '.join(escape(record.id) for record in page.records)}.", ""]
    return "\n".join(lines)


def decision_lines(page: ReportPage) -> list[str]:
    """The four answers of each run."""
    runs = zip(page.records, page.decisions, strict=True)
    return [*chain.from_iterable([*heading(record.page_label), *strip(decision)] for record, decision in runs)]


def strip(decision: Decision) -> list[str]:
    """The four answers of a run."""
    return [*map(answer, decision.answers), ""]


def answer(cell: DecisionCell) -> str:
    """One of them; a command as code, unless it has ticks of its own."""
    text = f"`{cell.text}`" if cell.command and "`" not in cell.text else escape(cell.text)
    return f"- **{cell.name}**: {aside(text, cell.detail)}"


def aside(text: str, more: str) -> str:
    """What is said smaller, after a text."""
    return f"{text} ({escape(more)})" if more else text


def chapter(section: Section, *, simulated: bool) -> list[str]:
    """One section."""
    lines = [f"## {escape(section.title)}{' (simulated)' if simulated else ''}", ""]
    return [*lines, *paragraph(section.lead), *chain.from_iterable(map(written, section.blocks))]


def paragraph(text: str) -> list[str]:
    """A text by itself; nothing where there is none."""
    return [escape(text), ""] if text else []


def written(block: Block) -> list[str]:
    """A block by its kind."""
    return WRITERS[type(block)](block)


def tiles(block: Tiles) -> list[str]:
    """Headline figures."""
    return [*map(tile, block.tiles), ""]


def prose(block: Prose) -> list[str]:
    """Paragraphs."""
    return [*chain.from_iterable(map(paragraph, block.paragraphs))]


def bullets(block: Bullets) -> list[str]:
    """A list."""
    return [*heading(block.title), *(f"- {escape(item)}" for item in block.items), ""]


def charts(block: Charts) -> list[str]:
    """Drawings by their captions."""
    return [*map(chart, block.charts)]


def heading(text: str) -> list[str]:
    """A title above a block; nothing where there is none."""
    return [f"**{escape(text)}**", ""] if text else []


def tile(block: Tile) -> str:
    """A headline figure."""
    return f"- **{escape(block.figure)} {escape(block.unit)}** {escape(block.label)}, {escape(block.detail)}"


def chart(block: ReportChart) -> str:
    """A drawing by its caption."""
    caption = f": {escape(block.caption)}" if block.caption else ""
    return f"*{escape(block.title)}*{caption}\n"


def table(block: ReportTable) -> list[str]:
    """A table with its alignment."""
    lines = heading(block.caption)
    lines.append(line(escape(column.title) or " " for column in block.columns))
    lines.append(line("---:" if column.numeric else "---" for column in block.columns))
    lines += [line(map(field, row)) for row in block.rows]
    return [*lines, "", *paragraph(block.note)]


def line(fields: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(fields)} |"


def field(cell: TableCell) -> str:
    """One cell; the best in bold."""
    text = f"**{escape(cell.text)}**" if cell.tone == "best" else escape(cell.text)
    return aside(text, cell.aside)


def custom_block(block: CustomBlock) -> list[str]:
    """Blocks with a look of their own, in words; nothing for one that is only a picture."""
    write = PARTS.get(block.kind)
    return [*write(block.data), ""] if write else []


def code(data: dict[str, str]) -> list[str]:
    """Text to copy."""
    return [f"**{escape(data['title'])}**", "", *code_block(data["text"])]


def topology(data: TopologyDrawing) -> list[str]:
    """A box by its facts."""
    return [f"**{escape(data.title)}**", "", *(f"- {escape(name)}: {escape(value)}" for name, value in data.facts)]


def ladder(data: TemplateData) -> list[str]:
    """Each check with its verdict."""
    return [*heading(data["name"]), *map(check, data["checks"])]


def check(result: CheckRow) -> str:
    """One check."""
    line = f"- {SIGNS[result.mark]} **{escape(result.name)}** {escape(result.detail)} {escape(result.score)}".rstrip()
    return "\n".join([line, *(f"    - known habit of {escape(habit)}" for habit in result.quirks)])


def attempts(rows: Sequence[TemplateData]) -> list[str]:
    """Each try at a launch."""
    return [f"{row['attempt'].number}. **{row['attempt'].outcome}** {escape(sentence(row))}" for row in rows]


def sentence(row: TemplateData) -> str:
    """An attempt in one line."""
    attempt: LaunchAttempt = row["attempt"]
    parts = [row["run"] or attempt.model, attempt.configuration, attempt.reason]
    return ": ".join(filter(None, parts))


def problems(cards: Sequence[ProblemEntry]) -> list[str]:
    """Each problem with cause and remedy."""
    return [line for card in cards for line in problem(card.problem)][:-1]


def problem(met: LogProblem) -> list[str]:
    """A problem with cause and remedy."""
    lines = [f"### {escape(met.title)}", ""]
    for name, text in (("Cause", met.cause), ("Remedy", met.remedy)):
        lines += [f"{name}: {escape(text)}", ""] if text else []
    return [*lines, *([*code_block(met.excerpt), ""] if met.excerpt else [])]


def advice(rows: Sequence[TemplateData]) -> list[str]:
    """Each recommendation with its rule."""
    given: list[Advice] = [row["advice"] for row in rows]
    return [f"- **{escape(item.title)}.** {escape(item.text)} *Rule: {escape(item.rule)}*" for item in given]


def sources(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Where imported figures come from."""
    return [f"- {escape(title)}{f': <{quoted(url)}>' if url else ''}" for title, url in pairs]


WRITERS: dict[type[Block], Callable[[Any], list[str]]] = {
    ReportTable: table,
    Tiles: tiles,
    Prose: prose,
    Bullets: bullets,
    Charts: charts,
    CustomBlock: custom_block,
}
PARTS: dict[str, Callable[[Any], list[str]]] = {
    "code": code,
    "topology": topology,
    "ladder": ladder,
    "attempts": attempts,
    "problems": problems,
    "advice": advice,
    "sources": sources,
}


def quoted(url: str) -> str:
    """An address between angle brackets that cannot leave them."""
    return "".join(letter if letter.isprintable() and letter not in "<> " else "%20" for letter in url)
