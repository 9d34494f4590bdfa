"""Asking: one place that makes requests, counts what is wrong with replies, and keeps the evidence."""

import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from moebox.core.endpoint import REFUSED, Endpoint
from moebox.core.verdict import Exchange, Mark, Score
from moebox.phantom.tasks import Task
from moebox.stream.sse import Events
from moebox.verify import answer as reading
from moebox.verify.answer import Answer
from moebox.verify.breach import Breach, Sort, object_of, strict_json
from moebox.verify.chunks import streamed
from moebox.verify.client import Client
from moebox.verify.counts import PromptCounts, implausible
from moebox.verify.kinds import STREAMED
from moebox.verify.latency import Pace, Pulse
from moebox.verify.options import Options
from moebox.verify.tally import Tally

__all__ = ["Asker", "Failed", "Options", "Skipped", "Unusable", "refuse", "said"]

ANSWER_ROOM = 512  # tokens that are asked for however short a context is said to be
PROMPT_ROOM = 1024  # tokens of a short context that are left to prompts
SHORT_CONTEXT = 2 * PROMPT_ROOM  # tokens; in more every question but the long ones has room
THINKING_ROOM = 4096  # tokens added for a model that thinks although it was asked not to
SLACK_EVENTS = 64  # events beyond max_tokens that an honest stream may have: role, finish, usage, keep-alives
REFUSALS = (400, 404, 405, 415, 422, 501)  # what a server says to a request that it does not support
HANGS = 3  # requests without an end after which the rest of the ladder would only wait
PACE_KNOWN = 20  # requests after which the server's pace is known
LEAST_PATIENCE_S = 60.0
SLOWER = 30  # times the slowest so far that a request may take
CODE = re.compile(r"\w{5,}")  # shorter ones a model may make up by chance
SORTS: dict[Sort, str] = {"format": "reply-format", "style": "reply-style", "finish": "finish", "usage": "usage"}


class Failed(Exception):
    """The probe found what it looks for: a fault. `status` is the HTTP status where that was it."""

    def __init__(self, reason: str, *, score: Score | None = None, status: int = 0) -> None:
        super().__init__(reason)
        self.score = score
        self.status = status


class Unusable(Failed):
    """A fault that would meet every other request too: refused key, nobody there."""


class Skipped(Exception):
    """The probe does not apply here, and why."""


