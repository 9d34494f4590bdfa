"""The configurations that were run, and whether they work."""

from collections.abc import Sequence

from moebox import units
from moebox.assess import naming
from moebox.assess.assessment import Tone
from moebox.report.block import ReportTable, Section, TableCell, drop_empty_columns, table_columns, text_cell
from moebox.report.palette import run_colour
from moebox.runs.record import RunRecord, RunStatus

HEADS = ("Run", "Model", "Checkpoint", "Size", "Experts", "Engine", "Parallelism", "KV", "Context", "Status")
TONES: dict[RunStatus, Tone] = {"WORKING": "good", "PARTLY": "warn", "INTERRUPTED": "warn", "FAILED": "bad"}


def models_section(records: Sequence[RunRecord]) -> Section | None:
    rows = tuple(model_cells(record, index) for index, record in enumerate(records) if record.recipe)
    if not rows:
        return None
    columns = table_columns(*HEADS, text=(0, 1, 2, 4, 5, 6, 7, 9))
    table = ReportTable(caption="Configurations", columns=columns, rows=rows)
    blocks = (drop_empty_columns(table, single_run=len(records) == 1),)
    return Section(id="models", title="Models tested", blocks=blocks)


def model_cells(record: RunRecord, index: int) -> tuple[TableCell, ...]:
    """Model, checkpoint, engine, layout and status of one run."""
    recipe = record.recipe
    assert recipe is not None
    checkpoint, model = naming.find_checkpoint(recipe), naming.find_model(recipe.model)
    size = checkpoint.total_bytes if checkpoint else 0
    moe = model.moe if model else None
    draft = f" + {recipe.speculate.method.upper()}" if recipe.speculate else ""
    context = TableCell(text=f"{recipe.context:,}", value=float(recipe.context))
    return (
        text_cell(record.label, colour=run_colour(index)),
        text_cell(naming.model_title(recipe.model)),
        text_cell(naming.quant_title(record) + draft, title=recipe.checkpoint),
        TableCell(text=units.format_gb(size), value=float(size)) if size else text_cell(""),
        text_cell(f"{moe.experts}, {moe.used}+{moe.shared} active" if moe else ""),
        text_cell(naming.engine_title(record)),
        text_cell(naming.parallelism_title(record) or naming.placement_title(record, single_gpu="one device")),
        text_cell(recipe.kv),
        context if recipe.context else text_cell("the model's"),
        text_cell(record.status, tone=TONES.get(record.status, "quiet")),
    )
