"""Asking: one place that makes requests, counts what is wrong with replies, and keeps the evidence."""

import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from moebox.core.endpoint import AUTH_STATUSES, Endpoint
from moebox.core.verdict import HttpExchange, Mark, Score
from moebox.phantom.tasks import Question
from moebox.stream.sse import EventParser
from moebox.verify import answer as reading
from moebox.verify.answer import ChatAnswer
from moebox.verify.breach import Violation, ViolationKind, object_of, parse_strict_json
from moebox.verify.chunks import parse_chat_stream
from moebox.verify.client import ExchangeClient
from moebox.verify.counts import PromptCounts, implausible_usage
from moebox.verify.kinds import STREAMED
from moebox.verify.latency import ReplyTime, StallDetector
from moebox.verify.options import VerifyOptions
from moebox.verify.tally import FailureCounts

__all__ = [
    "CheckSession",
    "EndpointUnusable",
    "ProbeFailed",
    "ProbeSkipped",
    "VerifyOptions",
    "error_text",
    "raise_for_failure",
]

MIN_ANSWER_TOKENS = 512  # tokens that are asked for however short a context is said to be
PROMPT_TOKENS = 1024  # tokens of a short context that are left to prompts
SHORT_CONTEXT = 2 * PROMPT_TOKENS  # tokens; in more every question but the long ones has room
THINKING_TOKENS = 4096  # tokens added for a model that thinks although it was asked not to
SLACK_EVENTS = 64  # events beyond max_tokens that an honest stream may have: role, finish, usage, keep-alives
REJECTED_STATUSES = (400, 404, 405, 415, 422, 501)  # what a server says to a request that it does not support
MAX_HANGS = 3  # requests without an end after which the rest of the ladder would only wait
MIN_REPLY_TIMES = 20  # requests after which the server's pace is known
MIN_PATIENCE_S = 60.0
SLOWER_FACTOR = 30  # times the slowest so far that a request may take
CODE = re.compile(r"\w{5,}")  # shorter ones a model may make up by chance
VIOLATION_FAILURE_KINDS: dict[ViolationKind, str] = {
    "format": "reply-format",
    "style": "reply-style",
    "finish": "finish",
    "usage": "usage",
}


class ProbeFailed(Exception):
    """The probe found what it looks for: a fault. `status` is the HTTP status where that was it."""

    def __init__(self, reason: str, *, score: Score | None = None, status: int = 0) -> None:
        super().__init__(reason)
        self.score = score
        self.status = status


class EndpointUnusable(ProbeFailed):
    """A fault that would meet every other request too: refused key, nobody there."""


class ProbeSkipped(Exception):
    """The probe does not apply here, and why."""


