"""The ordinary HTTP client: no proxies, no redirects, limited replies and times.

Proxy variables are ignored because the servers are on this machine or named by the user. The load generator has its
own client (stream/).
"""

import contextlib
import functools
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from moebox.errors import ExternalError, exception_text
from moebox.redact import decode_reply

if TYPE_CHECKING:
    import ssl

PLAIN_HTTP, WRITE_HTTP = "answers in plain HTTP, not TLS", "write http:// instead of https://"
TRUST_HINT = "`SSL_CERT_FILE=FILE moebox …` trusts its certificate; `moebox bench --set endpoint.insecure=true` any"
PLAIN_REPLY_S = 2.0  # time for a server to begin a plain HTTP reply
MAX_REPLY_BYTES = 4 << 20
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A status and a text; without a reply the status is 0 and the text gives the reason."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def error(self) -> str:
        """The error message of a reply other than 200, or the reason why there is no reply."""
        text = error_text(self.text)
        return f"HTTP {self.status}: {text}" if self.status else text

    def json(self) -> Any:
        """Parse the text as JSON; None if it is not valid."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    def json_if_ok(self) -> Any:
        """Parse the text of a successful reply as JSON; None for any other reply."""
        return self.json() if self.ok else None


class HttpError(ExternalError):
    """No reply, or an error reply."""


def trusted_certificates(url: str) -> "ssl.SSLContext":
    """The certificate authorities for an https URL; an empty context for http, which needs none."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.lower().startswith("http://") else _authorities()


@functools.cache
def _authorities() -> "ssl.SSLContext":
    """The certificate authorities, loaded once: that takes longer than most requests."""
    import httpx2

    return httpx2.create_ssl_context()


def get(
    url: str, *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = 10.0, tls: "ssl.SSLContext | None" = None
) -> HttpReply:
    """Send one GET that ends after `timeout_s` at the latest; a refused connection is an HttpReply too."""
    with HttpSession(headers=headers, tls=tls or trusted_certificates(url)) as session:
        return session.get(url, timeout_s=timeout_s)


def post_json(
    url: str, body: Mapping[str, Any], *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = 10.0
) -> HttpReply:
    """Post one JSON document; ends after `timeout_s` at the latest. A refused connection is an HttpReply too."""
    with HttpSession(headers=headers, tls=trusted_certificates(url)) as session:
        return session.post_json(url, body, timeout_s=timeout_s)


class HttpSession(contextlib.AbstractContextManager["HttpSession"]):
    """Requests one after another over kept connections, each with its own limit of time.

    `tls` holds the certificates that it trusts.
    """

    def __init__(self, *, headers: Mapping[str, str] = NO_HEADERS, tls: "ssl.SSLContext | None" = None) -> None:
        import httpx2

        self._client = httpx2.Client(headers=dict(headers), trust_env=False, verify=tls or _authorities())
        self._sockets: list[socket.socket] = []

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def get(self, url: str, *, timeout_s: float) -> HttpReply:
        return self._send("GET", url, timeout_s)

    def post_json(self, url: str, body: Mapping[str, Any], *, timeout_s: float) -> HttpReply:
        return self._send("POST", url, timeout_s, body)

    def _send(self, method: str, url: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> HttpReply:
        import httpx2

        def keep_socket(name: str, info: Mapping[str, Any]) -> None:
            if name == "connection.connect_tcp.complete":
                self._sockets.append(info["return_value"].get_extra_info("socket"))

        options: dict[str, Any] = {"json": body, "timeout": timeout_s, "extensions": {"trace": keep_socket}}
        with self._deadline(timeout_s) as over:
            try:
                with self._client.stream(method, url, **options) as response:
                    raw = bytearray()
                    for chunk in response.iter_bytes():
                        raw += chunk
                        if len(raw) >= MAX_REPLY_BYTES:
                            break
                    text = decode_reply(raw[:MAX_REPLY_BYTES], response.status_code)
                    reply = HttpReply(status=response.status_code, text=text, headers=dict(response.headers))
            except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as problem:
                reply = HttpReply(status=0, text=failure_text(problem, url))
            # to the client our own end looks like the server's
            return HttpReply(status=0, text=f"no whole reply within {timeout_s:g} s") if over.is_set() else reply

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[threading.Event]:
        """Close the connections after `seconds`: the client's own timeouts start again with each byte that arrives."""
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
    """Post one JSON document and yield the reply's bytes as they arrive. Raise HttpError if there is no good reply."""
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
    """Explain in one line why no reply came. OpenSSL does not recognise a server without TLS, so it is tried here."""
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
    """After a failed handshake: True if the server answers a plain HTTP request.

    A server with an untrusted certificate has TLS, even if it also answers a plain request in order to refuse it.
    """
    if "CERT" in str(problem).upper():
        return False
    try:
        with socket.create_connection((host, port), timeout=PLAIN_REPLY_S) as sock:
            sock.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            return sock.recv(5) == b"HTTP/"
    except OSError:
        return False


def error_text(text: str) -> str:
    """Return the message inside an error document, or the beginning of the text."""
    try:
        document = json.loads(text)
        inner = document.get("error", document)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:300]
    except (ValueError, AttributeError, RecursionError):
        return " ".join(text.split())[:300]
