"""Ways for a server to go wrong, fourth family: what bug reports of engines, SDKs and gateways describe."""

import asyncio
import copy
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from moebox.phantom.question import ModelReply, ToolCall

from . import chat
from .bend import Body, content, error, is_json, pieces, thinking
from .chat import Made
from .wire import Response


def _items(chunk: Body) -> list[Body]:
    listed: list[Body] = chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []
    return listed


async def _send(chunks: list[Any], made: Made) -> AsyncIterator[bytes]:
    async for part in pieces(lambda _: chunks)(made):
        yield part


async def index_of_tool(made: Made) -> AsyncIterator[bytes]:
    """`index` is the place of the tool in the request, not that of the call in the answer."""
    names = [tool["function"]["name"] for tool in made.request.get("tools") or ()]
    sent = chat.chunks(made)
    for chunk in sent:
        for item in _items(chunk):
            item["index"] = names.index(made.calls[item["index"]].name)
    async for part in _send(sent, made):
        yield part


def arguments_again(sent: list[Body]) -> list[Body]:
    """At the end of a stream the arguments of the last call come once more."""
    last = [chunk for chunk in sent if _items(chunk)]
    if not last:
        return sent
    index = _items(last[-1])[0]["index"]
    text = "".join(item["function"]["arguments"] for chunk in last for item in _items(chunk) if item["index"] == index)
    again = copy.deepcopy(last[-1])
    again["choices"][0]["delta"]["tool_calls"] = [{"index": index, "function": {"arguments": text}}]
    at = sent.index(last[-1]) + 1
    return [*sent[:at], again, *sent[at:]]


def arguments_under_next(sent: list[Body]) -> list[Body]:
    """The name comes under one index, the arguments under the next."""
    for chunk in sent:
        for item in _items(chunk):
            item["index"] = 2 * item["index"] + ("name" not in item["function"])
    return sent


def second_call_empty(sent: list[Body]) -> list[Body]:
    """The second of two streamed calls has no arguments."""
    return [chunk for chunk in sent if not any(_is_later_piece(item) for item in _items(chunk))]


def _is_later_piece(item: Body) -> bool:
    return item["index"] > 0 and "name" not in item["function"]


def bare_calls_lost(sent: list[Body]) -> list[Body]:
    """A streamed call without arguments is lost."""
    texts: dict[int, str] = {}
    for chunk in sent:
        for item in _items(chunk):
            texts[item["index"]] = texts.get(item["index"], "") + item["function"]["arguments"]
    bare = {index for index, text in texts.items() if text == "{}"}
    return [chunk for chunk in sent if not any(item["index"] in bare for item in _items(chunk))]


