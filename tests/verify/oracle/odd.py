"""Servers that are odd and right: what documentation allows must never be red."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from . import chat
from .bend import Body, counted, pieces
from .bend_more import deltas, each, message, whole
from .chat import Made
from .faults import Fault
from .wire import JSONResponse


def lines(write: Callable[[str], bytes], done: bytes = b"", first: bytes = b"") -> Any:
    """A stream with its events written in another way."""

    async def send(made: Made) -> AsyncIterator[bytes]:
        if first:
            yield first
        for chunk in chat.chunks(made):
            yield write(json.dumps(chunk))
            await asyncio.sleep(0)
        yield done or write("[DONE]")

    return send


async def split_characters(made: Made) -> AsyncIterator[bytes]:
    """Bytes cut in the middle of characters and lines."""
    text = (
        "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chat.chunks(made))
        + "data: [DONE]\n\n"
    )
    raw = text.encode()
    for at in range(0, len(raw), 7):
        yield raw[at : at + 7]
        await asyncio.sleep(0)


def merged(sent: list[Body]) -> list[Body]:
    """Many tokens in one chunk, as speculative decoding gives them."""
    kept: list[Body] = []
    for chunk in sent:
        if kept and _spoken(kept[-1]) and _spoken(chunk) and len(_spoken(kept[-1])) < 15:
            choice, more = kept[-1]["choices"][0], chunk["choices"][0]
            choice["delta"]["content"] += more["delta"]["content"]
            if "logprobs" in choice:
                choice["logprobs"]["content"] += more["logprobs"]["content"]
        else:
            kept.append(chunk)
    return kept


def _spoken(chunk: Body) -> str:
    return str(chunk["choices"][0]["delta"].get("content") or "") if chunk["choices"] else ""


def calls_at_once(sent: list[Body]) -> list[Body]:
    """Each call in one piece."""
    made: dict[int, Body] = {}
    kept = []
    for chunk in sent:
        items = chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []
        for item in items:
            if item["index"] in made:
                made[item["index"]]["function"]["arguments"] += item["function"]["arguments"]
            else:
                made[item["index"]] = item
        if not items or items[0] is made[items[0]["index"]]:
            kept.append(chunk)
    return kept


def end_with_words(sent: list[Body]) -> list[Body]:
    """The finish_reason comes with the last words."""
    ends = [place for place, chunk in enumerate(sent) if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    before = sent[ends[0] - 1]["choices"]
    before[0]["finish_reason"] = sent[ends[0]]["choices"][0]["finish_reason"]
    return [chunk for place, chunk in enumerate(sent) if place != ends[0]]


def role_with_words(sent: list[Body]) -> list[Body]:
    """The role comes with the first words."""
    if len(sent) < 3 or not sent[1]["choices"]:
        return sent
    sent[1]["choices"][0]["delta"]["role"] = "assistant"
    return sent[1:]


def counts_in_each(sent: list[Body]) -> list[Body]:
    """Running counts in every chunk."""
    last = next((chunk["usage"] for chunk in sent if chunk.get("usage")), None)
    if not last:
        return sent
    for number, chunk in enumerate(sent[:-1]):
        made = min(number, last["completion_tokens"])
        chunk["usage"] = {**last, "completion_tokens": made, "total_tokens": last["prompt_tokens"] + made}
    return sent


def refuses(key: str) -> Any:
    """A request with that field is refused."""
    refusal = {"error": {"message": f"{key} is not supported"}}
    return lambda request, body: JSONResponse(refusal, 400) if key in body else None


def later(number: int) -> JSONResponse | None:
    """Busy now and then."""
    busy = JSONResponse({"error": {"message": "later"}}, 429, {"retry-after": "0"})
    return busy if number % 9 == 4 else None


def call_ids(said: Body) -> None:
    """Ids of the server's own."""
    for number, call in enumerate(said.get("tool_calls", ())):
        call["id"] = f"call_{number}"


def more_nulls(said: Body) -> None:
    """Fields that are null."""
    said.update({"refusal": None, "audio": None, "tool_calls": said.get("tool_calls")})


def empty_delta(delta: Body) -> None:
    """Content is null where there is none."""
    if not delta.get("tool_calls"):
        delta.setdefault("content", None)


def event_fields(text: str) -> bytes:
    """All fields that an event may have."""
    return f"id: 7\nretry: 100\nevent: message\ndata: {text}\n\n".encode()


ODD: dict[str, Fault] = {
    "odd-crlf": Fault(stream=lines(lambda text: f"data: {text}\r\n\r\n".encode())),
    "odd-cr": Fault(stream=lines(lambda text: f"data: {text}\r\r".encode())),
    "odd-no-blank": Fault(stream=lines(lambda text: f"data:{text}\n\n".encode())),
    "odd-comments": Fault(stream=lines(lambda text: f": keep-alive\n\ndata: {text}\n\n".encode())),
    "odd-event-fields": Fault(stream=lines(event_fields)),
    "odd-bom": Fault(stream=lines(lambda text: f"data: {text}\n\n".encode(), first=b"\xef\xbb\xbf")),
    "odd-no-last-line": Fault(stream=lines(lambda text: f"data: {text}\n\n".encode(), done=b"data: [DONE]")),
    "odd-split-characters": Fault(stream=split_characters),
    "odd-media-case": Fault(media="Text/Event-Stream; Charset=UTF-8"),
    "odd-pretty": Fault(body=lambda body: b"\n  " + json.dumps(body, indent=4).encode()),
    "odd-raw-characters": Fault(body=lambda body: json.dumps(body, ensure_ascii=False).encode()),
    "odd-unknown-fields": Fault(
        whole=whole(lambda body: body.update(system_fingerprint=None, x={"y": [1]})),
        stream=each(lambda chunk: chunk.update(x=1)),
    ),
    "odd-nulls": Fault(whole=message(more_nulls)),
    "odd-usage-null": Fault(stream=each(lambda chunk: chunk.setdefault("usage", None))),
    "odd-usage-in-each": Fault(stream=pieces(counts_in_each)),
    "odd-calls-at-once": Fault(stream=pieces(calls_at_once)),
    "odd-end-with-words": Fault(stream=pieces(end_with_words)),
    "odd-role-with-words": Fault(stream=pieces(role_with_words)),
    "odd-many-tokens-a-chunk": Fault(stream=pieces(merged)),
    "odd-azure-first": Fault(stream=pieces(lambda sent: [{"choices": [], "prompt_filter_results": []}, *sent])),
    "odd-empty-deltas": Fault(stream=deltas(empty_delta)),
    "odd-model-path": Fault(whole=whole(lambda body: body.update(model=f"/models/{body['model']}-fp8"))),
    "odd-usage-details": Fault(
        whole=whole(lambda body: body["usage"].update(prompt_tokens_details={"cached_tokens": 0}))
    ),
    "odd-empty-content": Fault(whole=message(lambda said: said.update(content=said["content"] or ""))),
    "odd-busy-at-times": Fault(gate=counted(later)),
    "odd-no-template-arguments": Fault(gate=refuses("chat_template_kwargs")),
    "odd-no-logprobs": Fault(gate=refuses("logprobs")),
    "odd-no-seed": Fault(gate=refuses("seed")),
    "odd-bare": Fault(bare=True, no_anthropic=True),
    "odd-call-ids": Fault(whole=message(call_ids)),
}
