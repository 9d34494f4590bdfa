"""One question: the request, the content of a good reply, and its judge.

Nothing here sends requests. A caller sends `messages`, `tools` and `response_format` to an engine, puts the answer
into a ModelReply, and calls `question.grade(reply)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moebox.core.endpoint import ToolCall as ToolCall
from moebox.escape import clip_text

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply:
    """A reply as the server's parsers split it."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """Judgement of a reply, with a reason if it is wrong."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionCase:
    """Arguments of a requested function and the value it must return."""

    args: tuple[Any, ...]
    want: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One fresh question with its judge.

    `expect` holds the facts that the judge looks for; `sample` is one perfect reply (the phantom is trained on it;
    other good replies pass too). `cases` is for code only: run the function named `expect` on them in a sandbox; the
    judge here reads the code and never runs it.
    """

    family: str
    messages: tuple[Message, ...]
    expect: Any
    sample: ModelReply
    judge: "Callable[[Question, ModelReply], Grade]"
    tools: tuple[Mapping[str, Any], ...] = ()
    response_format: Mapping[str, Any] | None = None
    thinking: bool = False
    max_tokens: int = 512
    cases: tuple[FunctionCase, ...] = field(default=())

    def grade(self, reply: ModelReply) -> Grade:
        return self.judge(self, reply)


def accept() -> Grade:
    return Grade(ok=True)


def reject(reason: str) -> Grade:
    return Grade(ok=False, reason=reason)


def accept_if(good: object, reason: str) -> Grade:
    """Grade of a reply that is right if `good`."""
    return accept() if good else reject(reason)


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def token_budget(thinking: bool, answer: int = 512) -> int:
    """Tokens for the answer, and as many for thinking as a large model takes for small questions."""
    return answer + (1536 if thinking else 0)


def shorten(text: str, max_chars: int = 80) -> str:
    """A reply cut to one short line."""
    return clip_text(" ".join(text.split()), max_chars)


def ask_user(
    family: str,
    text: str,
    sample: ModelReply,
    judge: "Callable[[Question, ModelReply], Grade]",
    *,
    expect: Any,
    thinking: bool,
    answer_tokens: int = 512,
    **more: Any,
) -> Question:
    """Build a question that is one turn of the user."""
    return Question(
        family=family,
        messages=(user_message(text),),
        expect=expect,
        sample=sample,
        judge=judge,
        thinking=thinking,
        max_tokens=token_budget(thinking, answer_tokens),
        **more,
    )
