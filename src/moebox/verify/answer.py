"""What a chat completion said, whole or in pieces, and what was wrong with how it was said."""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from moebox.core.verdict import Exchange
from moebox.loose import is_figure
from moebox.phantom.tasks import Call, Reply
from moebox.verify import breach
from moebox.verify.breach import Breach, Notes, object_of, objects_of, short, strict_json, text_of

# Marks that belong to a chat template and never to an answer: <|im_end|>, <think>, ◁think▷, [EOS], DeepSeek's <｜…｜>.
SPECIAL = re.compile(
    r"<\|[A-Za-z0-9_▁]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?think(?:ing)?>|◁/?think▷|\[(?:BOS|EOS|EOT|PAD)\]"
    r"|<\|?/?tool_calls?(?:_begin|_end)?\|?>|<(?:bos|eos|pad|unk|end_of_turn|start_of_turn)>|</s>|\[/?INST\]"
)
BROKEN_TEXT = "\ufffd"  # what half a character becomes
NOTHING = ("null", "None", "undefined", "[object Object]")
FINISHES = ("stop", "length", "tool_calls", "content_filter", "function_call")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of the answer with its log-probability."""

    text: str
    logprob: float
    data: tuple[int, ...] = ()  # its bytes, where given
    top: tuple[float, ...] = ()  # log-probabilities of the likeliest in its place, where asked for
    likely: tuple[str, ...] = ()  # these tokens themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, put together. `breaches` holds everything that was wrong with its form."""

    id: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""  # finish_reason
    usage: dict[str, object] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()  # with logprobs only
    chunks: int = 0  # of a stream, those with something in them
    reasoning_first: bool = True  # of a stream: nothing was thought after something was said
    stream: bool = False
    breaches: tuple[Breach, ...] = ()

    @property
    def reply(self) -> Reply:
        """As the judges of tasks want it."""
        return Reply(content=self.content, reasoning=self.reasoning, calls=self.calls)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The log-probabilities alone."""
        return tuple(token.logprob for token in self.tokens)

    @property
    def problems(self) -> tuple[str, ...]:
        """The breaches in words, but for those of style."""
        return tuple(breach.text for breach in self.breaches if breach.sort != "style")

    @property
    def leak(self) -> str:
        """The first template mark or broken character that a reader would see, or nothing."""
        texts = (self.content, self.reasoning, *(call.arguments for call in self.calls))
        for text in texts:
            if found := SPECIAL.search(text):
                return found.group()
            if BROKEN_TEXT in text:
                return "half a character (U+FFFD)"
        return ""

    @property
    def is_empty(self) -> bool:
        """Neither words nor thoughts came."""
        return not self.content and not self.reasoning

    def count(self, key: str) -> int | None:
        """prompt, completion or total tokens, where the server counted them."""
        value = self.usage.get(f"{key}_tokens")
        return value if breach.is_count(value) else None


def whole(exchange: Exchange) -> Answer:
    """The answer of a request without `stream`."""
    notes = Notes()
    try:
        body = strict_json(exchange.response)
    except ValueError as problem:
        return Answer(breaches=(Breach("format", f"the answer is not JSON: {problem}", fatal=True),))
    choice = _choice(body)
    if choice is None:
        return Answer(breaches=(Breach("format", "the answer has no choices", fatal=True),))
    many = len(objects_of(body["choices"]))
    notes.need(many == 1, lambda: f"{many} choices, where one was asked for")
    breach.head(notes, body, "chat.completion", text_of(_asked(exchange).get("model")))
    notes.need(choice.get("index") == 0, lambda: f"the choice's index is {short(choice.get('index'))}, not 0")
    message = choice.get("message")
    if not isinstance(message, dict):
        return Answer(breaches=(*notes.all, Breach("format", "the choice has no message", fatal=True)))
    calls = _message(notes, message)
    finish = _finish(notes, choice.get("finish_reason"), bool(calls), exchange)
    if notes.need(isinstance(body.get("usage"), dict), "the answer has no usage", "usage"):
        breach.usage(notes, body["usage"])
    return Answer(
        id=text_of(body.get("id")),
        content=text_of(message.get("content")),
        reasoning=reasoning_in(message),
        calls=calls,
        finish=finish,
        usage=object_of(body.get("usage")),
        tokens=tuple(tokens_in(choice)),
        breaches=notes.all,
    )


def _message(notes: Notes, message: dict[str, object]) -> tuple[Call, ...]:
    """Check the message's fields; its calls."""
    content, listed = message.get("content"), message.get("tool_calls")
    notes.need(message.get("role") == "assistant", lambda: f"the role is {short(message.get('role'))}, not 'assistant'")
    notes.need(content is None or isinstance(content, str), lambda: f"content is {short(content)}, not a string")
    check_content(notes, content)
    notes.need(listed is None or isinstance(listed, list), lambda: f"tool_calls is {short(listed)}, not a list")
    items = objects_of(listed)
    for item in items:
        _check_call(notes, item)
    calls = tuple(_call(item) for item in items)
    unique_ids(notes, [call.id for call in calls])
    return calls


