"""Users of a simulated fleet: they hold conversations, pause, and begin again."""

import functools
import math
import random
from dataclasses import dataclass

from moebox import codec
from moebox.core import catalogue
from moebox.errors import UnknownName, require_all

LONGEST = 2**21  # tokens; more is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWorkload:
    """One kind of user. Token counts are means of log-normal draws."""

    about: str = ""
    first: int  # tokens of a conversation's first prompt
    shared: int = 0  # of these, the same for every user
    grows: int = 0  # fresh tokens of each later turn
    output: int
    turns: int = 1
    think_s: float = 0.0  # between a reply and the next turn; exponential
    rest_s: float = 0.0  # between two conversations; exponential
    spread: float = 0.0  # sigma of the draws
    source: str = ""

    def validate(self, where: str) -> "UserWorkload":
        """Return the workload. Raise BadInput if it is invalid."""
        least, most = min(self.first, self.output, self.turns), max(self.first, self.output)
        lengths = least >= 1 and most <= LONGEST and self.turns <= 100_000
        pauses = min(self.think_s, self.rest_s) >= 0 and max(self.think_s, self.rest_s) < math.inf
        require_all(
            where,
            {
                f"first, output and turns must be 1 or more, and no more than {LONGEST:,} tokens": lengths,
                "shared is part of first": 0 <= self.shared <= self.first,
                "grows is not negative": 0 <= self.grows <= LONGEST,
                "think_s and rest_s are seconds": pauses,
                "spread is 0 to 3": 0 <= self.spread <= 3,
                "users that never pause cannot be simulated; give think_s or rest_s": self.think_s + self.rest_s > 0,
            },
        )
        return self

    @property
    def longest(self) -> int:
        """Tokens of the mean conversation at its end."""
        return self.first + (self.turns - 1) * (self.grows + self.output) + self.output


@functools.cache
def shipped_workloads() -> dict[str, UserWorkload]:
    rows = catalogue.load_table("users")
    return {name: codec.decode(UserWorkload, row, where=f"users.toml: {name}") for name, row in rows.items()}


def find_workload(name: str, own: dict[str, UserWorkload] | None = None) -> UserWorkload:
    """Find a workload of the fleet file or a shipped one."""
    found = {**shipped_workloads(), **(own or {})}
    if name not in found:
        raise UnknownName("workload", name, found)
    return found[name].validate(f"workload {name}")


@dataclass(slots=True, kw_only=True, eq=False)
class User:
    id: int
    context: int = 0  # tokens of the conversation so far; 0 before its first turn
    turn: int = 0
    turns: int = 0
    home: int = -1  # the box that served the conversation last


class UserDraws:
    def __init__(self, work: UserWorkload, seed: int, *, limit: int) -> None:
        self.work, self.limit = work, limit
        self.random = random.Random(seed)
        self.shift = math.exp(-(work.spread**2) / 2)  # keeps the mean of exp(N(0, spread)) at 1

    def draw_tokens(self, mean: int) -> int:
        """Draw a count around `mean`, at least 1."""
        if not self.work.spread:
            return mean
        return max(1, round(mean * self.shift * math.exp(self.random.gauss(0, self.work.spread))))

    def draw_pause(self, mean: float) -> float:
        return self.random.expovariate(1 / mean) if mean > 0 else 0.0

    def next_turn(self, user: User) -> tuple[int, int]:
        """Prompt and reply tokens of the next turn. Begin a new conversation if the old one would not fit."""
        output = min(self.draw_tokens(self.work.output), max(self.limit // 2, 1))
        if user.turn:
            prompt = user.context + self.draw_tokens(self.work.grows)
            if prompt + output <= self.limit:
                user.turn += 1
                return prompt, output
        own = self.draw_tokens(self.work.first - self.work.shared) if self.work.first > self.work.shared else 0
        user.turn, user.turns, user.context = 1, self.draw_tokens(self.work.turns), 0
        return min(self.work.shared + max(own, 1), max(self.limit - output, 1)), output

    def pause_after(self, user: User) -> float:
        """Seconds until the next turn. After the last one the conversation ends and the user rests."""
        if user.turn < user.turns:
            return self.draw_pause(self.work.think_s)
        self.end_conversation(user)
        return self.draw_pause(self.work.rest_s)

    def end_conversation(self, user: User) -> None:
        user.turn = user.context = 0
