"""Session with one server: sends requests, counts what is wrong with replies, keeps the evidence."""

import asyncio
import contextlib
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, get_args

from moebox import http
from moebox.core import catalogue
from moebox.core.endpoint import AUTH_STATUSES, SIMULATION_HEADER, Endpoint
from moebox.core.verdict import HttpExchange, Mark, Score
from moebox.detect.stall import ServerStalled
from moebox.loose import as_object, get_path
from moebox.phantom.question import Question
from moebox.verify.client import STALLED_S, UNREACHABLE, ExchangeClient, StallDetector, limit_events
from moebox.verify.completions import ChatAnswer, implausible_usage, parse_chat
from moebox.verify.options import VerifyOptions
from moebox.verify.statistics import FailureCounts, KindName, Suspect
from moebox.verify.violations import Violation, ViolationKind, prompt_count_change, stream_problem

T = TypeVar("T")
Settings = dict[str, Any]  # of a request
MIN_ANSWER_TOKENS = 512  # always requested, however short the context is
PROMPT_TOKENS = 1024  # of a short context, left for prompts
SHORT_CONTEXT = 2 * PROMPT_TOKENS  # in a longer one every question fits, apart from the long ones
ROOMY_CONTEXT = 4096  # tokens; in a shorter one long texts are half as long
THINKING_TOKENS = 4096  # added for a model that thinks although it was asked not to
REJECTED_STATUSES = (400, 404, 405, 415, 422, 501)  # replies to a request that the server does not support
MAX_HANGS = 3  # requests without an end, after which the run stops
MIN_REPLY_TIMES = 20  # replies, before the server's usual speed is known
MIN_PATIENCE_S = 60.0
SLOWER_FACTOR = 30  # times the slowest reply so far that a request may take
LATE_FACTOR = 8  # times the expected time that a late reply takes
LATER_S = 5.0  # seconds more than expected that a late reply takes
SECRET_CODE = re.compile(r"\w{5,}")  # a model may produce shorter ones by chance


class ProbeFailed(Exception):
    """The probe found a fault. `status` is the HTTP status if that was the fault."""

    def __init__(self, reason: str, *, score: Score | None = None, status: int = 0) -> None:
        super().__init__(reason)
        self.score, self.status = score, status


class RequestRejected(ProbeFailed):
    """The server does not support the request."""


class EndpointUnusable(Exception):
    """A fault that every other request would meet too: key rejected, server unreachable."""


class ProbeSkipped(Exception):
    """The probe does not apply to this server, or its model. In the check named `check` that is a warning."""

    def __init__(self, reason: str, check: str = "") -> None:
        super().__init__(reason)
        self.check = check


class ProbeWarning(str):
    """Result of a probe: not clearly a fault of this server, but surprising for its clients."""


class ReplyTime(NamedTuple):
    seconds: float
    size: int  # bytes
    stream: bool


