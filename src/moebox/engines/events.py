"""What a line of an engine's log tells: a phase, how far it is, a fact, that it is ready, or that it failed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

EventKind = Literal["phase", "progress", "fact", "ready", "error"]
Phase = Literal["starting", "loading weights", "compiling", "allocating cache", "capturing graphs", "ready"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One thing worth showing. `facts` use the suffixes of the journal: _bytes, _s, kv_tokens, …"""

    kind: EventKind
    phase: Phase | None = None
    done: int | None = None
    total: int | None = None
    facts: dict[str, float] = field(default_factory=dict)
    device: str = ""  # where a fact is about one device
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """A pattern and what it means; named groups become facts, times the unit given for them."""

    pattern: re.Pattern[str]
    kind: EventKind
    phase: Phase | None = None
    units: dict[str, float] = field(default_factory=dict)


GIB, MIB = float(2**30), float(2**20)


def log_pattern(pattern: str, kind: EventKind, phase: Phase | None = None, **units: float) -> LogPattern:
    """A Sign from a pattern's text."""
    return LogPattern(pattern=re.compile(pattern), kind=kind, phase=phase, units=units)


def match_line(line: str, patterns: Sequence[LogPattern]) -> LogEvent | None:
    """The event of the first sign that the line shows."""
    for known in patterns:
        match = known.pattern.search(line)
        if match:
            return _event(known, match, line)
    return None


def _event(known: LogPattern, match: re.Match[str], line: str) -> LogEvent:
    groups = {name: text for name, text in match.groupdict().items() if text is not None}
    counts = {name: int(groups.pop(name)) for name in ("done", "total") if name in groups}
    device = groups.pop("device", "")
    facts = {name: _number(text) * known.units.get(name, 1.0) for name, text in groups.items()}
    return LogEvent(
        kind=known.kind,
        phase=known.phase,
        done=counts.get("done"),
        total=counts.get("total"),
        facts=facts,
        device=device,
        text=line.strip()[:500],
    )


def _number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))
