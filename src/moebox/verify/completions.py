"""OpenAI chat completions, whole or streamed, as one ChatAnswer with everything that violates the API."""

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.loose import Json, as_object, as_text, get_object, get_objects, get_path, is_count, is_number, is_text
from moebox.phantom.question import ModelReply, ToolCall
from moebox.stream.sse import parse_events
from moebox.verify.violations import SURROGATE, ReplyReader, UnreadableReply, Violation, parse_strict_json, shorten

# Marks that belong to a chat template and never to an answer: <|im_end|>, <think>, ◁think▷, [EOS], DeepSeek's <｜…｜>,
# and what is left of gpt-oss's header if its special tokens are removed: assistantfinal.
TEMPLATE_MARKS = re.compile(
    r"<\|[A-Za-z0-9_▁]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?think(?:ing)?>|◁/?think▷|\[(?:BOS|EOS|EOT|PAD)\]"
    r"|<\|?/?tool_calls?(?:_begin|_end)?\|?>|<(?:bos|eos|pad|unk|end_of_turn|start_of_turn)>|</s>|\[/?INST\]"
    r"|\bassistant(?:analysis|commentary|final)"
)
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
class ChatAnswer(ModelReply):
    """One answer. `violations` holds everything that is wrong with its format."""

    id: str = ""
    finish_reason: str = ""
    usage: Json = field(default_factory=dict)
    tokens: tuple[TokenLogprob, ...] = ()  # with logprobs only
    chunks: int = 0  # of a stream: chunks with content
    reasoning_first: bool = True  # of a stream: no reasoning came after content
    stream: bool = False
    violations: tuple[Violation, ...] = ()
    cached_tokens: int | None = None  # prompt tokens from the prefix cache; None if the server does not report them

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(token.logprob for token in self.tokens)

    @property
    def leaked_mark(self) -> str:
        """The first template mark or broken character that a reader would see, or ""."""
        for text in (self.content, self.reasoning, *(call.arguments for call in self.calls)):
            if found := TEMPLATE_MARKS.search(text):
                return found.group()
            if "\ufffd" in text:
                return "half a character (U+FFFD)"
        return ""

    @property
    def hidden_tokens(self) -> int:
        """Tokens of reasoning that the server counts and does not show."""
        counted = get_path(self.usage, "completion_tokens_details.reasoning_tokens")
        return counted if is_count(counted) and not self.reasoning else 0

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.reasoning or self.hidden_tokens)

    def token_count(self, key: str) -> int | None:
        """Prompt, completion or total tokens, or None if the server did not count them."""
        value = self.usage.get(f"{key}_tokens")
        return value if is_count(value) else None


def parse_cached_tokens(body: Json) -> int | None:
    """Cached prompt tokens as OpenAI reports them in usage, or llama.cpp in timings."""
    details = get_object(body, "usage.prompt_tokens_details")
    value = details.get("cached_tokens", get_path(body, "timings.cache_n"))
    return value if is_count(value) else None


def parse_reply(read: Callable[[ReplyReader], ChatAnswer]) -> Callable[[HttpExchange], ChatAnswer]:
    """Make a parser of a function that reads a reply and notes its violations."""

    @functools.wraps(read)
    def parse(exchange: HttpExchange) -> ChatAnswer:
        reply = ReplyReader(exchange)
        try:
            answer, fatal = read(reply), []
        except UnreadableReply as problem:
            answer, fatal = ChatAnswer(), [Violation("reply-format", str(problem), fatal=True)]
        return replace(answer, violations=(*reply.found.values(), *fatal))

    return parse


def parse_chat(exchange: HttpExchange) -> ChatAnswer:
    """Read the answer of a chat request, whole or streamed."""
    return parse_chat_stream(exchange) if get_path(exchange.request, "stream") else parse_completion(exchange)


