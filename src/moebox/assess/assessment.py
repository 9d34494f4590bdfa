"""An assessment: headline, cells, warnings, recommendations and the next step."""

from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "best", "good", "bad", "warn", "quiet"]
_WORST_FIRST: tuple[Tone, ...] = ("bad", "warn", "quiet", "good")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessmentCell:
    """One answer: its name, one line, its tone, and the report's section with the evidence."""

    name: str
    text: str
    tone: Tone = ""
    detail: str = ""
    link: str = ""
    command: bool = False  # `text` can be pasted into a shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to do, the figures behind it, and the rule. A run has at most one for each subject."""

    subject: str
    title: str
    text: str
    rule: str
    runs: tuple[int, ...] = (0,)
    weight: float = 0.0  # lower ones come first


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What is known about one run, judged."""

    cells: tuple[AssessmentCell, ...]
    headline: str = ""
    warnings: tuple[str, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    simulated: bool = False

    @property
    def tone(self) -> Tone:
        tones = {cell.tone for cell in self.cells}
        return next((tone for tone in _WORST_FIRST if tone in tones), "")

    def cell(self, name: str) -> AssessmentCell | None:
        return next((cell for cell in self.cells if cell.name == name), None)
