"""OpenAI chat completions, whole or streamed, as one ChatAnswer with everything that violates the API."""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.loose import is_number
from moebox.phantom.question import ModelReply, ToolCall
from moebox.stream.sse import parse_events
from moebox.verify.violations import (
    Violation,
    Violations,
    check_header,
    check_usage,
    is_count,
    is_text,
    object_of,
    objects_of,
    parse_strict_json,
    shorten,
    text_of,
)

# Marks that belong to a chat template and never to an answer: <|im_end|>, <think>, ◁think▷, [EOS], DeepSeek's <｜…｜>,
# and what is left of gpt-oss's header if its special tokens are removed: assistantfinal.
TEMPLATE_MARKS = re.compile(
    r"<\|[A-Za-z0-9_▁]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?think(?:ing)?>|◁/?think▷|\[(?:BOS|EOS|EOT|PAD)\]"
    r"|<\|?/?tool_calls?(?:_begin|_end)?\|?>|<(?:bos|eos|pad|unk|end_of_turn|start_of_turn)>|</s>|\[/?INST\]"
    r"|\bassistant(?:analysis|commentary|final)"
)
BROKEN_TEXT = "\ufffd"  # what half a character becomes
NULL_WORDS = ("null", "None", "undefined", "[object Object]")
FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")  # most servers; vLLM and OpenRouter; Ollama's own API
NO_LOGPROBS = "the server offers no log-probabilities"
# Bounds of plausible token counts: no tokenizer exceeds them in ordinary answers.
MAX_CHARS_PER_TOKEN = 24  # on average
HIDDEN_TOKENS = 48  # tokens of an answer that are not shown: ends of turns, marks around thoughts
HIDDEN_TOKENS_PER_CALL = 96  # marks, ids and names around a tool call
LIMIT_SLACK = 2  # tokens over max_tokens that some engines count with the end of turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token of the answer with its log-probability."""

    text: str
    logprob: float
    data: tuple[int, ...] = ()  # its bytes, if the server sent them
    top: tuple[float, ...] = ()  # log-probabilities of the most likely tokens in this place, if requested
    likely: tuple[str, ...] = ()  # the texts of these tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One answer. `violations` holds everything that is wrong with its format."""

    id: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    usage: dict[str, object] = field(default_factory=dict)
    tokens: tuple[TokenLogprob, ...] = ()  # with logprobs only
    chunks: int = 0  # of a stream: chunks with content
    reasoning_first: bool = True  # of a stream: no reasoning came after content
    stream: bool = False
    violations: tuple[Violation, ...] = ()
    cached_tokens: int | None = None  # prompt tokens from the prefix cache; None if the server does not report them

    @property
    def reply(self) -> ModelReply:
        """The part that the judges of questions read."""
        return ModelReply(content=self.content, reasoning=self.reasoning, calls=self.calls)

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(token.logprob for token in self.tokens)

    @property
    def leaked_mark(self) -> str:
        """The first template mark or broken character that a reader would see, or ""."""
        for text in (self.content, self.reasoning, *(call.arguments for call in self.calls)):
            if found := TEMPLATE_MARKS.search(text):
                return found.group()
            if BROKEN_TEXT in text:
                return "half a character (U+FFFD)"
        return ""

    @property
    def hidden_tokens(self) -> int:
        """Tokens of reasoning that the server counts and does not show."""
        counted = object_of(self.usage.get("completion_tokens_details")).get("reasoning_tokens")
        return counted if is_count(counted) and not self.reasoning else 0

    @property
    def is_empty(self) -> bool:
        """True if there is neither content nor reasoning, hidden or not."""
        return not (self.content or self.reasoning or self.hidden_tokens)

    def token_count(self, key: str) -> int | None:
        """Prompt, completion or total tokens, or None if the server did not count them."""
        value = self.usage.get(f"{key}_tokens")
        return value if is_count(value) else None


def parse_cached_tokens(body: dict[str, object]) -> int | None:
    """Cached prompt tokens as OpenAI reports them in usage, or llama.cpp in timings."""
    details = object_of(object_of(body.get("usage")).get("prompt_tokens_details"))
    value = details.get("cached_tokens", object_of(body.get("timings")).get("cache_n"))
    return value if is_count(value) else None


