"""More servers that are odd and right, third family: quirks of real servers that their documentation allows."""

import asyncio
import copy
import dataclasses
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from moebox.phantom.question import ModelReply

from . import chat
from .bend import Body, calls, is_json, pieces, says
from .bend_more import arguments, deltas, each, message, whole
from .chat import Made
from .faults import Fault
from .odd import refuses
from .wire import JSONResponse

_number = itertools.count()


def both_names(said: Body) -> None:
    """Reasoning under both of its names."""
    thought = said.get("reasoning") or said.get("reasoning_content")
    if thought:
        said.update(reasoning=thought, reasoning_content=thought)


def vllm_fields(body: Body) -> None:
    """What vLLM adds to a choice and its message."""
    body.update(service_tier=None, system_fingerprint=None, prompt_logprobs=None, kv_transfer_params=None)
    for choice in body["choices"]:
        choice.setdefault("logprobs", None)
        choice.update(stop_reason=None, token_ids=None)
        said = choice.get("message") or {}
        said.update(refusal=None, annotations=None, audio=None, function_call=None)
        said.setdefault("tool_calls", [])


def long_ids(call: Any) -> Any:
    """Ids that are new each time."""
    return dataclasses.replace(call, id=f"chatcmpl-tool-{next(_number):032x}")


def more_tokens(usage: Body, count: int) -> None:
    """Counts that know of tokens which are not shown."""
    usage["completion_tokens"] += count
    usage["total_tokens"] += count


def end_token_counted(body: Body, made: Made) -> Body:
    """The end token counts, where there is one."""
    if body.get("usage") and made.finish != "length":
        more_tokens(body["usage"], 1)
    return body


async def end_token_streamed(made: Made) -> AsyncIterator[bytes]:
    """The same in a stream."""
    sent = [end_token_counted(chunk, made) for chunk in chat.chunks(made)]
    async for part in pieces(lambda _: sent)(made):
        yield part


