"""Requests that came seconds later than their like."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 20  # requests, before "late" means anything
TIMES = 8  # the expected time that a request must take to be late
LATER_S = 5.0  # and so much longer than expected
BEAT_S = 0.1
HELD_UP_S = 0.3  # on a machine so busy nothing is said about lateness


@dataclass(frozen=True, slots=True)
class ReplyTime:
    """How long one request took, and how much came of it."""

    seconds: float
    size: int  # bytes of the reply
    stream: bool


class StallDetector:
    """Notices when this process itself was held up, so that no server is blamed for it."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def watch_event_loop(self) -> None:
        """Run beside the requests until cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                before = time.monotonic()
                await asyncio.sleep(BEAT_S)
                self.worst_s = max(self.worst_s, time.monotonic() - before - BEAT_S)

    def was_stalled(self) -> bool:
        """Whether it was, since the last time it was asked."""
        worst, self.worst_s = self.worst_s, 0.0
        return worst > HELD_UP_S


def late_replies(paces: Sequence[ReplyTime], since: int) -> list[str]:
    """For each request from `since` on: "" or how late it was, measured by all requests of its sort."""
    return [_late(pace, [other for other in paces if other.stream == pace.stream]) for pace in paces[since:]]


def _late(pace: ReplyTime, alike: Sequence[ReplyTime]) -> str:
    if len(alike) < FEWEST:
        return ""
    usual = statistics.median(other.seconds for other in alike)
    longer = max(1.0, pace.size / max(1, statistics.median(other.size for other in alike)))
    expected = usual * longer
    if pace.seconds <= TIMES * expected or pace.seconds <= expected + LATER_S:
        return ""
    return f"a request took {pace.seconds:.1f} s where {expected:.2g} s are usual"
