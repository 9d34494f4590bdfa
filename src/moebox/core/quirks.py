"""Habits of engines: where a server differs from the API it offers, and what that means for its clients."""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moebox import codec
from moebox.core import catalogue, registry
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """One habit of one engine, and how a ladder meets it."""

    id: str
    engine: str
    versions: str  # in which it was seen
    check: str  # "" where every one of them may meet it
    probe: str  # how the names of the probes that meet it begin
    pattern: str  # found in such a probe's reason
    does: str
    client: str  # what a client should do about it
    source: str

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{registry.engine_display_name(self.engine)}: {self.does}; {self.client}"


@functools.cache
def all_quirks() -> tuple[Quirk, ...]:
    """All that are known."""
    rows = catalogue.load_table("quirks")["quirk"]
    return tuple(codec.decode(Quirk, row, where="quirks.toml [[quirk]]") for row in rows)


def engine_quirks(engine: str) -> tuple[Quirk, ...]:
    """Those of one engine."""
    return tuple(habit for habit in all_quirks() if habit.engine == engine)


def match_quirk(engine: str, check: str, probe: str, reason: str) -> Quirk | None:
    """The habit that a probe's reason shows; None where it is none that is known of this engine."""
    for habit in engine_quirks(engine):
        here = habit.check in ("", check) and probe.startswith(habit.probe)
        if here and re.search(habit.pattern, reason):
            return habit
    return None


def quirks_shown(engine: str, check: str, probe: Probe) -> tuple[Quirk, ...]:
    """Known habits of `engine` that a probe which did not pass shows."""
    if probe.verdict not in ("warn", "fail"):
        return ()
    reasons = (probe.reason, *(why for slip in probe.slips for why in _seen(slip)))
    seen = [match_quirk(engine, check, probe.name, reason) for reason in reasons]
    return tuple(dict.fromkeys(filter(None, seen)))


def unexpected_failure(engine: str, check: CheckVerdict) -> str:
    """Why a rung failed, beyond known habits of its engine; "" where it did not fail or these are all."""
    if check.verdict != "fail":
        return ""
    failing = [probe for probe in check.probes if probe.verdict == "fail"]
    beyond = (_beyond(engine, check.name, probe) for probe in failing) if failing else _in_sum(engine, check)
    return next(filter(None, beyond), "")


def _beyond(engine: str, rung: str, probe: Probe) -> str:
    """What a failed probe shows beside habits: every fault that failed must be one, or its reason."""
    reasons = [why for slip in _red(probe.slips) for why in _seen(slip)] or [probe.reason]
    return next((why or probe.name for why in reasons if not match_quirk(engine, rung, probe.name, why)), "")


def _in_sum(engine: str, rung: CheckVerdict) -> Iterator[str]:
    """The same of a rung that fails by what its probes show in sum: a habit of one of them must explain it."""
    for slip in _red(rung.slips):
        names = [probe.name for probe in rung.probes if any(met.kind == slip.kind for met in probe.slips)]
        yield from (why for why in _seen(slip) if not any(match_quirk(engine, rung.name, name, why) for name in names))
    if not _red(rung.slips):
        yield rung.reason


def first_unexpected_failure(results: CheckResults) -> str:
    """The first failure of a ladder that is no known habit of its engine: the launch's own; "" where there is none."""
    if results.has_passed:
        return ""
    reasons = ((rung.name, unexpected_failure(results.engine, rung)) for rung in results.rungs)
    own = next((f"{name}: {why}" for name, why in reasons if why), "")
    habitual = {slip.kind for rung in results.rungs for slip in _failing(rung)}
    often = [f"{slip.kind}: {slip.seen} of {slip.of}" for slip in _red(results.slips) if slip.kind not in habitual]
    none_passed = "" if results.checks_with("fail") else "nothing passed"
    return own or next(iter(often), "") or results.stopped or none_passed


def _failing(rung: CheckVerdict) -> list[Failure]:
    """What a failed rung failed by: slips of its failed probes, or of all of them in sum."""
    probes = [probe for probe in rung.probes if probe.verdict == "fail"]
    return [slip for probe in probes for slip in _red(probe.slips)] if probes else _red(rung.slips)


def _red(slips: Sequence[Failure]) -> list[Failure]:
    return [slip for slip in slips if slip.verdict == "fail"]


def _seen(slip: Failure) -> tuple[str, ...]:
    return (slip.example, *slip.also)