@parse_reply
def parse_completion(reply: ReplyReader) -> ChatAnswer:
    """Read the answer of a request without `stream`."""
    body = reply.parse_body("chat completion", "choices")
    choices = get_objects(body, "choices")
    choice = choices[0] if choices else {}
    index, message, finish = map(choice.get, ("index", "message", "finish_reason"))
    reply.require(len(choices) == 1, "{} choices, but one was requested", len(choices))
    reply.check_header(body, "created", object="chat.completion")
    reply.require(index == 0, "the choice's index is {}, not 0", index)
    if not isinstance(message, dict):
        raise UnreadableReply("the choice has no message")
    role, content, listed = map(message.get, ("role", "content", "tool_calls"))
    reply.require(role == "assistant", "the role is {}, not 'assistant'", role)
    reply.require(content is None or isinstance(content, str), "content is {}, not a string", content)
    text = as_text(content)
    reply.require(not SURROGATE.search(text), "half a surrogate pair in the content")
    reply.require(text.strip() not in NULL_WORDS, "the content is the word {}", text.strip(), kind="reply-style")
    reply.require(listed is None or isinstance(listed, list), "tool_calls is {}, not a list", listed)
    calls: list[ToolCall] = []
    for item in get_objects(message, "tool_calls"):
        kind, function = item.get("type"), get_object(item, "function")
        reply.require(kind == "function", "a tool call's type is {}, not 'function'", kind)
        calls.append(reply.read_call(item.get("id"), function.get("name"), function.get("arguments")))
    if reply.require(is_text(finish), "finish_reason is {}", finish, kind="finish"):
        check_finish_reason(reply, as_text(finish), bool(calls))
    if reply.require(isinstance(body.get("usage"), dict), "the answer has no usage", kind="usage"):
        reply.check_usage(body["usage"])
    return ChatAnswer(
        id=as_text(body.get("id")),
        content=text,
        reasoning=reasoning_text(message),
        calls=reply.check_ids(calls),
        finish_reason=as_text(finish),
        usage=get_object(body, "usage"),
        tokens=tuple(parse_token_logprobs(choice)),
        cached_tokens=parse_cached_tokens(body),
    )


def check_finish_reason(reply: ReplyReader, finish: str, calls: bool) -> None:
    """`tool_calls` exactly if there are calls; OpenAI sends `stop` if a call was forced."""
    reply.require(finish in FINISH_REASONS, "finish_reason {} is not a documented one", finish, kind="finish")
    forced = reply.request.get("tool_choice") not in (None, "auto", "none")
    good = ("tool_calls", "length", "stop") if forced else ("tool_calls", "length")
    reply.require(not calls or finish in good, "finish_reason {} with a tool call", finish, kind="finish")
    unfounded = finish == "tool_calls" and not calls
    reply.require(not unfounded, "finish_reason 'tool_calls' without a tool call", kind="finish")


def reasoning_text(message: Json) -> str:
    """Reasoning of a message: OpenAI's API has no name for it; some servers send it under several."""
    return next((text for key in REASONING_KEYS if (text := as_text(message.get(key)))), "")


def is_logprob(value: float) -> bool:
    """True for a finite number that is not above zero, but for rounding."""
    return math.isfinite(value) and value <= 1e-3


def parse_token_logprobs(choice: Json) -> Iterator[TokenLogprob]:
    """Tokens with log-probabilities in a choice of a reply or of a chunk."""
    for item in get_objects(choice, "logprobs.content"):
        logprob, data, others = item.get("logprob"), item.get("bytes"), get_objects(item, "top_logprobs")
        yield TokenLogprob(
            text=as_text(item.get("token")),
            logprob=float(logprob) if is_number(logprob) else math.nan,
            data=tuple(part for part in data if isinstance(part, int)) if isinstance(data, list) else (),
            top=tuple(float(top) for other in others if isinstance(top := other.get("logprob"), int | float)),
            likely=tuple(as_text(other.get("token")) for other in others),
        )


@parse_reply
def parse_chat_stream(reply: ReplyReader) -> ChatAnswer:
    """Assemble the answer of a stream and check each chunk."""
    stream = _ChatStream(reply)
    for _, data in parse_events(reply.exchange.response):
        if not reply.require(not stream.done, "data after [DONE]: {}", data):
            break
        if data.strip() == "[DONE]":
            stream.done = True
            continue
        try:
            stream.add_chunk(parse_strict_json(data))
        except ValueError as problem:
            raise UnreadableReply(f"a chunk is not JSON ({problem}): {shorten(data)}") from None
    return stream.build_answer()


