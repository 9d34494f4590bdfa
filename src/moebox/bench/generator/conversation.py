"""What is said on one connection: a request, or the turns of a conversation."""

from collections.abc import Callable
from typing import Protocol


class Conversation(Protocol):
    """A conversation of one turn or more."""

    index: int
    turn: int
    asked: int  # output tokens asked for in this turn
    keep: bool  # the reply's text is needed

    def body(self) -> bytes:
        """The JSON body of the current turn."""

    def replied(self, text: str) -> float | None:
        """Take the reply; seconds until the next turn, or None when the conversation is over."""


class OneTurn:
    """One request."""

    __slots__ = ("_body", "_make", "asked", "index", "keep", "turn")

    def __init__(self, index: int, asked: int, make: Callable[[int], bytes], *, keep: bool = False) -> None:
        self.index = index
        self.turn = 0
        self.asked = asked
        self.keep = keep
        self._make = make
        self._body = b""

    def prepare(self) -> int:
        """Write the body ahead of time; how many bytes it has."""
        self._body = self._make(self.index)
        return len(self._body)

    def body(self) -> bytes:
        """The JSON body."""
        body, self._body = self._body or self._make(self.index), b""
        return body

    def replied(self, text: str) -> float | None:
        """It is over."""
        return None
