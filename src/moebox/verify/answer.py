"""What a chat completion said, whole or in pieces, and what was wrong with how it was said."""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.loose import is_number
from moebox.phantom.tasks import ModelReply, ToolCall
from moebox.verify import breach
from moebox.verify.breach import Violation, Violations, object_of, objects_of, parse_strict_json, shorten, text_of

# Marks that belong to a chat template and never to an answer: <|im_end|>, <think>, ◁think▷, [EOS], DeepSeek's <｜…｜>.
TEMPLATE_MARKS = re.compile(
    r"<\|[A-Za-z0-9_▁]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?think(?:ing)?>|◁/?think▷|\[(?:BOS|EOS|EOT|PAD)\]"
    r"|<\|?/?tool_calls?(?:_begin|_end)?\|?>|<(?:bos|eos|pad|unk|end_of_turn|start_of_turn)>|</s>|\[/?INST\]"
)
BROKEN_TEXT = "\ufffd"  # what half a character becomes
NULL_WORDS = ("null", "None", "undefined", "[object Object]")
FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token of the answer with its log-probability."""

    text: str
    logprob: float
    data: tuple[int, ...] = ()  # its bytes, where given
    top: tuple[float, ...] = ()  # log-probabilities of the likeliest in its place, where asked for
    likely: tuple[str, ...] = ()  # these tokens themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One answer, put together. `breaches` holds everything that was wrong with its form."""

    id: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""  # finish_reason
    usage: dict[str, object] = field(default_factory=dict)
    tokens: tuple[TokenLogprob, ...] = ()  # with logprobs only
    chunks: int = 0  # of a stream, those with something in them
    reasoning_first: bool = True  # of a stream: nothing was thought after something was said
    stream: bool = False
    violations: tuple[Violation, ...] = ()

    @property
    def reply(self) -> ModelReply:
        """As the judges of tasks want it."""
        return ModelReply(content=self.content, reasoning=self.reasoning, calls=self.calls)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The log-probabilities alone."""
        return tuple(token.logprob for token in self.tokens)

    @property
    def problems(self) -> tuple[str, ...]:
        """The breaches in words, but for those of style."""
        return tuple(breach.text for breach in self.violations if breach.kind != "style")

    @property
    def leaked_mark(self) -> str:
        """The first template mark or broken character that a reader would see, or nothing."""
        texts = (self.content, self.reasoning, *(call.arguments for call in self.calls))
        for text in texts:
            if found := TEMPLATE_MARKS.search(text):
                return found.group()
            if BROKEN_TEXT in text:
                return "half a character (U+FFFD)"
        return ""

    @property
    def is_empty(self) -> bool:
        """Neither words nor thoughts came."""
        return not self.content and not self.reasoning

    def token_count(self, key: str) -> int | None:
        """prompt, completion or total tokens, where the server counted them."""
        value = self.usage.get(f"{key}_tokens")
        return value if breach.is_count(value) else None


def parse_completion(exchange: HttpExchange) -> ChatAnswer:
    """The answer of a request without `stream`."""
    notes = Violations()
    try:
        body = parse_strict_json(exchange.response)
    except ValueError as problem:
        return ChatAnswer(violations=(Violation("format", f"the answer is not JSON: {problem}", fatal=True),))
    choice = _choice(body)
    if choice is None:
        return ChatAnswer(violations=(Violation("format", "the answer has no choices", fatal=True),))
    many = len(objects_of(body["choices"]))
    notes.require(many == 1, lambda: f"{many} choices, where one was asked for")
    breach.check_header(notes, body, "chat.completion", text_of(_asked(exchange).get("model")))
    notes.require(choice.get("index") == 0, lambda: f"the choice's index is {shorten(choice.get('index'))}, not 0")
    message = choice.get("message")
    if not isinstance(message, dict):
        return ChatAnswer(violations=(*notes.items, Violation("format", "the choice has no message", fatal=True)))
    calls = _check_message(notes, message)
    finish = _finish(notes, choice.get("finish_reason"), bool(calls), exchange)
    if notes.require(isinstance(body.get("usage"), dict), "the answer has no usage", "usage"):
        breach.check_usage(notes, body["usage"])
    return ChatAnswer(
        id=text_of(body.get("id")),
        content=text_of(message.get("content")),
        reasoning=reasoning_text(message),
        calls=calls,
        finish_reason=finish,
        usage=object_of(body.get("usage")),
        tokens=tuple(parse_token_logprobs(choice)),
        violations=notes.items,
    )


def _check_message(notes: Violations, message: dict[str, object]) -> tuple[ToolCall, ...]:
    """Check the message's fields; its calls."""
    content, listed = message.get("content"), message.get("tool_calls")
    notes.require(
        message.get("role") == "assistant", lambda: f"the role is {shorten(message.get('role'))}, not 'assistant'"
    )
    notes.require(content is None or isinstance(content, str), lambda: f"content is {shorten(content)}, not a string")
    check_content(notes, content)
    notes.require(listed is None or isinstance(listed, list), lambda: f"tool_calls is {shorten(listed)}, not a list")
    items = objects_of(listed)
    for item in items:
        _check_call(notes, item)
    calls = tuple(_call(item) for item in items)
    check_unique_ids(notes, [call.id for call in calls])
    return calls


