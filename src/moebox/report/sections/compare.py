"""Several runs side by side: what differs in their settings, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from moebox import units
from moebox.core.recipe import Recipe
from moebox.report.block import ReportTable, Section, TableCell, TableColumn, Tone, text_cell
from moebox.report.format import DASH, format_ms, format_number, format_ratio, unique_names
from moebox.report.naming import box_title, engine_title, model_title, parallelism_title, quant_title
from moebox.report.palette import run_colour
from moebox.report.record import LoadResult, RunRecord

Rows = tuple[tuple[TableCell, ...], ...]
ACROSS = 3  # more runs than this stand below each other


def section(records: Sequence[RunRecord]) -> Section | None:
    """Settings that differ, then headline figures: runs across where they are few, else down."""
    if len(records) < 2:
        return None
    settings, figures = differing_settings(records), headlines(records)
    tables = (
        runs_as_columns(records, settings, figures)
        if len(records) <= ACROSS
        else runs_as_rows(records, settings, figures)
    )
    return Section(id="compare", title="Side by side", lead=lead(records), blocks=tuple(tables))


def runs_as_columns(records: Sequence[RunRecord], settings: Rows, figures: Rows) -> Iterator[ReportTable]:
    """A column a run."""
    if settings:
        yield ReportTable(caption="What differs", columns=heads("Setting", records), rows=settings, sortable=False)
    if figures:
        apart = incomparable_reason(records)
        note = f"No ratios: {apart}." if apart else ""
        yield ReportTable(caption="Results", columns=heads("Figure", records), rows=figures, sortable=False, note=note)


def runs_as_rows(records: Sequence[RunRecord], settings: Rows, figures: Rows) -> Iterator[ReportTable]:
    """A row a run, settings before figures."""
    lines = (*settings, *figures)
    if not lines:
        return
    heads = [TableColumn(title="Run", numeric=False)]
    heads += [TableColumn(title=line[0].text, numeric=place >= len(settings)) for place, line in enumerate(lines)]
    rows = tuple(
        (text_cell(record.label, colour=run_colour(index)), *(line[index + 1] for line in lines))
        for index, record in enumerate(records)
    )
    yield ReportTable(caption="Settings and results", columns=tuple(heads), rows=rows)


def of_recipe(read: Callable[[Recipe], str]) -> Callable[[RunRecord], str]:
    """A setting of the recipe; "" for a run without one."""
    return lambda record: read(record.recipe) if record.recipe else ""


def experts(recipe: Recipe) -> str:
    """The placement as 3+3; "" where all experts lie on GPUs."""
    if not recipe.hybrid:
        return ""
    return "+".join(str(len(layers)) for layers in recipe.hybrid.experts) or "0"


def memory_fraction(recipe: Recipe) -> str:
    """The share of each GPU that the engine may take; "" where that is left to it."""
    return f"{recipe.memory_utilization:g}" if recipe.memory_utilization else ""


def context(recipe: Recipe) -> str:
    """Its tokens, where the recipe says them."""
    return f"{recipe.context:,}" if recipe.context else "the model's"


def draft(record: RunRecord) -> str:
    """The method of speculative decoding."""
    return record.recipe.speculate.method if record.recipe and record.recipe.speculate else "none"


SETTINGS: tuple[tuple[str, Callable[[RunRecord], str]], ...] = (
    ("Box", box_title),
    ("Model", of_recipe(lambda recipe: model_title(recipe.model))),
    ("Checkpoint", quant_title),
    ("Engine", engine_title),
    ("Parallelism", parallelism_title),
    ("Expert layers on GPU", of_recipe(experts)),
    ("KV type", of_recipe(lambda recipe: recipe.kv)),
    ("Context", of_recipe(context)),
    ("Speculation", draft),
    ("Micro-batch (-ub)", of_recipe(lambda recipe: f"{recipe.hybrid.ubatch:,}" if recipe.hybrid else "")),
    ("Memory fraction", of_recipe(memory_fraction)),
)


def differing_settings(records: Sequence[RunRecord]) -> Rows:
    """Only the settings that are not the same everywhere."""
    read = ((name, [*map(setting, records)]) for name, setting in SETTINGS)
    return tuple((text_cell(name), *map(text_cell, values)) for name, values in read if len(set(values)) > 1)


def peak(name: str) -> Callable[[RunRecord], float | None]:
    """The highest value of a figure."""
    return lambda record: record.highest_value(name)


def least(read: Callable[[LoadResult], float | None]) -> Callable[[RunRecord], float | None]:
    """The lowest of a latency over all levels."""
    return lambda record: min((value for level in record.loads if (value := read(level)) is not None), default=None)


def fastest(record: RunRecord) -> float | None:
    """What one client sees at best, where TG itself was not measured."""
    rates = [level.stream_tok_s for level in record.loads if level.stream_tok_s and level.tg_tok_s is None]
    return max(rates, default=None)


def capacity(record: RunRecord) -> float | None:
    """Tokens of cache: as the engine reported them, else as planned."""
    return record.kv_tokens or record.plan.kv_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineFigure:
    """One figure of a run: where it is read, how it is written, and which of several is the best."""

    title: str
    read: Callable[[RunRecord], float | None]
    form: Callable[[float], str] = format_number
    best: Callable[[Sequence[float]], float] = max


HEADLINES = (
    HeadlineFigure(title="Highest output tok/s", read=peak("output_tok_s")),
    HeadlineFigure(title="Highest total tok/s", read=peak("total_tok_s")),
    HeadlineFigure(title="Token generation, tok/s", read=peak("tg_tok_s")),
    HeadlineFigure(title="Prompt processing, tok/s", read=peak("pp_tok_s")),
    HeadlineFigure(title="Fastest stream, tok/s", read=fastest),
    HeadlineFigure(
        title="Lowest mean TTFT", read=least(lambda level: level.ttft.mean_or_median), form=format_ms, best=min
    ),
    HeadlineFigure(
        title="Lowest mean TPOT", read=least(lambda level: level.tpot.mean_or_median), form=format_ms, best=min
    ),
    HeadlineFigure(title="KV capacity, tokens", read=capacity, form=units.format_count),
)


def headlines(records: Sequence[RunRecord]) -> Rows:
    """Headline figures; the best in bold, the others as a share of it."""
    alike = not incomparable_reason(records)
    return tuple(filter(None, (headline_row(headline, records, ratios=alike) for headline in HEADLINES)))


def headline_row(headline: HeadlineFigure, records: Sequence[RunRecord], *, ratios: bool) -> tuple[TableCell, ...]:
    """One figure of each run, where two or more have it."""
    values = [headline.read(record) for record in records]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ()
    best = headline.best(known) if ratios else None
    return (text_cell(headline.title), *(entry(value, best, headline.form) for value in values))


def incomparable_reason(records: Sequence[RunRecord]) -> str:
    """Why figures of these runs must not be set against each other; "" where they may."""
    if len({record.simulation for record in records}) > 1:
        return "some runs are simulated and others are measured"
    loads = list(filter(None, map(workloads, records)))
    if not loads or frozenset.intersection(*loads):
        return ""
    texts = [" and ".join(sorted(load)) for load in dict.fromkeys(loads)]
    return f"the runs measured different loads ({' against '.join(texts[:3])})"


def workloads(record: RunRecord) -> frozenset[str]:
    """The workloads that its measurements name."""
    return frozenset(unique_names(level.workload for level in record.loads))


def entry(value: float | None, best: float | None, form: Callable[[float], str]) -> TableCell:
    """A figure, with its ratio to the best where runs are alike."""
    if value is None:
        return text_cell(DASH, tone="quiet")
    tone: Tone = "best" if value == best else ""
    ratio = format_ratio(value / best) if best and value and not tone else ""
    return TableCell(text=form(value), aside=ratio, value=value, tone=tone)


def heads(first: str, records: Sequence[RunRecord]) -> tuple[TableColumn, ...]:
    """One column a run, after the one that names the rows."""
    return (TableColumn(title=first, numeric=False), *(TableColumn(title=record.label) for record in records))


def lead(records: Sequence[RunRecord]) -> str:
    """How many runs, and that imported ones are such."""
    imported = sum(record.imported for record in records)
    note = f" {imported} of them hold published figures, imported." if 0 < imported < len(records) else ""
    return f"{len(records)} runs.{note}"
