"""Replies in OpenAI's forms, chats and completions, whole and streamed."""

import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator

from moebox.twin import filler
from moebox.twin.engine import TwinEngine
from moebox.twin.request import TwinRequest

SIMULATION_TEXT = "simulation by moebox twin; no model wrote this and no engine timed it"
FINGERPRINT = "moebox-twin-simulation"
Document = dict[str, object]  # of an API that is not ours, as it is written out


async def stream_reply(engine: TwinEngine, asked: TwinRequest, model: str) -> AsyncIterator[bytes]:
    """A reply as events, each when the simulation has it."""
    head = _head(asked, model, chunk=True)
    sent = 0
    # Closed by hand: a client that goes away must leave the simulated queue at once, not when memory is tidied.
    async with contextlib.aclosing(engine.generate(asked.prompt_tokens, asked.output)) as stream:
        async for made in stream:
            if asked.chat and not sent:
                yield _event({**head, "choices": [_piece(asked, "", first=True)]})
            yield _event({**head, "choices": [_called(asked, sent, made) if asked.call else _said(asked, sent, made)]})
            sent = made
    yield _event({**head, "choices": [_piece(asked, "", reason=asked.reason)]})
    if asked.usage:
        yield _event({**head, "choices": [], "usage": _usage(asked)})
    yield b"data: [DONE]\n\n"


def _said(asked: TwinRequest, start: int, end: int) -> Document:
    return _piece(asked, filler.filler_text(asked.prompt, start, end))


def _called(asked: TwinRequest, start: int, end: int) -> Document:
    """A piece of the call; the first names it."""
    assert asked.call
    function = {"arguments": asked.arguments_part(start, end)}
    call: Document = {"index": 0, "function": function}
    if start == 0:
        call |= {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": {"name": asked.call[0], **function}}
    return {"index": 0, "delta": {"tool_calls": [call]}, "logprobs": None, "finish_reason": None}


def _piece(asked: TwinRequest, text: str, *, first: bool = False, reason: str | None = None) -> Document:
    if not asked.chat:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    delta: Document = {"role": "assistant", "content": ""} if first else {"content": text} if text else {}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def full_reply(asked: TwinRequest, model: str) -> Document:
    """A reply in one piece."""
    text = filler.filler_text(asked.prompt, 0, asked.output)
    choice: Document = {"index": 0, "logprobs": None, "finish_reason": asked.reason}
    choice |= {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    if asked.call:
        function = {"name": asked.call[0], "arguments": asked.call[1]}
        call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {**_head(asked, model, chunk=False), "choices": [choice], "usage": _usage(asked)}


def _head(asked: TwinRequest, model: str, *, chunk: bool) -> Document:
    kind = "chat.completion" + (".chunk" if chunk else "") if asked.chat else "text_completion"
    return {
        "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-twin-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "simulation": SIMULATION_TEXT,
    }


def _usage(asked: TwinRequest) -> dict[str, int]:
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": asked.output,
        "total_tokens": asked.prompt_tokens + asked.output,
    }


def _event(document: Document) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
