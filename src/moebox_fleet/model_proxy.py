"""The one address of several models: requests to the engine of their model, with key, limit and count of each user."""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field

import httpx2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moebox.errors import refuse_if
from moebox.loose import Document, Json, get_number, get_object, is_true
from moebox.serve.power import read_joules
from moebox.stream.events import anthropic_prompt_tokens
from moebox.stream.sse import EventParser
from moebox_fleet.model_switch import ModelBusy, ModelSwitch

MAX_BODY_BYTES = 64 * 2**20
MINUTE = 60.0
KEPT_S = 5.0  # between two writes of usage.json
BLOCK_CHARS = 2048  # of a trace: 512 tokens of English text, as Mooncake's traces have them
OUTPUT_NAMES = ("completion_tokens", "output_tokens")  # of chats; of /v1/messages and /v1/responses
CACHED_NAMES = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cache_read_input_tokens")
# An engine has one key for all its paths, those that unload it, change its weights or run code in it among them.
PASSED_PATHS = [f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages", "embeddings")]
PASSED_PATHS += ["/v1/messages/count_tokens", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize"]
PASSED_HEADERS = (b"content-type", b"retry-after", b"x-request-id")


@dataclass(slots=True, kw_only=True)
class UserUsage:
    requests: int = 0
    refused: int = 0  # by the user's own limits
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt tokens
    output_tokens: int = 0
    seconds: float = 0.0  # of all requests together
    open: int = 0
    recent: "deque[tuple[float, int, float]]" = field(default_factory=lambda: deque(maxlen=10_000))

    @property
    def recent_tokens(self) -> int:
        """Tokens of the last minute; `recent` has when, tokens and seconds to the first byte of its replies."""
        while self.recent and time.monotonic() - self.recent[0][0] > MINUTE:
            self.recent.popleft()
        return sum(tokens for _, tokens, _ in self.recent)


class ModelProxy:
    """Counts, limits and passes on."""

    def __init__(self, switch: ModelSwitch) -> None:
        self.switch, self.file = switch, switch.file
        self.keys: dict[bytes, str] = {}  # users by their key's hash: the time of a lookup shows nothing of a key
        for name, user in self.file.users.items():
            key = os.environ.get(user.key_env, "")
            hint = f"export {user.key_env}=…"
            refuse_if(not key, f"users.{name}: the environment variable {user.key_env} holds no key", hint=hint)
            other = self.keys.setdefault(hashlib.sha256(key.encode()).digest(), name)
            refuse_if(other != name, f"users.{name}: has the key of users.{other}")
        self.usage: dict[str, UserUsage] = {name: UserUsage() for name in self.file.users or ("everyone",)}
        self.client = httpx2.AsyncClient(timeout=httpx2.Timeout(None, connect=10.0), trust_env=False)
        gpus = {int(name[3:]) for need in switch.needs.values() for name in need.awake or () if name.startswith("gpu")}
        self.gpus = tuple(sorted(gpus))
        self.first_joules = read_joules(self.gpus) if self.gpus else None
        self.salt = secrets.token_bytes(16)  # of this run: blocks of two runs cannot be compared
        self.began, self.written_at = time.time(), 0.0

    def build_app(self) -> Starlette:
        """Return the application; engines are stopped when it ends."""

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            watch = asyncio.create_task(self.switch.keep_watch())
            try:
                yield
            finally:
                watch.cancel()
                await self.client.aclose()
                await asyncio.to_thread(self.switch.stop_engines)
                self.write_usage()

        routes = [
            Route("/health", lambda _: Response()),
            Route("/v1/models", self.list_models),
            Route("/metrics", self.show_metrics),
            Route("/{path:path}", self, methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: show_refusal})

    def find_user(self, request: Request) -> str:
        given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.headers.get("x-api-key", "")
        user = self.keys.get(hashlib.sha256(given.encode()).digest()) if self.keys else "everyone"
        if user is None:
            raise HTTPException(401, "the key is missing or wrong")
        return user

    async def list_models(self, request: Request) -> Response:
        self.find_user(request)
        kind = {"object": "model", "owned_by": "moebox"}
        rows = [{"id": name, **kind, "state": slot.state} for name, slot in self.switch.slots.items()]
        return JSONResponse({"object": "list", "data": rows})

    async def show_metrics(self, request: Request) -> Response:
        """Open requests and recent tokens of each user, and how long first bytes took, for `moebox watch`."""
        self.find_user(request)
        lines, waits = [], []
        for name, usage in self.usage.items():
            lines.append(f'moebox:recent_tokens{{user="{name}"}} {usage.recent_tokens}')
            lines.append(f'moebox:open_requests{{user="{name}"}} {usage.open}')
            waits += [seconds for _, _, seconds in usage.recent]
        lines += [f"moebox:first_byte_seconds {statistics.fmean(waits):.6f}"] if waits else []
        return Response("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4")

    async def read_request(self, request: Request) -> tuple[str, Json]:
        """Return the user and the body of a request that may be passed on."""
        user, raw, body = self.find_user(request), bytearray(), None
        if request.url.path not in PASSED_PATHS:
            raise HTTPException(404, f"{request.url.path} is not served here, but {', '.join(PASSED_PATHS)}")
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes")
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(raw)
        if not isinstance(body, dict):
            raise HTTPException(400, "the body must be a JSON object")
        if str(body.get("model")) not in self.switch.slots:
            known = ", ".join(self.switch.slots)
            raise HTTPException(404, f"the model {body.get('model')!r} does not exist; there are {known}")
        return user, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. It ends, in the engine too, as soon as its client has gone."""
        request = Request(scope, receive)
        try:
            user, body = await self.read_request(request)
        except ClientDisconnect:
            return
        with self.count_open(user):
            work = asyncio.create_task(self.pass_on(request, send, user, body))
            gone = asyncio.ensure_future(receive())  # the body was read, so only the end of the connection can come
            try:
                await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                work.cancel()
                await asyncio.wait((work, gone))
            is_whole = not work.cancelled() and work.result()
        if is_whole:
            await send({"type": "http.response.body"})

    @contextlib.contextmanager
    def count_open(self, user: str) -> Iterator[None]:
        """Count a request as open for the length of the block, and its seconds, if the user's limits allow it."""
        limits, usage, began, wait_s = self.file.users.get(user), self.usage[user], time.monotonic(), 0.0
        if limits and usage.open >= limits.parallel:
            wait_s = 1.0
        elif limits and limits.tokens_per_minute and usage.recent_tokens >= limits.tokens_per_minute:
            wait_s = max(usage.recent[0][0] + MINUTE - began, 1.0)
        if wait_s:
            usage.refused += 1
            raise refuse_for(429, f"{user} has reached the limit of its key", wait_s)
        usage.open += 1
        try:
            yield
        finally:
            usage.open -= 1
            usage.requests += 1
            usage.seconds += time.monotonic() - began

    async def pass_on(self, request: Request, send: Send, user: str, body: Json) -> bool:
        """Pass a request to the engine of its model, which stays up until the last byte, and whether that came."""
        name, began, first_s, is_begun = str(body["model"]), time.time(), 0.0, False
        stated: Document = {}
        try:
            async with self.switch.hold_model(name) as slot:
                assert slot.session
                endpoint = slot.session.endpoint
                asked: Document = {**body, "model": endpoint.model}
                added = bool(body.get("stream")) and request.url.path.endswith("/completions")
                if added := added and not is_true(body, "stream_options.include_usage"):
                    asked["stream_options"] = {**get_object(body, "stream_options"), "include_usage": True}
                headers = {"content-type": "application/json", **endpoint.headers}
                url = f"{endpoint.server_url}{request.url.path}"
                async with self.client.stream("POST", url, content=json.dumps(asked), headers=headers) as reply:
                    kept = [pair for pair in reply.headers.raw if pair[0].lower() in PASSED_HEADERS]
                    await send({"type": "http.response.start", "status": reply.status_code, "headers": kept})
                    is_begun = True
                    async for piece in read_pieces(reply, stated, drop_usage=added):
                        first_s = first_s or time.time() - began
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            return True
        except ModelBusy as problem:
            raise refuse_for(503, str(problem), problem.retry_s) from None
        except httpx2.HTTPError as problem:
            text = f"{name} ended while it was asked: {type(problem).__name__}"
            self.switch.report(text)
            if is_begun:
                return False
            raise refuse_for(503, text, 1.0) from None
        finally:
            self.count_tokens(user, stated, body, began, first_s)

    def count_tokens(self, user: str, stated: Json, body: Json, began: float, first_s: float) -> None:
        """Add a reply's own counts; a reply without them counts as none."""
        usage = self.usage[user]
        prompt = int(get_number(stated, "prompt_tokens") or anthropic_prompt_tokens(stated) or 0)
        output, cached = (int(get_number(stated, *names) or 0) for names in (OUTPUT_NAMES, CACHED_NAMES))
        usage.prompt_tokens += prompt
        usage.output_tokens += output
        usage.cached_tokens += cached
        usage.recent.append((time.monotonic(), prompt + output, first_s))
        if time.monotonic() - self.written_at > KEPT_S:
            self.write_usage()
        if self.file.keep_traces and prompt and output:
            row: Document = {"timestamp": round((began - self.began) * 1e3), "hash_ids": block_ids(body, self.salt)}
            row |= {"input_length": prompt, "output_length": output}
            with open(self.switch.run.path / "traces.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def write_usage(self) -> None:
        """Write what each user asked for to usage.json of the run.

        Energy, if the GPUs count it, and hours of the box, also idle ones, are shared by request seconds.
        """
        self.written_at = time.monotonic()
        now = None if self.first_joules is None else read_joules(self.gpus)
        kwh = None if now is None or self.first_joules is None else (now - self.first_joules) / 3.6e6
        prices, hours, rows = self.file.prices, (time.time() - self.began) / 3600, list[Document]()
        busy = sum(each.seconds for each in self.usage.values())
        for name, each in self.usage.items():
            row: Document = {"user": name, **asdict(each)}
            del row["recent"], row["open"]
            share = each.seconds / busy if busy else 0.0
            if kwh is not None:
                row["kwh"] = round(kwh * share, 6)
            if prices:
                money = prices.get("hour", 0.0) * hours + prices.get("kwh", 0.0) * (kwh or 0.0)
                row["money"] = round(money * share, 6)
            rows.append(row)
        self.switch.run.write_json("usage.json", rows)


async def read_pieces(reply: httpx2.Response, stated: Document, *, drop_usage: bool) -> AsyncIterator[bytes]:
    """Yield a reply's bytes as they arrive, and put the last count of each kind of token into `stated`.

    With `drop_usage` the event that has only counts is left out, so half an event waits for its other half.
    """
    parser, held, events = EventParser(), bytearray(), []
    if "event-stream" not in reply.headers.get("content-type", ""):
        async for chunk in reply.aiter_bytes():
            held += chunk
            yield chunk
        stated |= read_usage(held)
        return
    async for chunk in reply.aiter_bytes():
        held += chunk
        for _, data in parser.feed(chunk):
            stated |= (usage := read_usage(data))
            events.append(b"" if drop_usage and usage and b'"choices":[]' in data.replace(b" ", b"") else data)
        if parser.at_boundary or not drop_usage:
            yield b"".join(b"data: %b\n\n" % data for data in events if data) if b"" in events else bytes(held)
            held, events = bytearray(), []
    for _, data in parser.close():
        stated |= read_usage(data)
    yield bytes(held)


def read_usage(raw: bytes | bytearray) -> Document:
    """The counts above 0 of a reply or of an event of a stream; later events repeat and raise those of earlier ones."""
    usage: Json = {}
    if b'"usage"' in raw:
        with contextlib.suppress(ValueError, RecursionError):
            usage = get_object(json.loads(raw), "usage", "message.usage", "response.usage")
    return {name: count for name, count in usage.items() if count}


def block_ids(body: Json, salt: bytes) -> list[int]:
    """Numbers of a prompt's blocks: equal beginnings have equal numbers, and no text can be read from them."""
    parts = ("tools", "system", "instructions", "messages", "prompt", "input")
    text = json.dumps(list(map(body.get, parts)), sort_keys=True)
    chain, found = hashlib.sha256(salt), []
    for start in range(0, len(text), BLOCK_CHARS):
        chain.update(text[start : start + BLOCK_CHARS].encode())
        found.append(int.from_bytes(chain.digest()[:6], "big"))
    return found


def refuse_for(status: int, text: str, seconds: float) -> HTTPException:
    return HTTPException(status, text, {"Retry-After": str(max(1, round(seconds)))})


def show_refusal(_: Request, problem: Exception) -> Response:
    """Return an error in OpenAI's format."""
    assert isinstance(problem, HTTPException)
    error = {"message": problem.detail, "code": problem.status_code}
    return JSONResponse({"error": error}, status_code=problem.status_code, headers=problem.headers)
