"""Judge a server against references: how far it is, and whether that is more than references differ themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moebox.errors import refuse_if
from moebox.quality.divergence import (
    Estimate,
    PositionDivergence,
    QualityFigures,
    depth_label,
    divergences,
    summarize_by,
    summarize_rows,
)
from moebox.quality.reading import TextReading
from moebox.quality.texts import CACHED_KINDS

# times the noise between references: what is measured is one more variant, and of three variants the next one is the
# farthest every fourth time
BEYOND_NOISE = 1.5
# Nats that healthy variants of the phantom differ by: less is no difference, even if references are closer together
HEALTHY = 0.003
FEWEST_BLOCKS = 8  # of neighbouring positions: an interval from fewer is too narrow
# Nats more than before that a change may cost, unless another limit is set. The phantom's healthy variants differ by up
# to 0.003, a q8_0 cache by 0.03 (benchmarks/README.md, 2026-11-17).
DEFAULT_LIMIT = 0.02


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
    keeps_limit: bool | None = None  # None without a limit, or if its interval contains the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """All positions, or those after a cached prefix: how far away they are, and what follows from it."""

    where: str
    change: Estimate
    noise: float | None
    keeps_limit: bool | None
    different: bool


def judge_quality(
    references: Sequence[Sequence[TextReading]],
    measured: Sequence[TextReading],
    *,
    limit: float | None = None,
    before: Sequence[TextReading] | None = None,
) -> QualityVerdict:
    """Compare with every reference and judge by the nearest: all positions, and those after a cached prefix.

    `limit` in nats replaces the noise between references. With `before`, another server's reading, it limits how much
    farther away this one is, position by position.
    """
    distances = [divergences(reference, measured) for reference in references]
    refuse_if(not all(distances), "no position in common with the reference", hint="both must be made by one version")
    means = [*map(_mean_kl, distances)]
    nearest = means.index(min(means))
    rows = changes = distances[nearest]
    if before is not None:
        earlier = {(row.block, row.depth): row.low for row in divergences(references[nearest], before)}
        pairs = [(row, earlier[row.block, row.depth]) for row in rows if (row.block, row.depth) in earlier]
        refuse_if(not pairs, "no position in common with the server before the change")
        changes = [replace(row, low=row.low - low) for row, low in pairs]
    between = [divergences(a, b) for a in references for b in references if a is not b]
    parts = [_judge_part("", changes, between, limit)]
    cached = [row for row in changes if row.kind in CACHED_KINDS]
    if len({row.block for row in cached}) >= FEWEST_BLOCKS:
        noises = [[row for row in some if row.kind in CACHED_KINDS] for some in between]
        parts.append(_judge_part(" after cached prefixes", cached, [some for some in noises if some], limit))

    def rank(part: _Part) -> tuple[bool, bool, bool]:
        """A part that differs decides, then one that is not decided, then one that is clearly farther away."""
        return part.different, limit is not None and part.keeps_limit is None, part.change.low > parts[0].change.high

    worst = max(parts, key=rank)
    change, noise = worst.change, worst.noise
    more = "" if before is None else " more than before"
    amount = f"{format_nats(change.value)} nats{more}{worst.where}"
    amount += f" ({format_nats(change.low)} to {format_nats(change.high)})"
    if limit is not None:
        states = {True: "within the limit of", False: "above the limit of", None: "not decided for a limit of"}
        verdict = f"{amount}: {states[worst.keeps_limit]} {limit:g}"
    elif noise is None:
        verdict = f"{amount} from one reference: a second one would show how much healthy servers differ"
    else:
        noun = f"the noise between {len(references)} references, {format_nats(noise)}"
        noun = noun if BEYOND_NOISE * noise >= HEALTHY else f"what healthy servers differ by, {HEALTHY:g}"
        verdict = f"different: {amount}, beyond {noun}"
        verdict = verdict if worst.different else f"no difference: {amount}, inside {noun}"
    if len(parts) == 1 and not worst.different:
        verdict += "; no text was read from the cache, so what it costs is not known"
    return QualityVerdict(
        figures=summarize_rows("all", rows),
        by_kind=summarize_by(rows, lambda row: row.kind),
        by_depth=summarize_by(sorted(rows, key=lambda row: row.depth), depth_label),
        nearest=nearest,
        noise=parts[0].noise,
        different=worst.different,
        verdict=verdict,
        keeps_limit=worst.keeps_limit,
    )


def _mean_kl(rows: Sequence[PositionDivergence]) -> float:
    return sum(row.low for row in rows) / len(rows)


def _judge_part(
    where: str, rows: Sequence[PositionDivergence], between: Sequence[Sequence[PositionDivergence]], limit: float | None
) -> _Part:
    """Judge some positions by a limit, or else by what they differ by between references."""
    change = summarize_rows("change", rows).mean_kl
    noise = max(map(_mean_kl, between), default=None)
    keeps_limit = None
    if limit is not None and not change.low <= limit < change.high:
        keeps_limit = change.high <= limit
    different = keeps_limit is False
    if limit is None and noise is not None:
        different = change.low > max(BEYOND_NOISE * noise, HEALTHY)
    return _Part(where=where, change=change, noise=noise, keeps_limit=keeps_limit, different=different)
