"""An endpoint looked at before it is measured: is it there, what does it understand, how are its tokens counted?"""

import random
import ssl
import time
from dataclasses import dataclass, replace

from moebox.bench import filler
from moebox.bench.generator import PromptWords
from moebox.bench.vocabulary import MAX_TOKENS_PER_WORD, UNCALIBRATED_WORDS, choose_words
from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, SIMULATION_HEADER, Endpoint
from moebox.errors import ExternalError
from moebox.loose import Json
from moebox.stream import StreamReply, send_request, sockets
from moebox.stream.body import retry_after_s

BASED_ON_USAGE = "calibrated words (by the server's count of a prompt)"
MAX_TEMPLATE_TOKENS = 8192  # tokens of a chat template; a server that counts more does not count
MAX_PROBE_EVENTS = 10_000  # of a reply to a request for a few tokens
CALIBRATION_S = 120.0  # for a prompt of a few hundred tokens
CONNECT_TIMEOUT_S = 10.0  # that a server may take to accept a connection
MAX_PAUSE_S = 60.0  # that a server which is still loading may ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedEndpoint:
    """An endpoint that was looked at: how to reach it, what it understands, how its tokens are counted."""

    endpoint: Endpoint
    address: sockets.SocketAddress
    words: PromptWords
    reports_usage: bool  # its streams end with usage
    ignores_eos: bool  # it accepts ignore_eos
    simulation: bool = False  # its replies say that no model wrote them
    template_tokens: int = 0  # that its chat template adds to a prompt, where it counts prompts

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Which certificates its other pages (/tokenize, /metrics) are trusted by; None where it speaks no TLS."""
        return sockets.tls_context(self.address) if self.address.tls else None

    def check_listening(self) -> None:
        """Outside where nobody listens any more."""
        sockets.connect(self.address, CONNECT_TIMEOUT_S).close()


def probe_endpoint(
    endpoint: Endpoint,
    *,
    tokenizer: str = "",
    api: str = "chat",
    insecure: bool = False,
    ca_file: str = "",
    timeout_s: float = 600.0,
) -> ProbedEndpoint:
    """Look at the server, and then choose words by its tokenizer or a local one."""
    probed = probe_stream(
        endpoint, UNCALIBRATED_WORDS, api=api, insecure=insecure, ca_file=ca_file, timeout_s=timeout_s
    )
    text = choose_words(endpoint, tokenizer=tokenizer, timeout_s=timeout_s, tls=probed.tls)
    return replace(probed, words=text)


def probe_stream(
    endpoint: Endpoint,
    words: PromptWords,
    *,
    api: str = "chat",
    insecure: bool = False,
    ca_file: str = "",
    timeout_s: float = 600.0,
) -> ProbedEndpoint:
    """Ask for a few tokens: is it there, does it stream, does it count, does it know ignore_eos?"""
    target = sockets.address_from_url(endpoint.base_url, insecure=insecure, ca_file=ca_file)
    opening = " ".join(["one", "two", *random.sample(words.words, 3)])
    body = {**_probe_body(endpoint, api, opening), "max_tokens": 4}
    until = time.monotonic() + timeout_s
    reply = _send_with_retry(endpoint, {**body, "ignore_eos": True}, api, target, until)
    ignores = not reply.error
    if reply.error and reply.status in (400, 422):
        reply = _send_with_retry(endpoint, body, api, target, until)
    if reply.error:
        hint = KEY_HINT if reply.status in AUTH_STATUSES else "--model must be a name that /v1/models lists"
        raise ExternalError(f"{endpoint.base_url}: {reply.error}", hint=hint)
    return ProbedEndpoint(
        endpoint=endpoint,
        address=target,
        words=words,
        reports_usage=reply.completion_tokens is not None,
        ignores_eos=ignores,
        simulation=SIMULATION_HEADER in reply.headers,
        template_tokens=_template_tokens(reply, opening),
    )


def _template_tokens(reply: StreamReply, opening: str) -> int:
    """Tokens of a prompt that are the chat template's; 0 where the count makes no sense."""
    template = (reply.prompt_tokens or 0) - len(opening.split())
    return template if 0 < template < MAX_TEMPLATE_TOKENS else 0


def _send_with_retry(
    endpoint: Endpoint, body: Json, api: str, target: sockets.SocketAddress, until: float
) -> StreamReply:
    """One request within the time left; once more after a refusal that says when, if that is within it."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise ExternalError(f"{endpoint.base_url}: not over in the time that --timeout gives it")
        reply = send_request(
            endpoint,
            body,
            path=api_path(api),
            target=target,
            timeout_s=left,
            total_s=left,
            most_events=MAX_PROBE_EVENTS,
        )
        pause = _pause(reply)
        if pause is None or pause > min(MAX_PAUSE_S, until - time.monotonic()):
            return reply
        time.sleep(pause)


def _pause(reply: StreamReply) -> float | None:
    """Seconds after which a server that refused wants to be asked again."""
    if reply.status not in (429, 503):
        return None
    return retry_after_s({b"retry-after": reply.headers.get("retry-after", "").encode()})


def _probe_body(endpoint: Endpoint, api: str, text: str) -> Json:
    prompt = {"prompt": text} if api == "completions" else {"messages": [{"role": "user", "content": text}]}
    return {"model": endpoint.model, "stream_options": {"include_usage": True}, **prompt}


def measure_code_words(probed: ProbedEndpoint, api: str) -> PromptWords:
    """The words, with the length of code measured by the server's own count where there is no tokenizer."""
    if probed.words.tokenizer or not probed.reports_usage:
        return probed.words
    per_word = _tokens_per_code_word(probed, api)
    if not 1 <= per_word <= MAX_TOKENS_PER_WORD:  # it does not count what it was sent
        return probed.words
    return replace(probed.words, tokens_per_code_word=per_word, source=BASED_ON_USAGE)


def _tokens_per_code_word(subject: ProbedEndpoint, api: str) -> float:
    """By the server's own count; 0 where it does not say."""
    code = filler.fake_code("calibration", 200)
    short, long = (_prompt_tokens(subject, api, text) for text in ("x", f"x {code}"))
    if short is None or long is None:
        return 0.0
    return (long - short) / len(code.split())


def _prompt_tokens(subject: ProbedEndpoint, api: str, text: str) -> int | None:
    body = {**_probe_body(subject.endpoint, api, text), "max_tokens": 1}
    return _send_with_retry(
        subject.endpoint, body, api, subject.address, time.monotonic() + CALIBRATION_S
    ).prompt_tokens


def api_path(api: str) -> str:
    """Below /v1."""
    return "/completions" if api == "completions" else "/chat/completions"