def check_content(notes: Notes, content: Any) -> None:
    """Whole characters, and no word for nothing."""
    text = text_of(content)
    notes.whole_text(text, "the content")
    notes.need(text.strip() not in NOTHING, lambda: f"the content is the word {text.strip()!r}", "style")


def _check_call(notes: Notes, item: dict[str, object]) -> None:
    function = object_of(item.get("function"))
    notes.need(bool(text_of(item.get("id"))), lambda: f"a tool call's id is {short(item.get('id'))}")
    notes.need(
        item.get("type") == "function", lambda: f"a tool call's type is {short(item.get('type'))}, not 'function'"
    )
    notes.need(bool(text_of(function.get("name"))), lambda: f"a tool call's name is {short(function.get('name'))}")
    given = function.get("arguments")
    notes.need(isinstance(given, str), lambda: f"a tool call's arguments are {short(given)}, not a string")


def unique_ids(notes: Notes, ids: list[str]) -> None:
    """Each call has an id of its own."""
    notes.need(len(set(ids)) == len(ids), lambda: f"two tool calls share an id: {', '.join(ids)[:80]}")


def _finish(notes: Notes, finish: Any, calls: bool, exchange: Exchange) -> str:
    """Check the finish_reason against what came."""
    if not isinstance(finish, str) or not finish:
        notes.add("finish", f"finish_reason is {short(finish)}")
        return ""
    check_finish(notes, finish, calls, _asked(exchange))
    return finish


def check_finish(notes: Notes, finish: str, calls: bool, asked: dict[str, object]) -> None:
    """tool_calls exactly when there are calls; OpenAI says `stop` where a call was forced."""
    notes.need(finish in FINISHES, lambda: f"finish_reason {finish!r} is none that clients know", "finish")
    forced = asked.get("tool_choice") not in (None, "auto", "none")
    good = ("tool_calls", "stop") if forced else ("tool_calls",)
    if calls and finish != "length":
        notes.need(finish in good, lambda: f"finish_reason {finish!r} with a tool call", "finish")
    if not calls:
        notes.need(finish != "tool_calls", "finish_reason 'tool_calls' without a tool call", "finish")


def _asked(exchange: Exchange) -> dict[str, object]:
    return object_of(exchange.request)


def _choice(body: Any) -> dict[str, object] | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def reasoning_in(message: dict[str, object]) -> str:
    """vLLM calls it `reasoning`, most others `reasoning_content`; some send both with the same text."""
    return text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))


def _call(item: dict[str, object]) -> Call:
    function = object_of(item.get("function"))
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else "")
    return Call(id=text_of(item.get("id")), name=text_of(function.get("name")), arguments=text)


NOT_OFFERED = "the server offers no log-probabilities"


def is_logprob(value: float) -> bool:
    """Finite, and below zero but for rounding."""
    return math.isfinite(value) and value <= 1e-3


def tokens_in(choice: dict[str, object]) -> list[Token]:
    """The tokens of a choice or of a chunk's choice, where log-probabilities came."""
    return [_token(item) for item in objects_of(object_of(choice.get("logprobs")).get("content"))]


def _token(item: dict[str, object]) -> Token:
    value = item.get("logprob")
    number = float(value) if is_figure(value) else float("nan")
    others = objects_of(item.get("top_logprobs"))
    top = tuple(float(value) for other in others if isinstance(value := other.get("logprob"), int | float))
    likely = tuple(text_of(other.get("token")) for other in others)
    return Token(
        text=text_of(item.get("token")), logprob=number, data=_bytes(item.get("bytes")), top=top, likely=likely
    )


def _bytes(data: object) -> tuple[int, ...]:
    """A token's bytes, where they are given."""
    return tuple(part for part in data if isinstance(part, int)) if isinstance(data, list) else ()