def parse_completion(exchange: HttpExchange) -> ChatAnswer:
    """Read the answer of a request without `stream`."""
    violations, request = Violations(), object_of(exchange.request)
    try:
        body = object_of(parse_strict_json(exchange.response))
    except ValueError as problem:
        return ChatAnswer(violations=(Violation("format", f"the answer is not JSON: {problem}", fatal=True),))
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return ChatAnswer(violations=(Violation("format", "the answer has no choices", fatal=True),))
    choice = choices[0]
    number = len(objects_of(choices))
    violations.require(number == 1, lambda: f"{number} choices, but one was requested")
    check_header(violations, body, "chat.completion", text_of(request.get("model")))
    index = choice.get("index")
    violations.require(index == 0, lambda: f"the choice's index is {shorten(index)}, not 0")
    message = choice.get("message")
    if not isinstance(message, dict):
        violations.add("format", "the choice has no message", fatal=True)
        return ChatAnswer(violations=violations.items)
    calls = _check_message(violations, message)
    finish = choice.get("finish_reason")
    if is_text(finish):
        check_finish_reason(violations, finish, bool(calls), request)
    else:
        violations.add("finish", f"finish_reason is {shorten(finish)}")
    if violations.require(isinstance(body.get("usage"), dict), "the answer has no usage", "usage"):
        check_usage(violations, object_of(body["usage"]))
    return ChatAnswer(
        id=text_of(body.get("id")),
        content=text_of(message.get("content")),
        reasoning=reasoning_text(message),
        calls=calls,
        finish_reason=text_of(finish),
        usage=object_of(body.get("usage")),
        tokens=tuple(parse_token_logprobs(choice)),
        violations=violations.items,
        cached_tokens=parse_cached_tokens(body),
    )


def _check_message(violations: Violations, message: dict[str, object]) -> tuple[ToolCall, ...]:
    role, content, listed = message.get("role"), message.get("content"), message.get("tool_calls")
    violations.require(role == "assistant", lambda: f"the role is {shorten(role)}, not 'assistant'")
    is_content = content is None or isinstance(content, str)
    violations.require(is_content, lambda: f"content is {shorten(content)}, not a string")
    text = text_of(content)
    violations.check_surrogates(text, "the content")
    violations.require(text.strip() not in NULL_WORDS, lambda: f"the content is the word {text.strip()!r}", "style")
    is_list = listed is None or isinstance(listed, list)
    violations.require(is_list, lambda: f"tool_calls is {shorten(listed)}, not a list")
    calls: list[ToolCall] = []
    for item in objects_of(listed):
        function = object_of(item.get("function"))
        identity, kind, name = item.get("id"), item.get("type"), function.get("name")
        violations.require(is_text(identity), f"a tool call's id is {shorten(identity)}")
        violations.require(kind == "function", f"a tool call's type is {shorten(kind)}, not 'function'")
        violations.require(is_text(name), f"a tool call's name is {shorten(name)}")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            violations.add("format", f"a tool call's arguments are {shorten(arguments)}, not a string")
            arguments = json.dumps(arguments if arguments is not None else "")
        calls.append(ToolCall(id=text_of(identity), name=text_of(name), arguments=arguments))
    _check_unique_ids(violations, calls)
    return tuple(calls)


def _check_unique_ids(violations: Violations, calls: list[ToolCall]) -> None:
    ids = [call.id for call in calls]
    violations.require(len(set(ids)) == len(ids), lambda: f"two tool calls share an id: {', '.join(ids)[:80]}")


def check_finish_reason(violations: Violations, finish: str, calls: bool, request: dict[str, object]) -> None:
    """`tool_calls` exactly if there are calls; OpenAI sends `stop` if a call was forced."""
    violations.require(finish in FINISH_REASONS, lambda: f"finish_reason {finish!r} is not a documented one", "finish")
    forced = request.get("tool_choice") not in (None, "auto", "none")
    good = ("tool_calls", "stop") if forced else ("tool_calls",)
    if calls and finish != "length":
        violations.require(finish in good, lambda: f"finish_reason {finish!r} with a tool call", "finish")
    if not calls:
        violations.require(finish != "tool_calls", "finish_reason 'tool_calls' without a tool call", "finish")


def reasoning_text(message: dict[str, object]) -> str:
    """Reasoning of a message: OpenAI's API has no name for it; some servers send it under several."""
    return next((text for key in REASONING_KEYS if (text := text_of(message.get(key)))), "")


def is_logprob(value: float) -> bool:
    """True for a finite number that is not above zero, but for rounding."""
    return math.isfinite(value) and value <= 1e-3


