"""Ways for a server to go wrong, third family: stop strings, limits, log-probabilities, texts and the wire."""

import dataclasses
import html
import itertools
import re
from collections.abc import AsyncIterator
from typing import Any

from . import chat
from .bend import Body, pieces
from .bend_more import each
from .chat import Made


def _sent(chunks: list[Any]) -> Any:
    return pieces(lambda _: chunks)


def _stops(body: Body) -> list[str]:
    stops = body.get("stop") or []
    return [stops] if isinstance(stops, str) else list(stops)


def _whole_answer(made: Made) -> str:
    return "".join(chat.answer({**made.request, "stop": None}).content)


async def stop_included(made: Made) -> Made:
    """The stop string is part of the answer."""
    text, full = "".join(made.content), _whole_answer(made)
    hit = next((stop for stop in _stops(made.request) if full.startswith(text + stop)), "")
    return dataclasses.replace(made, content=[*made.content, hit]) if hit else made


async def stop_begins(made: Made) -> AsyncIterator[bytes]:
    """The first letters of the stop string are out before it is recognised."""
    bent = await stop_included(made)
    if bent is not made:
        bent = dataclasses.replace(made, content=[*made.content, bent.content[-1][:1]])
    async for part in _sent(chat.chunks(bent))(bent):
        yield part


async def tail_lost_with_stop(made: Made) -> AsyncIterator[bytes]:
    """With stop strings that are not met the last piece is held back for ever."""
    met = (await stop_included(made)) is not made
    cut = made.content[:-1] if _stops(made.request) and not met else made.content
    async for part in _sent(chat.chunks(dataclasses.replace(made, content=cut)))(made):
        yield part


async def piece_twice_with_stop(made: Made) -> AsyncIterator[bytes]:
    """With stop strings a piece is sent again."""
    words = made.content
    if _stops(made.request) and len(words) > 1:
        words = [*words[:2], words[1], *words[2:]]
    async for part in _sent(chat.chunks(dataclasses.replace(made, content=words)))(made):
        yield part


def single_word_stops(body: Body) -> None:
    """Stop strings of several tokens are not recognised."""
    kept = [stop for stop in _stops(body) if len(chat.tokens(stop)) < 2]
    body["stop"] = kept or None


def one_more(body: Body) -> None:
    """One token more than asked for."""
    for key in ("max_tokens", "max_completion_tokens"):
        if body.get(key):
            body[key] += 1


def sixteen_by_default(body: Body) -> None:
    """Without a limit the old default holds."""
    if not (body.get("max_tokens") or body.get("max_completion_tokens")):
        body["max_tokens"] = 16


def never_length(body: Body) -> None:
    """What was cut at the limit says that it is complete."""
    for choice in body["choices"]:
        if choice["finish_reason"] == "length":
            choice["finish_reason"] = "stop"


def _listed(body: Body) -> list[Body]:
    return [item for choice in body["choices"] for item in (choice.get("logprobs") or {}).get("content") or ()]


def byte_letters(body: Body) -> None:
    """Tokens in the vocabulary's own alphabet."""
    for item in _listed(body):
        item["token"] = item["token"].replace(" ", "\u0120").replace("\n", "\u010a")


def positive_logprobs(body: Body) -> None:
    """Chances above one."""
    for item in _listed(body):
        item["logprob"] = -item["logprob"]


def fewer_logprobs(body: Body) -> None:
    """The last token has none."""
    for choice in body["choices"]:
        if choice.get("logprobs"):
            choice["logprobs"]["content"] = choice["logprobs"]["content"][:-1]


def collapsed(text: str) -> str:
    """Several blanks become one."""
    return re.sub(" {2,}", " ", text)


def cleaned_up(text: str) -> str:
    """Blanks before marks are lost, as transformers' clean-up does."""
    return re.sub(r" ([.,!?')\]])", r"\1", text)


def html_escaped(text: str) -> str:
    """Marks as a page would need them."""
    return html.escape(text, quote=False)


async def token_lost(made: Made) -> Made:
    """Every 512th token is lost."""
    return dataclasses.replace(made, content=[piece for at, piece in enumerate(made.content) if at % 512 != 511])


async def repeats(made: Made) -> Made:
    """After 1,000 tokens the same twenty come again and again."""
    words = made.content
    if len(words) <= 1000:
        return made
    return dataclasses.replace(made, content=[*words[:1000], *(words[980:1000] * len(words))[: len(words) - 1000]])


def new_ids() -> Any:
    """Each chunk belongs to another reply."""
    count = itertools.count()
    return each(lambda chunk: chunk.update(id=f"chatcmpl-x{next(count)}"))


def error_in_stream(sent: list[Body]) -> list[Body]:
    """An error comes in the middle of a stream that then ends as usual."""
    half = len(sent) // 2
    return [*sent[:half], {"error": {"message": "EngineDeadError", "type": "InternalServerError", "code": 500}}]


def counts_after_done(sent: list[Body]) -> list[Any]:
    """The counts come after [DONE]."""
    counts = [chunk for chunk in sent if chunk.get("usage")]
    return [*(chunk for chunk in sent if not chunk.get("usage")), b"data: [DONE]\n\n", *counts]


def no_finish(chunk: Body) -> None:
    """No finish_reason in any chunk."""
    for choice in chunk["choices"]:
        choice["finish_reason"] = None


def content_as_list(said: Body) -> None:
    """The answer comes as parts."""
    if said["content"]:
        said["content"] = [{"type": "text", "text": said["content"]}]
