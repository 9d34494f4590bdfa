"""How the servers of the sixth family go wrong: parsers, gateways, caches, and what begins only after a while."""

import asyncio
import dataclasses
import html
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from moebox.phantom.question import ModelReply, ToolCall

from . import chat
from .bend import Body, Stream, content, error, thinking
from .chat import Made
from .wire import Request, Response


def arguments(change: Callable[[Any], Any]) -> Callable[[ModelReply, Body], ModelReply]:
    """Every value of a call's arguments is changed."""

    def bend(reply: ModelReply, body: Body) -> ModelReply:
        return dataclasses.replace(reply, calls=tuple(_argued(call, change) for call in reply.calls))

    return bend


def _argued(call: ToolCall, change: Callable[[Any], Any]) -> ToolCall:
    given = {key: change(value) for key, value in json.loads(call.arguments).items()}
    return dataclasses.replace(call, arguments=json.dumps(given, ensure_ascii=False))


def made_of(change: Callable[[Made], Made]) -> Callable[[Made], Any]:
    """What will be sent is changed, whole or streamed."""

    async def among(made: Made) -> Made:
        return change(made)

    return among


def streamed(change: Callable[[Made, list[Body]], list[Body]]) -> Callable[[Made], Stream]:
    """A stream whose chunks are changed by someone who knows what was asked."""

    async def send(made: Made) -> Stream:
        for chunk in change(made, chat.chunks(made)):
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"

    return send


def _with_words(chunk: Body, text: str) -> Body:
    """The chunk with other words."""
    choice = chunk["choices"][0]
    return {**chunk, "choices": [{**choice, "delta": {**choice["delta"], "content": text}}]}


def retried(sent: list[Body]) -> list[Body]:
    """A proxy that asks its upstream again in the middle, and sends what comes from the start."""
    output = [place for place, chunk in enumerate(sent) if content(chunk)]
    if len(output) < 60:
        return sent
    return [*sent[: output[40]], *({**chunk, "id": "chatcmpl-again"} for chunk in sent)]


def heartbeat(sent: list[Body]) -> list[Body]:
    """A sign of life that is sent as words."""
    output = [place for place, chunk in enumerate(sent) if content(chunk)]
    if len(output) < 26:
        return sent
    return [*sent[: output[25]], _with_words(sent[output[25]], "\n"), *sent[output[25] :]]


def no_blank_lines(sent: list[Body]) -> list[Body]:
    """Two line ends in a row become one."""
    last, kept = "", []
    for chunk in sent:
        words = content(chunk)
        if words.startswith("\n") and last == "\n":
            chunk = _with_words(chunk, words.lstrip("\n"))
        last = words[-1:] or last
        kept.append(chunk)
    return kept


def stripped_with_tools(made: Made, sent: list[Body]) -> list[Body]:
    """A tool parser that looks at each piece, and gives it back without the spaces around it."""
    if not made.request.get("tools"):
        return sent
    return [_with_words(chunk, content(chunk).strip()) if content(chunk) else chunk for chunk in sent]


def tags_eaten(made: Made) -> Made:
    """A parser of markup that takes every tag for its own, in streams."""
    if not made.request.get("stream"):
        return made
    text = re.sub(r"</?\w[^<>\n]{0,40}>", "", "".join(made.content))
    return dataclasses.replace(made, content=chat.tokens(text))


def last_lost_at_limit(made: Made) -> Made:
    """The piece that reaches the limit is not sent."""
    if made.finish != "length" or not made.request.get("stream"):
        return made
    return dataclasses.replace(made, content=made.content[:-1])