def check_content(violations: Violations, content: Any) -> None:
    """Whole characters, and no word for nothing."""
    text = text_of(content)
    violations.check_surrogates(text, "the content")
    violations.require(text.strip() not in NULL_WORDS, lambda: f"the content is the word {text.strip()!r}", "style")


def _check_call(notes: Violations, item: dict[str, object]) -> None:
    function = object_of(item.get("function"))
    notes.require(bool(text_of(item.get("id"))), lambda: f"a tool call's id is {shorten(item.get('id'))}")
    notes.require(
        item.get("type") == "function", lambda: f"a tool call's type is {shorten(item.get('type'))}, not 'function'"
    )
    notes.require(bool(text_of(function.get("name"))), lambda: f"a tool call's name is {shorten(function.get('name'))}")
    given = function.get("arguments")
    notes.require(isinstance(given, str), lambda: f"a tool call's arguments are {shorten(given)}, not a string")


def check_unique_ids(violations: Violations, ids: list[str]) -> None:
    """Each call has an id of its own."""
    violations.require(len(set(ids)) == len(ids), lambda: f"two tool calls share an id: {', '.join(ids)[:80]}")


def _finish(notes: Violations, finish: Any, calls: bool, exchange: HttpExchange) -> str:
    """Check the finish_reason against what came."""
    if not isinstance(finish, str) or not finish:
        notes.add("finish", f"finish_reason is {shorten(finish)}")
        return ""
    check_finish_reason(notes, finish, calls, _asked(exchange))
    return finish


def check_finish_reason(violations: Violations, finish_reason: str, calls: bool, request: dict[str, object]) -> None:
    """tool_calls exactly when there are calls; OpenAI says `stop` where a call was forced."""
    violations.require(
        finish_reason in FINISH_REASONS, lambda: f"finish_reason {finish_reason!r} is none that clients know", "finish"
    )
    forced = request.get("tool_choice") not in (None, "auto", "none")
    good = ("tool_calls", "stop") if forced else ("tool_calls",)
    if calls and finish_reason != "length":
        violations.require(finish_reason in good, lambda: f"finish_reason {finish_reason!r} with a tool call", "finish")
    if not calls:
        violations.require(finish_reason != "tool_calls", "finish_reason 'tool_calls' without a tool call", "finish")


def _asked(exchange: HttpExchange) -> dict[str, object]:
    return object_of(exchange.request)


def _choice(body: Any) -> dict[str, object] | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def reasoning_text(message: dict[str, object]) -> str:
    """vLLM calls it `reasoning`, most others `reasoning_content`; some send both with the same text."""
    return text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))


def _call(item: dict[str, object]) -> ToolCall:
    function = object_of(item.get("function"))
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else "")
    return ToolCall(id=text_of(item.get("id")), name=text_of(function.get("name")), arguments=text)


NOT_OFFERED = "the server offers no log-probabilities"


def is_logprob(value: float) -> bool:
    """Finite, and below zero but for rounding."""
    return math.isfinite(value) and value <= 1e-3


def parse_token_logprobs(choice: dict[str, object]) -> list[TokenLogprob]:
    """The tokens of a choice or of a chunk's choice, where log-probabilities came."""
    return [_token(item) for item in objects_of(object_of(choice.get("logprobs")).get("content"))]


def _token(item: dict[str, object]) -> TokenLogprob:
    value = item.get("logprob")
    number = float(value) if is_number(value) else float("nan")
    others = objects_of(item.get("top_logprobs"))
    top = tuple(float(value) for other in others if isinstance(value := other.get("logprob"), int | float))
    likely = tuple(text_of(other.get("token")) for other in others)
    return TokenLogprob(
        text=text_of(item.get("token")), logprob=number, data=_bytes(item.get("bytes")), top=top, likely=likely
    )


def _bytes(data: object) -> tuple[int, ...]:
    """A token's bytes, where they are given."""
    return tuple(part for part in data if isinstance(part, int)) if isinstance(data, list) else ()
