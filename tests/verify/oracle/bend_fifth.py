"""Ways for a server to go wrong, fifth family: gateways, pools of backends, and what long work of agents meets."""

import copy
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from moebox.phantom.question import ModelReply, ToolCall

from . import chat
from .bend import Body, content, error, thinking
from .chat import Made
from .solve import least
from .wire import Request, Response

Gate = Callable[[Request, Body], Response | None]


def refusing(wrong: Callable[[Body], bool], status: int, why: str) -> Gate:
    """A gate that turns some requests away."""

    def gate(request: Request, body: Body) -> Response | None:
        return error(status, why) if body and wrong(body) else None

    return gate


def functions(body: Body) -> list[Body]:
    """The functions on offer."""
    return [tool["function"] for tool in body.get("tools") or ()]


def values(change: Callable[[Any], Any]) -> Callable[[ToolCall], ToolCall]:
    """Every value of a call's arguments, changed."""

    def bend(call: ToolCall) -> ToolCall:
        given = {key: change(value) for key, value in json.loads(call.arguments).items()}
        return dataclasses.replace(call, arguments=json.dumps(given, ensure_ascii=False))

    return bend


def pairs(change: Callable[[str, Any], tuple[str, Any] | None]) -> Callable[[ToolCall], ToolCall]:
    """Every key and value of a call's arguments, changed or dropped."""

    def bend(call: ToolCall) -> ToolCall:
        changed = [change(key, value) for key, value in json.loads(call.arguments).items()]
        given = dict(pair for pair in changed if pair)
        return dataclasses.replace(call, arguments=json.dumps(given, ensure_ascii=False))

    return bend


def camel(key: str, value: Any) -> tuple[str, Any]:
    """A gateway that writes keys as JavaScript does."""
    return re.sub(r"_(\w)", lambda found: found[1].upper(), key), value


def not_falsy(key: str, value: Any) -> tuple[str, Any] | None:
    """`if value:` where `is not None` was meant."""
    return (key, value) if value else None


def cut(value: Any) -> Any:
    """A buffer of 300 characters for each value."""
    return value[:300] if isinstance(value, str) else value


def backslash_n(value: Any) -> Any:
    """A line end comes as a backslash and an n."""
    return value.replace("\n", "\\n") if isinstance(value, str) else value


def rounded(value: Any) -> Any:
    """Numbers lose their decimals."""
    return round(value) if isinstance(value, float) else value


def any_of_as_text(reply: ModelReply, body: Body) -> ModelReply:
    """The type of an argument is read from its own `type` alone; where that is a union, it comes as text."""
    schemas = {each["name"]: each.get("parameters") or {} for each in functions(body)}

    def bend(call: ToolCall) -> ToolCall:
        known = schemas.get(call.name, {}).get("properties") or {}

        def change(key: str, value: Any) -> tuple[str, Any]:
            simple = isinstance((known.get(key) or {}).get("type"), str)
            return key, value if simple or isinstance(value, str) else json.dumps(value)

        return pairs(change)(call)

    return dataclasses.replace(reply, calls=tuple(bend(call) for call in reply.calls))


def empty_text(call: ToolCall) -> ToolCall:
    """A call without arguments has "" for them."""
    return dataclasses.replace(call, arguments="") if call.arguments == "{}" else call


def twice(reply: ModelReply, body: Body) -> ModelReply:
    """Each call is made twice, under ids of its own."""
    again = tuple(dataclasses.replace(call, id=f"{call.id}-again") for call in reply.calls)
    return dataclasses.replace(reply, calls=reply.calls + again)


def all_index_zero(item: Body) -> None:
    """Every streamed call is the first one."""
    item["index"] = 0


def form_silences_tools(reply: ModelReply, body: Body) -> ModelReply:
    """With a response_format the grammar leaves no way to call a tool."""
    form = body.get("response_format")
    if not (form and reply.calls):
        return reply
    schema = form.get("json_schema", {}).get("schema", {"type": "object"})
    return dataclasses.replace(reply, content=json.dumps(least(schema)), calls=())


def no_tools(body: Body) -> None:
    """A backend that was started without a parser for tools."""
    body.pop("tools", None)
    body.pop("tool_choice", None)


def words_beside_calls_lost(all: list[Body]) -> list[Body]:
    """The template writes the calls of a turn and forgets its words."""
    return [{**turn, "content": ""} if turn.get("tool_calls") else turn for turn in all]


def last_twenty(all: list[Body]) -> list[Body]:
    """Of a long conversation the system message and the last twenty turns."""
    return all if len(all) <= 21 else [*[turn for turn in all[:1] if turn["role"] == "system"], *all[-20:]]


def long_system_cut(all: list[Body]) -> list[Body]:
    """A system message ends after 2,000 characters."""

    def seen(turn: Body) -> Body:
        long = turn["role"] == "system" and isinstance(turn.get("content"), str)
        return {**turn, "content": turn["content"][:2000]} if long else turn

    return [seen(turn) for turn in all]


def in_texts(change: Callable[[str], str]) -> Callable[[list[Body]], list[Body]]:
    """Every text of the conversation, changed."""

    def part(piece: Body) -> Body:
        return {**piece, "text": change(piece["text"])} if "text" in piece else piece

    def seen(turn: Body) -> Body:
        output = turn.get("content")
        if isinstance(output, list):
            return {**turn, "content": [part(piece) for piece in output]}
        return {**turn, "content": change(output)} if isinstance(output, str) else turn

    return lambda all: [seen(turn) for turn in all]


def no_special_tokens(text: str) -> str:
    """What looks like a token of the template is one, and is not read as text."""
    return re.sub(r"<\|[^|\s]*\|>", "", text)


