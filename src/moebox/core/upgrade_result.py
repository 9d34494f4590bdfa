"""The result of an upgrade, as RUN/upgrade.json keeps it: what was judged, and whether the new version is taken."""

from dataclasses import dataclass, field
from typing import Literal

from moebox.core.recipe import Recipe
from moebox.core.verdict import Gain, Mark

SpeedUnit = Literal["tok/s", "char/s", "event/s"]
Outcome = Literal["keep", "no difference", "undecided", "roll back"]
UPGRADE_FILE = "upgrade.json"
SMALL = 0.02  # a smaller difference in speed does not matter


@dataclass(frozen=True, slots=True, kw_only=True)
class GainAtConcurrency:
    """Speed gain of B over A at one load."""

    concurrency: int
    a_tok_s: float
    b_tok_s: float
    a_ttft_ms: float
    b_ttft_ms: float
    gain: Gain | None
    what: Literal["decode", "prefill"] = "decode"
    unit: SpeedUnit = "tok/s"  # of both speeds; words of a prompt count as characters do

    @property
    def is_different(self) -> bool:
        """Significant, and large enough to matter."""
        return self.gain is not None and self.gain.is_significant and abs(self.gain.share) >= SMALL

    @property
    def is_slower(self) -> bool:
        """Slower by more than SMALL over the whole interval; a build may fail for it."""
        return self.gain is not None and self.gain.high < -SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    requests: int
    cancelled: int
    failures: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return f"{len(self.failures)} of {self.requests} requests failed" + (
            f": {self.failures[0]}" if self.failures else f", {self.cancelled} were cancelled on purpose"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenSide:
    """How one side did before its speed was measured."""

    marks: dict[str, Mark] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # of checks that did not pass
    quirks: tuple[str, ...] = ()
    soak: SoakResult | None = None
    quality: str = ""  # divergence from the old version, or why it is not known
    quality_mark: Mark = "skip"  # warn: not decided


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeResult:
    name: str
    old: str
    new: str
    outcome: Outcome
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    gains: tuple[GainAtConcurrency, ...] = ()
    sides: dict[str, ProvenSide] = field(default_factory=dict)
    drift: float | None = None  # of the old version between its two measurements
    seconds: float = 0.0
    applied: bool = False
    recipe: Recipe | None = None  # the new one

    @property
    def headline(self) -> str:
        """ "0.30 → 0.32: right; -7.0% decode at 4 (-9.0% to -5.0%)"."""
        what = {"roll back": "not taken", "undecided": "not decided"}.get(self.outcome, "right")
        why = self.reasons[:1] if what != "right" or not self.gains else ()
        return f"{self.old} → {self.new}: {'; '.join(dict.fromkeys((what, *why, *map(speed_text, self.gains))))}"

    @property
    def findings(self) -> list[str]:
        """Reasons, notes, speeds and checks, a line each."""
        lines = [*self.reasons, *self.notes]
        for row in self.gains:
            speeds = f"{row.a_tok_s:.1f} → {row.b_tok_s:.1f} {row.unit}"
            lines.append(f"{row.what} at {row.concurrency}: {speeds}, {row.gain}")
        if self.drift is not None:
            lines.append(f"the old version changed by {self.drift:+.1%} between its two measurements")
        for side, proven in self.sides.items():
            marks = ", ".join(f"{name} {mark}" for name, mark in proven.marks.items() if mark != "pass")
            checks = marks or ("all checks passed" if proven.marks else "not checked")
            lines.append(f"{'old' if side == 'A' else 'new'}: {checks}{f'; {proven.soak.text}' if proven.soak else ''}")
        return lines


def speed_text(row: GainAtConcurrency) -> str:
    where = "prefill" if row.what == "prefill" else f"decode at {row.concurrency}"
    return f"{where} {row.gain or 'not measured'}"
