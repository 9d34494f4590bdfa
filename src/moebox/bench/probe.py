"""Probe an endpoint before it is measured: does it stream, does it count tokens, and which words are one token each?"""

import contextlib
import importlib.util
import math
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from moebox import http
from moebox.bench.generator import PromptWords
from moebox.bench.validity import TokenCounter
from moebox.bench.workloads import common_words, fake_code
from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, SIMULATION_HEADER, Endpoint
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.escape import one_line
from moebox.loose import Json, get_path
from moebox.stream import sockets
from moebox.stream.body import retry_after_s
from moebox.stream.exchange import StreamExchange, StreamReply

MAX_TEMPLATE_TOKENS = 8192  # of a chat template; a server that reports more does not count
MAX_PROBE_EVENTS = 10_000  # of a reply to a request for a few tokens
CALIBRATION_S = 120.0  # for a prompt of a few hundred tokens
CONNECT_TIMEOUT_S = 10.0
LEAST_PAUSE_S = 0.2  # for a server that asks for none
MAX_REFUSED_S = 60.0  # for a server that is still loading or busy, and names a time to ask again
SERVER_TOKENIZER = "/tokenize"
TOKENIZE_S = 20.0  # for counting one text, and for all that it takes to choose words
MAX_MEAN_TOKENS = 1.4  # of a common word, below which it is worth finding out which of them are one token
MIN_SINGLE_WORDS = 64  # fewer words would repeat too often
MIN_TOKENS_PER_WORD, MAX_TOKENS_PER_WORD = 0.2, 20.0  # outside of it, the server does not tokenize text
UNCALIBRATED_WORDS = PromptWords(words=common_words(), source="calibrated words (no tokenizer at hand)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedEndpoint:
    """An endpoint with what a probe found: its address, what it supports, and how its tokens are counted."""

    endpoint: Endpoint
    address: sockets.SocketAddress
    words: PromptWords
    reports_usage: bool  # its streams end with usage
    ignores_eos: bool  # it accepts ignore_eos
    simulation: str = ""  # the header of a simulation
    template_tokens: int = 0  # that its chat template adds to a prompt, if it counts prompts

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context for its other pages (/tokenize, /metrics), or None for plain HTTP."""
        return sockets.tls_context(self.address)

    def check_listening(self) -> None:
        """Raise ExternalError if no server listens any more."""
        sockets.connect(self.address, CONNECT_TIMEOUT_S).close()


def probe_endpoint(
    endpoint: Endpoint,
    *,
    tokenizer: str = "",
    api: str = "chat",
    insecure: bool = False,
    ca_file: str = "",
    timeout_s: float = 600.0,
    notify: Callable[[str], None] = lambda line: None,
) -> ProbedEndpoint:
    """Ask for a few tokens: does the server answer, stream, count tokens, and accept ignore_eos?

    Then choose words by its tokenizer or a local one.
    """
    address = sockets.address_from_url(endpoint.base_url, insecure=insecure, ca_file=ca_file)
    opening = " ".join(["one", "two", *random.sample(UNCALIBRATED_WORDS.words, 3)])
    until = time.monotonic() + timeout_s
    reply = _ask_tokens(endpoint, address, api, opening, until, notify, max_tokens=4, ignore_eos=True)
    ignores_eos = not reply.error
    if reply.error and reply.status in (400, 422):
        reply = _ask_tokens(endpoint, address, api, opening, until, notify, max_tokens=4)
    if reply.error:
        hint = KEY_HINT if reply.status in AUTH_STATUSES else None
        hint = "--model must be a name that /v1/models lists" if reply.status in (400, 404, 422) else hint
        hint = f"it leads to {moved}" if (moved := one_line(reply.headers.get("location", ""), 200)) else hint
        raise ExternalError(f"{endpoint.base_url}: {reply.error}", hint=hint)
    template_tokens = (reply.prompt_tokens or 0) - len(opening.split())
    probed = ProbedEndpoint(
        endpoint=endpoint,
        address=address,
        words=UNCALIBRATED_WORDS,
        reports_usage=reply.completion_tokens is not None,
        ignores_eos=ignores_eos,
        simulation=reply.headers.get(SIMULATION_HEADER, ""),
        template_tokens=template_tokens if 0 < template_tokens < MAX_TEMPLATE_TOKENS else 0,
    )
    return replace(probed, words=choose_words(endpoint, tokenizer=tokenizer, timeout_s=timeout_s, tls=probed.tls))


def measure_code_words(probed: ProbedEndpoint, api: str) -> PromptWords:
    """Return the words with the length of code by the server's own count, if there is no tokenizer."""
    if probed.words.tokenizer or not probed.reports_usage:
        return probed.words
    code, counts = fake_code("calibration", 200), []
    for text in ("x", f"x {code}"):
        until = time.monotonic() + CALIBRATION_S
        counts.append(_ask_tokens(probed.endpoint, probed.address, api, text, until, max_tokens=1).prompt_tokens)
    short, long = counts
    per_word = 0.0 if short is None or long is None else (long - short) / len(code.split())
    if not 1 <= per_word <= MAX_TOKENS_PER_WORD:  # the server does not count what it was sent
        return probed.words
    source = "calibrated words (by the server's count of a prompt)"
    return replace(probed.words, tokens_per_code_word=per_word, source=source)


def _ask_tokens(
    endpoint: Endpoint,
    address: sockets.SocketAddress,
    api: str,
    text: str,
    until: float,
    notify: Callable[[str], None] = lambda line: None,
    **fields: object,
) -> StreamReply:
    """Send one prompt within the time left, and again after a refusal if its Retry-After allows that."""
    prompt: Json = {"prompt": text} if api == "completions" else {"messages": [{"role": "user", "content": text}]}
    body: Json = {"model": endpoint.model, "stream_options": {"include_usage": True}, **prompt, **fields}
    refused_until, refusals = min(until, time.monotonic() + MAX_REFUSED_S), 0
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise ExternalError(f"{endpoint.base_url}: not over in the time that load.timeout_s gives it")
        exchange = StreamExchange(
            endpoint,
            body,
            path=api_path(api),
            target=address,
            timeout_s=left,
            total_s=left,
            most_events=MAX_PROBE_EVENTS,
        )
        reply = exchange.read_reply()
        pause = retry_after_s(reply.headers.get("retry-after", "")) if reply.status in (429, 503) else None
        if pause is None or time.monotonic() + pause > refused_until:
            return reply
        refusals += 1
        if refusals == 1:
            notify(f"{reply.error}: asked again for {MAX_REFUSED_S:.0f} s at most")
        time.sleep(max(pause, LEAST_PAUSE_S))


def api_path(api: str) -> str:
    """Return the path relative to /v1."""
    return "/completions" if api == "completions" else "/chat/completions"


def choose_words(
    endpoint: Endpoint, *, tokenizer: str = "", timeout_s: float = TOKENIZE_S, tls: ssl.SSLContext | None = None
) -> PromptWords:
    """Choose words to write prompts from; exact if there is a tokenizer (`tokenizer` names a local tokenizer.json).

    A server whose /tokenize takes longer than `timeout_s`, or returns nonsense, counts as one without a tokenizer.
    """
    if tokenizer:
        return replace(calibrate_words(_local_token_counter(tokenizer), "tokenizer.json"), tokenizer=tokenizer)
    with _open_session(endpoint, tls) as session, contextlib.suppress(ExternalError):
        count = _server_token_counter(endpoint, session, time.monotonic() + min(timeout_s, TOKENIZE_S))
        if count is not None:
            words = calibrate_words(count, "the server's /tokenize")
            sizes = (words.tokens_per_word, words.tokens_per_code_word)
            if all(MIN_TOKENS_PER_WORD <= size <= MAX_TOKENS_PER_WORD for size in sizes):
                return replace(words, tokenizer=SERVER_TOKENIZER)
    return UNCALIBRATED_WORDS


@contextlib.contextmanager
def open_token_counter(probed: ProbedEndpoint) -> Iterator[TokenCounter | None]:
    """Yield a function that counts the tokens of a text, or None if there is no tokenizer."""
    tokenizer = probed.words.tokenizer
    if tokenizer != SERVER_TOKENIZER:
        yield _local_token_counter(tokenizer) if tokenizer else None
        return
    with _open_session(probed.endpoint, probed.tls) as session:
        yield _server_token_counter(probed.endpoint, session, math.inf)


def _open_session(endpoint: Endpoint, tls: ssl.SSLContext | None) -> http.HttpSession:
    return http.HttpSession(headers=endpoint.headers, tls=tls or http.trusted_certificates(endpoint.server_url))


def calibrate_words(count: TokenCounter, source: str) -> PromptWords:
    """Return the common words that are one token each or, if too few are, their mean length."""
    common = common_words()
    per_word = count(" ".join(common)) / len(common)
    code = fake_code("calibration", 2000)
    per_code_word = count(code) / len(code.split())
    single = _single_token_words(list(common), count) if per_word < MAX_MEAN_TOKENS else []
    if len(single) >= MIN_SINGLE_WORDS:
        tests = (" ".join(single), " ".join(reversed(single)), " ".join(single[: len(single) // 2]))
        extra = {count(test) - len(test.split()) for test in tests}
        if extra <= {0, 1}:  # the first word, with no space before it, may take one more
            return PromptWords(words=tuple(single), tokens_per_code_word=per_code_word, is_exact=True, source=source)
    return PromptWords(
        words=common, tokens_per_word=per_word, tokens_per_code_word=per_code_word, source=f"{source}, mean length"
    )


def _single_token_words(candidates: list[str], count: TokenCounter) -> list[str]:
    """Return the words that are one token after a space, by halving: few requests, since most of them are."""
    alone = count("a")

    def search(words: list[str], tokens: int) -> list[str]:
        if tokens == len(words):
            return words
        if len(words) == 1:
            return []
        half = len(words) // 2
        first = count("a " + " ".join(words[:half])) - alone
        # The second half takes the remaining tokens, since a tokenizer cuts at spaces.
        return search(words[:half], first) + search(words[half:], tokens - first)

    return search(candidates, count("a " + " ".join(candidates)) - alone)


def _server_token_counter(endpoint: Endpoint, session: http.HttpSession, until: float) -> TokenCounter | None:
    """Return the server's own tokenizer in the API of vLLM and SGLang or of llama.cpp; it raises ExternalError."""

    def count(body: Callable[[str], Mapping[str, object]], text: str) -> int:
        left = min(TOKENIZE_S, until - time.monotonic())
        reply = session.post_json(f"{endpoint.server_url}/tokenize", body(text), timeout_s=left) if left > 0 else None
        tokens = get_path(reply.json(), "tokens") if reply and reply.ok else None
        if not isinstance(tokens, list):
            raise ExternalError(f"{endpoint.server_url}/tokenize does not answer")
        return len(tokens)

    bodies: tuple[Callable[[str], Mapping[str, object]], ...] = (
        lambda text: {"model": endpoint.model, "prompt": text, "add_special_tokens": False},
        lambda text: {"content": text, "add_special": False},
    )
    for body in bodies:
        with contextlib.suppress(ExternalError):
            if 0 < count(body, "one two") < count(body, "one two three four five six"):
                return partial(count, body)
    return None


def _local_token_counter(name: str) -> TokenCounter:
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    refuse_if(not path.is_file(), f"{path}: tokenizer file not found")
    if importlib.util.find_spec("tokenizers") is None:
        text = f"{path} needs the tokenizers package"
        raise BadInput(text, hint="pip install tokenizers, or leave endpoint.tokenizer out")
    from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
