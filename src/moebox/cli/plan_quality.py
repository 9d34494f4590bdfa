"""The section of a plan about how far formats are from the original weights."""

from typing import TYPE_CHECKING

from moebox.checkpoint import deploy
from moebox.cli.display import make_table
from moebox.core.catalogue import find_divergence, known_divergences
from moebox.core.plan import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType


def quality_part(plan: Plan) -> "RenderableType":
    """Return published distances of the model's formats from the original weights; the others are unknown."""
    from rich.console import Group
    from rich.text import Text

    checkpoint = deploy(plan.recipe).checkpoint
    rows, notes, lines = list(known_divergences(checkpoint.model)), [], []
    for row in rows:
        kl, ratio = (f"{value:.4f}" if value is not None else "" for value in (row.kl, row.perplexity))
        lines.append((row.format, kl, ratio, row.against))
        notes.append(f"{row.repo}: {row.text}; {row.source} ({row.date})")
    parts: list[RenderableType] = []
    if not find_divergence(checkpoint):
        known = "the format that the makers published" if checkpoint.native else "unknown; `moebox quality` measures it"
        parts.append(Text(f"{checkpoint.quant}: {known}"))
    parts += [make_table(("format", "KL in nats", "perplexity x", "against"), lines)] if lines else []
    return Group(*parts, *(Text(note, style="dim", overflow="fold") for note in dict.fromkeys(notes)))
