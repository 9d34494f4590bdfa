"""More servers that are odd and right, fourth family: what OpenAI's and Anthropic's documents and schemas allow."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from moebox.phantom.question import ModelReply, ToolCall

from . import chat
from .bend import Body, calls, is_json, pieces, says
from .bend_more import call_deltas, deltas, each, message, whole
from .chat import Made
from .faults import Fault
from .odd import refuses
from .wire import JSONResponse

_ids = itertools.count()


def _items(chunk: Body) -> list[Body]:
    listed: list[Body] = chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []
    return listed


def two_pieces(sent: list[Body]) -> list[Body]:
    """The beginning of a call and its first piece in one chunk, as two entries of the same index."""
    kept: list[Body] = []
    for chunk in sent:
        opens = kept and any("name" in item["function"] for item in _items(kept[-1]))
        if opens and _items(chunk) and "name" not in _items(chunk)[0]["function"]:
            kept[-1]["choices"][0]["delta"]["tool_calls"] += _items(chunk)
        else:
            kept.append(chunk)
    return kept


def openai_fields(chunk: Body) -> None:
    """What OpenAI itself adds to chunks."""
    chunk.update(service_tier="default", obfuscation="x7Jd2", system_fingerprint="fp_1")
    for choice in chunk["choices"]:
        choice.setdefault("logprobs", None)
        choice["delta"].setdefault("refusal", None)


def openai_message(said: Body) -> None:
    """What OpenAI itself adds to messages."""
    said.update(refusal=None, annotations=[])


def with_bytes(body: Body) -> None:
    """Tokens with their bytes, and a list of refusals that is null."""
    for choice in body["choices"]:
        if not choice.get("logprobs"):
            continue
        choice["logprobs"]["refusal"] = None
        for item in choice["logprobs"]["content"]:
            for token in [item, *item["top_logprobs"]]:
                token["bytes"] = list(token["token"].encode())


def split_letters(body: Body) -> None:
    """Letters outside ASCII are several tokens, each with its share of the bytes."""
    for choice in body["choices"]:
        if choice.get("logprobs"):
            listed = choice["logprobs"]["content"]
            choice["logprobs"]["content"] = [part for item in listed for part in _parts(item)]


def _parts(item: Body) -> list[Body]:
    if item["token"].isascii():
        return [item | {"bytes": list(item["token"].encode())}]
    raw = list(item["token"].encode())
    cuts = [raw[: len(raw) // 2], raw[len(raw) // 2 :]]
    return [item | {"token": bytes(cut).decode(errors="replace"), "bytes": cut} for cut in cuts]


def very_unlikely(body: Body) -> None:
    """-9999.0 stands for a token that is very unlikely; fewer alternatives than asked for."""
    for choice in body["choices"]:
        for item in (choice.get("logprobs") or {}).get("content") or ():
            item["top_logprobs"] = item["top_logprobs"][:2]
            for other in item["top_logprobs"][1:]:
                other["logprob"] = -9999.0


def named_stops(body: Body, made: Made) -> Body:
    """A named tool_choice ends with `stop`, as OpenAI documents."""
    if isinstance(made.request.get("tool_choice"), dict):
        body["choices"][0]["finish_reason"] = "stop"
    return body


async def named_stops_stream(made: Made) -> AsyncIterator[bytes]:
    """The same in a stream."""
    named = isinstance(made.request.get("tool_choice"), dict) and made.finish == "tool_calls"
    sent = chat.chunks(dataclasses.replace(made, finish="stop") if named else made)
    async for part in pieces(lambda _: sent)(made):
        yield part


def other_order(reply: ModelReply, body: Body) -> ModelReply:
    """Parallel calls in another order."""
    return dataclasses.replace(reply, calls=reply.calls[::-1])


def whole_floats(call: ToolCall) -> ToolCall:
    """Integers as JSON Schema allows them: 3.0 is one."""
    given = {key: float(value) if _short(value) else value for key, value in json.loads(call.arguments).items()}
    return dataclasses.replace(call, arguments=json.dumps(given))


def _short(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**53


def null_fields(item: Body) -> None:
    """Pieces of calls with all fields of the schema, null where there is nothing."""
    item.setdefault("id", None)
    item["type"] = "function"
    item["function"].setdefault("name", None)


def null_role(delta: Body) -> None:
    """Deltas with all fields, null where there is nothing."""
    for key in ("role", "content", "tool_calls", "function_call"):
        delta.setdefault(key, None)


def empty_chunks(sent: list[Body]) -> list[Body]:
    """Chunks without choices in between, as signs of life."""
    alive = {**sent[0], "choices": []}
    return [part for place, chunk in enumerate(sent) for part in ([alive, chunk] if place % 5 == 3 else [chunk])]


async def comment_after_done(made: Made) -> AsyncIterator[bytes]:
    """A comment after the end."""
    async for part in pieces(lambda sent: sent)(made):
        yield part
    yield b": bye\n\n"


def words_after_calls(sent: list[Body]) -> list[Body]:
    """Words come after the calls of the same answer."""
    words = [chunk for chunk in sent if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]
    last = max((place for place, chunk in enumerate(sent) if _items(chunk)), default=None)
    if last is None or not words:
        return sent
    before = [chunk for chunk in sent[: last + 1] if chunk not in words]
    return [*before, *words, *sent[last + 1 :]]


def says_so(reply: ModelReply, body: Body) -> ModelReply:
    """A word with the calls."""
    return dataclasses.replace(reply, content="One moment.") if reply.calls else reply


def plain_id(body: Body) -> None:
    """Ids without a prefix."""
    body["id"] = f"{int(str(body['id']).rsplit('-', 1)[-1]):032x}"


def null_errors(status: int, text: str) -> JSONResponse:
    """Errors with all of OpenAI's fields."""
    found = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": found}, status)