def parse_token_logprobs(choice: dict[str, object]) -> list[TokenLogprob]:
    """Tokens with log-probabilities in a choice of a reply or of a chunk."""
    tokens = []
    for item in objects_of(object_of(choice.get("logprobs")).get("content")):
        logprob, data, others = item.get("logprob"), item.get("bytes"), objects_of(item.get("top_logprobs"))
        new_token = TokenLogprob(
            text=text_of(item.get("token")),
            logprob=float(logprob) if is_number(logprob) else math.nan,
            data=tuple(part for part in data if isinstance(part, int)) if isinstance(data, list) else (),
            top=tuple(float(top) for other in others if isinstance(top := other.get("logprob"), int | float)),
            likely=tuple(text_of(other.get("token")) for other in others),
        )
        tokens.append(new_token)
    return tokens


def parse_chat_stream(exchange: HttpExchange) -> ChatAnswer:
    """Assemble the answer of a stream and check each chunk."""
    stream = _ChatStream(object_of(exchange.request))
    for _, data in parse_events(exchange.response):
        if stream.done:
            stream.violations.add("format", f"data after [DONE]: {shorten(data)}")
            break
        if data.strip() == "[DONE]":
            stream.done = True
            continue
        try:
            stream.add_chunk(parse_strict_json(data))
        except ValueError as problem:
            stream.violations.add("format", f"a chunk is not JSON ({problem}): {shorten(data)}", fatal=True)
    return stream.build_answer()


