"""Judge a server against references: how far it is, and whether that is more than references differ themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from moebox.quality.divergence import QualityFigures, depth_label, divergences, summarize_by, summarize_rows
from moebox.quality.reading import TextReading

# times the noise between references: what is measured is one more variant, and of three variants the next one is the
# farthest every fourth time
BEYOND_NOISE = 1.5


def format_nats(value: float) -> str:
    """Four decimals below a tenth, two above: "0.0031", "0.42"."""
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityVerdict:
    """Figures against the nearest reference, by kind of text and by depth, and whether they show a difference."""

    figures: QualityFigures
    by_kind: tuple[QualityFigures, ...]
    by_depth: tuple[QualityFigures, ...]
    nearest: int  # number of the reference that the figures are against
    noise: float | None  # nats between references; None with one reference
    different: bool
    verdict: str


def judge_quality(
    references: Sequence[Sequence[TextReading]], measured: Sequence[TextReading], *, limit: float | None = None
) -> QualityVerdict:
    """Compare with every reference and judge by the nearest. `limit` in nats replaces the noise between references."""
    distances = [divergences(reference, measured) for reference in references]
    means = [sum(row.low for row in rows) / len(rows) for rows in distances]
    nearest = means.index(min(means))
    rows = distances[nearest]
    figures = summarize_rows("all", rows)
    noise = None
    if len(references) > 1:
        pairs = [(a, b) for a in references for b in references if a is not b]
        between = [divergences(a, b) for a, b in pairs]
        noise = max(sum(row.low for row in some) / len(some) for some in between)
    allowed = limit if limit is not None else None if noise is None else BEYOND_NOISE * noise
    different = allowed is not None and figures.mean_kl.low > allowed
    low, high = format_nats(figures.mean_kl.low), format_nats(figures.mean_kl.high)
    amount = f"{format_nats(figures.mean_kl.value)} nats ({low} to {high})"
    if limit is not None:
        verdict = f"{amount}: {'above' if different else 'within'} the limit of {limit:g}"
    elif noise is None:
        verdict = f"{amount} from one reference: a second one would show how much healthy servers differ"
    else:
        noun = f"the noise between {len(references)} references, {format_nats(noise)}"
        verdict = f"different: {amount}, beyond {noun}" if different else f"no difference: {amount}, inside {noun}"
    return QualityVerdict(
        figures=figures,
        by_kind=summarize_by(rows, lambda row: row.kind),
        by_depth=summarize_by(sorted(rows, key=lambda row: row.depth), depth_label),
        nearest=nearest,
        noise=noise,
        different=different,
        verdict=verdict,
    )