class CheckSession:
    """Asks one server and remembers what it learnt about it on the way."""

    def __init__(self, client: ExchangeClient, options: VerifyOptions) -> None:
        self.client = client
        self.options = options
        self.rng = random.Random(options.seed)
        self.failures = FailureCounts()
        self.exchanges: list[HttpExchange] = []  # of the present probe
        self.request_count = 0  # of all probes
        self.trial_progress: tuple[int, int] = (0, 0)  # which of how many the present probe is at
        self.on_request: Callable[[], None] = lambda: None  # called at each request, for progress
        self.reply_times: list[ReplyTime] = []  # of ordinary requests
        self.reported_marks: dict[str, Mark] = {}  # kinds that an earlier rung already answers for
        self.reply_times_judged = 0  # of these, looked at for lateness
        self.stall_detector = StallDetector()
        self.hang_count = 0
        self.slow_replies_allowed = False  # long prompts and long answers take as long as they take
        self.ends_at = time.monotonic() + options.time_s
        self.seen_ids: set[str] = set()
        self.prompt_counts = PromptCounts()
        self.first_secret: Question | None = None  # the first code that was asked for, to be asked for again much later
        self.secret_codes: set[str] = set()  # that stood in questions so far
        self.accepts_template_arguments = True  # chat_template_kwargs is taken; learnt by the first rung
        self.max_tokens_field = (
            "max_tokens"  # max_completion_tokens where it is refused, as by OpenAI for reasoning models
        )
        self.always_thinks = False
        self.model_thinks = False  # reasoning came at least once
        self.context_limit: int | None = None  # tokens of context, as the server says
        self.tried_context = 0  # tokens of context that were tried
        self.prefill_tok_s = 0.0  # tokens a second that it reads; 0 where nobody looked
        self.offered_tools: tuple[Mapping[str, Any], ...] = ()  # that the tasks of the present probe offer
        self.notes: list[str] = []  # what a verdict does not say anything about
        self.engine = client.endpoint.engine
        self.sandbox = ""
        self.token_counter = ""  # the way of counting tokens that worked here

    @property
    def endpoint(self) -> Endpoint:
        """Whom we ask."""
        return self.client.endpoint

    @property
    def seconds_left(self) -> float:
        """Seconds left to the ladder."""
        return self.ends_at - time.monotonic()

    @property
    def is_kimi(self) -> bool:
        """The model's name says Kimi, so Kimi's own forms are expected."""
        return "kimi" in self.endpoint.model.lower() or "k2" in self.endpoint.model.lower()

    def token_limit(self, tokens: int, *, thinking: bool = False) -> int:
        """So many tokens for an answer, and for thoughts that come unasked, as a short context has beside a prompt.

        vLLM refuses to be asked for more.
        """
        wanted = tokens + (THINKING_TOKENS if self.always_thinks and not thinking else 0)
        return (
            min(wanted, max(MIN_ANSWER_TOKENS, self.context_limit // 2, self.context_limit - PROMPT_TOKENS))
            if self.context_limit
            else wanted
        )

    def chat_request(
        self, messages: Sequence[Any], *, thinking: bool = False, max_tokens: int | None = 512, **more: Any
    ) -> Any:
        """A chat request at temperature 0; values that are None are left out."""
        request = {"model": self.endpoint.model, "messages": list(messages), "temperature": 0, **more}
        if max_tokens is not None:
            request[self.max_tokens_field] = self.token_limit(max_tokens, thinking=thinking)
        if self.accepts_template_arguments:
            # Kimi's templates read `thinking`, Qwen's and GLM's `enable_thinking`; others ignore both
            request["chat_template_kwargs"] = {"thinking": thinking, "enable_thinking": thinking}
        if request.get("stream"):
            request["stream_options"] = {"include_usage": True}
        return {key: value for key, value in request.items() if value is not None}

    async def chat(
        self, messages: Sequence[Any], *, exact: bool = False, allow_marks: bool = False, **more: Any
    ) -> ChatAnswer:
        """One chat completion; Failed when no proper answer came.

        `exact`: never more room than asked for. `odd`: a question that may drive a model to write template marks.
        """
        request = self.chat_request(messages, **more)
        if exact:
            request[self.max_tokens_field] = more["max_tokens"]
        exchange = await self.post_chat(request)
        answer = self.read_answer(exchange, stream=bool(request.get("stream")), allow_marks=allow_marks)
        expected = exact or self.always_thinks or more.get("thinking")
        if _only_thought(answer) and not expected:
            self.always_thinks = True
            return await self.chat(messages, allow_marks=allow_marks, **more)
        return answer

    async def ask_question(self, task: Question, *, stream: bool | None = None, **more: Any) -> ChatAnswer:
        """A task of the shared families, asked as it wants to be."""
        if task.family in ("secret", "needle") and CODE.fullmatch(str(task.expect)):
            self.secret_codes.add(str(task.expect))
            self.first_secret = self.first_secret or (task if task.family == "secret" else None)
        words: dict[str, object] = {"thinking": task.thinking, "max_tokens": task.max_tokens}
        words["tools"] = list(task.tools) or None
        words["response_format"] = task.response_format
        return await self.chat(task.messages, stream=stream or None, **{**words, **more})

    async def post_chat(self, request: Any, path: str = "/chat/completions") -> HttpExchange:
        """POST to the API; the exchange is kept as evidence, and a lost reply is counted."""
        fields = object_of(request)
        stream = bool(fields.get("stream"))
        room = fields.get("max_tokens") or fields.get("max_completion_tokens")
        watch = _Watch(room) if stream and isinstance(room, int) else None
        url, wait = self.endpoint.base_url + path, self._patience_s()
        exchange = self.keep_evidence(await self.client.post(url, request, watch=watch, deadline_s=wait))
        self.failures.add("transport" + STREAMED * stream, transport_problem(exchange))
        if exchange.error.startswith("no end"):
            self.hang_count += 1
        elif exchange.status == 200 and not self.slow_replies_allowed and not self.stall_detector.was_stalled():
            self.reply_times.append(ReplyTime(exchange.seconds, len(exchange.response), stream))
        return exchange

    def _patience_s(self) -> float:
        """How long a reply is waited for: once the server's pace is known, not minutes for what takes a second."""
        if self.slow_replies_allowed or len(self.reply_times) < MIN_REPLY_TIMES:
            return self.client.deadline_s
        return min(
            self.client.deadline_s, max(MIN_PATIENCE_S, SLOWER_FACTOR * max(pace.seconds for pace in self.reply_times))
        )

    @contextlib.contextmanager
    def allow_slow_replies(self) -> Iterator[None]:
        """What is asked meanwhile has a long prompt or a long answer: it takes as long as it takes, and is not late."""
        self.slow_replies_allowed = True
        try:
            yield
        finally:
            self.slow_replies_allowed = False

    def require_thinking(self) -> None:
        """Skipped where no reasoning came in any answer so far."""
        if not self.model_thinks:
            raise ProbeSkipped("no reasoning came when asked for")

    def skip_if_context_too_short(self, exchange: HttpExchange) -> None:
        """Skipped where a context is so short that question and answer do not fit, and the server says so."""
        if not self.context_limit or self.context_limit > SHORT_CONTEXT or exchange.status < 400:
            return
        if f"{self.context_limit} tokens" in error_text(exchange).replace(",", ""):
            raise ProbeSkipped(f"question and answer need more than a context of {self.context_limit:,} tokens")

    async def get(self, url: str) -> HttpExchange:
        """GET; kept as evidence."""
        return self.keep_evidence(await self.client.get(url))

    def keep_evidence(self, exchange: HttpExchange) -> HttpExchange:
        """Remember it for this probe."""
        self.exchanges.append(exchange)
        self.request_count += 1
        self.on_request()
        return exchange

    def read_answer(self, exchange: HttpExchange, *, stream: bool, allow_marks: bool = False) -> ChatAnswer:
        """The answer in it, with every breach of form counted; Failed with the reason where there is none."""
        self.skip_if_context_too_short(exchange)
        raise_for_failure(exchange)
        if stream:
            self._need_events(exchange)
        answer = parse_chat_stream(exchange) if stream else reading.parse_completion(exchange)
        breaches = [*answer.violations, *self._doubts(answer, exchange)]
        if allow_marks:  # llama.cpp begins without a role where the first token is part of a character
            breaches = [breach for breach in breaches if breach.kind != "style"]
        self.count_violations(breaches, stream=stream)
        self.failures.add("crosstalk", self._foreign(answer, exchange.request))
        if not allow_marks:
            self.failures.expect(
                "template-leak" + STREAMED * stream, not answer.leaked_mark, f"{answer.leaked_mark} in the answer"
            )
        return answer

    def count_violations(self, violations: Collection[Violation], *, stream: bool) -> None:
        """Count breaches of form by their sort; Failed with those that leave nothing to judge."""
        for sort, name in VIOLATION_FAILURE_KINDS.items():
            found = [breach.text for breach in violations if breach.kind == sort]
            self.failures.add(name + STREAMED * stream, "; ".join(found[:3]))
        fatal = [breach.text for breach in violations if breach.fatal]
        if fatal:
            raise ProbeFailed("; ".join(fatal[:3]))

    def _need_events(self, exchange: HttpExchange) -> None:
        """Failed where a stream was asked for, and something else came."""
        kind = exchange.headers.get("content-type", "")
        if "text/event-stream" not in kind.lower():
            self.failures.add("reply-format" + STREAMED, why := f"asked for a stream, got {kind or 'no content type'}")
            raise ProbeFailed(why)

    def _doubts(self, answer: ChatAnswer, exchange: HttpExchange) -> list[Violation]:
        """What is wrong with it beside what came before, and beside what was asked."""
        counts = implausible_usage(answer, exchange.request)
        counts += self.prompt_counts.count_change(exchange.request, answer.token_count("prompt"))
        return [Violation("style", why) for why in self._known(answer.id)] + [Violation("usage", why) for why in counts]

    def _foreign(self, answer: ChatAnswer, request: Any) -> str:
        """A code from an earlier question is in no other question's answer."""
        heard = set(CODE.findall(answer.content + " " + answer.reasoning)) & self.secret_codes
        if not heard or not isinstance(request, dict):
            return ""
        asked = json.dumps(request.get("messages"), ensure_ascii=False)
        strange = sorted(code for code in heard if code not in asked)
        return f"the answer holds {strange[0]}, which another request asked about" if strange else ""

    def _known(self, identity: str) -> list[str]:
        """A reply's id is new."""
        again = bool(identity) and identity in self.seen_ids
        self.seen_ids.add(identity)
        return [f"the id {identity[:60]!r} was used before"] if again else []


def require_token_count(answer: ChatAnswer, key: str = "prompt") -> int:
    """The tokens of a prompt or a completion; Skipped where the server does not count them."""
    tokens = answer.token_count(key)
    if tokens is None:
        raise ProbeSkipped("the server counts no tokens")
    return tokens


@contextlib.contextmanager
def skip_if_rejected(reason: str) -> Iterator[None]:
    """What the server does not support skips the probe instead of failing it."""
    try:
        yield
    except ProbeFailed as problem:
        if problem.status in REJECTED_STATUSES:
            raise ProbeSkipped(reason) from None
        raise


def _only_thought(answer: ChatAnswer) -> bool:
    """All the room went into thoughts."""
    return answer.finish_reason == "length" and bool(answer.reasoning) and not answer.content


def transport_problem(exchange: HttpExchange) -> str:
    """ "" or why this is no reply at all."""
    if exchange.error:
        return exchange.error
    return f"HTTP {exchange.status}{error_text(exchange)}" if exchange.status >= 500 or exchange.status == 429 else ""


def raise_for_failure(exchange: HttpExchange) -> None:
    """Raise Failed for an exchange that is not a whole and good answer."""
    if exchange.error:
        away = exchange.error.startswith(("cannot connect", "TLS", "not a URL"))
        raise (EndpointUnusable if away else ProbeFailed)(exchange.error)
    if exchange.status in AUTH_STATUSES:
        raise EndpointUnusable(
            f"{exchange.status}: the key is missing or refused{error_text(exchange)}", status=exchange.status
        )
    if exchange.status in (429, 503):
        text = f"{exchange.status}: still too busy after waiting as asked{error_text(exchange)}"
        raise ProbeFailed(text, status=exchange.status)
    if exchange.status != 200:
        raise ProbeFailed(f"HTTP {exchange.status}{error_text(exchange)}", status=exchange.status)


def error_text(exchange: HttpExchange) -> str:
    """What the server said about its error, short."""
    try:
        body = parse_strict_json(exchange.response)
    except ValueError:
        body = exchange.response
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    flat = " ".join(str(text).split())
    return f": {flat[:160]}" if flat else ""


class _Watch:
    """Ends a stream that goes on long after its token limit."""

    def __init__(self, max_tokens: int) -> None:
        self.parser = EventParser()
        self.seen = 0
        self.most = 2 * max_tokens + SLACK_EVENTS
        self.max_tokens = max_tokens

    def __call__(self, piece: bytes) -> str:
        """One piece of the stream; a word ends it."""
        self.seen += len(self.parser.feed(piece))
        return f"no end: {self.seen} events for {self.max_tokens} tokens at most" if self.seen > self.most else ""
