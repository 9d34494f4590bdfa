"""What is said on one connection: a request, or the turns of a conversation."""

from collections.abc import Callable
from typing import Protocol


class Conversation(Protocol):
    """A conversation of one turn or more."""

    index: int
    turn: int
    max_tokens: int  # output tokens asked for in this turn
    keep_text: bool  # the reply's text is needed

    def next_body(self) -> bytes:
        """The JSON body of the current turn."""

    def accept_reply(self, text: str) -> float | None:
        """Take the reply; seconds until the next turn, or None when the conversation is over."""


class SingleTurn:
    """One request."""

    __slots__ = ("_body", "_make", "index", "keep_text", "max_tokens", "turn")

    def __init__(self, index: int, max_tokens: int, make: Callable[[int], bytes], *, keep_text: bool = False) -> None:
        self.index = index
        self.turn = 0
        self.max_tokens = max_tokens
        self.keep_text = keep_text
        self._make = make
        self._body = b""

    def write_body(self) -> int:
        """Write the body ahead of time; how many bytes it has."""
        self._body = self._make(self.index)
        return len(self._body)

    def next_body(self) -> bytes:
        """The JSON body."""
        body, self._body = self._body or self._make(self.index), b""
        return body

    def accept_reply(self, text: str) -> float | None:
        """It is over."""
        return None
