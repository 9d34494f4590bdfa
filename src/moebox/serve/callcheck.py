"""Call an endpoint as a client does: streamed, with tools, in the client's own protocol."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from moebox.core import catalogue
from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, Endpoint
from moebox.errors import AnswerIsNo, ExternalError
from moebox.loose import Json, get_objects, get_text
from moebox.serve.connect import ClientName
from moebox.stream.sse import EventParser, is_done_mark
from moebox.units import format_seconds

_CLIENTS = catalogue.load_table("questions")["clients"]  # the phantom was trained on these texts
QUESTION = "Read the file /srv/notes/shopping.txt with the tool."
PATH = "/srv/notes/shopping.txt"
PARAMETERS = {
    "type": "object",
    "properties": {"file_path": {"type": "string", "description": "absolute path"}},
    "required": ["file_path"],
}
MAX_TOKENS = 4096  # enough to think before the call
MAX_EVENTS = 4 * MAX_TOKENS  # some servers send several events per token
MAX_REPLY_S = 1800.0  # for a whole reply, at two tokens a second


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCall:
    protocol: str
    url: str
    evidence: str
    events: int


def call_as_client(client: ClientName, endpoint: Endpoint, *, timeout_s: float = 300.0) -> EndpointCall:
    """Call as `client` does. Raise AnswerIsNo if the client cannot use the reply."""
    if client == "claude-code":
        return _call_messages(endpoint, timeout_s)
    return _call_chat(endpoint, tools=client in ("zed", "opencode"), timeout_s=timeout_s)


def _call_messages(endpoint: Endpoint, timeout_s: float) -> EndpointCall:
    """Anthropic's /v1/messages, streamed, with a tool that must be called."""
    url = f"{endpoint.server_url}/v1/messages"
    body = {
        "model": endpoint.model,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "system": [{"type": "text", "text": _CLIENTS["coding_system"]}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        "tools": [{"name": "Read", "description": _CLIENTS["read_description"], "input_schema": PARAMETERS}],
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
    return EndpointCall(protocol="anthropic messages", url=url, evidence=evidence, events=call.events)


def _call_chat(endpoint: Endpoint, *, tools: bool, timeout_s: float) -> EndpointCall:
    """OpenAI's chat completions, streamed; with a tool for the clients that use tools."""
    url = f"{endpoint.base_url}/chat/completions"
    body: dict[str, object] = {
        "model": endpoint.model,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": QUESTION if tools else _CLIENTS["hello"]}],
    }
    if tools:
        function = {"name": "read_file", "description": _CLIENTS["read_description"], "parameters": PARAMETERS}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"}
    call = StreamedCall()
    for event in _stream_events(url, endpoint.headers, body, timeout_s):
        call.events += 1
        for choice in get_objects(event, "choices"):
            call.text += get_text(choice, "delta.content")
            for part in get_objects(choice, "delta.tool_calls"):
                call.name = call.name or get_text(part, "function.name")
                call.arguments += get_text(part, "function.arguments")
    if not tools:
        text = call.text.strip()
        if not text:
            raise AnswerIsNo(f"{url}: the reply has no text", hint="does the reasoning parser swallow the answer?")
        return EndpointCall(protocol="openai chat", url=url, evidence=text[:120], events=call.events)
    call.require_call(url, "read_file")
    evidence = f"{call.name}({call.arguments})"
    return EndpointCall(protocol="openai chat with tools", url=url, evidence=evidence, events=call.events)


@dataclass
class StreamedCall:
    """The parts of a reply that have arrived."""

    events: int = 0
    name: str = ""
    arguments: str = ""
    text: str = ""

    def require_call(self, url: str, wanted: str, suffix: str = "") -> None:
        """Raise AnswerIsNo unless the tool `wanted` was called with PATH."""
        if not self.name:
            text = f"{self.text[:120]!r}{suffix}"
            raise AnswerIsNo(f"{url}: answered without calling the tool: {text}", hint="is a tool parser set?")
        try:
            given = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            raise AnswerIsNo(f"{url}: the tool's arguments are not valid JSON: {self.arguments[:120]!r}") from None
        if self.name != wanted or get_text(given, "file_path") != PATH:
            raise AnswerIsNo(f"{url}: called {self.name}({self.arguments[:120]}) instead of {wanted} with {PATH}")


def _stream_events(url: str, headers: Mapping[str, str], body: Json, timeout_s: float) -> Iterator[Json]:
    """Yield the JSON of every event up to the one that ends the reply: some servers keep the connection open.

    Raise ExternalError if the server cannot be reached, AnswerIsNo if it refuses or sends something else.
    """
    import httpx2

    try:
        with httpx2.stream("POST", url, headers=dict(headers), json=body, timeout=timeout_s, trust_env=False) as answer:
            if answer.status_code != 200:
                answer.read()
                status, reason = answer.status_code, " ".join(answer.text.split())[:200]
                if status in (404, 405, 501):
                    hint = "vLLM, SGLang and llama.cpp of 2026 have it; older ones need a translating proxy"
                    raise AnswerIsNo(f"{url}: this server does not speak that protocol ({status})", hint=hint)
                if status in AUTH_STATUSES:
                    raise AnswerIsNo(f"{url}: refused the key ({status})", hint=KEY_HINT)
                raise AnswerIsNo(f"{url}: answered {status}: {reason}")
            for number, data in enumerate(_event_data(url, answer.iter_bytes())):
                if is_done_mark(data):
                    return
                if number == MAX_EVENTS:
                    limit = f"though asked for {MAX_TOKENS:,} tokens at most"
                    raise AnswerIsNo(f"{url}: more than {MAX_EVENTS:,} events, {limit}")
                text = data.decode(errors="replace")
                try:
                    event = json.loads(text)
                except (ValueError, RecursionError):
                    raise AnswerIsNo(f"{url}: streamed something that is not JSON: {text[:120]!r}") from None
                if not isinstance(event, dict):
                    raise AnswerIsNo(f"{url}: streamed {text[:60]!r} instead of an object")
                if event.get("error") or event.get("type") == "error":
                    raise AnswerIsNo(f"{url}: failed while answering: {text.strip()[:200]}")
                yield event
                if event.get("type") == "message_stop":
                    return
    except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
        raise ExternalError(f"{url}: {problem or type(problem).__name__}", hint="is the server up?") from None


def _event_data(url: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    until = time.monotonic() + MAX_REPLY_S
    parser = EventParser()
    for block in blocks:
        yield from (data for _, data in parser.feed(block) if data.strip())
        if parser.problem:
            raise AnswerIsNo(f"{url}: streamed {parser.problem}")
        if time.monotonic() > until:
            raise AnswerIsNo(f"{url}: the reply had no end within {format_seconds(MAX_REPLY_S)}")
    yield from (data for _, data in parser.close() if data.strip())
