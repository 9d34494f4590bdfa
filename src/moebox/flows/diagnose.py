"""Name the cause of what the samples of an endpoint show. The rules are in data/diagnoses.toml."""

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moebox.core import catalogue

HOLDS_SHARE = 0.8  # of the samples of a window that have the figure
KNOWN_SHARE = 0.4  # of all samples of a window
MIN_USUAL = 10  # samples before the window, without which nothing is usual
CLIENT_FIGURES = ("unread_bytes", "top_client_share")
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
    client: str = ""  # the address that the figures about clients are about
    user: str = ""  # the one with the most tokens


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


def load_rules() -> tuple[Rule, ...]:
    return catalogue.table_rows(Rule, "diagnoses", "rule")


def diagnose(looks: Sequence[MetricsLook]) -> list[Diagnosis]:
    """Return the causes that the newest samples show."""
    looks, found = list(looks), []
    for rule in load_rules():
        begin = looks[-1].at - rule.for_s
        window = [look for look in looks if look.at >= begin] if rule.for_s else looks[-1:]
        before = [look for look in looks if look.at < begin]
        if rule.for_s and looks[0].at > begin:
            continue  # not watched for so long yet
        evidence = [judge_condition(condition, window, before) for condition in rule.when]
        if all(evidence):
            names, last = {name for name, _, _ in rule.when}, window[-1]
            if last.client and not names.isdisjoint(CLIENT_FIGURES):
                evidence.append(f"client {last.client}")
            if last.user and "top_user_share" in names:
                evidence.append(f"user {last.user}")
            found.append(Diagnosis(rule=rule, evidence=", ".join(evidence)))
    return found


def judge_condition(
    condition: tuple[str, str, float], window: Sequence[MetricsLook], before: Sequence[MetricsLook]
) -> str:
    """Return the evidence of a condition that holds, or ""."""
    name, comparison, value = condition
    values = [look.figures[name] for look in window if name in look.figures]
    if comparison == "absent":
        return "" if values else f"no {name}"
    usual = ""
    if comparison.startswith("x"):
        earlier = [look.figures[name] for look in before if name in look.figures]
        if len(earlier) < MIN_USUAL:
            return ""
        median = statistics.median(earlier)
        value, usual = value * median, f", usually {median:.3g}"
    holds = COMPARISONS[comparison.removeprefix("x")]
    known = len(values) >= max(1.0, KNOWN_SHARE * len(window))  # no request ended in some samples
    if not known or sum(holds(each, value) for each in values) < HOLDS_SHARE * len(values):
        return ""
    return f"{name.replace('_', ' ')} {statistics.fmean(values):.3g}{usual}"
