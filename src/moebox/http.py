"""The one ordinary HTTP client: no proxies, no redirects, bounded replies and times.

The load generator has its own (stream/).
A server of ours is on this machine or named by the person; a proxy variable of the shell must not come between.
"""

import contextlib
import functools
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from moebox.errors import ExternalError, exception_text
from moebox.redact import decode_reply

if TYPE_CHECKING:
    import ssl

    import httpx2

PLAIN_HTTP, WRITE_HTTP = "answers in plain HTTP, not TLS", "write http:// instead of https://"
PLAIN_REPLY_S = 2.0  # that a server may take to begin a plain answer
MAX_REPLY_BYTES = 4 << 20  # bytes of a reply that are read
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A status and a text; status 0 when no reply came, and the text says why."""

    status: int
    text: str
    header_names: frozenset[str] = frozenset()  # of its headers, in small letters

    @property
    def ok(self) -> bool:
        """The server answered 200."""
        return self.status == 200

    @property
    def error(self) -> str:
        """What a server that did not answer 200 says is wrong; without a reply, why there is none."""
        text = error_text(self.text)
        return f"HTTP {self.status}: {text}" if self.status else text

    def json(self) -> Any:
        """The text as JSON; None where it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


def make_client(
    *, timeout_s: float, headers: Mapping[str, str] = NO_HEADERS, tls: "ssl.SSLContext | None" = None
) -> "httpx2.Client":
    """A client for several requests; `tls` says which certificates it trusts."""
    import httpx2

    verify = tls or _certificates()
    return httpx2.Client(timeout=timeout_s, headers=dict(headers), trust_env=False, verify=verify)


def trusted_certificates(url: str) -> "ssl.SSLContext":
    """Whom a client of `url` trusts: the authorities for https; nobody for http, which never asks."""
    return _nobody() if url.lower().startswith("http://") else _certificates()


@functools.cache
def _certificates() -> "ssl.SSLContext":
    """The authorities, read once: it takes longer than most requests."""
    import httpx2

    return httpx2.create_ssl_context()


@functools.cache
def _nobody() -> "ssl.SSLContext":
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def get(
    url: str,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    timeout_s: float = 10.0,
    tls: "ssl.SSLContext | None" = None,
) -> HttpReply:
    """One GET, over after `timeout_s` whatever arrives; a refused connection is a Reply too."""
    with HttpSession(headers=headers, tls=tls or trusted_certificates(url)) as session:
        return session.get(url, timeout_s=timeout_s)


def post_json(
    url: str, body: Mapping[str, Any], *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = 10.0
) -> HttpReply:
    """One POST of a JSON document, over after `timeout_s` whatever arrives; a refused connection is a Reply too."""
    with HttpSession(headers=headers, tls=trusted_certificates(url)) as session:
        return session.post_json(url, body, timeout_s=timeout_s)


class HttpSession:
    """Requests one after another over connections that are kept, each over after its own time whatever arrives."""

    def __init__(self, *, headers: Mapping[str, str] = NO_HEADERS, tls: "ssl.SSLContext | None" = None) -> None:
        self._client = make_client(timeout_s=10.0, headers=headers, tls=tls)
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def get(self, url: str, *, timeout_s: float) -> HttpReply:
        """A GET; a refused connection is a Reply too."""
        return self._send("GET", url, timeout_s)

    def post_json(self, url: str, body: Mapping[str, Any], *, timeout_s: float) -> HttpReply:
        """A POST of a JSON document; a refused connection is a Reply too."""
        return self._send("POST", url, timeout_s, body)

    def _send(self, method: str, url: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> HttpReply:
        import httpx2

        try:
            with (
                self._deadline(timeout_s) as over,
                self._client.stream(
                    method, url, json=body, timeout=timeout_s, extensions={"trace": self._trace}
                ) as response,
            ):
                names = frozenset(name.lower() for name in response.headers)
                reply = HttpReply(status=response.status_code, text=_text(response), header_names=names)
                return HttpReply(status=0, text=f"not over after {timeout_s:g} s") if over.is_set() else reply
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as problem:
            return HttpReply(status=0, text=failure_text(problem, url))

    def _trace(self, name: str, info: Mapping[str, Any]) -> None:
        if name == "connection.connect_tcp.complete":
            self._sockets.append(info["return_value"].get_extra_info("socket"))

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[threading.Event]:
        """Hang up when the time is over: the client's own timeouts begin again with every byte that arrives."""
        over = threading.Event()

        def hang_up() -> None:
            over.set()
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield over
        finally:
            timer.cancel()


async def post_stream(
    url: str, body: Mapping[str, Any], *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float
) -> AsyncIterator[bytes]:
    """One POST whose reply is passed on as its bytes arrive; HttpFailed where there is none to pass on."""
    import asyncio

    import httpx2

    try:
        async with (
            asyncio.timeout(timeout_s),
            httpx2.AsyncClient(
                timeout=None, headers=dict(headers), trust_env=False, verify=trusted_certificates(url)
            ) as http,
            http.stream("POST", url, json=body) as response,
        ):
            if response.status_code != 200:
                text = error_text(decode_reply((await response.aread())[:MAX_REPLY_BYTES], response.status_code))
                raise HttpError(f"HTTP {response.status_code}: {text}")
            async for chunk in response.aiter_bytes():
                yield chunk
    except TimeoutError:
        raise HttpError(f"no end within {timeout_s:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as problem:
        raise HttpError(failure_text(problem, url)) from None


def failure_text(problem: Exception, url: str) -> str:
    """Why no reply came, in one line; OpenSSL has no word for a port that is asked for TLS and has none."""
    import ssl

    seen: BaseException | None = problem
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return exception_text(problem)
    parts = urlsplit(url)
    if speaks_plain(str(parts.hostname), parts.port or 443, seen):
        return f"{parts.netloc} {PLAIN_HTTP}"
    return f"TLS: {exception_text(problem)}"


def speaks_plain(host: str, port: int, problem: OSError) -> bool:
    """After a handshake that failed: the server answers an HTTP request without TLS.

    One whose certificate is not trusted has TLS, though some of those answer a plain request too, to refuse it.
    """
    if "CERT" in str(problem).upper():
        return False
    try:
        with socket.create_connection((host, port), timeout=PLAIN_REPLY_S) as sock:
            sock.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            return sock.recv(5) == b"HTTP/"
    except OSError:
        return False


class HttpError(ExternalError):
    """No reply, or one that says no."""


def _text(response: "httpx2.Response") -> str:
    raw = bytearray()
    for chunk in response.iter_bytes():
        raw += chunk
        if len(raw) >= MAX_REPLY_BYTES:
            break
    return decode_reply(raw[:MAX_REPLY_BYTES], response.status_code)


def error_text(text: str) -> str:
    """The message inside an error document, or the text's beginning."""
    try:
        document = json.loads(text)
        inner = document.get("error", document)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:300]
    except (ValueError, AttributeError, RecursionError):
        return " ".join(text.split())[:300]
