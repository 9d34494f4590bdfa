"""Several runs side by side: configurations, settings that differ, and results."""

from collections.abc import Callable, Sequence

from moebox import units
from moebox.assess.assessment import Tone
from moebox.assess.format import DASH, format_ms, format_ratio, unique_names
from moebox.assess.naming import (
    box_title,
    engine_title,
    find_checkpoint,
    model_title,
    parallelism_title,
    placement_title,
    quant_title,
)
from moebox.core.catalogue import get_model
from moebox.core.recipe import Hybrid, Recipe
from moebox.report.block import Section
from moebox.report.table import CellValue, ComparedFigure, TableCell, run_cell, table_blocks, text_cell
from moebox.runs.record import LoadResult, RunRecord, RunStatus

MAX_COLUMNS = 3  # more runs than this are rows instead of columns


def compare_section(records: Sequence[RunRecord]) -> Section | None:
    """Settings that differ, then headline figures: a column for each run if they are few, else a row."""
    if len(records) < 2:
        return None
    reason = incomparable_reason(records)
    by_name = [(name, [*map(read, records)]) for name, read in SETTINGS.items()]
    settings = [(name, *values) for name, values in by_name if len(set(values)) > 1]
    figures = [row for headline in HEADLINES if (row := headline_row(headline, records, ratios=not reason))]
    if len(records) <= MAX_COLUMNS:
        names = [record.label for record in records]
        tables = table_blocks(("Setting", *names), settings, caption="What differs", sortable=False)
        note = f"No ratios: {reason}." if reason else ""
        tables += table_blocks(("Figure", *names), figures, caption="Results", sortable=False, note=note)
    else:
        heads, *rows = zip(("Run", *map(run_cell, records, range(len(records)))), *settings, *figures, strict=True)
        text = range(1 + len(settings))
        tables = table_blocks(heads, rows, text=text, caption="Settings and results") if len(heads) > 1 else []
    imported = sum(record.imported for record in records)
    note = f" {imported} of them hold published figures, imported." if 0 < imported < len(records) else ""
    return Section(id="compare", title="Side by side", lead=f"{len(records)} runs.{note}", blocks=tables)


def of_recipe(read: Callable[[Recipe], str]) -> Callable[[RunRecord], str]:
    """What `read` returns of a run's recipe; "" for a run without one."""
    return lambda record: read(record.recipe) if record.recipe else ""


# A run's settings by name; "" for those that do not apply.
SETTINGS: dict[str, Callable[[RunRecord], str]] = {
    "Box": box_title,
    "Model": of_recipe(lambda recipe: model_title(recipe.model)),
    "Checkpoint": quant_title,
    "Engine": engine_title,
    "Parallelism": parallelism_title,
    "Expert layers on GPU": of_recipe(lambda recipe: expert_layers(recipe.hybrid) if recipe.hybrid else ""),
    "KV type": of_recipe(lambda recipe: recipe.kv),
    "Context": of_recipe(lambda recipe: f"{recipe.context:,}" if recipe.context else "the model's"),
    "Speculation": of_recipe(lambda recipe: recipe.speculate.method if recipe.speculate else "none"),
    "Micro-batch (-ub)": of_recipe(lambda recipe: f"{recipe.hybrid.ubatch:,}" if recipe.hybrid else ""),
    "Memory fraction": of_recipe(lambda recipe: f"{recipe.memory_utilization:g}" if recipe.memory_utilization else ""),
}


def expert_layers(hybrid: Hybrid) -> str:
    """ "12+12": how many layers each GPU holds the experts of; "0" for none."""
    return "+".join(str(len(layers)) for layers in hybrid.experts) or "0"


def lowest_latency(read: Callable[[LoadResult], float | None]) -> Callable[[RunRecord], float | None]:
    return lambda record: min((value for load in record.loads if (value := read(load)) is not None), default=None)


def fastest_stream(record: RunRecord) -> float | None:
    """The highest rate that one client sees, for loads without a measured TG."""
    return max(
        (load.stream_tok_s for load in record.loads if load.stream_tok_s and load.tg_tok_s is None), default=None
    )


