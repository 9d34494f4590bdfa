"""What was tried and whether it works."""

from collections.abc import Sequence

from moebox import units
from moebox.core import catalogue
from moebox.core.model import Model
from moebox.errors import MoeboxError
from moebox.report.block import ReportTable, Section, TableCell, Tone, drop_empty_columns, table_columns, text_cell
from moebox.report.naming import engine_title, model_title, parallelism_title, placement_title, quant_title
from moebox.report.palette import run_colour
from moebox.report.record import Outcome, RunRecord

TONES: dict[str, Tone] = {
    "WORKING": "good",
    "PARTLY": "warn",
    "INTERRUPTED": "warn",
    "FAILED": "bad",
    "SIMULATED": "quiet",
}
BY_ATTEMPT: dict[Outcome, str] = {"SUCCESS": "WORKING", "PARTIAL": "PARTLY", "FAILED": "FAILED"}


def section(records: Sequence[RunRecord]) -> Section | None:
    """One row per run: model, checkpoint, engine, status."""
    rows = [row(record, index) for index, record in enumerate(records) if record.recipe]
    if not rows:
        return None
    heads = ("Run", "Model", "Checkpoint", "Size", "Experts", "Engine", "Parallelism", "KV", "Context", "Status")
    table = ReportTable(
        caption="Configurations", columns=table_columns(*heads, text=(0, 1, 2, 4, 5, 6, 7, 9)), rows=tuple(rows)
    )
    return Section(
        id="models", title="Models tested", blocks=(drop_empty_columns(table, single_run=len(records) == 1),)
    )


def row(record: RunRecord, index: int) -> tuple[TableCell, ...]:
    """One run in the table."""
    recipe = record.recipe
    assert recipe is not None
    draft = f" + {recipe.speculate.method.upper()}" if recipe.speculate else ""
    state = run_status(record)
    return (
        text_cell(record.label, colour=run_colour(index)),
        text_cell(model_title(recipe.model)),
        text_cell(quant_title(record) + draft, title=recipe.checkpoint),
        size(checkpoint_bytes(recipe.model, recipe.checkpoint)),
        text_cell(experts(find_model(recipe.model))),
        text_cell(engine_title(record)),
        text_cell(parallelism_title(record) or placement_title(record, single_gpu="one device")),
        text_cell(recipe.kv),
        tokens(recipe.context),
        text_cell(state, tone=TONES.get(state, "quiet")),
    )


def size(count: int) -> TableCell:
    """Bytes of a checkpoint; a dash where nobody knows."""
    return TableCell(text=units.format_gb(count), value=float(count)) if count else text_cell("")


def tokens(context: int) -> TableCell:
    """The context that a recipe asks for."""
    return TableCell(text=f"{context:,}", value=float(context)) if context else text_cell("the model's")


def experts(model: Model | None) -> str:
    """ "384, 8+1 active"."""
    moe = model.moe if model else None
    return f"{moe.experts}, {moe.used}+{moe.shared} active" if moe else ""


def find_model(name: str) -> Model | None:
    """The catalogue's entry, if there is one."""
    try:
        return catalogue.find_model(name)
    except (MoeboxError, FileNotFoundError):
        return None


def checkpoint_bytes(model: str, checkpoint: str) -> int:
    """Bytes of the checkpoint, where the catalogue knows it."""
    try:
        return catalogue.find_checkpoint(catalogue.find_model(model).name, checkpoint).total_bytes
    except (MoeboxError, FileNotFoundError, KeyError):
        return 0


def run_status(record: RunRecord) -> str:
    """WORKING, PARTLY or FAILED: by the checks first, then the attempts, then the figures; a simulation is none.

    A rehearsal says nothing of the real weights, and half of the checks nothing of the rest.
    """
    if record.simulation:
        return "SIMULATED"
    if record.failure and not record.loads:
        return "FAILED"
    if record.check_names("fail"):
        return "PARTLY"
    if record.unfinished_step:
        return "INTERRUPTED"
    return _served(record)


def _served(record: RunRecord) -> str:
    """By the last attempt; without any, by what was checked or measured."""
    real = [attempt for attempt in record.attempts if not attempt.is_rehearsal]
    if real:
        return BY_ATTEMPT.get(real[-1].outcome, "RUNNING" if record.live else "ENDED")
    return "WORKING" if answered(record) else "not tried"


def answered(record: RunRecord) -> bool:
    """Whether a check or a figure says that it served."""
    return bool(record.check_names("pass")) or any(level.headline_tok_s for level in record.loads)
