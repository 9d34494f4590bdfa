"""Words whose length in tokens is known: by the server's tokenizer, a local one, or by calibration."""

import contextlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moebox import http
from moebox.bench import filler
from moebox.bench.generator import Text
from moebox.core.endpoint import Endpoint
from moebox.errors import BadInput, ExternalError

if TYPE_CHECKING:
    import ssl

Count = Callable[[str], int]
REMOTE = "/tokenize"
TOKENIZE_S = 20.0  # the longest that counting one text, or all that it takes to choose words, may take
MOSTLY_SINGLE = 1.4  # tokens of a common word on average, below which it is worth asking which of them are one
FEWEST_PER_WORD, MOST_PER_WORD = 0.2, 20.0  # tokens: outside of it no tokenizer of text is at work


PLAIN = Text(words=filler.common(), tokens_per_word=1.0, how="calibrated words (no tokenizer at hand)")


def text_for(
    endpoint: Endpoint, *, tokenizer: str = "", timeout_s: float = TOKENIZE_S, tls: "ssl.SSLContext | None" = None
) -> Text:
    """Words to write prompts from; exact where a tokenizer is at hand (`tokenizer` names a local tokenizer.json).

    A server whose /tokenize is not done after `timeout_s`, or makes no sense, has none.
    """
    if tokenizer:
        return replace(calibrated(_local(tokenizer), "tokenizer.json"), tokenizer=tokenizer)
    with http.HttpSession(
        headers=endpoint.headers, tls=tls or http.trusted_certificates(endpoint.server_url)
    ) as session:
        count = _remote(endpoint, session, time.monotonic() + min(timeout_s, TOKENIZE_S))
        try:
            text = calibrated(count, "the server's /tokenize") if count is not None else PLAIN
        except ExternalError:
            return PLAIN
    sizes = (text.tokens_per_word, text.tokens_per_code_word)
    sane = all(FEWEST_PER_WORD <= size <= MOST_PER_WORD for size in sizes)
    return replace(text, tokenizer=REMOTE) if count is not None and sane else PLAIN


@contextlib.contextmanager
def counter(endpoint: Endpoint, text: Text, *, tls: "ssl.SSLContext | None" = None) -> Iterator[Count | None]:
    """What counts the tokens of a text, where there is a tokenizer."""
    if text.tokenizer != REMOTE:
        yield _local(text.tokenizer) if text.tokenizer else None
        return
    with http.HttpSession(
        headers=endpoint.headers, tls=tls or http.trusted_certificates(endpoint.server_url)
    ) as session:
        yield _remote(endpoint, session, math.inf)


def calibrated(count: Count, how: str) -> Text:
    """The common words that are one token each by `count`, or, where too few are, their mean length."""
    common = filler.common()
    per_word = count(" ".join(common)) / len(common)
    single = _single(list(common), count) if per_word < MOSTLY_SINGLE else []
    code = filler.code("calibration", 2000)
    per_code_word = count(code) / len(code.split())
    if len(single) >= 64:
        tests = (" ".join(single), " ".join(reversed(single)), " ".join(single[: len(single) // 2]))
        extra = {count(test) - len(test.split()) for test in tests}
        if extra <= {0, 1}:  # the first word, with no space before it, may take one more
            return Text(words=tuple(single), tokens_per_code_word=per_code_word, exact=True, how=how)
    how = f"{how}, mean length"
    return Text(words=common, tokens_per_word=per_word, tokens_per_code_word=per_code_word, how=how)


def _single(candidates: list[str], count: Count) -> list[str]:
    """Those that are one token each with a space before them, by halving: few questions, since most are."""
    alone = count("a")

    def asked(words: list[str]) -> int:
        return count("a " + " ".join(words)) - alone

    def among(words: list[str], tokens: int) -> list[str]:
        if tokens == len(words):
            return words
        if len(words) == 1:
            return []
        half = len(words) // 2
        first = asked(words[:half])  # the second half takes what is left: a tokenizer cuts at spaces
        return among(words[:half], first) + among(words[half:], tokens - first)

    return among(candidates, asked(candidates))


def _remote(endpoint: Endpoint, session: http.HttpSession, until: float) -> Count | None:
    """The server's own tokenizer, in the words of vLLM and SGLang or of llama.cpp; its counts raise Outside."""

    def ask(body: Mapping[str, object]) -> list[int] | None:
        left = min(TOKENIZE_S, until - time.monotonic())
        if left <= 0:
            return None
        reply = session.post_json(f"{endpoint.server_url}/tokenize", body, timeout_s=left)
        document = reply.json() if reply.ok else None
        tokens = document.get("tokens") if isinstance(document, dict) else None
        return tokens if isinstance(tokens, list) else None

    def vllm(text: str) -> Mapping[str, object]:
        return {"model": endpoint.model, "prompt": text, "add_special_tokens": False}

    def llama(text: str) -> Mapping[str, object]:
        return {"content": text, "add_special": False}

    for body in (vllm, llama):
        short, long = ask(body("one two")), ask(body("one two three four five six"))
        if short and long and len(long) > len(short):

            def count(text: str, body: Callable[[str], Mapping[str, object]] = body) -> int:
                tokens = ask(body(text))
                if tokens is None:
                    raise ExternalError(f"{endpoint.server_url}/tokenize does not answer")
                return len(tokens)

            return count
    return None


def _local(name: str) -> Count:
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise BadInput(f"{path}: no such tokenizer file")
    if importlib.util.find_spec("tokenizers") is None:
        raise BadInput(f"{path} needs the tokenizers package", hint="pip install tokenizers, or leave --tokenizer out")
    from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
