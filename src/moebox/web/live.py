"""A run as it happens: the journal followed, and what it means rendered again whenever it grows."""

import asyncio
import threading
from collections.abc import AsyncIterator

from moebox.report.block import Section
from moebox.report.naming import labelled
from moebox.report.reading import read
from moebox.report.sections import attempts, climb, ladder, performance, problems, summary, tables
from moebox.report.words import clock
from moebox.store import Run

LOOK_S = 0.3  # how often the folder is looked at
PING_S = 15.0  # proxies and browsers give up on a silent stream
SHOWN_EVENTS = 40
CHAPTERS = (summary, ladder, performance, tables, climb, attempts, problems)


def chapters(run: Run) -> tuple[list[Section], bool]:
    """What there is to say right now, and whether it is a simulation."""
    stories = labelled([read(run)])
    return [found for chapter in CHAPTERS if (found := chapter.section(stories))], stories[0].simulation


def lines(run: Run) -> list[tuple[str, str, str]]:
    """The newest events, newest first: moment, kind, what of the data fits in a line."""
    events = run.journal().events[-SHOWN_EVENTS:]
    return [(clock(event["time"])[11:19], event["kind"], brief(event["data"])) for event in reversed(events)]


def brief(data: dict[str, object]) -> str:
    """An event's data in one line."""
    words = [f"{key} {value}" for key, value in data.items() if isinstance(value, str | int | float) and value != ""]
    text = ", ".join(words)
    return text if len(text) <= 160 else text[:159] + "…"


def state(run: Run) -> tuple[int, ...]:
    """Changes whenever something was written: sizes and times of what the page shows."""
    files = [run.path / "events.jsonl", *run.path.glob("verdicts/*.json"), *run.path.glob("measurements/*.json")]
    stats = [path.stat() for path in files if path.exists()]
    return (run.held, len(stats), *(number for one in stats for number in (one.st_size, one.st_mtime_ns)))


async def changes(run: Run, over: threading.Event) -> AsyncIterator[bool]:
    """True each time there is something new (and at first), False when only a sign of life is due; until `over`."""
    seen: tuple[int, ...] | None = None
    silent = 0.0
    while not over.is_set():
        now = await asyncio.to_thread(state, run)
        if now != seen:
            seen, silent = now, 0.0
            yield True
        elif silent >= PING_S:
            silent = 0.0
            yield False
        await asyncio.sleep(LOOK_S)
        silent += LOOK_S
