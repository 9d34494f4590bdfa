"""One real call to an endpoint the way a client makes it: streamed, with tools, in the client's own protocol."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, Endpoint
from moebox.errors import AnswerIsNo, ExternalError
from moebox.loose import Json, get_objects, get_text
from moebox.phantom.client_checks import CODING_SYSTEM, HELLO_PROMPT, READ_TOOL_DESCRIPTION
from moebox.serve.connect import ClientName
from moebox.stream.sse import EventParser, is_done_mark
from moebox.units import format_seconds

QUESTION = "Read the file /srv/notes/shopping.txt with the tool."
PATH = "/srv/notes/shopping.txt"
PARAMETERS = {
    "type": "object",
    "properties": {"file_path": {"type": "string", "description": "absolute path"}},
    "required": ["file_path"],
}
MAX_TOKENS = 4096  # tokens: a model that thinks must come to the call
MAX_EVENTS = 4 * MAX_TOKENS  # some servers send a token in several
MAX_REPLY_S = 1800.0  # of all of a reply: two tokens a second


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """What the call brought."""

    protocol: str
    url: str
    evidence: str
    events: int


def call_as_client(client: ClientName, endpoint: Endpoint, *, timeout_s: float = 300.0) -> ClientCall:
    """Call as `client` does; AnswerIsNo when the answer is not what that client can use."""
    if client == "claude-code":
        return _call_messages(endpoint, timeout_s)
    return _call_chat(endpoint, tools=client in ("zed", "opencode"), timeout_s=timeout_s)


def _call_messages(endpoint: Endpoint, timeout_s: float) -> ClientCall:
    """Anthropic's /v1/messages, streamed, with a tool that must be called."""
    url = f"{endpoint.server_url}/v1/messages"
    body = {
        "model": endpoint.model,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "system": [{"type": "text", "text": CODING_SYSTEM}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        "tools": [{"name": "Read", "description": READ_TOOL_DESCRIPTION, "input_schema": PARAMETERS}],
    }
    headers = {"x-api-key": endpoint.key or "dummy", "anthropic-version": "2023-06-01"}
    call = StreamedCall()
    reason = ""
    for event in _stream_events(url, headers | endpoint.headers, body, timeout_s):
        call.events += 1
        if get_text(event, "content_block.type") == "tool_use":
            call.name = get_text(event, "content_block.name")
        call.arguments += get_text(event, "delta.partial_json")
        call.text += get_text(event, "delta.text")
        reason = get_text(event, "delta.stop_reason") or reason
    call.require_call(url, "Read", f" (stop_reason {reason or 'missing'})")
    evidence = f"{call.name}({call.arguments}), {reason}"
    return ClientCall(protocol="anthropic messages", url=url, evidence=evidence, events=call.events)


def _call_chat(endpoint: Endpoint, *, tools: bool, timeout_s: float) -> ClientCall:
    """OpenAI's chat completions, streamed; with a tool for the clients that work by tools."""
    url = f"{endpoint.base_url}/chat/completions"
    body: dict[str, object] = {
        "model": endpoint.model,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": QUESTION if tools else HELLO_PROMPT}],
    }
    if tools:
        function = {"name": "read_file", "description": READ_TOOL_DESCRIPTION, "parameters": PARAMETERS}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"}
    call = StreamedCall()
    for event in _stream_events(url, endpoint.headers, body, timeout_s):
        call.events += 1
        for choice in get_objects(event, "choices"):
            call.add_choice(choice)
    if not tools:
        return _spoken(url, call)
    call.require_call(url, "read_file")
    evidence = f"{call.name}({call.arguments})"
    return ClientCall(protocol="openai chat with tools", url=url, evidence=evidence, events=call.events)


def _spoken(url: str, call: "StreamedCall") -> ClientCall:
    """A reply in words; AnswerIsNo where there are none."""
    if not call.text.strip():
        raise AnswerIsNo(f"{url}: answered with no text", hint="does the reasoning parser swallow the answer?")
    return ClientCall(protocol="openai chat", url=url, evidence=call.text.strip()[:120], events=call.events)


@dataclass
class StreamedCall:
    """What the stream has brought so far."""

    events: int = 0
    name: str = ""
    arguments: str = ""
    text: str = ""

    def add_choice(self, choice: Json) -> None:
        """A choice of OpenAI's protocol."""
        self.text += get_text(choice, "delta.content")
        for call in get_objects(choice, "delta.tool_calls"):
            self.name = self.name or get_text(call, "function.name")
            self.arguments += get_text(call, "function.arguments")

    def require_call(self, url: str, wanted: str, suffix: str = "") -> None:
        """AnswerIsNo unless `wanted` was called with the path that was asked for."""
        if not self.name:
            said = f"{self.text[:120]!r}{suffix}"
            raise AnswerIsNo(f"{url}: answered without calling the tool: {said}", hint="is a tool parser set?")
        try:
            given = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            raise AnswerIsNo(f"{url}: the tool's arguments are no JSON: {self.arguments[:120]!r}") from None
        if self.name != wanted or get_text(given, "file_path") != PATH:
            raise AnswerIsNo(f"{url}: called {self.name}({self.arguments[:120]}) instead of {wanted} with {PATH}")


def _stream_events(url: str, headers: Mapping[str, str], body: Json, timeout_s: float) -> Iterator[Json]:
    """The JSON of every event; Outside when the server cannot be reached or refuses."""
    import httpx2

    try:
        with httpx2.stream("POST", url, headers=dict(headers), json=body, timeout=timeout_s, trust_env=False) as answer:
            if answer.status_code != 200:
                answer.read()
                raise _refusal_error(url, answer.status_code, answer.text)
            yield from _events(url, answer.iter_bytes())
    except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
        raise ExternalError(f"{url}: {problem or type(problem).__name__}", hint="is the server up?") from None


def _events(url: str, pieces: Iterable[bytes]) -> Iterator[Json]:
    """The JSON of every event up to the one that ends the reply: not every server hangs up then, or ever ends."""
    until = time.monotonic() + MAX_REPLY_S
    for number, data in enumerate(_whole(url, pieces, until)):
        if is_done_mark(data):
            return
        if number == MAX_EVENTS:
            raise AnswerIsNo(f"{url}: more than {MAX_EVENTS:,} events, though asked for {MAX_TOKENS:,} tokens at most")
        event = _parse_event(url, data.decode(errors="replace"))
        yield event
        if event.get("type") == "message_stop":
            return


def _whole(url: str, pieces: Iterable[bytes], until: float) -> Iterator[bytes]:
    """The data of every event."""
    parser = EventParser()
    for piece in pieces:
        yield from _said(parser.feed(piece))
        if parser.problem:
            raise AnswerIsNo(f"{url}: streamed {parser.problem}")
        if time.monotonic() > until:
            raise AnswerIsNo(f"{url}: the reply had no end within {format_seconds(MAX_REPLY_S)}")
    yield from _said(parser.close())


def _said(found: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    return (data for _, data in found if data.strip())


def _parse_event(url: str, text: str) -> Json:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        raise AnswerIsNo(f"{url}: streamed something that is no JSON: {text[:120]!r}") from None
    if not isinstance(event, dict):
        raise AnswerIsNo(f"{url}: streamed {text[:60]!r} where an object belongs")
    if event.get("error") or event.get("type") == "error":
        raise AnswerIsNo(f"{url}: failed while answering: {text.strip()[:200]}")
    return event


def _refusal_error(url: str, status: int, text: str) -> AnswerIsNo | ExternalError:
    said = " ".join(text.split())[:200]
    if status in (404, 405, 501):
        hint = "vLLM, SGLang and llama.cpp of 2026 have it; older ones need a translating proxy"
        return AnswerIsNo(f"{url}: this server does not speak that protocol ({status})", hint=hint)
    if status in AUTH_STATUSES:
        return AnswerIsNo(f"{url}: refused the key ({status})", hint=KEY_HINT)
    return AnswerIsNo(f"{url}: answered {status}: {said}")
