"""Anthropic's messages API: requests made from our tasks, and replies read back."""

from typing import Any

from moebox.core.verdict import Exchange
from moebox.phantom.tasks import Task
from moebox.verify.answer import SPECIAL
from moebox.verify.ask import Asker, Skipped, lost, refuse
from moebox.verify.kinds import STREAMED
from moebox.verify.message import Message, whole
from moebox.verify.message_events import streamed

VERSION = "2023-06-01"  # the only value of anthropic-version in use


def request(ask: Asker, task: Task, *, stream: bool = False, turns: list[Any] | None = None) -> dict[str, object]:
    """A task in this API's form."""
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in task.tools
    ]
    body: dict[str, object] = {"model": ask.endpoint.model, "messages": turns or list(task.messages), "temperature": 0}
    body |= {"max_tokens": ask.room(task.max_tokens), "stream": stream}
    if tools:
        body["tools"] = tools
    if ask.template_arguments:
        body["chat_template_kwargs"] = {"thinking": False, "enable_thinking": False}
    return body


async def send(ask: Asker, body: dict[str, object], *, odd: bool = False) -> Message:
    """One message; Skipped where the API is not served, Failed where it cannot be read. Breaches are counted.

    `odd`: a question that may drive a model to write template marks.
    """
    exchange = await _post_as_taken(ask, body)
    if exchange.status in (404, 405, 501):
        raise Skipped("the server does not speak Anthropic's API")
    ask.need_room(exchange)
    stream = bool(body["stream"])
    suffix = STREAMED * stream
    ask.tally.add("transport" + suffix, lost(exchange))
    refuse(exchange)
    message = read(exchange)
    ask.count(message.breaches, stream=stream)
    if not odd:
        leaked = SPECIAL.search(message.text)
        ask.tally.add("template-leak" + suffix, f"{leaked.group()} in the answer" if leaked else "")
    return message


async def _post_as_taken(ask: Asker, body: dict[str, object]) -> Exchange:
    """The exchange; without the template's arguments where they are refused."""
    exchange = await post(ask, body)
    if exchange.status in (400, 422) and "chat_template_kwargs" in body:
        return await post(ask, {key: value for key, value in body.items() if key != "chat_template_kwargs"})
    return exchange


async def post(ask: Asker, body: dict[str, object]) -> Exchange:
    """The bare exchange."""
    headers = {"anthropic-version": VERSION, **({"x-api-key": ask.endpoint.key} if ask.endpoint.key else {})}
    return ask.keep(await ask.client.post(f"{ask.endpoint.base_url}/messages", body, headers=headers))


def read(exchange: Exchange) -> Message:
    """The message in an exchange, with everything that is wrong with its form."""
    asked = exchange.request if isinstance(exchange.request, dict) else {}
    return streamed(exchange, asked) if asked.get("stream") else whole(exchange, asked)