class _ChatStream:
    def __init__(self, request: dict[str, object]) -> None:
        self.request = request
        self.violations = Violations()
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.finish_reasons: list[str] = []
        self.usage: dict[str, object] = {}
        self.tokens: list[TokenLogprob] = []
        self.ids: list[str] = []
        self.roles = 0
        self.chunks = 0
        self.in_order = True
        self.done = False
        self.cached_tokens: int | None = None

    def add_chunk(self, body: Any) -> None:
        if not isinstance(body, dict):
            self.violations.add("format", f"a chunk is not an object: {shorten(body)}", fatal=True)
            return
        if body.get("error"):
            self.violations.add("format", f"an error inside the stream: {json.dumps(body['error'])[:200]}", fatal=True)
            return
        if body.get("choices") or body.get("usage"):  # Azure begins with a chunk of filter results and little else
            check_header(self.violations, body, "chat.completion.chunk", text_of(self.request.get("model")))
        if is_text(body.get("id")):
            self.ids.append(body["id"])
        cached = parse_cached_tokens(body)
        self.cached_tokens = self.cached_tokens if cached is None else cached
        counts, listed = body.get("usage"), body.get("choices")
        if isinstance(counts, dict):
            before, now = self.usage.get("completion_tokens"), counts.get("completion_tokens")
            if is_count(before) and is_count(now) and now < before:
                self.violations.add("usage", f"usage counts down from {before} to {now} tokens")
            self.usage = counts
        elif counts is not None:
            self.violations.add("usage", f"usage is {shorten(counts)}")
        if not self.violations.require(isinstance(listed, list), lambda: f"choices is {shorten(listed)}, not a list"):
            return
        choices = objects_of(listed)
        self.violations.require(len(choices) < 2, lambda: f"{len(choices)} choices in a chunk, but one was requested")
        for choice in choices[:1]:
            index, delta = choice.get("index"), choice.get("delta")
            self.violations.require(index == 0, f"a choice's index is {index!r}, not 0")
            if isinstance(delta, dict):
                self._add_delta(delta)
            else:
                self.violations.add("format", f"a choice's delta is {shorten(delta)}, not an object")
            self.tokens += parse_token_logprobs(choice)
            finish = choice.get("finish_reason")
            self.violations.require(finish != "", "finish_reason is '' and not null inside a stream", "style")
            self.finish_reasons += [str(finish)] if finish else []

    def _add_delta(self, delta: dict[str, object]) -> None:
        for key in ("content", *REASONING_KEYS):
            given = delta.get(key)
            if given is not None and not isinstance(given, str):
                self.violations.add("format", f"a piece of {key} is {shorten(given)}")
        content, reasoning, role = text_of(delta.get("content")), reasoning_text(delta), delta.get("role")
        self.violations.check_surrogates(content, "a piece of content")
        calls = objects_of(delta.get("tool_calls"))
        has_content = bool(content or reasoning or calls)
        if role is not None and role != "":
            self.violations.require(role == "assistant", lambda: f"a role is {shorten(role)}, not 'assistant'")
            self.roles += 1
            self.violations.require(self.roles == 1, "the role comes more than once", "style")
        elif has_content and not self.roles:
            self.violations.add("style", "the stream begins without a role")
        if has_content and self.finish_reasons:
            self.violations.add("format", "text after the finish_reason")
        answer_began = bool(self.calls) or any(piece.strip() for piece in self.content)
        self.in_order = self.in_order and not (reasoning.strip() and answer_began)
        self.chunks += has_content
        self.content.append(content)
        self.reasoning.append(reasoning)
        for position, item in enumerate(calls):
            self._add_call(position, item)

    def _add_call(self, position: int, item: dict[str, object]) -> None:
        function, index = object_of(item.get("function")), item.get("index")
        kind, arguments = item.get("type"), function.get("arguments")
        if not is_count(index):
            self.violations.add("format", f"a piece of a tool call has the index {shorten(index)}")
            index = position
        first = {"id": item.get("id"), "name": function.get("name")}
        if index not in self.calls:
            for key, value in first.items():
                begun = is_text(value)
                self.violations.require(begun, f"a streamed tool call begins with the {key} {shorten(value)}")
            known = kind == "function"
            self.violations.require(known, f"a streamed tool call's type is {shorten(kind)}, not 'function'")
        call = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        for key, value in first.items():
            if not is_text(value):
                continue
            if call[key] and call[key] != value:
                text = f"a streamed tool call changes its {key} from {call[key]!r} to {value!r}"
                self.violations.add("format", text)
            elif call[key]:
                self.violations.add("style", f"the {key} of a streamed tool call comes again in later pieces")
            call[key] = call[key] or value
        if arguments is not None and not isinstance(arguments, str):
            self.violations.add("format", f"a tool call's arguments are {shorten(arguments)}")
            arguments = json.dumps(arguments) if arguments else ""
        call["arguments"] += arguments or ""

    def build_answer(self) -> ChatAnswer:
        violations, ids, finishes = self.violations, set(self.ids), self.finish_reasons
        violations.require(bool(finishes), "the stream ended without a finish_reason", "finish")
        violations.require(len(finishes) < 2, lambda: f"{len(finishes)} finish_reasons in one stream", "finish")
        for finish in finishes[:1]:
            check_finish_reason(violations, finish, bool(self.calls), self.request)
        violations.require(self.done, "the stream ended without [DONE]")
        violations.require(len(ids) < 2, lambda: f"{len(ids)} different ids in one stream")
        indexes = sorted(self.calls)
        violations.require(indexes == list(range(len(indexes))), lambda: f"tool calls have the indexes {indexes}")
        wanted = object_of(self.request.get("stream_options")).get("include_usage")
        if wanted and violations.require(bool(self.usage), "the stream has no usage, which was requested", "usage"):
            check_usage(violations, self.usage)
        calls = [ToolCall(**self.calls[index]) for index in indexes]
        _check_unique_ids(violations, calls)
        return ChatAnswer(
            id=self.ids[0] if self.ids else "",
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            calls=tuple(calls),
            finish_reason=finishes[0] if finishes else "",
            usage=self.usage,
            tokens=tuple(self.tokens),
            chunks=self.chunks,
            reasoning_first=self.in_order,
            stream=True,
            violations=violations.items,
            cached_tokens=self.cached_tokens,
        )


def implausible_usage(answer: ChatAnswer, request: Any) -> str:
    """Return why `completion_tokens` cannot be the count of the answer, or ""."""
    made, request = answer.token_count("completion"), object_of(request)
    if made is None:
        return ""
    text = answer.content + answer.reasoning + "".join(call.name + call.arguments for call in answer.calls)
    most = len(text.encode(errors="replace")) + HIDDEN_TOKENS + HIDDEN_TOKENS_PER_CALL * len(answer.calls)
    # Some servers count reasoning that they do not show; half a call is withheld by parsers.
    withheld = answer.finish_reason == "length" and bool(request.get("tools"))
    if made * MAX_CHARS_PER_TOKEN < len(text) or (made - answer.hidden_tokens > most and not withheld):
        return f"{len(text)} characters were sent, usage counts {made} tokens"
    limit = request.get("max_tokens") or request.get("max_completion_tokens")
    if isinstance(limit, int) and made > limit + LIMIT_SLACK:
        return f"max_tokens was {limit}, usage counts {made} tokens"
    return ""