class ServerSession:
    """Requests to one server, and what was learned about it so far."""

    def __init__(self, client: ExchangeClient, options: VerifyOptions) -> None:
        self.client = client
        self.endpoint: Endpoint = client.endpoint
        self.options = options
        self.restart: Callable[[], None] | None = None  # of the server, between the turns of returning conversations
        self.rng = random.Random(options.seed)
        self.failures = FailureCounts()
        self.failures.on_failure = self._add_suspect
        self.suspects: list[Suspect] = []  # of the present check
        self.wrong_exchange: tuple[HttpExchange, Callable[[HttpExchange], str]] | None = None  # of the next failure
        self.exchanges: list[HttpExchange] = []  # of the present probe
        self.streams: list[HttpExchange] = []  # of all chats so far
        self.request_count = 0  # of all probes
        self.trial_progress: tuple[int, int] = (0, 0)  # number and total of the trials of the present probe
        self.running = ("", "")  # the present check and probe
        self.on_request: Callable[[], None] = lambda: None  # for progress
        self.reply_times: list[ReplyTime] = []  # of ordinary requests
        self.reply_times_judged = 0  # of these, already looked at for lateness
        self.reported_marks: dict[str, Mark] = {}  # failure kinds that an earlier check already reported
        self.stall_detector = StallDetector()
        self.stalled: ServerStalled | None = None
        self.probe_timeout: asyncio.Timeout | None = None  # of the present probe
        self.slow_replies_allowed = False
        self.ends_at = time.monotonic() + options.time_s
        self.seen_ids: set[str] = set()
        self.prompt_counts: dict[bytes, int] = {}
        self.first_secret: Question | None = None  # the first question for a code, repeated much later
        self.secret_codes: set[str] = set()  # codes in the questions so far
        self.accepts_template_arguments = True  # chat_template_kwargs; learned by the first check
        self.accepts_stream_options = True
        self.refusals: dict[str, str] = {}  # by feature: the reply to the plainest request with it, "" if accepted
        self.call_ids: set[str] = set()  # how ids of the server's own tool calls begin
        self.gives_logprobs = False  # at least once
        self.max_tokens_field = "max_tokens"  # or max_completion_tokens, as OpenAI requires for reasoning models
        self.always_thinks = False
        self.answered_without_thinking = False  # at least once, when asked not to think
        self.model_thinks = False  # reasoning came at least once
        self.context_limit: int | None = None  # tokens, as the server reports
        self.tried_context = 0  # tokens
        self.prefill_tok_s = 0.0  # 0 if not measured
        self.route_reader: object = None  # shared by the probes of the check of routes
        self.notes: list[str] = []  # what was not tried
        self.engine = client.endpoint.engine
        self.sandbox = ""
        self.is_simulation = False  # by the header of its replies
        self.token_counter = ""  # the way of counting prompt tokens that worked with this server

    @property
    def chat_url(self) -> str:
        return f"{self.endpoint.base_url}/chat/completions"

    @property
    def seconds_left(self) -> float:
        return self.ends_at - time.monotonic()

    @property
    def is_roomy(self) -> bool:
        """True if the context holds long texts, or its length is unknown."""
        return not self.context_limit or self.context_limit >= ROOMY_CONTEXT

    def token_limit(self, tokens: int, *, thinking: bool = False) -> int:
        """Limit for an answer of `tokens` tokens, more for a model that always thinks, less in a short context.

        vLLM rejects a limit that does not fit beside the prompt.
        """
        wanted = tokens + (THINKING_TOKENS if self.always_thinks and not thinking else 0)
        if not self.context_limit:
            return wanted
        return min(wanted, max(MIN_ANSWER_TOKENS, self.context_limit // 2, self.context_limit - PROMPT_TOKENS))

    def template_arguments(self, thinking: bool) -> dict[str, object]:
        """The field of a request that turns thinking on or off, if the server accepts it."""
        # Kimi's templates read `thinking`, Qwen's and GLM's `enable_thinking`; others ignore both
        both = {"thinking": thinking, "enable_thinking": thinking}
        return {"chat_template_kwargs": both} if self.accepts_template_arguments else {}

    def chat_request(
        self, messages: Sequence[Any], *, thinking: bool = False, max_tokens: int | None = 512, **more: Any
    ) -> dict[str, Any]:
        """Chat request at temperature 0; values that are None are left out, and `stream` unless it is true."""
        request = {"model": self.endpoint.model, "messages": list(messages), "temperature": 0, **more}
        if max_tokens is not None:
            request[self.max_tokens_field] = self.token_limit(max_tokens, thinking=thinking)
        request |= self.template_arguments(thinking)
        if not request.get("stream"):
            request["stream"] = None
        elif self.accepts_stream_options:
            request["stream_options"] = {"include_usage": True}
        return {key: value for key, value in request.items() if value is not None}

    def question_request(self, question: Question, **more: Any) -> Settings:
        """Chat request of a question with its own settings, unless `more` overrides them."""
        return self.chat_request(question.messages, **question_settings(question) | more)

    async def chat(
        self, messages: Sequence[Any], *, exact: bool = False, allow_marks: bool = False, **more: Any
    ) -> ChatAnswer:
        """Send one chat request. Raise ProbeFailed if no proper answer comes.

        `exact`: never raise max_tokens. `allow_marks`: the question may make a model write template marks.
        """
        request = self.chat_request(messages, **more)
        if exact:
            request[self.max_tokens_field] = more["max_tokens"]
        exchange = await self.post_chat(request)
        if exchange.status in REJECTED_STATUSES:
            await self._raise_if_not_offered(request)
        answer = self.read_answer(exchange, allow_marks=allow_marks)
        only_thought = answer.finish_reason == "length" and not (answer.content or answer.is_empty)
        if only_thought and not (exact or self.always_thinks or more.get("thinking")):
            self.always_thinks = True
            return await self.chat(messages, allow_marks=allow_marks, **more)
        return answer

    async def _raise_if_not_offered(self, request: Mapping[str, Any]) -> None:
        """Raise ProbeSkipped if the server refuses the plainest request with a feature of this one, too."""
        text = json.dumps(request)
        rows = catalogue.load_table("check_requests")["feature"]
        for feature in filter(lambda row: row["mark"] in text and row["unless"] not in self.call_ids, rows):
            title, refused = feature["title"], self.refusals.get(feature["title"])
            if refused is None:
                hello = self.chat_request([{"role": "user", "content": "Hello!"}], max_tokens=16)
                reply = await self.post_chat({**hello, **json.loads(feature["plain"])})
                refused = f"HTTP {reply.status}{error_text(reply)}" * (reply.status in REJECTED_STATUSES)
                self.refusals[title] = refused
            if refused:
                raise ProbeSkipped(f"the server does not accept {title}: {refused}", feature["check"])

    async def ask_question(self, question: Question, *, stream: bool = False, **more: Any) -> ChatAnswer:
        """Ask a question of the shared families with its own settings, unless `more` overrides them."""
        if question.family in ("secret", "needle") and SECRET_CODE.fullmatch(str(question.expect)):
            self.secret_codes.add(str(question.expect))
            self.first_secret = self.first_secret or (question if question.family == "secret" else None)
        return await self.chat(question.messages, stream=stream, **question_settings(question) | more)

    async def post_within_limits(self, request: Mapping[str, Any]) -> HttpExchange:
        """POST a chat request; end a stream that goes on after its token limit, and a reply that takes far too long."""
        limit = request.get("max_tokens") or request.get("max_completion_tokens")
        watch = limit_events(limit) if request.get("stream") and isinstance(limit, int) else None
        deadline_s = self.client.deadline_s
        if not self.slow_replies_allowed and len(self.reply_times) >= MIN_REPLY_TIMES:
            # Once the usual speed is known, do not wait minutes for what takes a second
            slowest = max(reply.seconds for reply in self.reply_times)
            deadline_s = min(deadline_s, max(MIN_PATIENCE_S, SLOWER_FACTOR * slowest))
        return await self.client.post(self.chat_url, request, watch=watch, deadline_s=deadline_s)

    async def post_chat(self, request: Mapping[str, Any]) -> HttpExchange:
        """POST a chat request; count a lost reply as a transport failure."""
        exchange, stream = self.keep_evidence(await self.post_within_limits(request)), bool(request.get("stream"))
        without = dict(request)
        refused = exchange.status in REJECTED_STATUSES and "stream_options" in exchange.response
        if refused and without.pop("stream_options", None):
            self.accepts_stream_options = False
            return await self.post_chat(without)
        self.failures.add("transport", transport_problem(exchange), stream=stream)
        self.streams += [exchange] if stream and self.stall_detector.worst_s < STALLED_S else []
        usable = exchange.status == 200 and not exchange.error.startswith("no end")
        if usable and not self.slow_replies_allowed and not self.stall_detector.was_stalled():
            self.reply_times.append(ReplyTime(exchange.seconds, len(exchange.response), stream))
        return exchange

    async def post_chat_with(self, request: Mapping[str, Any], **fields: Any) -> HttpExchange:
        """POST a chat request with more fields, or without them if the server rejects these."""
        exchange = await self.post_chat({**request, **fields})
        return await self.post_chat(request) if exchange.status in REJECTED_STATUSES else exchange

    async def post_dictated(self, request: Mapping[str, Any], text: str) -> HttpExchange:
        """POST a chat request; llama.cpp writes what its grammar dictates, others ignore the field or reject it."""
        return await self.post_chat_with(request, grammar=f"root ::= {json.dumps(text, ensure_ascii=False)}")

    @contextlib.contextmanager
    def allow_slow_replies(self) -> Iterator[None]:
        """Requests inside have long prompts or long answers: no deadline from usual times, and none is late."""
        self.slow_replies_allowed = True
        try:
            yield
        finally:
            self.slow_replies_allowed = False

    def require_thinking(self) -> None:
        if not self.model_thinks:
            raise ProbeSkipped("no reasoning came when asked for")

    def skip_if_context_too_short(self, exchange: HttpExchange) -> None:
        """Raise ProbeSkipped if the server rejects a question because its short context does not hold it."""
        if not self.context_limit or self.context_limit > SHORT_CONTEXT or exchange.status < 400:
            return
        if f"{self.context_limit} tokens" in error_text(exchange).replace(",", ""):
            raise ProbeSkipped(f"question and answer need more than a context of {self.context_limit:,} tokens")

    def track(self, items: Sequence[T]) -> Iterator[tuple[int, T]]:
        """Number the items, and report each as a trial of the present probe."""
        for number, item in enumerate(items):
            self.trial_progress = (number + 1, len(items))
            yield number, item

    async def post(self, url: str, body: Any, **how: Any) -> HttpExchange:
        """POST, kept as evidence; see ExchangeClient.post."""
        return self.keep_evidence(await self.client.post(url, body, **how))

    def keep_evidence(self, exchange: HttpExchange) -> HttpExchange:
        """Keep an exchange as evidence of the present probe."""
        self.exchanges.append(exchange)
        self.is_simulation |= SIMULATION_HEADER in exchange.headers
        self.request_count += 1
        self.on_request()
        return exchange

    def read_answer(self, exchange: HttpExchange, *, allow_marks: bool = False) -> ChatAnswer:
        """Parse a reply and count all violations. Raise ProbeFailed if there is no answer in it."""
        self.skip_if_context_too_short(exchange)
        raise_for_failure(exchange)
        request = as_object(exchange.request)
        stream = bool(request.get("stream"))
        if stream and (reason := stream_problem(exchange)):
            self.failures.add("reply-format", reason, stream=True)
            raise ProbeFailed(reason)
        answer = parse_chat(exchange)
        if answer.content.strip() and not answer.reasoning:
            self.answered_without_thinking |= not get_path(request, "chat_template_kwargs.thinking")
        self.call_ids |= {*re.findall(r"^\w+\.", answer.calls[0].id)} if answer.calls else set()
        self.gives_logprobs |= bool(answer.tokens)
        violations = list(answer.violations)
        if answer.id and answer.id in self.seen_ids:
            violations.append(Violation("reply-style", f"the id {answer.id[:60]!r} was used before"))
        self.seen_ids.add(answer.id)
        prompt_change = prompt_count_change(self.prompt_counts, request, answer.token_count("prompt"))
        violations += [Violation("usage", text) for text in (implausible_usage(answer, request), prompt_change) if text]
        if allow_marks:  # llama.cpp begins without a role if the first token is part of a character
            violations = [violation for violation in violations if violation.kind != "reply-style"]
        answer = replace(answer, violations=tuple(violations))
        self.count_violations(answer, stream=stream, allow_marks=allow_marks)
        # A code of another question, which this request does not contain
        codes = set(SECRET_CODE.findall(f"{answer.content} {answer.reasoning}")) & self.secret_codes
        prompt = json.dumps(request.get("messages"), ensure_ascii=False) if codes else ""
        foreign = sorted(code for code in codes if code not in prompt)
        reason = f"the answer contains {foreign[0]}, which another request asked about" if foreign else ""
        self.failures.add("crosstalk", reason)
        return answer

    def count_violations(self, answer: ChatAnswer, *, stream: bool, allow_marks: bool = False) -> None:
        """Count violations by their kind. Raise ProbeFailed for one that leaves nothing to judge."""
        for kind in get_args(ViolationKind):
            found = [violation.text for violation in answer.violations if violation.kind == kind]
            self.failures.add(kind, "; ".join(found[:3]), stream=stream)
        for violation in answer.violations:
            if violation.fatal:
                raise ProbeFailed(violation.text)
        if not allow_marks:
            leaked = answer.leaked_mark
            self.failures.expect("template-leak", not leaked, f"{leaked} in the answer", stream=stream)

    def _add_suspect(self, kind: KindName, reason: str) -> None:
        """Keep the exchange that showed a failure: the one that a probe named, or the last."""
        exchange, judge = self.wrong_exchange or ((self.exchanges[-1], None) if self.exchanges else (None, None))
        self.wrong_exchange = None
        self.suspects += [Suspect(kind=kind, reason=reason, exchange=exchange, judge=judge)] if exchange else []

    def count_late_replies(self) -> None:
        """Count the replies since the last call that took seconds longer than similar ones."""
        for reply in self.reply_times[self.reply_times_judged :]:
            self.failures.add("late", late_reply(reply, self.reply_times))
        self.reply_times_judged = len(self.reply_times)


def question_settings(question: Question) -> Settings:
    """The settings of a request for a question; what is None is not sent."""
    settings = {"thinking": question.thinking, "max_tokens": question.max_tokens, "tools": list(question.tools) or None}
    return {**settings, "response_format": question.response_format}


def late_reply(reply: ReplyTime, all_times: Sequence[ReplyTime]) -> str:
    """Return "" or how late a reply was, compared with all of its mode; longer ones may take longer."""
    similar = [other for other in all_times if other.stream == reply.stream]
    if len(similar) < MIN_REPLY_TIMES:
        return ""
    usual_size = max(1, statistics.median(other.size for other in similar))
    expected = statistics.median(other.seconds for other in similar) * max(1.0, reply.size / usual_size)
    is_late = reply.seconds > max(LATE_FACTOR * expected, expected + LATER_S)
    return f"a request took {reply.seconds:.1f} s; {expected:.2g} s is usual" if is_late else ""


@contextlib.contextmanager
def skip_if_rejected(reason: str, check: str = "") -> Iterator[None]:
    """Skip the probe, or in the check named `check` warn, if the server does not support the request."""
    try:
        yield
    except RequestRejected as problem:
        raise ProbeSkipped(f"{reason}: {problem}", check) from None


def transport_problem(exchange: HttpExchange) -> str:
    """Return why this is not a reply at all, or ""."""
    lost = exchange.status >= 500 or exchange.status == 429
    return exchange.error or (f"HTTP {exchange.status}{error_text(exchange)}" if lost else "")


def raise_for_failure(exchange: HttpExchange) -> None:
    """Raise ProbeFailed if the exchange is not complete or its status is not 200."""
    if exchange.error:
        raise (EndpointUnusable if exchange.error.startswith(UNREACHABLE) else ProbeFailed)(exchange.error)
    status, text = exchange.status, error_text(exchange)
    if status in AUTH_STATUSES:
        raise EndpointUnusable(f"{status}: the key is missing or rejected{text}")
    if status in (429, 503):
        raise ProbeFailed(f"{status}: still too busy after waiting as requested{text}", status=status)
    if status != 200:
        kind = RequestRejected if status in REJECTED_STATUSES else ProbeFailed
        raise kind(f"HTTP {status}{text}", status=status)


def error_text(exchange: HttpExchange) -> str:
    """The server's error message after a colon, short; "" if there is none."""
    text = " ".join(http.error_text(exchange.response).split())
    return f": {text[:160]}" if text else ""
