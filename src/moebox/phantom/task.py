"""What one task is: the request, what a good reply holds, and the judge.

Nothing here talks to a server. A caller sends `messages`, `tools` and `response_format` in whatever
way its engine wants, puts the answer into a `Reply`, and asks `task.grade(reply)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moebox.escape import clip_text

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One tool call: Kimi's id `functions.NAME:INDEX`, the name, the arguments as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply:
    """What came back, already split by the server's parsers."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """A judgement and, where it is no, one line that says why."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionCase:
    """One call of a requested function and what it must return."""

    args: tuple[Any, ...]
    want: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One fresh question with its judge.

    `expect` holds the facts the judge looks for; `sample` is one perfect reply (what the phantom is
    trained to say; other good replies pass too). `cases` is filled for code only: run the function named
    `expect` on them in a sandbox, the judge here reads the code but never runs it.
    """

    family: str
    messages: tuple[Message, ...]
    expect: Any
    sample: ModelReply
    judge: Callable[[Question, ModelReply], Grade]
    tools: tuple[Mapping[str, Any], ...] = ()
    response_format: Mapping[str, Any] | None = None
    thinking: bool = False
    max_tokens: int = 512
    cases: tuple[FunctionCase, ...] = field(default=())

    def grade(self, reply: ModelReply) -> Grade:
        """Judge one reply."""
        return self.judge(self, reply)


def accept() -> Grade:
    """A pass."""
    return Grade(ok=True)


def reject(reason: str) -> Grade:
    """A fail with its reason."""
    return Grade(ok=False, reason=reason)


def user_message(text: str) -> Message:
    """A user's turn."""
    return {"role": "user", "content": text}


def token_budget(thinking: bool, answer: int = 512) -> int:
    """Token limit: what the answer may need, and as much thinking as a large model takes for small tasks."""
    return answer + (1536 if thinking else 0)


def shorten(text: str, limit: int = 80) -> str:
    """A reply cut for an error line."""
    return clip_text(" ".join(text.split()), limit)
