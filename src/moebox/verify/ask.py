"""Asking: one place that knows how a request is made, what counts as an answer, and that keeps the evidence."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moebox.core.endpoint import Endpoint
from moebox.core.verdict import Exchange, Score
from moebox.phantom.tasks import Task
from moebox.verify import answer as reading
from moebox.verify.answer import Answer
from moebox.verify.client import Client
from moebox.verify.sse import Events

THINKING_ROOM = 4096  # tokens added for a model that thinks although it was asked not to
SLACK_EVENTS = 64  # events beyond max_tokens that an honest stream may have: role, finish, usage, keep-alives


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How hard to look."""

    context: int | None = None  # tokens for the long-context rung; None asks the server for its limit
    depths: tuple[float, ...] = (0.02, 0.25, 0.5, 0.75, 0.98)  # where in that length something is hidden
    trials: int = 10  # tool calls over which schema validity is scored
    parallel: int = 8  # requests at once
    thinking: Literal["auto", "yes", "no"] = "auto"  # whether the model must think when asked to
    seed: int | None = None  # None: fresh questions every time
    deadline_s: float = 300.0  # for one request


class Failed(Exception):
    """The probe found what it looks for: a fault."""

    def __init__(self, reason: str, *, score: Score | None = None) -> None:
        super().__init__(reason)
        self.score = score


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
        self.exchanges: list[Exchange] = []
        self.template_arguments = True  # chat_template_kwargs is taken; learnt by the first rung
        self.always_thinks = False
        self.thinks = False  # reasoning came at least once
        self.limit: int | None = None  # tokens of context, as the server says
        self.engine = client.endpoint.engine
        self.sandbox = ""
        self.counted_by = ""  # the way of counting tokens that worked here

    @property
    def endpoint(self) -> Endpoint:
        """Whom we ask."""
        return self.client.endpoint

    @property
    def is_kimi(self) -> bool:
        """The model's name says Kimi, so Kimi's own forms are expected."""
        return "kimi" in self.endpoint.model.lower() or "k2" in self.endpoint.model.lower()

    def body(self, messages: Sequence[Any], *, thinking: bool = False, max_tokens: int = 512, **more: Any) -> Any:
        """A chat request at temperature 0; values that are None are left out."""
        room = THINKING_ROOM if self.always_thinks and not thinking else 0
        request = {"model": self.endpoint.model, "messages": list(messages), "temperature": 0, **more}
        request["max_tokens"] = max_tokens + room
        if self.template_arguments:
            # Kimi's templates read `thinking`, Qwen's and GLM's `enable_thinking`; others ignore both
            request["chat_template_kwargs"] = {"thinking": thinking, "enable_thinking": thinking}
        if request.get("stream"):
            request["stream_options"] = {"include_usage": True}
        return {key: value for key, value in request.items() if value is not None}

    async def chat(self, messages: Sequence[Any], *, exact: bool = False, **more: Any) -> Answer:
        """One chat completion; Failed when no proper answer came. `exact`: never more room than asked for."""
        request = self.body(messages, **more)
        if exact:
            request["max_tokens"] = more["max_tokens"]
        exchange = await self.send(request)
        answer = self.read(exchange, stream=bool(request.get("stream")))
        unasked = answer.reasoning and not more.get("thinking") and not exact
        if unasked and answer.finish == "length" and not answer.content and not self.always_thinks:
            self.always_thinks = True
            return await self.chat(messages, **more)
        return answer

    async def ask(self, task: Task, *, stream: bool | None = None, **more: Any) -> Answer:
        """A task of the shared families, asked as it wants to be."""
        words: dict[str, Any] = {"thinking": task.thinking, "max_tokens": task.max_tokens}
        words["tools"] = list(task.tools) or None
        words["response_format"] = task.response_format
        return await self.chat(task.messages, stream=stream or None, **{**words, **more})

    async def send(self, request: Any, path: str = "/chat/completions") -> Exchange:
        """POST to the API; the exchange is kept as evidence."""
        watch = _Watch(request["max_tokens"]) if isinstance(request, dict) and request.get("stream") else None
        exchange = await self.client.post(self.endpoint.base_url + path, request, watch=watch)
        return self.keep(exchange)

    async def get(self, url: str) -> Exchange:
        """GET; kept as evidence."""
        return self.keep(await self.client.get(url))

    def keep(self, exchange: Exchange) -> Exchange:
        """Remember it for this probe."""
        self.exchanges.append(exchange)
        return exchange

    def read(self, exchange: Exchange, *, stream: bool) -> Answer:
        """The answer in it, or Failed with the reason why there is none."""
        refuse(exchange)
        kind = exchange.headers.get("content-type", "")
        if stream and "text/event-stream" not in kind:
            raise Failed(f"asked for a stream, got {kind or 'no content type'}")
        answer = reading.streamed(exchange) if stream else reading.whole(exchange)
        if answer.problems:
            raise Failed("; ".join(answer.problems[:3]))
        return answer


def refuse(exchange: Exchange) -> None:
    """Raise Failed for an exchange that is not a whole and good answer."""
    if exchange.error:
        away = exchange.error.startswith(("cannot connect", "TLS", "not a URL"))
        raise (Unusable if away else Failed)(exchange.error)
    if exchange.status in (401, 403):
        raise Unusable(f"{exchange.status}: the key is missing or refused{said(exchange)}")
    if exchange.status in (429, 503):
        raise Failed(f"{exchange.status}: still too busy after waiting as asked{said(exchange)}")
    if exchange.status != 200:
        raise Failed(f"HTTP {exchange.status}{said(exchange)}")


def said(exchange: Exchange) -> str:
    """What the server said about its error, short."""
    try:
        body = json.loads(exchange.response)
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
