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
from moebox.bench.generator import PromptWords
from moebox.core.endpoint import Endpoint
from moebox.errors import BadInput, ExternalError

if TYPE_CHECKING:
    import ssl

TokenCounter = Callable[[str], int]
SERVER_TOKENIZER = "/tokenize"
TOKENIZE_S = 20.0  # the longest that counting one text, or all that it takes to choose words, may take
MAX_MEAN_TOKENS = 1.4  # tokens of a common word on average, below which it is worth asking which of them are one
MIN_TOKENS_PER_WORD, MAX_TOKENS_PER_WORD = 0.2, 20.0  # tokens: outside of it no tokenizer of text is at work


UNCALIBRATED_WORDS = PromptWords(
    words=filler.common_words(), tokens_per_word=1.0, source="calibrated words (no tokenizer at hand)"
)


def choose_words(
    endpoint: Endpoint, *, tokenizer: str = "", timeout_s: float = TOKENIZE_S, tls: "ssl.SSLContext | None" = None
) -> PromptWords:
    """Words to write prompts from; exact where a tokenizer is at hand (`tokenizer` names a local tokenizer.json).

    A server whose /tokenize is not done after `timeout_s`, or makes no sense, has none.
    """
    if tokenizer:
        return replace(calibrate_words(_local_token_counter(tokenizer), "tokenizer.json"), tokenizer=tokenizer)
    with http.HttpSession(
        headers=endpoint.headers, tls=tls or http.trusted_certificates(endpoint.server_url)
    ) as session:
        count = _server_token_counter(endpoint, session, time.monotonic() + min(timeout_s, TOKENIZE_S))
        try:
            text = calibrate_words(count, "the server's /tokenize") if count is not None else UNCALIBRATED_WORDS
        except ExternalError:
            return UNCALIBRATED_WORDS
    sizes = (text.tokens_per_word, text.tokens_per_code_word)
    sane = all(MIN_TOKENS_PER_WORD <= size <= MAX_TOKENS_PER_WORD for size in sizes)
    return replace(text, tokenizer=SERVER_TOKENIZER) if count is not None and sane else UNCALIBRATED_WORDS


@contextlib.contextmanager
def open_token_counter(
    endpoint: Endpoint, words: PromptWords, *, tls: "ssl.SSLContext | None" = None
) -> Iterator[TokenCounter | None]:
    """What counts the tokens of a text, where there is a tokenizer."""
    if words.tokenizer != SERVER_TOKENIZER:
        yield _local_token_counter(words.tokenizer) if words.tokenizer else None
        return
    with http.HttpSession(
        headers=endpoint.headers, tls=tls or http.trusted_certificates(endpoint.server_url)
    ) as session:
        yield _server_token_counter(endpoint, session, math.inf)


def calibrate_words(count: TokenCounter, source: str) -> PromptWords:
    """The common words that are one token each by `count`, or, where too few are, their mean length."""
    common = filler.common_words()
    per_word = count(" ".join(common)) / len(common)
    single = _single_token_words(list(common), count) if per_word < MAX_MEAN_TOKENS else []
    code = filler.fake_code("calibration", 2000)
    per_code_word = count(code) / len(code.split())
    if len(single) >= 64:
        tests = (" ".join(single), " ".join(reversed(single)), " ".join(single[: len(single) // 2]))
        extra = {count(test) - len(test.split()) for test in tests}
        if extra <= {0, 1}:  # the first word, with no space before it, may take one more
            return PromptWords(words=tuple(single), tokens_per_code_word=per_code_word, is_exact=True, source=source)
    source = f"{source}, mean length"
    return PromptWords(words=common, tokens_per_word=per_word, tokens_per_code_word=per_code_word, source=source)


def _single_token_words(candidates: list[str], count: TokenCounter) -> list[str]:
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


def _server_token_counter(endpoint: Endpoint, session: http.HttpSession, until: float) -> TokenCounter | None:
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


def _local_token_counter(name: str) -> TokenCounter:
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise BadInput(f"{path}: no such tokenizer file")
    if importlib.util.find_spec("tokenizers") is None:
        raise BadInput(f"{path} needs the tokenizers package", hint="pip install tokenizers, or leave --tokenizer out")
    from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
