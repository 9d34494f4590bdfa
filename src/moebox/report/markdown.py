"""A report as Markdown: the same sections, tables as tables, drawings by their captions."""

from moebox.escape import code_block
from moebox.escape import markdown as escape
from moebox.report.block import Bullets, Cell, Charts, Part, Prose, Section, Table, Tiles
from moebox.report.decision import Decision
from moebox.report.page import Page
from moebox.report.sections.ladder import SIGNS


def markdown(page: Page) -> str:
    """The whole document."""
    lines = [f"# {escape(page.title)}", "", " · ".join(word for word in (page.date, escape(page.subtitle)) if word), ""]
    if page.simulation:
        lines += [f"> **Simulation:** {escape(page.simulation)} No GPU produced these figures.", ""]
    for story, decision in zip(page.stories, page.decisions, strict=True):
        lines += strip(decision, story.label if len(page.stories) > 1 else "")
    for section in page.sections:
        lines += chapter(section, simulated=bool(page.simulation))
    lines += [f"Made by moebox on {page.made} from {', '.join(escape(story.id) for story in page.stories)}.", ""]
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
    for block in section.blocks:
        if isinstance(block, Table):
            lines += table(block)
        elif isinstance(block, Tiles):
            lines += [
                f"- **{escape(one.figure)} {escape(one.unit)}** {escape(one.label)}, {escape(one.detail)}"
                for one in block.tiles
            ]
            lines.append("")
        elif isinstance(block, Prose):
            lines += [line for paragraph in block.paragraphs for line in (escape(paragraph), "")]
        elif isinstance(block, Bullets):
            lines += [f"**{escape(block.title)}**", ""] if block.title else []
            lines += [*(f"- {escape(item)}" for item in block.items), ""]
        elif isinstance(block, Charts):
            lines += [
                f"*{escape(one.title)}*" + (f": {escape(one.caption)}" if one.caption else "") + "\n"
                for one in block.charts
            ]
        else:
            lines += part(block)
    return lines


def table(block: Table) -> list[str]:
    """A table with its alignment."""
    lines = [f"**{escape(block.caption)}**", ""] if block.caption else []
    lines.append("| " + " | ".join(escape(column.title) or " " for column in block.columns) + " |")
    lines.append("| " + " | ".join("---:" if column.numeric else "---" for column in block.columns) + " |")
    for row in block.rows:
        cells = (field(one) for one in row)
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", escape(block.note)] if block.note else []
    return [*lines, ""]


def field(one: Cell) -> str:
    """One cell; the best in bold."""
    text = f"**{escape(one.text)}**" if one.tone == "best" else escape(one.text)
    return f"{text} ({escape(one.aside)})" if one.aside else text


def part(block: Part) -> list[str]:
    """Blocks with a look of their own, in words."""
    data = block.data
    if block.kind == "code":
        return [f"**{escape(data['title'])}**", "", *code_block(data["text"]), ""]
    if block.kind == "topology":
        return [
            f"**{escape(data.title)}**",
            "",
            *(f"- {escape(name)}: {escape(value)}" for name, value in data.facts),
            "",
        ]
    if block.kind == "ladder":
        rungs = (
            f"- {SIGNS[one.mark]} **{escape(one.name)}** {escape(one.detail)} {escape(one.score)}".rstrip()
            for one in data["rungs"]
        )
        return [*([f"**{escape(data['name'])}**", ""] if data["name"] else []), *rungs, ""]
    if block.kind == "attempts":
        return [f"{row['attempt'].number}. **{row['attempt'].outcome}** {escape(sentence(row))}" for row in data] + [""]
    if block.kind == "problems":
        return [line for card in data for line in problem(card["problem"])]
    if block.kind == "advice":
        rows = [row["advice"] for row in data]
        return [f"- **{escape(one.title)}.** {escape(one.text)} *Rule: {escape(one.rule)}*" for one in rows] + [""]
    if block.kind == "sources":
        return [f"- {escape(title)}{': <' + quoted(url) + '>' if url else ''}" for title, url in data] + [""]
    return []


def sentence(row: dict[str, object]) -> str:
    """An attempt in one line."""
    one = row["attempt"]
    words = [str(row["run"] or getattr(one, "model", "")), getattr(one, "configuration", ""), getattr(one, "why", "")]
    return ": ".join(word for word in words if word)


def problem(one: object) -> list[str]:
    """A problem with cause and remedy."""
    lines = [f"### {escape(getattr(one, 'title', ''))}", ""]
    for name in ("cause", "remedy"):
        text = getattr(one, name, "")
        lines += [f"{name.capitalize()}: {escape(text)}", ""] if text else []
    excerpt = getattr(one, "excerpt", "")
    return [*lines, *([*code_block(excerpt), ""] if excerpt else [])]


def quoted(url: str) -> str:
    """An address between angle brackets that cannot leave them."""
    return "".join(letter if letter.isprintable() and letter not in "<> " else "%20" for letter in url)
