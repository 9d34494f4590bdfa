"""Anthropic's messages API: requests made from our tasks, and replies read back."""

from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.phantom.tasks import Question
from moebox.verify.answer import TEMPLATE_MARKS
from moebox.verify.ask import CheckSession, ProbeSkipped, raise_for_failure, transport_problem
from moebox.verify.kinds import STREAMED
from moebox.verify.message import AnthropicMessage, parse_message
from moebox.verify.message_events import parse_message_stream

VERSION = "2023-06-01"  # the only value of anthropic-version in use


def message_request(
    session: CheckSession, task: Question, *, stream: bool = False, turns: list[Any] | None = None
) -> dict[str, object]:
    """A task in this API's form."""
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in task.tools
    ]
    body: dict[str, object] = {
        "model": session.endpoint.model,
        "messages": turns or list(task.messages),
        "temperature": 0,
    }
    body |= {"max_tokens": session.token_limit(task.max_tokens), "stream": stream}
    if tools:
        body["tools"] = tools
    if session.accepts_template_arguments:
        body["chat_template_kwargs"] = {"thinking": False, "enable_thinking": False}
    return body


async def send_message(
    session: CheckSession, body: dict[str, object], *, allow_marks: bool = False
) -> AnthropicMessage:
    """One message; Skipped where the API is not served, Failed where it cannot be read. Breaches are counted.

    `odd`: a question that may drive a model to write template marks.
    """
    exchange = await _post_as_taken(session, body)
    if exchange.status in (404, 405, 501):
        raise ProbeSkipped("the server does not speak Anthropic's API")
    session.skip_if_context_too_short(exchange)
    stream = bool(body["stream"])
    suffix = STREAMED * stream
    session.failures.add("transport" + suffix, transport_problem(exchange))
    raise_for_failure(exchange)
    message = read_message(exchange)
    session.count_violations(message.violations, stream=stream)
    if not allow_marks:
        leaked = TEMPLATE_MARKS.search(message.text)
        session.failures.add("template-leak" + suffix, f"{leaked.group()} in the answer" if leaked else "")
    return message


async def _post_as_taken(session: CheckSession, body: dict[str, object]) -> HttpExchange:
    """The exchange; without the template's arguments where they are refused."""
    exchange = await post_message(session, body)
    if exchange.status in (400, 422) and "chat_template_kwargs" in body:
        return await post_message(session, {key: value for key, value in body.items() if key != "chat_template_kwargs"})
    return exchange


async def post_message(session: CheckSession, body: dict[str, object]) -> HttpExchange:
    """The bare exchange."""
    headers = {"anthropic-version": VERSION, **({"x-api-key": session.endpoint.key} if session.endpoint.key else {})}
    return session.keep_evidence(
        await session.client.post(f"{session.endpoint.base_url}/messages", body, headers=headers)
    )


def read_message(exchange: HttpExchange) -> AnthropicMessage:
    """The message in an exchange, with everything that is wrong with its form."""
    asked = exchange.request if isinstance(exchange.request, dict) else {}
    return parse_message_stream(exchange, asked) if asked.get("stream") else parse_message(exchange, asked)