def details_null(body: Body) -> None:
    """Counts whose details are null."""
    if body.get("usage"):
        body["usage"].update(prompt_tokens_details=None, completion_tokens_details=None)


def reasoning_details(said: Body) -> None:
    """Reasoning once more as a list of parts."""
    thought = said.get("reasoning") or said.get("reasoning_content")
    if thought:
        said["reasoning_details"] = [{"type": "reasoning.text", "text": thought, "index": 0}]


def keys_reversed(text: str) -> str:
    """The keys of an object in another order."""
    given = json.loads(text)
    if not isinstance(given, dict):
        return text
    return json.dumps(dict(reversed(given.items())), ensure_ascii=False)


def signed_events(sent: list[Body]) -> list[Body]:
    """Thinking ends with its signature, as Anthropic streams it."""
    kept: list[Body] = []
    thinking = {event["index"] for event in sent if event.get("content_block", {}).get("type") == "thinking"}
    for event in sent:
        if event["type"] == "content_block_stop" and event["index"] in thinking:
            delta = {"type": "signature_delta", "signature": "EqQBCgIYAhIM"}
            kept.append({"type": "content_block_delta", "index": event["index"], "delta": delta})
        kept.append(event)
    return kept


def redacted(body: Body) -> Body:
    """A block of thoughts that may not be shown."""
    hidden = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3"}
    return {**body, "content": [hidden, *body["content"]]}


def texts_in_two(body: Body) -> Body:
    """A text in two blocks."""
    blocks = [part for block in body["content"] for part in _halves(block)]
    return {**body, "content": blocks}


def _halves(block: Body) -> list[Body]:
    if block["type"] != "text" or len(block["text"]) < 8:
        return [block]
    return [block | {"text": block["text"][:4]}, block | {"text": block["text"][4:]}]


def cached_apart(body: Body) -> Body:
    """Tokens from the cache are counted apart, as Anthropic does."""
    count = body["usage"]["input_tokens"]
    cached = max(0, count - 3)
    usage = {**body["usage"], "input_tokens": count - cached, "cache_read_input_tokens": cached}
    return {**body, "usage": usage}


async def slowly(made: Made) -> Made:
    """Every answer takes its time."""
    await asyncio.sleep(0.05)
    return made


def new_call_ids(said: Body) -> None:
    """Ids of calls as Anthropic writes them."""
    for call in said.get("tool_calls") or ():
        call["id"] = f"toolu_{next(_ids):024}"


ODD_FOURTH: dict[str, Fault] = {
    "odd-two-pieces-in-one-chunk": Fault(stream=pieces(two_pieces)),  # openai-python#3201
    "odd-openai-fields": Fault(stream=each(openai_fields), whole=message(openai_message)),
    "odd-logprobs-with-bytes": Fault(whole=whole(with_bytes), stream=each(with_bytes)),
    "odd-logprobs-split-letters": Fault(whole=whole(split_letters), stream=each(split_letters)),
    "odd-logprobs-very-unlikely": Fault(whole=whole(very_unlikely), stream=each(very_unlikely)),
    "odd-named-choice-stops": Fault(whole=named_stops, stream=named_stops_stream),  # vllm#25054
    "odd-calls-in-another-order": Fault(reply=other_order),
    "odd-integers-as-floats": Fault(reply=calls(whole_floats)),
    "odd-null-fields-in-pieces": Fault(stream=call_deltas(null_fields)),
    "odd-null-role": Fault(stream=deltas(null_role)),
    "odd-empty-chunks": Fault(stream=pieces(empty_chunks)),
    "odd-comment-after-done": Fault(stream=comment_after_done),
    "odd-words-after-calls": Fault(reply=says_so, stream=pieces(words_after_calls)),
    "odd-plain-ids": Fault(whole=whole(plain_id), stream=each(plain_id)),
    "odd-null-errors": Fault(refusal=null_errors),
    "odd-null-details": Fault(whole=whole(details_null), stream=each(details_null)),
    "odd-reasoning-details": Fault(whole=message(reasoning_details), stream=deltas(reasoning_details)),
    "odd-keys-in-another-order": Fault(reply=says(keys_reversed, is_json)),
    "odd-json-charset": Fault(whole_media="application/json; charset=UTF-8"),
    "odd-slow": Fault(among=slowly),
    "odd-anthropic-call-ids": Fault(whole=message(new_call_ids)),
    "odd-no-max-tokens": Fault(gate=refuses("max_tokens")),
    "odd-anthropic-signed": Fault(message_events=signed_events),
    "odd-anthropic-redacted": Fault(message=redacted),
    "odd-anthropic-two-texts": Fault(message=texts_in_two),
    "odd-anthropic-cached-apart": Fault(message=cached_apart),
}