class _ChatStream:
    def __init__(self, reply: ReplyReader) -> None:
        self.reply = reply
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.finish_reasons: list[str] = []
        self.usage: dict[str, object] = {}
        self.tokens: list[TokenLogprob] = []
        self.ids: list[str] = []
        self.roles = self.chunks = 0
        self.in_order = True
        self.done = False
        self.cached_tokens: int | None = None

    def add_chunk(self, body: Any) -> None:
        require = self.reply.require
        if not isinstance(body, dict):
            raise UnreadableReply(f"a chunk is not an object: {shorten(body)}")
        if body.get("error"):
            raise UnreadableReply(f"an error inside the stream: {json.dumps(body['error'])[:200]}")
        if body.get("choices") or body.get("usage"):  # Azure begins with a chunk of filter results and little else
            self.reply.check_header(body, "created", object="chat.completion.chunk")
        self.ids += filter(is_text, [body.get("id")])
        cached = parse_cached_tokens(body)
        self.cached_tokens = self.cached_tokens if cached is None else cached
        counts, listed = body.get("usage"), body.get("choices")
        if isinstance(counts, dict):
            before, now = self.usage.get("completion_tokens"), counts.get("completion_tokens")
            grows = not (is_count(before) and is_count(now) and now < before)
            require(grows, "usage counts down from {} to {} tokens", before, now, kind="usage")
            self.usage = counts
        require(isinstance(counts, dict | None), "usage is {}", counts, kind="usage")
        require(isinstance(listed, list), "choices is {}, not a list", listed)
        choices = get_objects(body, "choices")
        require(len(choices) < 2, "{} choices in a chunk, but one was requested", len(choices))
        for choice in choices[:1]:
            index, delta, finish = map(choice.get, ("index", "delta", "finish_reason"))
            require(index == 0, "a choice's index is {}, not 0", index)
            if require(isinstance(delta, dict), "a choice's delta is {}, not an object", delta):
                self._add_delta(as_object(delta))
            self.tokens += parse_token_logprobs(choice)
            require(finish != "", "finish_reason is '' and not null inside a stream", kind="reply-style")
            self.finish_reasons += [str(finish)] if finish else []

    def _add_delta(self, delta: dict[str, object]) -> None:
        require = self.reply.require
        for key in ("content", *REASONING_KEYS):
            given = delta.get(key)
            require(isinstance(given, str | None), f"a piece of {key} is {{}}", given)
        content, reasoning, role = as_text(delta.get("content")), reasoning_text(delta), delta.get("role")
        require(not SURROGATE.search(content), "half a surrogate pair in a piece of content")
        calls = get_objects(delta, "tool_calls")
        has_content = bool(content or reasoning or calls)
        if role is not None and role != "":
            require(role == "assistant", "a role is {}, not 'assistant'", role)
            require(not self.roles, "the role comes more than once", kind="reply-style")
            self.roles += 1
        require(bool(self.roles or not has_content), "the stream begins without a role", kind="reply-style")
        require(not (has_content and self.finish_reasons), "text after the finish_reason")
        answer_began = bool(self.calls) or any(piece.strip() for piece in self.content)
        self.in_order = self.in_order and not (reasoning.strip() and answer_began)
        self.chunks += has_content
        self.content.append(content)
        self.reasoning.append(reasoning)
        for position, item in enumerate(calls):
            self._add_call(position, item)

    def _add_call(self, position: int, item: Json) -> None:
        require, function, index = self.reply.require, get_object(item, "function"), item.get("index")
        kind, arguments = item.get("type"), function.get("arguments")
        require(is_count(index), "a piece of a tool call has the index {}", index)
        index = index if is_count(index) else position
        first = {"id": item.get("id"), "name": function.get("name")}
        begins = index not in self.calls
        call = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        for key, value in first.items():
            require(is_text(value) or not begins, f"a streamed tool call begins with the {key} {{}}", value)
            if is_text(value) and call[key]:
                same = call[key] == value
                require(same, f"a streamed tool call changes its {key} from {{}} to {{}}", call[key], value)
                require(not same, f"the {key} of a streamed tool call comes again in later pieces", kind="reply-style")
            call[key] = call[key] or as_text(value)
        require(kind == "function" or not begins, "a streamed tool call's type is {}, not 'function'", kind)
        require(isinstance(arguments, str | None), "a tool call's arguments are {}", arguments)
        if arguments:
            call["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def build_answer(self) -> ChatAnswer:
        require, ids, finishes = self.reply.require, set(self.ids), self.finish_reasons
        require(bool(finishes), "the stream ended without a finish_reason", kind="finish")
        require(len(finishes) < 2, "{} finish_reasons in one stream", len(finishes), kind="finish")
        for finish in finishes[:1]:
            check_finish_reason(self.reply, finish, bool(self.calls))
        require(self.done, "the stream ended without [DONE]")
        require(len(ids) < 2, "{} different ids in one stream", len(ids))
        indexes = sorted(self.calls)
        require(indexes == list(range(len(indexes))), "tool calls have the indexes {}", indexes)
        wanted = get_path(self.reply.request, "stream_options.include_usage")
        if wanted and require(bool(self.usage), "the stream has no usage, which was requested", kind="usage"):
            self.reply.check_usage(self.usage)
        return ChatAnswer(
            id=self.ids[0] if self.ids else "",
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            calls=self.reply.check_ids([ToolCall(**self.calls[index]) for index in indexes]),
            finish_reason=finishes[0] if finishes else "",
            usage=self.usage,
            tokens=tuple(self.tokens),
            chunks=self.chunks,
            reasoning_first=self.in_order,
            stream=True,
            cached_tokens=self.cached_tokens,
        )


def implausible_usage(answer: ChatAnswer, request: Any) -> str:
    """Return why `completion_tokens` cannot be the count of the answer, or ""."""
    made, request = answer.token_count("completion"), as_object(request)
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