def strings(change: Callable[[str], str]) -> Callable[[ToolCall], ToolCall]:
    """Strings in arguments, at any depth, that are changed."""

    def bent(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [bent(item) for item in value]
        return {key: bent(item) for key, item in value.items()} if isinstance(value, dict) else value

    return lambda call: dataclasses.replace(
        call, arguments=json.dumps(bent(json.loads(call.arguments)), ensure_ascii=False)
    )


async def stream_stringly(made: Made) -> AsyncIterator[bytes]:
    """In streams numbers in arguments come as strings."""
    bent = tuple(dataclasses.replace(call, arguments=_stringly(call.arguments)) for call in made.calls)
    async for part in _send(chat.chunks(dataclasses.replace(made, calls=bent)), made):
        yield part


def _stringly(text: str) -> str:
    try:
        given = json.loads(text)
    except ValueError:
        return text  # cut at the limit
    return json.dumps({key: str(value) if type(value) is int else value for key, value in given.items()})


async def cut_call_complete(made: Made) -> AsyncIterator[bytes]:
    """A streamed call that was cut at the limit ends as if it were complete."""
    cut = made.calls and made.finish == "length"
    async for part in _send(chat.chunks(dataclasses.replace(made, finish="tool_calls") if cut else made), made):
        yield part


def finish_without_calls(body: Body, made: Made) -> Body:
    """With tools on offer every answer ends with `tool_calls`."""
    if made.request.get("tools") and made.finish == "stop":
        body["choices"][0]["finish_reason"] = "tool_calls"
    return body


def empty_ids(said: Body) -> None:
    """Calls have an empty id."""
    for call in said.get("tool_calls", ()):
        call["id"] = ""


def singular_finish(body: Body) -> None:
    """`tool_call` where `tool_calls` is meant."""
    for choice in body["choices"]:
        if choice["finish_reason"] == "tool_calls":
            choice["finish_reason"] = "tool_call"


def long_descriptions(reply: ModelReply, body: Body) -> ModelReply:
    """With long descriptions of tools nothing is called and nothing said."""
    long = any(len(tool["function"].get("description", "")) > 1500 for tool in body.get("tools") or ())
    return ModelReply() if long and reply.calls else reply


def words_first(reply: ModelReply, body: Body) -> ModelReply:
    """A word before the calls."""
    return dataclasses.replace(reply, content="I will look that up.") if reply.calls else reply


async def calls_after_words_lost(made: Made) -> AsyncIterator[bytes]:
    """Streams with words lose their calls."""
    kept = dataclasses.replace(made, calls=()) if made.content else made
    async for part in _send(chat.chunks(kept), made):
        yield part


def bad_history(request: Any, body: Body) -> Response | None:
    """A history with spoilt arguments is taken for a failure of the server."""
    if not isinstance(body.get("messages"), list):
        return None
    try:
        chat._check(body)
    except chat.Refused as problem:
        return error(500, str(problem)) if "not JSON" in str(problem) else None
    return None


def no_markup(text: str) -> str:
    """What looks like a parser's own tag is taken away."""
    return re.sub(r"</?(think|tool_call|function|parameter|arg_value)[^>]*>", "", text)


def markup_lost(reply: ModelReply, body: Body) -> ModelReply:
    """The same in what is said."""
    return dataclasses.replace(reply, content=no_markup(reply.content))


def json_in_reasoning(reply: ModelReply, body: Body) -> ModelReply:
    """With thinking on, the JSON asked for stays in the reasoning."""
    if not (is_json(body) and thinking(body) and reply.content):
        return reply
    return ModelReply(reasoning=f"{reply.reasoning}\n{reply.content}")


async def cut_thoughts(made: Made) -> Made:
    """Thoughts that were cut at the limit are taken for the answer."""
    cut = made.finish == "length" and made.reasoning and not made.content and not made.calls
    return dataclasses.replace(made, content=made.reasoning, reasoning=[]) if cut else made


def more_thoughts(body: Body) -> None:
    """More tokens were thought than were made."""
    if body.get("usage"):
        body["usage"]["completion_tokens_details"] = {"reasoning_tokens": body["usage"]["completion_tokens"] + 2}


async def limit_before_stop(made: Made) -> Made:
    """A stop string that lies just before the limit is not seen."""
    room = made.request.get("max_tokens") or made.request.get("max_completion_tokens") or 512
    used = len(made.content) + len(made.reasoning)
    if not made.stopped or room - used > 3:
        return made
    full = chat.answer({**made.request, "stop": None})
    return dataclasses.replace(full, number=made.number)


def logprobs_past_stop(body: Body, made: Made) -> Body:
    """Log-probabilities go on after the stop string."""
    listed = (body["choices"][0].get("logprobs") or {}).get("content")
    if made.stopped and listed:
        listed += [{**listed[-1], "token": text} for text in (made.stopped, " and", " more")]
    return body


def counts_words(chunk: Body) -> None:
    """Streams are counted with another tokenizer."""
    if chunk.get("usage"):
        counted = max(1, chunk["usage"]["completion_tokens"] * 2 // 3)
        chunk["usage"].update(completion_tokens=counted, total_tokens=chunk["usage"]["prompt_tokens"] + counted)


def _listed(body: Body) -> list[Body]:
    return [item for choice in body["choices"] for item in (choice.get("logprobs") or {}).get("content") or ()]


def broken_letters(body: Body) -> None:
    """Tokens outside ASCII are the replacement character, and so are their bytes."""
    for item in _listed(body):
        if not item["token"].isascii():
            item.update(token="\ufffd", bytes=[239, 191, 189])


def no_logprobs(chunk: Body) -> None:
    """Streams have no log-probabilities."""
    for choice in chunk["choices"]:
        choice.pop("logprobs", None)


async def logprobs_break(made: Made) -> AsyncIterator[bytes]:
    """A stream with log-probabilities is one error."""
    failed: list[Any] = [{"error": {"message": "TypeError: 'MockValSer' object", "code": 500}}]
    async for part in _send(failed if made.request.get("logprobs") else chat.chunks(made), made):
        yield part


def old_logprobs(body: Body) -> None:
    """Log-probabilities in the form of /v1/completions."""
    for choice in body["choices"]:
        listed = (choice.get("logprobs") or {}).get("content")
        if listed:
            names, chances = [item["token"] for item in listed], [item["logprob"] for item in listed]
            choice["logprobs"] = {"tokens": names, "token_logprobs": chances, "content": None}


def no_top(body: Body) -> None:
    """`top_logprobs` is not read."""
    for item in _listed(body):
        item["top_logprobs"] = []


def schema_without(*keys: str) -> Callable[[Body], None]:
    """Words of a schema that are not held."""

    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return [bare(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {key: bare(item) for key, item in value.items() if key not in keys}

    def change(body: Body) -> None:
        if body.get("response_format"):
            body["response_format"] = bare(body["response_format"])
        if body.get("tools"):
            body["tools"] = bare(body["tools"])

    return change


async def held_back(made: Made) -> AsyncIterator[bytes]:
    """A proxy that passes a stream on when it is complete."""
    sent = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chat.chunks(made))
    await asyncio.sleep(0.004 * made.tokens)
    yield f"{sent}data: [DONE]\n\n".encode()


def finish_in_each(chunk: Body) -> None:
    """Every chunk is the last."""
    for choice in chunk["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"


def index_one(body: Body) -> None:
    """The only choice has index 1."""
    for choice in body["choices"]:
        choice["index"] = 1


def choice_twice(chunk: Body) -> None:
    """A chunk holds the same choice twice, the second time without words."""
    if chunk["choices"]:
        chunk["choices"].append({"index": 0, "delta": {"content": ""}, "finish_reason": None})


def last_letter(sent: list[Body]) -> list[Body]:
    """A letter of several bytes at the end of a stream is held back for ever."""
    spoken = [chunk for chunk in sent if content(chunk)]
    if spoken and not content(spoken[-1])[-1].isascii():
        spoken[-1]["choices"][0]["delta"]["content"] = content(spoken[-1])[:-1]
    return sent


def boundary_letters(reply: ModelReply, body: Body) -> ModelReply:
    """A letter that lies across a read of 4,096 bytes is spoilt."""
    raw = reply.content.encode()
    parts = [raw[at : at + 4096].decode(errors="replace") for at in range(0, len(raw), 4096)]
    return dataclasses.replace(reply, content="".join(parts))
