"""A report as Markdown: the same sections, tables as tables, drawings by their captions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from moebox.escape import code_block
from moebox.escape import markdown as escape
from moebox.report.block import Block, Bullets, Cell, Chart, Charts, Part, Prose, Section, Table, Tile, Tiles
from moebox.report.decision import Decision
from moebox.report.page import Page
from moebox.report.record import Attempt, CheckResult, Problem
from moebox.report.rules import Advice
from moebox.report.sections.hardware import Drawing
from moebox.report.sections.ladder import SIGNS
from moebox.report.sections.problems import Card

Entry = Mapping[str, Any]  # what a template of blocks.html is given


def markdown(page: Page) -> str:
    """The whole document."""
    lines = [f"# {escape(page.title)}", "", " · ".join(filter(None, (page.date, escape(page.subtitle)))), ""]
    if page.simulation:
        lines += [f"> **Simulation:** {escape(page.simulation)} No GPU produced these figures.", ""]
    for record, decision in zip(page.records, page.decisions, strict=True):
        lines += strip(decision, record.named)
    for section in page.sections:
        lines += chapter(section, simulated=bool(page.simulation))
    lines += [f"Made by moebox on {page.made} from {', '.join(escape(record.id) for record in page.records)}.", ""]
    return "\n".join(lines)


def strip(decision: Decision, name: str) -> list[str]:
    """The four answers of a run."""
    lines = [f"**{escape(name)}**", ""] if name else []
    for answer in decision.answers:
        text = f"`{answer.text}`" if answer.command and "`" not in answer.text else escape(answer.text)
        detail = f" ({escape(answer.detail)})" if answer.detail else ""
        lines.append(f"- **{answer.name}**: {text}{detail}")
    return [*lines, ""]


def chapter(section: Section, *, simulated: bool) -> list[str]:
    """One section."""
    lines = [f"## {escape(section.title)}{' (simulated)' if simulated else ''}", ""]
    lines += [escape(section.lead), ""] if section.lead else []
    return lines + [line for block in section.blocks for line in written(block)]


def written(block: Block) -> list[str]:
    """A block by its kind."""
    return WRITERS[type(block)](block)


def tiles(block: Tiles) -> list[str]:
    """Headline figures."""
    return [*map(tile, block.tiles), ""]


def prose(block: Prose) -> list[str]:
    """Paragraphs."""
    return [line for paragraph in block.paragraphs for line in (escape(paragraph), "")]


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


def chart(block: Chart) -> str:
    """A drawing by its caption."""
    caption = f": {escape(block.caption)}" if block.caption else ""
    return f"*{escape(block.title)}*{caption}\n"


def table(block: Table) -> list[str]:
    """A table with its alignment."""
    lines = heading(block.caption)
    lines.append(line(escape(column.title) or " " for column in block.columns))
    lines.append(line("---:" if column.numeric else "---" for column in block.columns))
    lines += [line(map(field, row)) for row in block.rows]
    lines += ["", escape(block.note)] if block.note else []
    return [*lines, ""]


def line(fields: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(fields)} |"


def field(cell: Cell) -> str:
    """One cell; the best in bold."""
    text = f"**{escape(cell.text)}**" if cell.tone == "best" else escape(cell.text)
    return f"{text} ({escape(cell.aside)})" if cell.aside else text


def part(block: Part) -> list[str]:
    """Blocks with a look of their own, in words; nothing for one that is only a picture."""
    write = PARTS.get(block.kind)
    return [*write(block.data), ""] if write else []


def code(data: dict[str, str]) -> list[str]:
    """Text to copy."""
    return [f"**{escape(data['title'])}**", "", *code_block(data["text"])]


def topology(data: Drawing) -> list[str]:
    """A box by its facts."""
    return [f"**{escape(data.title)}**", "", *(f"- {escape(name)}: {escape(value)}" for name, value in data.facts)]


def ladder(data: Entry) -> list[str]:
    """Each check with its verdict."""
    return [*heading(data["name"]), *map(check, data["checks"])]


def check(result: CheckResult) -> str:
    """One check."""
    line = f"- {SIGNS[result.mark]} **{escape(result.name)}** {escape(result.detail)} {escape(result.score)}".rstrip()
    return "\n".join([line, *(f"    - known habit of {escape(habit)}" for habit in result.habits)])


def attempts(rows: Sequence[Entry]) -> list[str]:
    """Each try at a launch."""
    return [f"{row['attempt'].number}. **{row['attempt'].outcome}** {escape(sentence(row))}" for row in rows]


def sentence(row: Entry) -> str:
    """An attempt in one line."""
    attempt: Attempt = row["attempt"]
    parts = [row["run"] or attempt.model, attempt.configuration, attempt.why]
    return ": ".join(filter(None, parts))


def problems(cards: Sequence[Card]) -> list[str]:
    """Each problem with cause and remedy."""
    return [line for card in cards for line in problem(card.problem)][:-1]


def problem(met: Problem) -> list[str]:
    """A problem with cause and remedy."""
    lines = [f"### {escape(met.title)}", ""]
    for name, text in (("Cause", met.cause), ("Remedy", met.remedy)):
        lines += [f"{name}: {escape(text)}", ""] if text else []
    return [*lines, *([*code_block(met.excerpt), ""] if met.excerpt else [])]


def advice(rows: Sequence[Entry]) -> list[str]:
    """Each recommendation with its rule."""
    given: list[Advice] = [row["advice"] for row in rows]
    return [f"- **{escape(item.title)}.** {escape(item.text)} *Rule: {escape(item.rule)}*" for item in given]


def sources(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Where imported figures come from."""
    return [f"- {escape(title)}{f': <{quoted(url)}>' if url else ''}" for title, url in pairs]


WRITERS: dict[type[Block], Callable[[Any], list[str]]] = {
    Table: table,
    Tiles: tiles,
    Prose: prose,
    Bullets: bullets,
    Charts: charts,
    Part: part,
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
