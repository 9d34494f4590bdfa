"""Every figure that was measured, as tables that sort and copy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.report.block import Block, Cell, Column, Section, Table, Tone, cell, words
from moebox.report.palette import colour
from moebox.report.sections.performance import workloads
from moebox.report.story import Level, Story
from moebox.report.words import milliseconds

Read = Callable[[Level], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One column: its heading, where it is read, how it is written, which end is better."""

    title: str
    read: Read
    latency: bool = False
    better: int = 0  # +1: higher, -1: lower


def _peak(level: Level) -> float | None:
    """The peak, unless the run was too short to have one: peaks are counted in whole seconds."""
    if level.peak_tok_s is None or level.output_tok_s is None:
        return level.peak_tok_s
    return level.peak_tok_s if level.peak_tok_s >= level.output_tok_s else None


FIGURES = (
    Figure(title="Concurrency", read=lambda level: level.concurrency),
    Figure(title="Rate req/s", read=lambda level: level.rate if level.concurrency is None else None),
    Figure(title="Output tok/s", read=lambda level: level.output_tok_s, better=1),
    Figure(title="Total tok/s", read=lambda level: level.total_tok_s, better=1),
    Figure(title="Peak tok/s", read=_peak, better=1),
    Figure(title="TG tok/s", read=lambda level: level.tg_tok_s, better=1),
    Figure(title="PP tok/s", read=lambda level: level.pp_tok_s, better=1),
    Figure(title="Per stream tok/s", read=lambda level: level.per_stream if level.tg_tok_s is None else None, better=1),
    Figure(title="Mean TTFT", read=lambda level: level.ttft.middle, latency=True, better=-1),
    Figure(title="P99 TTFT", read=lambda level: level.ttft.p99, latency=True, better=-1),
    Figure(title="Mean TPOT", read=lambda level: level.tpot.middle, latency=True, better=-1),
    Figure(title="P99 TPOT", read=lambda level: level.tpot.p99, latency=True, better=-1),
    Figure(title="Mean ITL", read=lambda level: level.itl.middle, latency=True, better=-1),
    Figure(title="P99 ITL", read=lambda level: level.itl.p99, latency=True, better=-1),
    Figure(title="Mean E2E", read=lambda level: level.e2e.middle, latency=True, better=-1),
    Figure(title="Requests", read=lambda level: level.completed),
    Figure(title="Failed", read=lambda level: level.failed or None),
    Figure(title="Tokens/J", read=lambda level: level.tokens_per_joule, better=1),
)


def section(stories: Sequence[Story]) -> Section | None:
    """One table per run and workload; runs with a row or two each share one."""
    blocks: list[Block] = []
    for workload in workloads(stories):
        groups = [
            (index, level)
            for index, story in enumerate(stories)
            for level in story.levels
            if level.workload == workload
        ]
        runs = list(dict.fromkeys(index for index, _ in groups))
        if len(runs) > 1 and len(groups) <= 2 * len(runs):
            blocks.append(table(stories, groups, workload, named=True))
        else:
            blocks += [
                table(stories, [entry for entry in groups if entry[0] == run], workload, named=False) for run in runs
            ]
    if not blocks:
        return None
    lead = "The best figure of each column is set in bold."
    return Section(id="figures", title="Detailed figures", lead=lead, blocks=tuple(blocks))


def table(stories: Sequence[Story], groups: Sequence[tuple[int, Level]], workload: str, *, named: bool) -> Table:
    """The figures under one workload; columns nobody filled are left out, runs named where there are several."""
    levels = [level for _, level in groups]
    filled: list[tuple[Column, list[Cell]]] = []
    if named:
        filled.append((_text("Run"), [words(stories[index].label, colour=colour(index)) for index, _ in groups]))
    if _named_apart(levels):
        filled.append((_text("Measurement"), [words(level.name) for level in levels]))
    shown = [figure for figure in FIGURES if any(figure.read(level) is not None for level in levels)]
    filled += [(Column(title=figure.title), [entry(figure, level, levels) for level in levels]) for figure in shown]
    if any(remark(level) for level in levels):
        filled.append((_text("Remark"), [remarked(level) for level in levels]))
    whose = "" if named or len(stories) == 1 else stories[groups[0][0]].label
    title = " · ".join(part for part in (whose, workload) if part)
    rows = tuple(zip(*(cells for _, cells in filled), strict=True))
    heads = tuple(head for head, _ in filled)
    return Table(caption=title or "Measurements", columns=heads, rows=rows, note=sources(levels))


def _text(title: str) -> Column:
    return Column(title=title, numeric=False)


def _named_apart(levels: Sequence[Level]) -> bool:
    """Whether rows are told apart by their names, because not all have a concurrency."""
    return len({level.name for level in levels}) > 1 and not all(level.concurrency for level in levels)


def remarked(level: Level) -> Cell:
    """The remark as a cell; one that questions the row stands out."""
    doubtful = level.client_limited or level.flags or level.failed
    return words(remark(level) or " ", tone="warn" if doubtful else "quiet")


def entry(figure: Figure, level: Level, levels: Sequence[Level]) -> Cell:
    """One figure, bold where it is the best of its column."""
    value = figure.read(level)
    others = [other for one in levels if (other := figure.read(one)) is not None]
    best = figure.better and len(others) > 1 and value == (max(others) if figure.better > 0 else min(others))
    tone: Tone = "best" if best else ""
    if figure.latency:
        return Cell(text=milliseconds(value), value=value, tone=tone)
    return cell(value, tone=tone)


def remark(level: Level) -> str:
    """What must be known to read the row right."""
    said = ["limited by the client"] if level.client_limited else []
    said += level.flags
    said += ["interrupted, partial"] if level.partial else []
    said += ["simulated"] if level.simulation else []
    said += ["no request completed"] if level.completed == 0 else []
    said += [level.note] if level.note else []
    return "; ".join(said)


def sources(levels: Sequence[Level]) -> str:
    """Where imported figures come from."""
    named = list(dict.fromkeys(level.source for level in levels if level.source))
    return f"Source: {'; '.join(named)}" if named else ""
