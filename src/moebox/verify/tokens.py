"""Number of tokens of a prompt, by the server's own count."""

from collections.abc import Sequence
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.verify.session import ServerSession, raise_for_failure
from moebox.verify.violations import object_of, parse_strict_json


async def count_prompt_tokens(session: ServerSession, messages: Sequence[Any]) -> tuple[int, str]:
    """Tokens of a conversation, and their source: a tokenizer endpoint, or the usage of a real request."""
    for name in ("/tokenize of the conversation", "/tokenize of the rendered template", "/tokenize of the text"):
        if session.token_counter in ("", name) and (count := await _count_with(session, name, messages)):
            session.token_counter = name
            return count, name
    exchange = await session.client.post(session.chat_url, session.chat_request(messages, max_tokens=1))
    raise_for_failure(exchange)
    tokens = object_of(_reply_object(exchange).get("usage")).get("prompt_tokens")
    return tokens if isinstance(tokens, int) else 0, "usage of a one-token request"


async def _count_with(session: ServerSession, name: str, messages: Sequence[Any]) -> int:
    """Tokens by one tokenizer endpoint, or 0 if the server does not have it."""
    model = session.endpoint.model
    if name == "/tokenize of the conversation":  # vLLM applies the template itself
        body = {"model": model, "messages": list(messages), "add_generation_prompt": True}
        count = (await _post(session, "/tokenize", body)).get("count")
    elif name == "/tokenize of the rendered template":  # llama.cpp has one endpoint for the template, one for text
        prompt = (await _post(session, "/apply-template", {"messages": list(messages)})).get("prompt")
        if not isinstance(prompt, str):
            return 0
        tokens = (await _post(session, "/tokenize", {"content": prompt, "parse_special": True})).get("tokens")
        count = len(tokens) if isinstance(tokens, list) else 0
    else:  # SGLang tokenizes text; the template's own few tokens are not counted
        text = "\n".join(str(message.get("content", "")) for message in messages)
        count = (await _post(session, "/tokenize", {"model": model, "prompt": text})).get("count")
    return count if isinstance(count, int) else 0


async def tokenize_text(session: ServerSession, text: str) -> list[int]:
    """Tokens of a text by the server's tokenizer; empty if it has none."""
    for body in ({"model": session.endpoint.model, "prompt": text, "add_special_tokens": False}, {"content": text}):
        tokens = (await _post(session, "/tokenize", body)).get("tokens")
        if isinstance(tokens, list) and tokens and all(isinstance(token, int) for token in tokens):
            return tokens
    return []


async def _post(session: ServerSession, path: str, body: Any) -> dict[str, object]:
    """Reply to a request that is not evidence of a probe."""
    return _reply_object(await session.client.post(session.endpoint.server_url + path, body))


def _reply_object(exchange: HttpExchange) -> dict[str, object]:
    try:
        return object_of(parse_strict_json(exchange.response)) if exchange.status == 200 else {}
    except ValueError:
        return {}
