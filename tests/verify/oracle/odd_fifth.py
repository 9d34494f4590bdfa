"""More servers that are odd and right, fifth family."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

from moebox.phantom.question import ModelReply

from . import chat
from .bend import Body, error, is_json, pieces, says
from .bend_fifth import refusing
from .chat import Made
from .faults import Fault
from .wire import Request, Response

_count = itertools.count()


def no_room(context: int) -> Callable[[Body], bool]:
    """The prompt and what may be said are together more than the context, as vLLM counts."""

    def over(body: Body) -> bool:
        most = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        return isinstance(body.get("messages"), list) and chat.prompt_tokens(body) + most > context

    return over


def strict(context: int) -> Fault:
    """Refuses what has no room in such a context, by either API."""
    text = f"maximum context length is {context} tokens: no room for that"
    over = no_room(context)
    return Fault(
        limit=context,
        context=context,
        gate=refusing(over, 400, text),
        message_gate=lambda body: error(400, text) if over(body) else None,
    )


def too_long(status: int, message: str) -> Response:
    """413 for a prompt that is too long."""
    return error(413 if "maximum context length" in message else status, message)


def usage_with_finish(sent: list[Body]) -> list[Body]:
    """The counts come with the finish_reason, as DeepSeek sends them."""
    if "usage" not in sent[-1]:
        return sent
    return [*sent[:-2], sent[-2] | {"usage": sent[-1]["usage"]}]


def name_with_arguments(sent: list[Body]) -> list[Body]:
    """The first piece of the arguments comes with the name."""
    kept: list[Body] = []
    for chunk in sent:
        items = _items(chunk)
        before = _items(kept[-1]) if kept else []
        if items and before and "name" in before[0]["function"] and not before[0]["function"]["arguments"]:
            before[0]["function"]["arguments"] = items[0]["function"]["arguments"]
        else:
            kept.append(chunk)
    return kept


def _items(chunk: Body) -> list[Body]:
    listed: list[Body] = chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []
    return listed


async def clock_in_prompt(made: Made) -> Made:
    """The template writes the time of day, which is longer at times."""
    return dataclasses.replace(made, prompt_tokens=made.prompt_tokens + next(_count) % 3)


def another_word(reply: ModelReply, body: Body) -> ModelReply:
    """Batches of another size round otherwise: in a long free text a word is another one at times."""
    asked = json.dumps(body["messages"][-1:])
    if next(_count) % 3 or "story" not in asked:
        return reply
    return dataclasses.replace(reply, content=reply.content.replace(" very ", " quite ").replace(" old ", " aged "))


async def trimmed(made: Made) -> Made:
    """Blanks before a stop string go with it."""
    if not made.stopped:
        return made
    return dataclasses.replace(made, content=chat.tokens("".join(made.content).rstrip()))


def escaped_slashes(body: Body) -> bytes:
    """JSON as PHP writes it."""
    return json.dumps(body).replace("/", "\\/").encode()


class Alone:
    """A server with one slot: the others wait."""

    def __init__(self) -> None:
        self.lock: asyncio.Lock | None = None

    async def one(self, made: Made) -> Made:
        """One after the other."""
        self.lock = self.lock or asyncio.Lock()
        async with self.lock:
            await asyncio.sleep(0.01)
        return made


def starts_with_one(sent: list[Body]) -> list[Body]:
    """message_start counts one output token, as Anthropic's own server does."""
    sent[0]["message"]["usage"]["output_tokens"] = 1
    return sent


def empty_json_first(sent: list[Body]) -> list[Body]:
    """The first piece of a tool's input is empty, as Anthropic sends it."""
    kept = []
    for event in sent:
        kept.append(event)
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            delta = {"type": "input_json_delta", "partial_json": ""}
            kept.append({"type": "content_block_delta", "index": event["index"], "delta": delta})
    return kept


def no_thinking(body: Body) -> Response | None:
    """Anthropic's thinking is refused, politely."""
    wanted = (body.get("thinking") or {}).get("type") == "enabled"
    return error(400, "thinking: this model does not support it") if wanted else None


def empty_tools(request: Request, body: Body) -> Any:
    """An empty list of tools is refused, as OpenAI does."""
    return error(400, "[] is too short - 'tools'") if body.get("tools") == [] else None


ODD_FIFTH: dict[str, Fault] = {
    "odd-room-refused": strict(chat.CONTEXT),
    "odd-short-768-strict": strict(768),
    "odd-short-1k": Fault(limit=1024, context=1024),
    "odd-short-1k-strict": strict(1024),
    "odd-short-2k": Fault(limit=2048, context=2048),
    "odd-short-2k-strict": strict(2048),
    "odd-short-4k-strict": strict(4096),
    "odd-empty-tools-refused": Fault(gate=empty_tools),
    "odd-too-long-413": Fault(refusal=too_long),
    "odd-usage-with-finish": Fault(stream=pieces(usage_with_finish)),
    "odd-name-with-arguments": Fault(stream=pieces(name_with_arguments)),
    "odd-clock-in-prompt": Fault(among=clock_in_prompt),
    "odd-another-word-at-times": Fault(reply=another_word),
    "odd-trimmed-before-stop": Fault(among=trimmed),
    "odd-json-then-newline": Fault(reply=says(lambda text: f"{text}\n", is_json)),
    "odd-slashes-escaped": Fault(body=escaped_slashes),
    "odd-one-at-a-time": Fault(among=Alone().one),
    "odd-anthropic-starts-with-one": Fault(message_events=starts_with_one),
    "odd-anthropic-empty-json-first": Fault(message_events=empty_json_first),
    "odd-anthropic-no-thinking": Fault(message_gate=no_thinking),
}