class Asker:
    """Asks one server and remembers what it learnt about it on the way."""

    def __init__(self, client: Client, options: Options) -> None:
        self.client = client
        self.options = options
        self.rng = random.Random(options.seed)
        self.tally = Tally()
        self.exchanges: list[Exchange] = []  # of the present probe
        self.requests = 0  # of all probes
        self.trial: tuple[int, int] = (0, 0)  # which of how many the present probe is at
        self.watching: Callable[[], None] = lambda: None  # called at each request, for progress
        self.paces: list[Pace] = []  # of ordinary requests
        self.charged: dict[str, Mark] = {}  # kinds that an earlier rung already answers for
        self.paced = 0  # of these, looked at for lateness
        self.pulse = Pulse()
        self.hangs = 0
        self.patient = False  # long prompts and long answers take as long as they take
        self.ends = time.monotonic() + options.time_s
        self.ids: set[str] = set()
        self.counts = PromptCounts()
        self.first: Task | None = None  # the first code that was asked for, to be asked for again much later
        self.codes: set[str] = set()  # that stood in questions so far
        self.template_arguments = True  # chat_template_kwargs is taken; learnt by the first rung
        self.limit_name = "max_tokens"  # max_completion_tokens where it is refused, as by OpenAI for reasoning models
        self.always_thinks = False
        self.thinks = False  # reasoning came at least once
        self.limit: int | None = None  # tokens of context, as the server says
        self.filled = 0  # tokens of context that were tried
        self.prefill = 0.0  # tokens a second that it reads; 0 where nobody looked
        self.tools: tuple[Mapping[str, Any], ...] = ()  # that the tasks of the present probe offer
        self.notes: list[str] = []  # what a verdict does not say anything about
        self.engine = client.endpoint.engine
        self.sandbox = ""
        self.counted_by = ""  # the way of counting tokens that worked here

    @property
    def endpoint(self) -> Endpoint:
        """Whom we ask."""
        return self.client.endpoint

    @property
    def left_s(self) -> float:
        """Seconds left to the ladder."""
        return self.ends - time.monotonic()

    @property
    def is_kimi(self) -> bool:
        """The model's name says Kimi, so Kimi's own forms are expected."""
        return "kimi" in self.endpoint.model.lower() or "k2" in self.endpoint.model.lower()

    def room(self, tokens: int, *, thinking: bool = False) -> int:
        """So many tokens for an answer, and for thoughts that come unasked, as a short context has beside a prompt.

        vLLM refuses to be asked for more.
        """
        wanted = tokens + (THINKING_ROOM if self.always_thinks and not thinking else 0)
        return min(wanted, max(ANSWER_ROOM, self.limit // 2, self.limit - PROMPT_ROOM)) if self.limit else wanted

    def body(
        self, messages: Sequence[Any], *, thinking: bool = False, max_tokens: int | None = 512, **more: Any
    ) -> Any:
        """A chat request at temperature 0; values that are None are left out."""
        request = {"model": self.endpoint.model, "messages": list(messages), "temperature": 0, **more}
        if max_tokens is not None:
            request[self.limit_name] = self.room(max_tokens, thinking=thinking)
        if self.template_arguments:
            # Kimi's templates read `thinking`, Qwen's and GLM's `enable_thinking`; others ignore both
            request["chat_template_kwargs"] = {"thinking": thinking, "enable_thinking": thinking}
        if request.get("stream"):
            request["stream_options"] = {"include_usage": True}
        return {key: value for key, value in request.items() if value is not None}

    async def chat(self, messages: Sequence[Any], *, exact: bool = False, odd: bool = False, **more: Any) -> Answer:
        """One chat completion; Failed when no proper answer came.

        `exact`: never more room than asked for. `odd`: a question that may drive a model to write template marks.
        """
        request = self.body(messages, **more)
        if exact:
            request[self.limit_name] = more["max_tokens"]
        exchange = await self.send(request)
        answer = self.read(exchange, stream=bool(request.get("stream")), odd=odd)
        expected = exact or self.always_thinks or more.get("thinking")
        if _only_thought(answer) and not expected:
            self.always_thinks = True
            return await self.chat(messages, odd=odd, **more)
        return answer

    async def ask(self, task: Task, *, stream: bool | None = None, **more: Any) -> Answer:
        """A task of the shared families, asked as it wants to be."""
        if task.family in ("secret", "needle") and CODE.fullmatch(str(task.expect)):
            self.codes.add(str(task.expect))
            self.first = self.first or (task if task.family == "secret" else None)
        words: dict[str, object] = {"thinking": task.thinking, "max_tokens": task.max_tokens}
        words["tools"] = list(task.tools) or None
        words["response_format"] = task.response_format
        return await self.chat(task.messages, stream=stream or None, **{**words, **more})

    async def send(self, request: Any, path: str = "/chat/completions") -> Exchange:
        """POST to the API; the exchange is kept as evidence, and a lost reply is counted."""
        fields = object_of(request)
        stream = bool(fields.get("stream"))
        room = fields.get("max_tokens") or fields.get("max_completion_tokens")
        watch = _Watch(room) if stream and isinstance(room, int) else None
        url, wait = self.endpoint.base_url + path, self._patience_s()
        exchange = self.keep(await self.client.post(url, request, watch=watch, deadline_s=wait))
        self.tally.add("transport" + STREAMED * stream, lost(exchange))
        if exchange.error.startswith("no end"):
            self.hangs += 1
        elif exchange.status == 200 and not self.patient and not self.pulse.held_up():
            self.paces.append(Pace(exchange.seconds, len(exchange.response), stream))
        return exchange

    def _patience_s(self) -> float:
        """How long a reply is waited for: once the server's pace is known, not minutes for what takes a second."""
        if self.patient or len(self.paces) < PACE_KNOWN:
            return self.client.deadline_s
        return min(self.client.deadline_s, max(LEAST_PATIENCE_S, SLOWER * max(pace.seconds for pace in self.paces)))

    @contextlib.contextmanager
    def unhurried(self) -> Iterator[None]:
        """What is asked meanwhile has a long prompt or a long answer: it takes as long as it takes, and is not late."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False

    def need_thinking(self) -> None:
        """Skipped where no reasoning came in any answer so far."""
        if not self.thinks:
            raise Skipped("no reasoning came when asked for")

    def need_room(self, exchange: Exchange) -> None:
        """Skipped where a context is so short that question and answer do not fit, and the server says so."""
        if not self.limit or self.limit > SHORT_CONTEXT or exchange.status < 400:
            return
        if f"{self.limit} tokens" in said(exchange).replace(",", ""):
            raise Skipped(f"question and answer need more than a context of {self.limit:,} tokens")

    async def get(self, url: str) -> Exchange:
        """GET; kept as evidence."""
        return self.keep(await self.client.get(url))

    def keep(self, exchange: Exchange) -> Exchange:
        """Remember it for this probe."""
        self.exchanges.append(exchange)
        self.requests += 1
        self.watching()
        return exchange

    def read(self, exchange: Exchange, *, stream: bool, odd: bool = False) -> Answer:
        """The answer in it, with every breach of form counted; Failed with the reason where there is none."""
        self.need_room(exchange)
        refuse(exchange)
        if stream:
            self._need_events(exchange)
        answer = streamed(exchange) if stream else reading.whole(exchange)
        breaches = [*answer.breaches, *self._doubts(answer, exchange)]
        if odd:  # llama.cpp begins without a role where the first token is part of a character
            breaches = [breach for breach in breaches if breach.sort != "style"]
        self.count(breaches, stream=stream)
        self.tally.add("crosstalk", self._foreign(answer, exchange.request))
        if not odd:
            self.tally.need("template-leak" + STREAMED * stream, not answer.leak, f"{answer.leak} in the answer")
        return answer

    def count(self, breaches: Collection[Breach], *, stream: bool) -> None:
        """Count breaches of form by their sort; Failed with those that leave nothing to judge."""
        for sort, name in SORTS.items():
            found = [breach.text for breach in breaches if breach.sort == sort]
            self.tally.add(name + STREAMED * stream, "; ".join(found[:3]))
        fatal = [breach.text for breach in breaches if breach.fatal]
        if fatal:
            raise Failed("; ".join(fatal[:3]))

    def _need_events(self, exchange: Exchange) -> None:
        """Failed where a stream was asked for, and something else came."""
        kind = exchange.headers.get("content-type", "")
        if "text/event-stream" not in kind.lower():
            self.tally.add("reply-format" + STREAMED, why := f"asked for a stream, got {kind or 'no content type'}")
            raise Failed(why)

    def _doubts(self, answer: Answer, exchange: Exchange) -> list[Breach]:
        """What is wrong with it beside what came before, and beside what was asked."""
        counts = implausible(answer, exchange.request)
        counts += self.counts.changed(exchange.request, answer.count("prompt"))
        return [Breach("style", why) for why in self._known(answer.id)] + [Breach("usage", why) for why in counts]

    def _foreign(self, answer: Answer, request: Any) -> str:
        """A code from an earlier question is in no other question's answer."""
        heard = set(CODE.findall(answer.content + " " + answer.reasoning)) & self.codes
        if not heard or not isinstance(request, dict):
            return ""
        asked = json.dumps(request.get("messages"), ensure_ascii=False)
        strange = sorted(code for code in heard if code not in asked)
        return f"the answer holds {strange[0]}, which another request asked about" if strange else ""

    def _known(self, identity: str) -> list[str]:
        """A reply's id is new."""
        again = bool(identity) and identity in self.ids
        self.ids.add(identity)
        return [f"the id {identity[:60]!r} was used before"] if again else []


def counted(answer: Answer, key: str = "prompt") -> int:
    """The tokens of a prompt or a completion; Skipped where the server does not count them."""
    tokens = answer.count(key)
    if tokens is None:
        raise Skipped("the server counts no tokens")
    return tokens


@contextlib.contextmanager
def skipped_if_refused(why: str) -> Iterator[None]:
    """What the server does not support skips the probe instead of failing it."""
    try:
        yield
    except Failed as problem:
        if problem.status in REFUSALS:
            raise Skipped(why) from None
        raise


def _only_thought(answer: Answer) -> bool:
    """All the room went into thoughts."""
    return answer.finish == "length" and bool(answer.reasoning) and not answer.content


def lost(exchange: Exchange) -> str:
    """ "" or why this is no reply at all."""
    if exchange.error:
        return exchange.error
    return f"HTTP {exchange.status}{said(exchange)}" if exchange.status >= 500 or exchange.status == 429 else ""


def refuse(exchange: Exchange) -> None:
    """Raise Failed for an exchange that is not a whole and good answer."""
    if exchange.error:
        away = exchange.error.startswith(("cannot connect", "TLS", "not a URL"))
        raise (Unusable if away else Failed)(exchange.error)
    if exchange.status in REFUSED:
        raise Unusable(f"{exchange.status}: the key is missing or refused{said(exchange)}", status=exchange.status)
    if exchange.status in (429, 503):
        text = f"{exchange.status}: still too busy after waiting as asked{said(exchange)}"
        raise Failed(text, status=exchange.status)
    if exchange.status != 200:
        raise Failed(f"HTTP {exchange.status}{said(exchange)}", status=exchange.status)


def said(exchange: Exchange) -> str:
    """What the server said about its error, short."""
    try:
        body = strict_json(exchange.response)
    except ValueError:
        body = exchange.response
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    flat = " ".join(str(text).split())
    return f": {flat[:160]}" if flat else ""


class _Watch:
    """Ends a stream that goes on long after its token limit."""

    def __init__(self, max_tokens: int) -> None:
        self.parser = Events()
        self.seen = 0
        self.most = 2 * max_tokens + SLACK_EVENTS
        self.max_tokens = max_tokens

    def __call__(self, piece: bytes) -> str:
        """One piece of the stream; a word ends it."""
        self.seen += len(self.parser.feed(piece))
        return f"no end: {self.seen} events for {self.max_tokens} tokens at most" if self.seen > self.most else ""
