"""Ways for a server to go wrong: functions that bend requests, replies, answers and streams."""

import asyncio
import dataclasses
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from moebox.phantom.question import ModelReply

from . import chat
from .chat import Made
from .solve import solve
from .wire import JSONResponse, Request, Response, StreamingResponse

Body = dict[str, Any]
Stream = AsyncIterator[bytes]


def says(
    change: Callable[[str], str], when: Callable[[Body], bool] = lambda body: True
) -> Callable[[ModelReply, Body], ModelReply]:
    """A reply whose content is changed; tool calls are left alone."""

    def bend(reply: ModelReply, body: Body) -> ModelReply:
        return dataclasses.replace(reply, content=change(reply.content)) if reply.content and when(body) else reply

    return bend


def calls(
    change: Callable[..., Any], when: Callable[[Body], bool] = lambda body: True
) -> Callable[[ModelReply, Body], ModelReply]:
    """A reply whose calls are each changed."""

    def bend(reply: ModelReply, body: Body) -> ModelReply:
        if not when(body):
            return reply
        return dataclasses.replace(reply, calls=tuple(change(call) for call in reply.calls))

    return bend


def pieces(change: Callable[[list[Body]], list[Any]], *, done: bool = True) -> Callable[[Made], Stream]:
    """A stream whose chunks are changed."""

    async def send(made: Made) -> Stream:
        for chunk in change(chat.chunks(made)):
            yield chunk if isinstance(chunk, bytes) else f"data: {json.dumps(chunk)}\n\n".encode()
            await asyncio.sleep(0)
        if done:
            yield b"data: [DONE]\n\n"

    return send


def thinking(body: Body) -> bool:
    """The request lets the model think."""
    return bool((body.get("chat_template_kwargs") or {}).get("thinking", True))


def content(chunk: Body) -> str:
    """The words in a chunk."""
    return str(chunk["choices"][0]["delta"].get("content") or "") if chunk["choices"] else ""


def without_last_words(sent: list[Body]) -> list[Body]:
    """Drop the last chunk that carries words."""
    last = max((index for index, chunk in enumerate(sent) if content(chunk)), default=None)
    return [chunk for index, chunk in enumerate(sent) if index != last]


def after_words(sent: list[Body], extra: str) -> list[Body]:
    """Append text to the last chunk with words."""
    last = max((index for index, chunk in enumerate(sent) if content(chunk)), default=None)
    if last is not None:
        sent[last]["choices"][0]["delta"]["content"] += extra
    return sent


def at_once(sent: list[Body]) -> list[Body]:
    """All words in one chunk."""
    text = "".join(map(content, sent))
    first = next((chunk for chunk in sent if content(chunk)), None)
    if first:
        first["choices"][0]["delta"]["content"] = text
    return [chunk for chunk in sent if chunk is first or not content(chunk)]