def details(body: Body) -> None:
    """Counts by kind."""
    if body.get("usage"):
        prompt = body["usage"]["prompt_tokens"]
        body["usage"]["prompt_tokens_details"] = {"cached_tokens": prompt // 16 * 16, "audio_tokens": None}
        body["usage"]["completion_tokens_details"] = {"reasoning_tokens": 0, "accepted_prediction_tokens": 1}


async def several_data_lines(made: Made) -> AsyncIterator[bytes]:
    """One event over several data lines."""
    for chunk in chat.chunks(made):
        lines = json.dumps(chunk, indent=1).splitlines()
        yield ("".join(f"data: {line}\n" for line in lines) + "\n").encode()
        await asyncio.sleep(0)
    yield b"data: [DONE]\n\n"


async def thinks_before_it_speaks(made: Made) -> AsyncIterator[bytes]:
    """Comments while the prompt is read."""
    for _ in range(3):
        yield b": PROCESSING\n\n"
        await asyncio.sleep(0.02)
    for chunk in chat.chunks(made):
        yield f"data: {json.dumps(chunk)}\n\n".encode()
        await asyncio.sleep(0)
    yield b"data: [DONE]\n\n"


def interleaved(sent: list[Body]) -> list[Body]:
    """Pieces of parallel calls take turns."""
    by_call: dict[int, list[Body]] = {}
    for chunk in sent:
        for item in _items(chunk):
            by_call.setdefault(item["index"], []).append(chunk)
    turns = [chunk for row in itertools.zip_longest(*by_call.values()) for chunk in row if chunk]
    kept = iter(turns)
    return [next(kept) if _items(chunk) else chunk for chunk in sent]


def _items(chunk: Body) -> list[Body]:
    found: list[Body] = chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []
    return found


def all_calls_at_once(sent: list[Body]) -> list[Body]:
    """All calls in one chunk, complete."""
    made: dict[int, Body] = {}
    places = [place for place, chunk in enumerate(sent) if _items(chunk)]
    for place in places:
        for item in _items(sent[place]):
            if item["index"] in made:
                made[item["index"]]["function"]["arguments"] += item["function"]["arguments"]
            else:
                made[item["index"]] = copy.deepcopy(item)
    if not places:
        return sent
    first = sent[places[0]]
    first["choices"][0]["delta"]["tool_calls"] = list(made.values())
    return [chunk for place, chunk in enumerate(sent) if place not in places[1:]]


def thoughts_at_once(sent: list[Body]) -> list[Body]:
    """All thoughts in one chunk."""
    thoughts = [chunk for chunk in sent if chunk["choices"] and chunk["choices"][0]["delta"].get("reasoning")]
    if not thoughts:
        return sent
    text = "".join(chunk["choices"][0]["delta"]["reasoning"] for chunk in thoughts)
    thoughts[0]["choices"][0]["delta"]["reasoning"] = text
    return [chunk for chunk in sent if chunk is thoughts[0] or chunk not in thoughts]


def says_so_first(reply: ModelReply, body: Body) -> ModelReply:
    """A word before the calls."""
    return dataclasses.replace(reply, content="I will look that up.") if reply.calls else reply


def explains(text: str) -> str:
    """A sum with its answer in bold."""
    return f"The result is **{text}**." if re.fullmatch(r"-?\d+", text) else text


def detail(status: int, text: str) -> JSONResponse:
    """Errors as FastAPI words them."""
    return JSONResponse({"detail": [{"loc": ["body"], "msg": text, "type": "value_error"}]}, 422)


def old_vllm(status: int, text: str) -> JSONResponse:
    """Errors as old vLLM words them."""
    return JSONResponse({"object": "error", "message": text, "type": "BadRequestError", "code": status}, status)


def two_models(body: Body) -> Body:
    """The model under two names, with more fields."""
    return {**body, "data": [*body["data"], {**body["data"][0], "id": "alias", "root": "/models/x", "permission": []}]}


def no_length(body: Body) -> Body:
    """Nothing is said about the context's length."""
    return {**body, "data": [{key: value for key, value in body["data"][0].items() if key != "max_model_len"}]}


def no_pings(sent: list[Body]) -> list[Body]:
    """Anthropic's stream without pings."""
    return [event for event in sent if event["type"] != "ping"]


def more_events(sent: list[Body]) -> list[Body]:
    """Anthropic's stream with pings between, a signature, counts of both kinds."""
    kept = []
    for event in sent:
        if event["type"] == "message_delta":
            event["usage"].update(input_tokens=7, cache_read_input_tokens=0)
            event["delta"]["stop_details"] = None
        kept += [event, {"type": "ping"}] if event["type"] == "content_block_stop" else [event]
    return kept


def more_fields(body: Body) -> Body:
    """Anthropic's message with newer fields."""
    body["usage"].update(cache_creation_input_tokens=0, cache_read_input_tokens=0, service_tier="standard")
    blocks = [block | ({"citations": None} if block["type"] == "text" else {}) for block in body["content"]]
    return {**body, "content": blocks, "container": None}


ODD_THIRD: dict[str, Fault] = {
    "odd-both-reasoning-names": Fault(whole=message(both_names), stream=deltas(both_names)),
    "odd-vllm-fields": Fault(whole=whole(vllm_fields), stream=each(lambda chunk: chunk.update(system_fingerprint="x"))),
    "odd-long-call-ids": Fault(reply=calls(long_ids)),
    "odd-pretty-arguments": Fault(reply=arguments(lambda text: json.dumps(json.loads(text), indent=2))),
    "odd-sorted-arguments": Fault(
        reply=arguments(lambda text: json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")))
    ),
    "odd-raw-arguments": Fault(reply=arguments(lambda text: json.dumps(json.loads(text), ensure_ascii=False))),
    "odd-pretty-json": Fault(reply=says(lambda text: json.dumps(json.loads(text), indent=4) + "\n", is_json)),
    "odd-escaped-json": Fault(reply=says(lambda text: json.dumps(json.loads(text)), is_json)),
    "odd-end-token-counted": Fault(whole=end_token_counted, stream=end_token_streamed),
    "odd-count-details": Fault(whole=whole(details), stream=each(details)),
    "odd-several-data-lines": Fault(stream=several_data_lines),
    "odd-comments-first": Fault(stream=thinks_before_it_speaks),
    "odd-interleaved-calls": Fault(stream=pieces(interleaved)),
    "odd-all-calls-at-once": Fault(stream=pieces(all_calls_at_once)),
    "odd-thoughts-at-once": Fault(stream=pieces(thoughts_at_once)),
    "odd-words-before-calls": Fault(reply=says_so_first),
    "odd-blank-lines-around": Fault(reply=says(lambda text: f"\n\n{text}\n")),
    "odd-explains-sums": Fault(reply=says(explains)),
    "odd-detail-errors": Fault(refusal=detail),
    "odd-old-vllm-errors": Fault(refusal=old_vllm),
    "odd-two-models": Fault(listed=two_models),
    "odd-no-length": Fault(listed=no_length),
    "odd-closes-each": Fault(headers=(("connection", "close"),)),
    "odd-body-in-pieces": Fault(body_in_pieces=True),
    "odd-no-parallel-switch": Fault(gate=refuses("parallel_tool_calls")),
    "odd-anthropic-no-pings": Fault(message_events=no_pings),
    "odd-anthropic-more-events": Fault(message_events=more_events),
    "odd-anthropic-more-fields": Fault(message=more_fields),
}
