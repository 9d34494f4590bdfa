"""Quirks of engines: differences from the API that they offer, and what clients can do about them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from moebox.core import catalogue, registry
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Mark, Probe

Judged = TypeVar("Judged", Failure, Probe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """One quirk of one engine, and how a check recognises it."""

    id: str
    engine: str
    versions: str  # in which it was seen
    check: str  # "" if every check may show it
    probe: str  # how the names of the probes begin that show it
    pattern: str  # found in the reason of such a probe
    does: str
    client: str  # advice for clients
    source: str

    @property
    def text(self) -> str:
        return f"{registry.engine_display_name(self.engine)}: {self.does}; {self.client}"


def all_quirks() -> tuple[Quirk, ...]:
    return catalogue.table_rows(Quirk, "quirks", "quirk")


def engine_quirks(engine: str) -> tuple[Quirk, ...]:
    return tuple(quirk for quirk in all_quirks() if quirk.engine == engine)


def match_quirk(engine: str, check: str, probe: str, reason: str) -> Quirk | None:
    """Return the known quirk of this engine that a probe's reason shows."""
    known = (each for each in engine_quirks(engine) if each.check in ("", check) and probe.startswith(each.probe))
    return next((quirk for quirk in known if re.search(quirk.pattern, reason)), None)


def quirks_shown(engine: str, check: str, probe: Probe) -> tuple[Quirk, ...]:
    """Return the known quirks of `engine` that a warning or failed probe shows."""
    if probe.verdict not in ("warn", "fail"):
        return ()
    reasons = (probe.reason, *(reason for failure in probe.slips for reason in failure.examples))
    found = [match_quirk(engine, check, probe.name, reason) for reason in reasons]
    return tuple(dict.fromkeys(filter(None, found)))


def unexpected_failure(engine: str, check: CheckVerdict) -> str:
    """Return why a check failed other than by known quirks of the engine, "" if there is no such reason."""
    if check.verdict != "fail":
        return ""
    return next(filter(None, _unexpected_reasons(engine, check, "fail")), "")


def is_known_warning(check: CheckVerdict) -> bool:
    """True if a check has warnings and known quirks of the engine explain each of them."""
    engine = next((quirk.engine for quirk in all_quirks() if quirk.text in check.quirks), "")
    return check.verdict == "warn" and bool(engine) and not any(_unexpected_reasons(engine, check, "warn"))


def _unexpected_reasons(engine: str, check: CheckVerdict, mark: Mark) -> Iterator[str]:
    failed_probes = [probe for probe in check.probes if probe.verdict == mark]
    for probe in failed_probes:
        failed = _failures_with(probe.slips, mark)
        for reason in [reason for failure in failed for reason in failure.examples] or [probe.reason]:
            if not match_quirk(engine, check.name, probe.name, reason):
                yield reason or probe.name
    if failed_probes and mark == "fail":
        return
    # The check failed by the sum of its probes: a quirk of one of them must explain each failure.
    failed = _failures_with(check.slips, mark)
    if not failed and not failed_probes:
        yield check.reason
    for failure in failed:
        names = [probe.name for probe in check.probes if any(seen.kind == failure.kind for seen in probe.slips)]
        for reason in failure.examples:
            if not any(match_quirk(engine, check.name, name, reason) for name in names):
                yield reason


def excuse_check(engine: str, check: CheckVerdict) -> CheckVerdict:
    """Turn a failed check into one with warnings if known quirks of the engine explain every failure in it."""
    if check.verdict != "fail" or unexpected_failure(engine, check):
        return check
    probes = [replace(_warn_only(probe), slips=tuple(map(_warn_only, probe.slips))) for probe in check.probes]
    return replace(check, verdict="warn", probes=tuple(probes), slips=tuple(map(_warn_only, check.slips)))


def excuse_results(results: CheckResults) -> CheckResults:
    """Excuse each check, and each failure over all checks whose examples known quirks of the engine explain."""
    known = {
        reason
        for check in results.rungs
        for probe in check.probes
        for reason in (probe.reason, *(reason for failure in probe.slips for reason in failure.examples))
        if match_quirk(results.engine, check.name, probe.name, reason)
    }
    failures = [_warn_only(each) if known.issuperset(each.examples) else each for each in results.slips]
    checks = tuple(excuse_check(results.engine, check) for check in results.rungs)
    return replace(results, rungs=checks, slips=tuple(failures))


def first_unexpected_failure(results: CheckResults) -> str:
    """Return the first failure that is not a known quirk of the engine, "" if there is none."""
    if results.has_passed:
        return ""
    excused = excuse_results(results)
    for check in excused.rungs:
        if reason := unexpected_failure(excused.engine, check):
            return f"{check.name}: {reason}"
    for failure in _failures_with(excused.slips, "fail"):
        return f"{failure.kind}: {failure.seen} of {failure.of}"
    return results.stopped or ("" if excused.has_passed else "nothing passed")


def _warn_only(judged: Judged) -> Judged:
    return replace(judged, verdict="warn") if judged.verdict == "fail" else judged


def _failures_with(failures: tuple[Failure, ...], mark: Mark) -> list[Failure]:
    return [failure for failure in failures if failure.verdict == mark]