async def closes_early(made: Made) -> Stream:
    """Half of the stream, then the line goes dead."""
    sent = chat.chunks(made)
    for chunk in sent[: max(1, len(sent) // 2)]:
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    raise ConnectionResetError("closed early")


async def never_ends(made: Made) -> Stream:
    """A stream that goes on and on."""
    chunk = next((chunk for chunk in chat.chunks(made) if content(chunk)), chat.chunks(made)[0])
    while True:
        yield f"data: {json.dumps(chunk)}\n\n".encode()
        await asyncio.sleep(0)


async def huge(made: Made) -> Stream:
    """One chunk of 200 MB."""
    yield b'data: {"choices": [{"delta": {"content": "'
    for _ in range(200):
        yield b"x" * 2**20
    yield b'"}}]}\n\ndata: [DONE]\n\n'


def merged_calls(sent: list[Body]) -> list[Body]:
    """Lose every second piece of streamed arguments."""
    kept, count = [], itertools.count()
    for chunk in sent:
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        if "tool_calls" in delta and "name" not in delta["tool_calls"][0]["function"] and next(count) % 2:
            continue
        kept.append(chunk)
    return kept


def counted(make: Callable[[int], Response | None]) -> Callable[[Request, Body], Response | None]:
    """A gate that knows how many chat requests came before."""
    seen = itertools.count()

    def gate(request: Request, body: Body) -> Response | None:
        return make(next(seen)) if body else None

    return gate


def error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error in OpenAI's form."""
    return JSONResponse({"error": {"message": message}}, status, headers)


def busy() -> JSONResponse:
    """Too many requests; come back at once."""
    return error(429, "slow down", {"retry-after": "0"})


def keyed(request: Request, body: Body) -> Response | None:
    """Only the right key is let in."""
    right = request.headers.get("authorization") == "Bearer the-right-key"
    return None if right else error(401, "Incorrect API key provided")


def crash_on_bad_history(request: Request, body: Body) -> Response | None:
    """The line goes dead on a history that is not well-formed."""

    async def dead() -> Stream:
        raise ConnectionResetError("crashed")
        yield b""

    try:
        if body:
            chat._check(body)
    except chat.Refused:
        return StreamingResponse(dead())
    return None


def words_cut(body: Body) -> Body:
    """A prompt silently cut to its last 1,500 characters."""
    turns = [{**turn, "content": str(turn["content"])[-1500:]} for turn in body["messages"]]
    return {**body, "messages": turns}


def wrong_sum(text: str) -> str:
    """A bare number is one too large."""
    return str(int(text) + 1) if text.isdigit() else text


def nan(whole: Body, made: Made) -> Body:
    """Log-probabilities that are not numbers."""
    for token in (whole["choices"][0].get("logprobs") or {"content": []})["content"]:
        token["logprob"] = float("nan")
    return whole


def drop_usage(sent: list[Body]) -> list[Body]:
    """No token counts in the stream."""
    return [chunk for chunk in sent if "usage" not in chunk]


def twice_finished(sent: list[Body]) -> list[Body]:
    """The finish_reason comes twice."""
    return [
        copy
        for chunk in sent
        for copy in [chunk] * (2 if chunk["choices"] and chunk["choices"][0]["finish_reason"] else 1)
    ]


def other_ids(call: Any) -> Any:
    """Every call under the same id."""
    return dataclasses.replace(call, id="functions.x:0")


def half(call: Any) -> Any:
    """Arguments cut in half."""
    return dataclasses.replace(call, arguments=call.arguments[: len(call.arguments) // 2])


def wrong_type(call: Any) -> Any:
    """Every argument becomes a list."""
    given = {key: [value] for key, value in json.loads(call.arguments).items()}
    return dataclasses.replace(call, arguments=json.dumps(given))


def as_text(reply: ModelReply, body: Body) -> ModelReply:
    """Calls left in the content, in the template's own tokens."""
    if not reply.calls:
        return reply
    call = reply.calls[0]
    begin, end = "<|tool_calls_section_begin|><|tool_call_begin|>", "<|tool_call_end|><|tool_calls_section_end|>"
    text = f"{begin}{call.id}<|tool_call_argument_begin|>{call.arguments}{end}"
    return ModelReply(content=text, reasoning=reply.reasoning)


def under_none(reply: ModelReply, body: Body) -> ModelReply:
    """Shows the model its tools under tool_choice none, and passes on what it writes then."""
    calls = solve(body["messages"], body.get("tools") or []).calls if body.get("tool_choice") == "none" else ()
    return as_text(dataclasses.replace(reply, calls=calls), body) if calls else reply


def never_calls(choice: Callable[[Any], bool]) -> Callable[[ModelReply, Body], ModelReply]:
    """Ignores tool_choice."""

    def bend(reply: ModelReply, body: Body) -> ModelReply:
        return ModelReply(content="I would rather talk about it.") if choice(body.get("tool_choice")) else reply

    return bend


def calls_anyway(body: Body) -> Body:
    """tool_choice none is not read."""
    return {**body, "tool_choice": "auto"} if body.get("tool_choice") == "none" else body


def one_call(reply: ModelReply, body: Body) -> ModelReply:
    """Parallel calls are not made."""
    return dataclasses.replace(reply, calls=reply.calls[:1])


def into_reasoning(reply: ModelReply, body: Body) -> ModelReply:
    """With thinking off, the answer lands in the reasoning field."""
    return reply if thinking(body) or reply.calls else ModelReply(reasoning=reply.content)


def thinks_anyway(reply: ModelReply, body: Body) -> ModelReply:
    """Thinking cannot be turned off."""
    return dataclasses.replace(reply, reasoning=chat.REASONING)


def tags(reply: ModelReply, body: Body) -> ModelReply:
    """No reasoning parser: the tags stand in the content."""
    text = f"<think>{reply.reasoning}</think>{reply.content}"
    return dataclasses.replace(reply, reasoning="", content=text) if reply.reasoning and not reply.calls else reply


def no_schema_after_thought(reply: ModelReply, body: Body) -> ModelReply:
    """The grammar is forgotten once the model has thought."""
    loose = f"Here you are: {reply.content}"
    return dataclasses.replace(reply, content=loose) if body.get("response_format") and reply.reasoning else reply


def ignores_results(reply: ModelReply, body: Body) -> ModelReply:
    """What a tool returned is not read."""
    reported = body["messages"][-1]["role"] == "tool"
    return dataclasses.replace(reply, content="I cannot look that up.") if reported else reply


def never_length(made_of: Body) -> Body:
    """max_tokens is not read."""
    return {**made_of, "max_tokens": 4096}


def no_stop(body: Body) -> Body:
    """Stop strings are not read."""
    return {**body, "stop": None}


def is_json(body: Body) -> bool:
    """A response format was asked for."""
    return bool(body.get("response_format"))


def is_schema(body: Body) -> bool:
    """A schema was asked for."""
    return (body.get("response_format") or {}).get("type") == "json_schema"


def extra_key(text: str) -> str:
    """A key that the schema does not have."""
    return json.dumps({**json.loads(text), "note": "by the way"})


def wrong_code(text: str) -> str:
    """Functions that return something else."""
    return re.sub(r"return (.+)", r"return [\1]", text)


def hangs(text: str) -> str:
    """Functions that never return."""
    return text.replace("    return", "    while True: pass\n    return")


def too_long_crash(request: Request, body: Body) -> Response | None:
    """An over-long prompt is the server's undoing."""
    if body and chat.prompt_tokens(body) > chat.CONTEXT:
        return Response("Internal Server Error", 500)
    return None


def too_long_cut(body: Body) -> Body:
    """An over-long prompt is cut without a word."""
    if chat.prompt_tokens(body) <= chat.CONTEXT:
        return body
    return {**body, "messages": [{"role": "user", "content": "What is 2 + 2?"}]}


def no_block_stop(sent: list[Body]) -> list[Body]:
    """Anthropic's blocks are opened and never closed."""
    return [event for event in sent if event["type"] != "content_block_stop"]


def ends_wrongly(whole: Body) -> Body:
    """Anthropic's stop_reason in OpenAI's word."""
    return {**whole, "stop_reason": "stop"}