def no_braces(text: str) -> str:
    """A gateway fills its own templates in what people write."""
    return re.sub(r"\{\{[^{}]*\}\}", "", text)


class Answers:
    """A cache of answers in a gateway."""

    def __init__(self) -> None:
        self.replies: dict[str, ModelReply] = {}

    def by_last_turn(self, reply: ModelReply, body: Body) -> ModelReply:
        """The last turn, the tools and the form are the key; what was said before is not."""
        if body.get("temperature"):
            return reply
        key = json.dumps([body["messages"][-1], body.get("tools"), body.get("response_format"), thinking(body)])
        return self.replies.setdefault(key, reply)


def no_fences(text: str) -> str:
    """A filter that was meant for JSON takes the fences off everything."""
    return re.sub(r"```\w*\n?", "", text)


async def whole_pages_garbled(made: Made) -> Made:
    """A prompt that fills its last page of sixteen tokens begins with garbage."""
    garbled = made.prompt_tokens % 16 == 0 and made.content
    return dataclasses.replace(made, content=["the", " the", " the", *made.content[1:]]) if garbled else made


def restarts(sent: list[Body]) -> list[Body]:
    """A gateway tries again in the middle, and the stream begins anew."""
    spoken = [place for place, chunk in enumerate(sent) if content(chunk)]
    return [*sent[: spoken[len(spoken) // 2] + 1], *sent] if len(spoken) > 3 else sent


def keep_alive_blanks(sent: list[Body]) -> list[Body]:
    """What keeps the line open is a blank in the text."""
    kept: list[Body] = []
    for place, chunk in enumerate(sent):
        kept.append(chunk)
        if content(chunk) and place % 6 == 5:
            blank = copy.deepcopy(chunk)
            blank["choices"][0]["delta"]["content"] = " "
            kept.append(blank)
    return kept


async def long_streams_closed(made: Made) -> AsyncIterator[bytes]:
    """After 250 chunks the line is closed, without a word."""
    sent = chat.chunks(made)
    for chunk in sent[:250]:
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    if len(sent) <= 250:
        yield b"data: [DONE]\n\n"


def snapshots(sent: list[Body]) -> list[Body]:
    """Each chunk carries all that was reported it far."""
    text = ""
    for chunk in sent:
        if content(chunk):
            text += content(chunk)
            chunk["choices"][0]["delta"]["content"] = text
    return sent


def upstream_error(reply: ModelReply, body: Body) -> ModelReply:
    """A gateway tells its own trouble as the answer."""
    return ModelReply(content="upstream connect error or disconnect/reset before headers. reset reason: overflow")


def thinks_with_tools(reply: ModelReply, body: Body) -> ModelReply:
    """The switch is not read where there are tools."""
    return dataclasses.replace(reply, reasoning=chat.REASONING) if body.get("tools") else reply


def first_stop(body: Body) -> None:
    """Of several stop strings the first is read."""
    if isinstance(body.get("stop"), list):
        body["stop"] = body["stop"][:1]


def stop_in_thoughts(reply: ModelReply, body: Body) -> ModelReply:
    """Stop strings end the thoughts too, and with them the answer."""
    stops = body.get("stop") or []
    found = [stop for stop in ([stops] if isinstance(stops, str) else stops) if stop in reply.reasoning]
    return ModelReply(reasoning=reply.reasoning.split(found[0])[0]) if found else reply


def blocks_of(turn: Body) -> list[Body]:
    """The blocks of one of Anthropic's turns."""
    return turn["content"] if isinstance(turn["content"], list) else []


def cache_control(body: Body) -> Response | None:
    """Marks for the cache, which Claude Code sends with every request, are not known."""
    parts = [*(body.get("system") if isinstance(body.get("system"), list) else ()), *(body.get("tools") or ())]
    parts += [block for turn in body.get("messages") or () for block in blocks_of(turn)]
    return error(400, "cache_control: Extra inputs are not permitted") if _marked(parts) else None


def _marked(parts: list[Body]) -> bool:
    return any("cache_control" in part for part in parts)


def turns_of(change: Callable[[list[Body]], list[Body]]) -> Callable[[Body], Body]:
    """Anthropic's request with the blocks of its turns changed."""

    def bend(body: Body) -> Body:
        turns = [
            {**turn, "content": change(turn["content"])} if isinstance(turn["content"], list) else turn
            for turn in body.get("messages", ())
        ]
        return {**body, "messages": turns} if "messages" in body else body

    return bend


def text_beside_result_lost(blocks: list[Body]) -> list[Body]:
    """Words in the turn that brings a result are not read."""
    results = [block for block in blocks if block["type"] == "tool_result"]
    return results or blocks


def second_result_lost(blocks: list[Body]) -> list[Body]:
    """Of several results the first is passed on as it is, the others are empty."""
    first = next((block for block in blocks if block["type"] == "tool_result"), None)
    return [
        {**block, "content": "{}"} if block["type"] == "tool_result" and block is not first else block
        for block in blocks
    ]


def no_stop_sequences(body: Body) -> Body:
    """stop_sequences is not passed on."""
    return {key: value for key, value in body.items() if key != "stop_sequences"}


def no_input(sent: list[Body]) -> list[Body]:
    """The pieces of a tool's input are dropped."""
    return [event for event in sent if (event.get("delta") or {}).get("type") != "input_json_delta"]


def start_counts_nothing(sent: list[Body]) -> list[Body]:
    """A stream begins with no input tokens, and never says better."""
    for event in sent:
        if event["type"] == "message_start":
            event["message"]["usage"]["input_tokens"] = 0
    return sent
