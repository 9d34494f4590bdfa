"""What was tried and whether it works."""

from collections.abc import Sequence

from moebox import units
from moebox.core import catalogue
from moebox.core.model import Model
from moebox.errors import MoeboxError
from moebox.report.block import Cell, Section, Table, Tone, columns, words
from moebox.report.naming import engine_title, model_title, quant_title, spread_title
from moebox.report.palette import colour
from moebox.report.story import Story

TONES: dict[str, Tone] = {"WORKING": "good", "PARTLY": "warn", "FAILED": "bad", "SIMULATED": "quiet"}


def section(stories: Sequence[Story]) -> Section | None:
    """One row per run: model, checkpoint, engine, status."""
    rows = [row(story, index) for index, story in enumerate(stories) if story.recipe]
    if not rows:
        return None
    heads = ("Run", "Model", "Checkpoint", "Size", "Experts", "Engine", "Parallelism", "KV", "Context", "Status")
    table = Table(caption="Configurations", columns=columns(*heads, text=(0, 1, 2, 4, 5, 6, 7, 9)), rows=tuple(rows))
    return Section(id="models", title="Models tested", blocks=(table,))


def row(story: Story, index: int) -> tuple[Cell, ...]:
    """One run in the table."""
    recipe = story.recipe
    assert recipe is not None
    known = model_of(recipe.model)
    size = checkpoint_bytes(recipe.model, recipe.checkpoint)
    draft = f" + {recipe.speculate.method.upper()}" if recipe.speculate else ""
    state = status(story)
    return (
        words(story.label, colour=colour(index)),
        words(model_title(recipe.model)),
        words(quant_title(story) + draft, title=recipe.checkpoint),
        Cell(text=units.gb(size), value=float(size)) if size else words(""),
        words(f"{known.moe.experts}, {known.moe.used}+{known.moe.shared} active" if known and known.moe else ""),
        words(engine_title(story)),
        words(spread_title(story) or placed(story)),
        words(recipe.kv),
        Cell(text=f"{recipe.context:,}", value=float(recipe.context)),
        words(state, tone=TONES.get(state, "quiet")),
    )


def model_of(name: str) -> Model | None:
    """The catalogue's entry, if there is one."""
    try:
        return catalogue.model(name)
    except (MoeboxError, FileNotFoundError):
        return None


def checkpoint_bytes(model: str, checkpoint: str) -> int:
    """Bytes of the checkpoint, where the catalogue knows it."""
    try:
        return catalogue.checkpoint(catalogue.model(model).name, checkpoint).bytes
    except (MoeboxError, FileNotFoundError, KeyError):
        return 0


def status(story: Story) -> str:
    """WORKING, PARTLY or FAILED, from the ladder first, then the attempts, then the figures; a simulation is none."""
    if story.simulation:
        return "SIMULATED"
    if story.failure and not story.levels:
        return "FAILED"
    if any(rung.mark == "fail" for rung in story.rungs):
        return "PARTLY"
    if story.attempts:
        last = story.attempts[-1].outcome
        return {"SUCCESS": "WORKING", "PARTIAL": "PARTLY", "FAILED": "FAILED"}.get(
            last, "RUNNING" if story.live else "ENDED"
        )
    if any(rung.mark == "pass" for rung in story.rungs) or any(
        level.output_tok_s or level.tg_tok_s for level in story.levels
    ):
        return "WORKING"
    return "not tried"


def placed(story: Story) -> str:
    """Where a model that is not split over cards lies."""
    if story.box and not story.box.gpus:
        return "CPU"
    return "CPU + GPU" if story.recipe and story.recipe.hybrid else "one device"
