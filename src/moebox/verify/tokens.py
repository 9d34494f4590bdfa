"""How many tokens a prompt is, by the server's own count."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.verify.ask import CheckSession, raise_for_failure
from moebox.verify.breach import object_of, parse_strict_json

Messages = Sequence[Any]


async def count_prompt_tokens(session: CheckSession, messages: Messages) -> tuple[int, str]:
    """Tokens of the conversation and who counted them: a tokenizer endpoint, or the usage of a real request."""
    for name, way in _WAYS.items():
        if session.token_counter in ("", name) and (found := await way(session, messages)):
            session.token_counter = name
            return found, name
    return await _by_usage(session, messages), "usage of a one-token request"


async def _vllm(session: CheckSession, messages: Messages) -> int:
    """vLLM tokenizes a conversation with its template."""
    body = {"model": session.endpoint.model, "messages": list(messages), "add_generation_prompt": True}
    found = _json(await _post(session, "/tokenize", body)).get("count")
    return found if isinstance(found, int) else 0


async def _llama(session: CheckSession, messages: Messages) -> int:
    """llama.cpp renders the template with one endpoint and tokenizes text with another."""
    rendered = _json(await _post(session, "/apply-template", {"messages": list(messages)})).get("prompt")
    if not isinstance(rendered, str):
        return 0
    tokens = _json(await _post(session, "/tokenize", {"content": rendered, "parse_special": True})).get("tokens")
    return len(tokens) if isinstance(tokens, list) else 0


async def _sglang(session: CheckSession, messages: Messages) -> int:
    """SGLang tokenizes text; the template's own few tokens are not in it."""
    text = "\n".join(str(message.get("content", "")) for message in messages)
    found = _json(await _post(session, "/tokenize", {"model": session.endpoint.model, "prompt": text})).get("count")
    return found if isinstance(found, int) else 0


_WAYS: dict[str, Callable[[CheckSession, Messages], Awaitable[int]]] = {
    "/tokenize of the conversation": _vllm,
    "/tokenize of the rendered template": _llama,
    "/tokenize of the text": _sglang,
}


async def tokenize_text(session: CheckSession, text: str) -> list[int]:
    """The text's tokens by the server's tokenizer; empty where it has none."""
    for body in ({"model": session.endpoint.model, "prompt": text, "add_special_tokens": False}, {"content": text}):
        found = _json(await _post(session, "/tokenize", body)).get("tokens")
        if isinstance(found, list) and found and all(isinstance(token, int) for token in found):
            return found
    return []


async def _by_usage(session: CheckSession, messages: Messages) -> int:
    exchange = await session.client.post(
        f"{session.endpoint.base_url}/chat/completions", session.chat_request(messages, max_tokens=1)
    )
    raise_for_failure(exchange)
    found = object_of(_json(exchange).get("usage")).get("prompt_tokens")
    return found if isinstance(found, int) else 0


async def _post(session: CheckSession, path: str, body: Any) -> HttpExchange:
    """A helper's call: not a probe's evidence."""
    return await session.client.post(session.endpoint.server_url + path, body)


def _json(exchange: HttpExchange) -> dict[str, object]:
    try:
        return object_of(parse_strict_json(exchange.response)) if exchange.status == 200 else {}
    except ValueError:
        return {}
