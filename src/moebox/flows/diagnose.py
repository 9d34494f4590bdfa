"""Name the cause of what the samples of an endpoint show. The rules are in data/diagnoses.toml."""

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moebox.core import catalogue

HOLDS_SHARE = 0.8  # of the samples of a window that have the figure
KNOWN_SHARE = 0.4  # of all samples of a window
MIN_KNOWN, MAX_WINDOWS = 6, 5  # samples with the figure, from so many windows, if fewer of one have it
ABSENT = "absent"
MIN_USUAL = 10  # samples before the window, without which nothing is usual
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLook:
    """One sample of an endpoint under moebox's names; figures that the engine does not have are missing."""

    at: float
    answered: bool
    figures: dict[str, float] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)  # the client, user or program that a figure is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A cause, and the conditions that show it."""

    name: str
    for_s: float
    when: tuple[tuple[str, str, float], ...]  # figure, comparison, value
    cause: str
    change: str  # the setting
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    rule: Rule
    evidence: str

    @property
    def text(self) -> str:
        return f"{self.rule.cause} ({self.evidence}); change: {self.rule.change}; `{self.rule.command}`"


def diagnose(looks: Sequence[MetricsLook]) -> list[Diagnosis]:
    """Return the causes that the newest samples show."""
    looks, found = list(looks), []
    for rule in catalogue.table_rows(Rule, "diagnoses", "rule"):
        begin = looks[-1].at - rule.for_s
        if looks[0].at > begin:
            continue  # not watched for so long yet
        size = max(1, sum(look.at > begin for look in looks))
        evidence = [judge_condition(condition, looks, size) for condition in rule.when]
        if all(evidence):
            evidence += [looks[-1].about.get(name, ABSENT) for name, _, _ in rule.when]
            found.append(Diagnosis(rule=rule, evidence=", ".join(each for each in evidence if each != ABSENT)))
    return found


def judge_condition(condition: tuple[str, str, float], looks: Sequence[MetricsLook], size: int) -> str:
    """Return the evidence of a condition that holds in the window of the newest `size` samples, or ""."""
    name, comparison, value = condition
    values = [look.figures[name] for look in looks[-size:] if name in look.figures]
    if comparison == ABSENT:
        return "" if values else ABSENT
    if 0 < len(values) < KNOWN_SHARE * size:  # few replies end in a window: those of some windows before it count too
        values = [look.figures[name] for look in looks[-MAX_WINDOWS * size :] if name in look.figures][-MIN_KNOWN:]
    if len(values) < min(MIN_KNOWN, KNOWN_SHARE * size) or not values:
        return ""
    usual, used = "", len(values)
    middle: Callable[[list[float]], float] = statistics.median
    if comparison.startswith("mean "):
        comparison, values, middle = comparison.removeprefix("mean "), [statistics.fmean(values)], statistics.fmean
    if comparison.startswith("x"):
        earlier = [look.figures[name] for look in looks if name in look.figures][:-used]
        if len(earlier) < MIN_USUAL:
            return ""
        before = middle(earlier)
        value, usual = value * before, f", usually {before:.3g}"
    holds = COMPARISONS[comparison.removeprefix("x")]
    if sum(holds(each, value) for each in values) < HOLDS_SHARE * len(values):
        return ""
    return f"{name.replace('_', ' ')} {statistics.fmean(values):.3g}{usual}"