def kv_capacity(record: RunRecord) -> float | None:
    """Tokens of KV cache as the engine reported them, else as planned."""
    return record.kv_tokens or record.planned_memory.kv_tokens or None


HEADLINES: tuple[ComparedFigure[RunRecord], ...] = (
    ComparedFigure("Highest output tok/s", lambda record: record.highest_value("output_tok_s")),
    ComparedFigure("Highest total tok/s", lambda record: record.highest_value("total_tok_s")),
    ComparedFigure("Token generation, tok/s", lambda record: record.highest_value("tg_tok_s")),
    ComparedFigure("Prompt processing, tok/s", lambda record: record.highest_value("pp_tok_s")),
    ComparedFigure("Fastest stream, tok/s", fastest_stream),
    ComparedFigure("Lowest mean TTFT", lowest_latency(lambda load: load.ttft.mean_or_median), min, format_ms),
    ComparedFigure("Lowest mean TPOT", lowest_latency(lambda load: load.tpot.mean_or_median), min, format_ms),
    ComparedFigure("KV capacity, tokens", kv_capacity, max, units.format_count),
)


def headline_row(
    headline: ComparedFigure[RunRecord], records: Sequence[RunRecord], *, ratios: bool
) -> tuple[CellValue, ...]:
    """One figure of each run, if two or more have it; with `ratios` the best is bold and the others a share of it."""
    values = [*map(headline.read, records)]
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ()
    best = headline.best(known) if ratios and headline.best else None
    cells = []
    for value in values:
        tone: Tone = "quiet" if value is None else "best" if value == best else ""
        ratio = format_ratio(value / best) if best and value and not tone else ""
        text = DASH if value is None else headline.write(value)
        cells.append(TableCell(text=text, aside=ratio, value=DASH if value is None else value, tone=tone))
    return (headline.title, *cells)


def incomparable_reason(records: Sequence[RunRecord]) -> str:
    """Why figures of these runs must not be compared; "" if they may be."""
    if len({record.simulation for record in records}) > 1:
        return "some runs are simulated and others are measured"
    workloads = [frozenset(unique_names(load.workload for load in record.loads)) for record in records]
    workloads = [*filter(None, workloads)]
    if not workloads or frozenset.intersection(*workloads):
        return ""
    texts = [" and ".join(sorted(names)) for names in dict.fromkeys(workloads)]
    return f"the runs measured different loads ({' against '.join(texts[:3])})"


HEADS = ("Run", "Model", "Checkpoint", "Size", "Experts", "Engine", "Parallelism", "KV", "Context", "Status")
TONES: dict[RunStatus, Tone] = {"WORKING": "good", "PARTLY": "warn", "INTERRUPTED": "warn", "FAILED": "bad"}


def models_section(records: Sequence[RunRecord]) -> Section | None:
    rows = [model_cells(record, index) for index, record in enumerate(records) if record.recipe]
    blocks = table_blocks(HEADS, rows, text=(0, 1, 2, 4, 5, 6, 7, 9), drop_empty=True, caption="Configurations")
    return Section(id="models", title="Models tested", blocks=blocks)


def model_cells(record: RunRecord, index: int) -> tuple[CellValue, ...]:
    """Model, checkpoint, engine, layout and status of one run."""
    recipe = record.recipe
    assert recipe is not None
    checkpoint, model = find_checkpoint(recipe), get_model(recipe.model)
    size = checkpoint.total_bytes if checkpoint else 0
    moe = model.moe if model else None
    draft = f" + {recipe.speculate.method.upper()}" if recipe.speculate else ""
    return (
        run_cell(record, index),
        model_title(recipe.model),
        text_cell(quant_title(record) + draft, title=recipe.checkpoint),
        TableCell(text=units.format_gb(size), value=float(size)) if size else "",
        f"{moe.experts}, {moe.used}+{moe.shared} active" if moe else "",
        engine_title(record),
        parallelism_title(record) or placement_title(record, single_gpu="one device"),
        recipe.kv,
        TableCell(text=f"{recipe.context:,}", value=float(recipe.context)) if recipe.context else "the model's",
        text_cell(record.status, tone=TONES.get(record.status, "quiet")),
    )
