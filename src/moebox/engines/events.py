"""What a line of an engine's log reports: a phase, progress, a fact, that it is ready, or that it failed."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from moebox.core.catalogue import load_table

EventKind = Literal["phase", "progress", "fact", "ready", "error"]
Phase = Literal["starting", "loading weights", "compiling", "allocating cache", "capturing graphs", "ready"]
GIB, MIB = float(2**30), float(2**20)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One thing worth showing. `facts` use the suffixes of the journal: _bytes, _s, kv_tokens, …"""

    kind: EventKind
    phase: Phase | None = None
    done: int | None = None
    total: int | None = None
    facts: dict[str, float] = field(default_factory=dict)
    device: str = ""  # if a fact is about one device
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """A pattern and what it means; named groups become facts, multiplied by their unit."""

    pattern: re.Pattern[str]
    kind: EventKind
    phase: Phase | None = None
    units: dict[str, float] = field(default_factory=dict)


@functools.cache
def engine_patterns(engine: str) -> tuple[LogPattern, ...]:
    """What lines of an engine's log report, from data/log_patterns.toml; common messages of servers if it has none."""
    table = load_table("log_patterns")
    return tuple(
        LogPattern(
            pattern=re.compile(row["pattern"]),
            kind=row["kind"],
            phase=row.get("phase"),
            units=dict.fromkeys(row.get("gib", ()), GIB) | dict.fromkeys(row.get("mib", ()), MIB),
        )
        for row in table.get(engine, table["common"])
    )


def match_line(line: str, patterns: Sequence[LogPattern]) -> LogEvent | None:
    """Return the event of the first pattern that matches the line, or None."""
    for known in patterns:
        match = known.pattern.search(line)
        if not match:
            continue
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        done, total, device = groups.pop("done", None), groups.pop("total", None), groups.pop("device", "")
        numbers = {name: float(text.replace(",", "").rstrip(".")) for name, text in groups.items()}
        return LogEvent(
            kind=known.kind,
            phase=known.phase,
            done=int(done) if done else None,
            total=int(total) if total else None,
            facts={name: number * known.units.get(name, 1.0) for name, number in numbers.items()},
            device=device,
            text=line.strip()[:500],
        )
    return None
