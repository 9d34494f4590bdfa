"""What right servers may do, again: OpenAI's own quirks, Azure's, OpenRouter's, vLLM's, llama.cpp's."""

import asyncio
import json
import re
from typing import Any

from . import chat
from .bend import Body, calls, error, pieces, says
from .bend_more import whole
from .chat import Made
from .faults import Fault
from .wire import Request, Response


def named_ends_with_stop(made: Body, asked: Made) -> Body:
    """OpenAI's own: a call that was demanded by name ends with `stop`."""
    if isinstance(asked.request.get("tool_choice"), dict) and asked.calls:
        made["choices"][0]["finish_reason"] = "stop"
    return made


def call_at_once(sent: list[Body]) -> list[Body]:
    """Each call is one delta, as llama.cpp and many gateways send it."""
    joined: dict[int, Body] = {}
    kept = []
    for chunk in sent:
        items = chunk["choices"][0]["delta"].get("tool_calls") if chunk["choices"] else None
        if not items:
            kept.append(chunk)
        elif items[0]["index"] in joined:
            joined[items[0]["index"]]["function"]["arguments"] += items[0]["function"]["arguments"]
        else:
            joined[items[0]["index"]] = items[0]
            kept.append(chunk)
    return kept


NULLS = {"refusal": None, "annotations": None, "audio": None, "function_call": None}


def null_deltas(sent: list[Body]) -> list[Body]:
    """Every field that could be there is there, and empty."""
    for chunk in sent:
        for choice in chunk["choices"]:
            choice["delta"] = {"role": None, "content": None, "tool_calls": None, **NULLS, **choice["delta"]}
            choice.setdefault("logprobs", None)
    return [{"usage": None, "system_fingerprint": None, **chunk} for chunk in sent]


def counts_always(made: Made) -> Any:
    """vLLM's continuous_usage_stats."""
    return pieces(lambda sent: [_counted(made, place, chunk) for place, chunk in enumerate(sent)])(made)


def _counted(made: Made, place: int, chunk: Body) -> Body:
    so_far = max(0, min(place, made.tokens))
    usage = {
        "prompt_tokens": made.prompt_tokens,
        "completion_tokens": so_far,
        "total_tokens": made.prompt_tokens + so_far,
    }
    return chunk if "usage" in chunk else {**chunk, "usage": usage}


def both_names(sent: list[Body]) -> list[Body]:
    """Thoughts under the old name and the new."""
    for chunk in sent:
        for choice in chunk["choices"]:
            if "reasoning" in choice["delta"]:
                choice["delta"]["reasoning_content"] = choice["delta"]["reasoning"]
    return sent


def both_names_whole(made: Body) -> None:
    """The same."""
    message = made["choices"][0]["message"]
    if "reasoning_content" in message:
        message["reasoning"] = message["reasoning_content"]


def filters_first(sent: list[Body]) -> list[Body]:
    """Azure's: what its filters found comes before anything else, in a chunk without choices and without a name."""
    first = {**sent[0], "id": "", "created": 0, "model": "", "object": "", "choices": [], "prompt_filter_results": []}
    return [first, *sent]


_flying: list[int] = []


async def crowded(made: Made) -> Made:
    """More than sixteen at once are asked to wait, as documented."""
    _flying.append(made.number)
    try:
        if len(_flying) > 16:
            raise chat.Refused(429, "Rate limit reached: too many concurrent requests.")
        await asyncio.sleep(0.02)
    finally:
        _flying.remove(made.number)
    return made


def spaced(call: Any) -> Any:
    """JSON with white space, and keys the other way round."""
    given = dict(reversed(json.loads(call.arguments).items()))
    return type(call)(id=call.id, name=call.name, arguments=json.dumps(given, indent=2, ensure_ascii=False))


def own_id(call: Any) -> Any:
    """An id of OpenAI's kind."""
    made = re.sub(r"\W", "", f"{call.name}{call.id}{call.arguments}")[-20:]
    return type(call)(id=f"call_{made}", name=call.name, arguments=call.arguments)


def end_with_last_piece(sent: list[Body]) -> list[Body]:
    """The last piece, the end and the counts in one chunk, as some engines send them."""
    ends = [place for place, chunk in enumerate(sent) if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    end = ends[0]
    before = sent[end - 1]["choices"][0]
    before["finish_reason"] = sent[end]["choices"][0]["finish_reason"]
    return [*sent[:end], *sent[end + 1 :]]


def details(made: Body) -> None:
    """Counts with their parts."""
    made["usage"]["prompt_tokens_details"] = {"cached_tokens": made["usage"]["prompt_tokens"] // 2}
    made["usage"]["completion_tokens_details"] = {"reasoning_tokens": 0, "accepted_prediction_tokens": 0}


def pings(sent: list[Body]) -> list[Body]:
    """A ping between all events."""
    return [sent[0], *(event for each in sent[1:-1] for event in ({"type": "ping"}, each)), sent[-1]]


def _foreign(request: Request, body: Body) -> Response | None:
    """Nobody's key is refused, and an odd role is."""
    roles = {turn.get("role") for turn in body.get("messages") or () if isinstance(turn, dict)}
    known = {"system", "developer", "user", "assistant", "tool"}
    return error(422, "role: unexpected value") if roles - known else None


ODD_SIXTH: dict[str, Fault] = {
    "named-call-ends-with-stop": Fault(whole=named_ends_with_stop),
    "roles-checked-with-422": Fault(gate=_foreign),
    "call-in-one-delta": Fault(stream=pieces(call_at_once)),
    "nulls-everywhere": Fault(
        stream=pieces(null_deltas), whole=whole(lambda made: made["choices"][0]["message"].update(NULLS))
    ),
    "counts-in-every-chunk": Fault(stream=counts_always),
    "thoughts-under-both-names": Fault(stream=pieces(both_names), whole=whole(both_names_whole)),
    "filters-first": Fault(stream=pieces(filters_first)),
    "sixteen-at-once": Fault(among=crowded),
    "arguments-indented": Fault(reply=calls(spaced)),
    "closes-every-connection": Fault(headers=(("connection", "close"),)),
    "anthropic-pings-between": Fault(message_events=pings),
    "counts-with-details": Fault(whole=whole(details)),
    "empty-words-with-calls": Fault(
        whole=whole(
            lambda made: made["choices"][0]["message"].update(content=made["choices"][0]["message"]["content"] or "")
        )
    ),
    "ids-of-openai": Fault(reply=calls(own_id)),
    "end-with-the-last-piece": Fault(stream=pieces(end_with_last_piece)),
    "answers-end-with-a-newline": Fault(
        reply=says(
            lambda text: f"{text}\n", lambda body: len(json.dumps(body)) % 3 == 0 and not body.get("response_format")
        )
    ),
}
