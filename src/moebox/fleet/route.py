"""Who gets a request: the policies that routers have, as arithmetic.

`prefix` is what the cache_aware policy of sglang-router and vllm-router aims at: a conversation stays with the box that
has its prefix, a new one goes where the fewest are, and both move to the least loaded box when the load is out of
balance by both thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from moebox.errors import UnknownName

Policy = Literal["prefix", "round-robin", "least-load"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
# --balance-abs-threshold and --balance-rel-threshold. The routers' own 64 is for many small servers: behind it, 64
# streams that share a system prompt all went to one of four boxes (sglang-router 0.3.2, 2026-11-15). Too low, and
# conversations lose their prefix: with 4, 8 and 16, of the requests of 200 simulated agents on 12 boxes of eight H200,
# 57, 97 and 99.7% were good.
BALANCE_ABSOLUTE, BALANCE_RELATIVE = 16, 1.5


class RoutableBox(Protocol):
    """What a policy sees of a box."""

    @property
    def open(self) -> int:
        """Requests sent and not ended."""

    @property
    def homes(self) -> int:
        """Conversations whose prefix lies there."""

    @property
    def alive(self) -> bool:
        """It takes requests."""


@dataclass(slots=True, kw_only=True)
class RequestRouter:
    """Picks a box for each request."""

    policy: Policy = "prefix"
    turn: int = -1

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UnknownName("routing policy", self.policy, POLICIES)

    def pick_box(self, boxes: Sequence[RoutableBox], home: int) -> int:
        """The index of the box for a request whose prefix lies at `home` (-1: nowhere); -1 when none is alive."""
        if self.policy == "round-robin":
            return self._next(boxes)
        alive = [index for index, box in enumerate(boxes) if box.alive]
        if not alive:
            return -1
        least = min(alive, key=lambda index: (boxes[index].open, boxes[index].homes))
        if self.policy == "least-load" or self._unbalanced(boxes, boxes[least].open):
            return least
        if home >= 0 and boxes[home].alive:
            return home
        return min(alive, key=lambda index: (boxes[index].homes, boxes[index].open))

    def _next(self, boxes: Sequence[RoutableBox]) -> int:
        for _ in boxes:
            self.turn = (self.turn + 1) % len(boxes)
            if boxes[self.turn].alive:
                return self.turn
        return -1

    def _unbalanced(self, boxes: Sequence[RoutableBox], least: int) -> bool:
        most = max(box.open for box in boxes if box.alive)
        return most - least > BALANCE_ABSOLUTE and most > least * BALANCE_RELATIVE