def stop_begun(made: Made) -> Made:
    """The first letters of the stop string were already out when the rest came."""
    if not made.request.get("stream") or len(made.stopped) < 2:
        return made
    return dataclasses.replace(made, content=[*made.content, made.stopped[: len(made.stopped) // 2]])


def escaped(call: ToolCall) -> ToolCall:
    """HTML's escapes in arguments."""
    return dataclasses.replace(call, arguments=html.escape(call.arguments, quote=False))


def number_of_digits(value: Any) -> Any:
    """A parser that guesses types: digits are a number."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def floats(value: Any) -> Any:
    """Every number has a point."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def unwrapped(value: Any) -> Any:
    """A list of one is that one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def name_cut(call: ToolCall) -> ToolCall:
    """Only what stands after two underscores."""
    return dataclasses.replace(call, name=call.name.rpartition("__")[2])


def no_arguments(call: ToolCall) -> ToolCall:
    """Nothing to say is said with nothing, which is not JSON."""
    return dataclasses.replace(call, arguments="" if call.arguments == "{}" else call.arguments)


def last_result_only(messages: list[Body]) -> list[Body]:
    """Of several results in a row, the others come empty."""
    roles = [message["role"] for message in messages]
    return [
        {**message, "content": ""} if roles[place : place + 2] == ["tool", "tool"] else message
        for place, message in enumerate(messages)
    ]


def results_in_order(messages: list[Body]) -> list[Body]:
    """Results are given to the calls in the order in which they come, whatever their ids say."""
    left: list[str] = []
    done = []
    for message in messages:
        if message.get("tool_calls"):
            left = [call["id"] for call in message["tool_calls"]]
        if message["role"] == "tool" and left:
            message = {**message, "tool_call_id": left.pop(0)}
        done.append(message)
    return done


def result_cut(messages: list[Body]) -> list[Body]:
    """Long results end early."""
    return [
        {**message, "content": message["content"][:1500]}
        if message["role"] == "tool" and isinstance(message["content"], str)
        else message
        for message in messages
    ]


def markup(reply: ModelReply) -> ModelReply:
    """The calls as the model wrote them."""
    written = "".join(
        f"<|tool_call_begin|>{call.id}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
        for call in reply.calls
    )
    return dataclasses.replace(reply, content=reply.content + written, calls=())


def markup_in_third_round(reply: ModelReply, body: Body) -> ModelReply:
    """After two rounds of tools the calls are text."""
    rounds = sum(bool(message.get("tool_calls")) for message in body["messages"])
    return markup(reply) if reply.calls and rounds >= 2 else reply


def inner_key_lost(reply: ModelReply, body: Body) -> ModelReply:
    """Only the outermost object is held to its schema."""
    if not body.get("response_format"):
        return reply
    try:
        record = json.loads(reply.content)
    except ValueError:
        return reply
    for value in record.values() if isinstance(record, dict) else ():
        if isinstance(value, dict) and value:
            value.popitem()
    return dataclasses.replace(reply, content=json.dumps(record, ensure_ascii=False))


def endless_space(reply: ModelReply, body: Body) -> ModelReply:
    """A grammar that allows white space for ever after an object."""
    if (body.get("response_format") or {}).get("type") != "json_object":
        return reply
    return dataclasses.replace(reply, content=reply.content + "\n" * 5000)


def raw_newline(reply: ModelReply, body: Body) -> ModelReply:
    """Line ends inside JSON's strings are not escaped."""
    if not body.get("response_format"):
        return reply
    return dataclasses.replace(reply, content=reply.content.replace("\\n", "\n"))


def schema_or_tools(body: Body) -> None:
    """A format is forgotten where tools are offered."""
    if body.get("tools"):
        body.pop("response_format", None)


def answer_as_thought(reply: ModelReply, body: Body) -> ModelReply:
    """Without thinking there is no end of it, so a stream's parser takes everything for thoughts."""
    if thinking(body) or not body.get("stream") or not reply.content:
        return reply
    return dataclasses.replace(reply, content="", reasoning=reply.content)


def thought_as_answer(made: Made) -> Made:
    """Thoughts that were cut have no end mark, so they are taken for the answer."""
    if made.finish != "length" or made.content or made.calls:
        return made
    return dataclasses.replace(made, reasoning=[], content=made.reasoning)


def no_thoughts_in_history(request: Request, body: Body) -> Response | None:
    """Earlier thoughts that are given back are refused."""
    turns = body.get("messages") or ()
    if any(turn.get("reasoning_content") or turn.get("reasoning") for turn in turns if isinstance(turn, dict)):
        return error(400, "Extra inputs are not permitted: reasoning_content")
    return None


def thinks_beyond_limit(body: Body) -> None:
    """The limit counts the answer alone."""
    extra = len(chat.tokens(chat.REASONING)) if thinking(body) else 0
    for key in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(key), int):
            body[key] += extra


def no_developer(request: Request, body: Body) -> Response | None:
    """A template that knows system, user and assistant only."""
    turns = body.get("messages") or ()
    if any(turn.get("role") == "developer" for turn in turns if isinstance(turn, dict)):
        return error(400, "Unexpected message role.")
    return None


def last_of_two(messages: list[Body]) -> list[Body]:
    """Of two turns of a user in a row, the first is lost."""
    roles = [message["role"] for message in messages]
    pairs = [roles[place : place + 2] for place in range(len(roles))]
    return [message for message, pair in zip(messages, pairs, strict=True) if pair != ["user", "user"]]


def no_tabs(messages: list[Body]) -> list[Body]:
    """Tabs are read as a space."""
    return [
        {**message, "content": message["content"].replace("\t", " ")}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def hole(messages: list[Body]) -> list[Body]:
    """Long texts miss a part between two thirds and three quarters."""

    def cut(text: Any) -> Any:
        if not isinstance(text, str) or len(text) < 8000:
            return text
        return text[: len(text) * 68 // 100] + text[len(text) * 74 // 100 :]

    return [{**message, "content": cut(message.get("content"))} for message in messages]


def loops(text: str) -> str:
    """After six hundred tokens the last twenty come again and again."""
    output = chat.tokens(text)
    return "".join(output[:600] + output[580:600] * 60) if len(output) > 600 else text


def block_drop(text: str) -> str:
    """The token at each block's border is lost."""
    return "".join(token for place, token in enumerate(chat.tokens(text), 1) if place % 512)


def penalised(text: str) -> str:
    """A penalty on repetition that was not asked for: a word that came often does not come again."""
    seen: Counter[str] = Counter()
    kept = []
    for word in re.findall(r"\w+|\W+", text):
        seen[word] += word.isalpha()
        kept += [word] if seen[word] < 24 else []
    return "".join(kept)


def tools_not_counted(made: Made) -> Made:
    """Tools cost nothing, it says."""
    extra = len(chat.tokens(json.dumps(made.request.get("tools") or "")))
    return dataclasses.replace(made, prompt_tokens=made.prompt_tokens - extra)


def drifting(made: Made) -> Made:
    """The same prompt is counted as longer each time."""
    return dataclasses.replace(made, prompt_tokens=made.prompt_tokens + made.number // 8)


def first_alternatives(made: Made, sent: list[Body]) -> list[Body]:
    """Every token of a stream has the first one's alternatives."""
    first: Any = None
    for chunk in sent:
        logprobs = chunk["choices"][0].get("logprobs") if chunk["choices"] else None
        for token in (logprobs or {}).get("content") or ():
            first = first or token["top_logprobs"]
            token["top_logprobs"] = first
    return sent


def last_block_only(body: Body) -> Body:
    """Of a user's blocks of text only the last is read."""

    def read(turn: Any) -> Any:
        texts = [block for block in turn["content"] if isinstance(block, dict) and block.get("type") == "text"]
        return {**turn, "content": texts[-1:]} if len(texts) > 1 else turn

    turns = [
        read(turn) if turn["role"] == "user" and isinstance(turn["content"], list) else turn
        for turn in body.get("messages") or ()
    ]
    return {**body, "messages": turns} if turns else body


def no_stop_in_streams(body: Body) -> Body:
    """Stop sequences are for whole answers."""
    return {**body, "stop_sequences": None} if body.get("stream") else body


def call_ends_turn(sent: list[Body]) -> list[Body]:
    """A stream with calls ends as if there were none."""
    for event in sent:
        if event["type"] == "message_delta" and event["delta"]["stop_reason"] == "tool_use":
            event["delta"]["stop_reason"] = "end_turn"
    return sent


def second_input_lost(sent: list[Body]) -> list[Body]:
    """Of several tool calls in a stream only the first has its arguments."""
    uses = [
        event["index"]
        for event in sent
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use"
    ]
    return [event for event in sent if event["type"] != "content_block_delta" or event["index"] not in uses[1:]]


def prompt_not_counted(sent: list[Body]) -> list[Body]:
    """A stream never says how long the prompt was."""
    for event in sent:
        if event["type"] == "message_start":
            event["message"]["usage"]["input_tokens"] = 0
    return sent


def headless_in_streams(body: Body) -> None:
    """The first quarter of a long prompt is lost where a stream is asked for."""
    for turn in body["messages"] if body.get("stream") else ():
        text = turn.get("content")
        if isinstance(text, str) and len(text) > 4000:
            turn["content"] = text[len(text) // 4 :]


def crashing(when: Callable[[Body], bool]) -> Callable[[Request, Body], Response | None]:
    """HTTP 500 for a conversation with such a turn."""

    def gate(request: Request, body: Body) -> Response | None:
        turns = body.get("messages")
        met = isinstance(turns, list) and any(isinstance(turn, dict) and when(turn) for turn in turns)
        return error(500, "Internal Server Error") if met else None

    return gate


def results_need_names(request: Request, body: Body) -> Response | None:
    """A template that looks a tool's result up by its name."""
    return crashing(lambda turn: turn.get("role") == "tool" and "name" not in turn)(request, body)


def redacted(call: ToolCall) -> ToolCall:
    """A filter for personal data."""
    return dataclasses.replace(call, arguments=re.sub(r"[\w.]+@[\w.]+\w", "[EMAIL]", call.arguments))


def undescribed(body: Body) -> None:
    """What parameters are for is not sent on."""
    for tool in body.get("tools") or ():
        for known in (tool["function"].get("parameters") or {}).get("properties", {}).values():
            known.pop("description", None)


def no_thinking_blocks(body: Body) -> Response | None:
    """Blocks of a kind that is not known are refused."""
    return error(400, "content.0.type: Input should be 'text'") if '"type": "thinking"' in json.dumps(body) else None
