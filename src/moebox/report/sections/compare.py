"""Several runs side by side: what differs in their settings, and what came of it."""

from collections.abc import Callable, Sequence

from moebox import units
from moebox.report.block import Cell, Column, Section, Table, Tone, words
from moebox.report.naming import box_title, engine_title, model_title, quant_title, spread_title
from moebox.report.palette import colour
from moebox.report.story import Level, Story
from moebox.report.words import DASH, milliseconds, number, times

Read = Callable[[Story], float | None]
ACROSS = 3  # more runs than this stand below each other


def section(stories: Sequence[Story]) -> Section | None:
    """Settings that differ, then headline figures: runs across where they are few, else down."""
    if len(stories) < 2:
        return None
    tables = [table for table in (settings(stories), figures(stories)) if table]
    if len(stories) > ACROSS and tables:
        tables = [turned(stories, tables)]
    return Section(id="compare", title="Side by side", lead=lead(stories), blocks=tuple(tables)) if tables else None


def turned(stories: Sequence[Story], tables: Sequence[Table]) -> Table:
    """All rows of `tables` as columns, one row a run."""
    lines = [row for table in tables for row in table.rows]
    rows = [
        (words(story.label, colour=colour(index)), *(line[index + 1] for line in lines))
        for index, story in enumerate(stories)
    ]
    plain = len(tables[0].rows) if len(tables) > 1 or tables[0].caption == "What differs" else 0
    heads = [Column(title="Run", numeric=False)]
    heads += [Column(title=line[0].text, numeric=place >= plain) for place, line in enumerate(lines)]
    return Table(caption="Settings and results", columns=tuple(heads), rows=tuple(rows))


def settings(stories: Sequence[Story]) -> Table | None:
    """Only what is not the same everywhere."""
    readers: list[tuple[str, Callable[[Story], str]]] = [
        ("Box", box_title),
        ("Model", lambda story: model_title(story.recipe.model) if story.recipe else ""),
        ("Checkpoint", quant_title),
        ("Engine", engine_title),
        ("Parallelism", spread_title),
        ("Expert layers on GPU", experts),
        ("KV type", lambda story: story.recipe.kv if story.recipe else ""),
        ("Context", lambda story: f"{story.recipe.context:,}" if story.recipe else ""),
        (
            "Speculation",
            lambda story: story.recipe.speculate.method if story.recipe and story.recipe.speculate else "none",
        ),
        (
            "Micro-batch (-ub)",
            lambda story: f"{story.recipe.hybrid.ubatch:,}" if story.recipe and story.recipe.hybrid else "",
        ),
        (
            "Memory fraction",
            lambda story: (
                f"{story.recipe.memory_utilization:g}" if story.recipe and story.recipe.memory_utilization else ""
            ),
        ),
    ]
    rows = []
    for name, read in readers:
        values = [read(story) for story in stories]
        if len(set(values)) > 1:
            rows.append((words(name), *(words(value) for value in values)))
    return Table(caption="What differs", columns=heads(stories), rows=tuple(rows), sortable=False) if rows else None


def experts(story: Story) -> str:
    """The placement as 3+3."""
    hybrid = story.recipe.hybrid if story.recipe else None
    return "+".join(str(len(layers)) for layers in hybrid.experts) or "0" if hybrid else ""


def figures(stories: Sequence[Story]) -> Table | None:
    """Headline figures; the best in bold, the others as a share of it."""

    def peak(name: str) -> Read:
        return lambda story: getattr(story.peak(name), name, None)

    readers: list[tuple[str, Read, int, Callable[[float], str]]] = [
        ("Highest output tok/s", peak("output_tok_s"), 1, number),
        ("Highest total tok/s", peak("total_tok_s"), 1, number),
        ("Token generation, tok/s", peak("tg_tok_s"), 1, number),
        ("Prompt processing, tok/s", peak("pp_tok_s"), 1, number),
        ("Fastest stream, tok/s", fastest, 1, number),
        ("Lowest mean TTFT", lambda story: least(story, lambda level: level.ttft.middle), -1, milliseconds),
        ("Lowest mean TPOT", lambda story: least(story, lambda level: level.tpot.middle), -1, milliseconds),
        ("KV capacity, tokens", capacity, 1, units.count),
    ]
    rows, apart = [], unlike(stories)
    for name, read, better, form in readers:
        values = [read(story) for story in stories]
        known = [value for value in values if value is not None]
        if len(known) >= 2:
            best = None if apart else max(known) if better > 0 else min(known)
            rows.append((words(name), *(entry(value, best, form) for value in values)))
    if not rows:
        return None
    note = f"No ratios: {apart}." if apart else ""
    return Table(caption="Results", columns=heads(stories), rows=tuple(rows), sortable=False, note=note)


def unlike(stories: Sequence[Story]) -> str:
    """Why figures of these runs must not be set against each other; "" where they may."""
    if len({story.simulation for story in stories}) > 1:
        return "some runs are simulated and others are measured"
    loads = [frozenset(level.workload for level in story.levels if level.workload) for story in stories]
    known = [load for load in loads if load]
    if known and not frozenset.intersection(*known):
        texts = [" and ".join(sorted(load)) for load in dict.fromkeys(known)]
        return f"the runs measured different loads ({' against '.join(texts[:3])})"
    return ""


def entry(value: float | None, best: float | None, form: Callable[[float], str]) -> Cell:
    """A figure, with its ratio to the best where runs are alike."""
    if value is None:
        return words(DASH, tone="quiet")
    tone: Tone = "best" if value == best else ""
    ratio = "" if value == best or not best or not value else times(value / best)
    return Cell(text=form(value), aside=ratio, value=value, tone=tone)


def fastest(story: Story) -> float | None:
    """What one client sees at best, where TG itself was not measured."""
    rates = [level.per_stream for level in story.levels if level.per_stream and level.tg_tok_s is None]
    return max(rates, default=None)


def least(story: Story, read: Callable[[Level], float | None]) -> float | None:
    """The lowest of a latency over all levels."""
    return min((value for level in story.levels if (value := read(level)) is not None), default=None)


def capacity(story: Story) -> float | None:
    """Tokens of cache: as the engine reported them, else as planned."""
    return story.kv_tokens or (story.planned.kv_tokens if story.planned else None)


def heads(stories: Sequence[Story]) -> tuple[Column, ...]:
    """One column a run."""
    return (Column(title="", numeric=False), *(Column(title=story.label) for story in stories))


def lead(stories: Sequence[Story]) -> str:
    """How many runs, and that imported ones are such."""
    imported = sum(story.imported for story in stories)
    said = f" {imported} of them hold published figures, imported." if 0 < imported < len(stories) else ""
    return f"{len(stories)} runs.{said}"
