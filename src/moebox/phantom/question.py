"""One question: the request, the content of a good reply, and its judge.

Nothing here sends requests. A caller sends `messages`, `tools` and `response_format` to an engine, puts the answer
into a ModelReply, and calls `question.find_fault(reply)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
class Question:
    """One fresh question with its judge, which returns why a reply is wrong, or "".

    `expect` holds the facts that the judge looks for; `sample` is one perfect reply (the phantom is trained on it;
    other good replies pass too). `cases` is for code only, arguments and their results: run the function named
    `expect` on them in a sandbox; the judge here reads the code and never runs it.
    """

    family: str
    messages: tuple[Message, ...]
    expect: Any
    sample: ModelReply
    judge: "Callable[[Question, ModelReply], str]"
    tools: tuple[Mapping[str, Any], ...] = ()
    response_format: Mapping[str, Any] | None = None
    thinking: bool = False
    answer_tokens: int = 512
    cases: tuple[tuple[Any, Any], ...] = ()

    @property
    def max_tokens(self) -> int:
        """Tokens for the answer, and as many for thinking as a large model takes for small questions."""
        return self.answer_tokens + (1536 if self.thinking else 0)

    def find_fault(self, reply: ModelReply) -> str:
        """Return why the reply is wrong, or ""."""
        return self.judge(self, reply)


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def shorten(text: str, max_chars: int = 80) -> str:
    """A reply cut to one short line."""
    return clip_text(" ".join(text.split()), max_chars)


def ask_user(
    family: str, text: str, sample: ModelReply, judge: Callable[[Question, ModelReply], str], **more: Any
) -> Question:
    """Build a question that is one turn of the user."""
    return Question(family=family, messages=(user_message(text),), sample=sample, judge=judge, **more)
