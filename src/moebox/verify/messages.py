"""Anthropic's messages API: requests made from our tasks, answers read back, whole and streamed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moebox.core.verdict import Exchange
from moebox.phantom.tasks import Call, Reply, Task
from moebox.verify.answer import SPECIAL, strict_json
from moebox.verify.ask import THINKING_ROOM, Asker, Failed, Skipped, refuse
from moebox.verify.sse import events

VERSION = "2023-06-01"  # the only value of anthropic-version in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One answer of the messages API."""

    text: str
    thinking: str
    calls: tuple[Call, ...]
    stop: str
    usage: Mapping[str, Any]

    @property
    def reply(self) -> Reply:
        """As the judges of tasks want it."""
        return Reply(content=self.text, reasoning=self.thinking, calls=self.calls)


def request(ask: Asker, task: Task, *, stream: bool = False, turns: list[Any] | None = None) -> dict[str, Any]:
    """A task in this API's form."""
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in task.tools
    ]
    body: dict[str, Any] = {"model": ask.endpoint.model, "messages": turns or list(task.messages), "temperature": 0}
    body |= {"max_tokens": task.max_tokens + THINKING_ROOM * ask.always_thinks, "stream": stream}
    if tools:
        body["tools"] = tools
    if ask.template_arguments:
        body["chat_template_kwargs"] = {"thinking": False, "enable_thinking": False}
    return body


async def send(ask: Asker, body: dict[str, Any]) -> Message:
    """One message; Skipped where the API is not served, Failed where it is served badly."""
    headers = {"anthropic-version": VERSION, **({"x-api-key": ask.endpoint.key} if ask.endpoint.key else {})}
    url = f"{ask.endpoint.base_url}/messages"
    exchange = ask.keep(await ask.client.post(url, body, headers=headers))
    if exchange.status in (400, 422) and "chat_template_kwargs" in body:
        body = {key: value for key, value in body.items() if key != "chat_template_kwargs"}
        exchange = ask.keep(await ask.client.post(url, body, headers=headers))
    if exchange.status in (404, 405, 501):
        raise Skipped("the server does not speak Anthropic's API")
    refuse(exchange)
    message = _streamed(exchange) if body["stream"] else _whole(exchange)
    if found := SPECIAL.search(message.text):
        raise Failed(f"{found.group()} leaked into the answer")
    return message


def _whole(exchange: Exchange) -> Message:
    try:
        body = strict_json(exchange.response)
        blocks, stop, usage = body["content"], body["stop_reason"], body["usage"]
        return _message(blocks, stop, usage)
    except (ValueError, KeyError, TypeError) as problem:
        raise Failed(f"not a message of this API: {type(problem).__name__} {problem}") from None


def _streamed(exchange: Exchange) -> Message:
    """Put a stream together, holding it to the order that clients rely on."""
    blocks: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    stop, order = "", []
    for name, data in events(exchange.response):
        if data.strip() == "[DONE]":
            continue
        try:
            body = strict_json(data)
            kind = str(body["type"])
            if name and name != kind:
                raise Failed(f"an event called {name} is of type {kind}")
            order.append(kind)
            if kind == "content_block_start":
                blocks[body["index"]] = {**body["content_block"], "pieces": ""}
            elif kind == "content_block_delta":
                _delta(blocks[body["index"]], body["delta"])
            elif kind == "message_delta":
                stop, usage = str(body["delta"].get("stop_reason") or ""), {**usage, **(body.get("usage") or {})}
            elif kind == "message_start":
                usage = dict(body["message"].get("usage") or {})
            elif kind == "error":
                raise Failed(f"an error inside the stream: {data[:200]}")
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise Failed(f"an event that is not of this API ({problem!r}): {data[:80]}") from None
    _in_order([kind for kind in order if kind != "ping"])
    return _message([_closed(blocks[index]) for index in sorted(blocks)], stop, usage)


def _delta(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key in ("text", "partial_json", "thinking"):
        if isinstance(delta.get(key), str):
            block["pieces"] += delta[key]


def _closed(block: dict[str, Any]) -> dict[str, Any]:
    if block.get("type") == "tool_use":
        return {**block, "input": strict_json(block["pieces"] or "{}") if block["pieces"] else block.get("input", {})}
    key = "thinking" if block.get("type") == "thinking" else "text"
    return {**block, key: str(block.get(key) or "") + block["pieces"]}


def _in_order(order: list[str]) -> None:
    if not order or order[0] != "message_start" or order[-1] != "message_stop":
        shown = f"{order[0]} … {order[-1]}" if order else "nothing"
        raise Failed(f"the stream is not message_start … message_stop but {shown}")
    if order.count("content_block_start") != order.count("content_block_stop"):
        raise Failed("a content block is opened and never closed")
    if "message_delta" not in order:
        raise Failed("no message_delta, so nobody learns why it stopped")


def _message(blocks: list[dict[str, Any]], stop: str, usage: Mapping[str, Any]) -> Message:
    def joined(kind: str) -> str:
        return "".join(str(block.get(kind) or "") for block in blocks if block.get("type") == kind)

    calls = tuple(
        Call(id=str(block.get("id") or ""), name=str(block.get("name") or ""), arguments=json.dumps(block.get("input")))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    return Message(text=joined("text"), thinking=joined("thinking"), calls=calls, stop=str(stop or ""), usage=usage)
