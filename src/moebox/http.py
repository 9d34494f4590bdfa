"""The one ordinary HTTP client: no proxies, no redirects, bounded replies. The load generator has its own (stream/).

A server of ours is on this machine or named by the person; a proxy variable of the shell must not come between.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

LARGEST = 4 << 20  # bytes of a reply that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A status and a text; status 0 when no reply came, and the text says why."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        """The server answered 200."""
        return self.status == 200

    def json(self) -> Any:
        """The text as JSON; None where it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


def client(*, timeout_s: float, headers: Mapping[str, str] | None = None) -> "httpx2.Client":
    """A client for several requests."""
    import httpx2

    return httpx2.Client(timeout=timeout_s, headers=dict(headers or {}), trust_env=False)


def get(url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> Reply:
    """One GET; a refused connection is a Reply too."""
    return _send("GET", url, headers=headers, timeout_s=timeout_s)


def post_json(
    url: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0
) -> Reply:
    """One POST of a JSON document; a refused connection is a Reply too."""
    return _send("POST", url, headers=headers, timeout_s=timeout_s, body=body)


def _send(
    method: str, url: str, *, headers: Mapping[str, str] | None, timeout_s: float, body: Mapping[str, Any] | None = None
) -> Reply:
    import httpx2

    try:
        with client(timeout_s=timeout_s, headers=headers) as http, http.stream(method, url, json=body) as response:
            return Reply(status=response.status_code, text=_text(response))
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as problem:
        return Reply(status=0, text=str(problem) or type(problem).__name__)


def _text(response: "httpx2.Response") -> str:
    raw = bytearray()
    for chunk in response.iter_bytes():
        raw += chunk
        if len(raw) >= LARGEST:
            break
    return raw[:LARGEST].decode("utf-8", "replace")


def error_text(text: str) -> str:
    """The message inside an error document, or the text's beginning."""
    try:
        document = json.loads(text)
        inner = document.get("error", document)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:300]
    except (ValueError, AttributeError):
        return " ".join(text.split())[:300]
