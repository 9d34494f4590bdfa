"""Number of tokens of a prompt, by the server's own count."""

from collections.abc import Sequence
from typing import Any

from moebox.loose import as_object, get_path, is_int_list
from moebox.verify.session import ServerSession, raise_for_failure
from moebox.verify.violations import parse_json_or


async def count_prompt_tokens(session: ServerSession, messages: Sequence[Any]) -> tuple[int, str]:
    """Tokens of a conversation, and their source: a tokenizer endpoint, or the usage of a real request."""
    model, turns, count = session.endpoint.model, list(messages), None
    for name in ("/tokenize of the conversation", "/tokenize of the rendered template", "/tokenize of the text"):
        if session.token_counter not in ("", name):
            continue
        if name == "/tokenize of the conversation":  # vLLM applies the template itself
            body = {"model": model, "messages": turns, "add_generation_prompt": True}
            count = (await _post(session, "/tokenize", body)).get("count")
        elif name == "/tokenize of the rendered template":  # llama.cpp has one endpoint for the template, one for text
            prompt = (await _post(session, "/apply-template", {"messages": turns})).get("prompt")
            if isinstance(prompt, str):
                tokens = (await _post(session, "/tokenize", {"content": prompt, "parse_special": True})).get("tokens")
                count = len(tokens) if isinstance(tokens, list) else 0
        else:  # SGLang tokenizes text; the template's own few tokens are not counted
            text = "\n".join(str(message.get("content", "")) for message in turns)
            count = (await _post(session, "/tokenize", {"model": model, "prompt": text})).get("count")
        if isinstance(count, int) and count:
            session.token_counter = name
            return count, name
    exchange = await session.client.post(session.chat_url, session.chat_request(turns, max_tokens=1))
    raise_for_failure(exchange)
    tokens = get_path(parse_json_or(exchange.response), "usage.prompt_tokens")
    return tokens if isinstance(tokens, int) else 0, "usage of a one-token request"


async def tokenize_text(session: ServerSession, text: str) -> list[int]:
    """Tokens of a text by the server's tokenizer; empty if it has none."""
    for body in ({"model": session.endpoint.model, "prompt": text, "add_special_tokens": False}, {"content": text}):
        tokens = (await _post(session, "/tokenize", body)).get("tokens")
        if is_int_list(tokens):
            return tokens
    return []


async def _post(session: ServerSession, path: str, body: Any) -> dict[str, object]:
    """Reply to a request that is not evidence of a probe."""
    exchange = await session.client.post(session.endpoint.server_url + path, body)
    return as_object(parse_json_or(exchange.response)) if exchange.status == 200 else {}
