"""Routing policies of existing routers, for the simulation.

`prefix` is the cache_aware policy of sglang-router and vllm-router: a conversation stays with the box that has its
prefix, a new one goes to the box with the fewest, and both go to the least loaded box if the load is out of balance by
both thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Policy = Literal["prefix", "round-robin", "least-load"]
# --balance-abs-threshold and --balance-rel-threshold. The routers' own 64 is for many small servers: behind it, 64
# streams that share a system prompt all went to one of four boxes (sglang-router 0.3.2, 2026-11-15). Too low, and
# conversations lose their prefix: with 4, 8 and 16, of the requests of 200 simulated agents on 12 boxes of eight H200,
# 57, 97 and 99.7% were good.
BALANCE_ABSOLUTE, BALANCE_RELATIVE = 16, 1.5


class RoutableBox(Protocol):
    """What a policy knows about a box."""

    @property
    def open(self) -> int:
        """Requests sent and not ended."""

    @property
    def homes(self) -> int:
        """Conversations whose prefix is on the box."""

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""


@dataclass(slots=True, kw_only=True)
class RequestRouter:
    """Picks a box for each request."""

    policy: Policy = "prefix"
    turn: int = -1

    def pick_box(self, boxes: Sequence[RoutableBox], home: int) -> int:
        """The index of the box for a request whose prefix is on box `home` (-1: none); -1 if none is alive."""
        if self.policy == "round-robin":
            for _ in boxes:
                self.turn = (self.turn + 1) % len(boxes)
                if boxes[self.turn].alive:
                    return self.turn
            return -1
        alive = [index for index, box in enumerate(boxes) if box.alive]
        if not alive:
            return -1
        least = min(alive, key=lambda index: (boxes[index].open, boxes[index].homes))
        low, high = boxes[least].open, max(boxes[index].open for index in alive)
        out_of_balance = high - low > BALANCE_ABSOLUTE and high > low * BALANCE_RELATIVE
        if self.policy == "least-load" or out_of_balance:
            return least
        if home >= 0 and boxes[home].alive:
            return home
        return min(alive, key=lambda index: (boxes[index].homes, boxes[index].open))
