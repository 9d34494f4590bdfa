"""Who may use the page.

On the loopback address only names of this machine are answered to, so that a page from elsewhere cannot read it by
pointing its own name here. Bound elsewhere, every request needs the token, given once in the address and kept in a
cookie. What changes something (POST) also needs the page's own token in its form and this site as its Origin: another
page in the same browser has neither.
"""

import hmac
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "moebox-token"
HERE = ("localhost", "127.0.0.1", "[::1]", "::1")
HEADER = "x-moebox-page"  # of scripts
SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the pages show and to whom."""

    runs: Path | None = None
    token: str = ""  # "" on the loopback address: none needed
    page_token: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    over: threading.Event = field(default_factory=threading.Event)  # set when the server stops


class Gate:
    """Answers only whom it may."""

    def __init__(self, app: "ASGIApp", site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self.refusal(request)
        await (refusal or self.app)(scope, receive, send)

    def refusal(self, request: Request) -> Response | None:
        """Why not, or None."""
        if not self.site.token:
            if _host(request) not in HERE:
                return PlainTextResponse("ask for localhost", 421)
            return self._foreign(request)
        given = request.query_params.get("token")
        if given is not None and same(given, self.site.token) and request.method in SAFE:
            answer = RedirectResponse(str(request.url.remove_query_params("token")), 303)
            answer.set_cookie(COOKIE, self.site.token, httponly=True, samesite="strict")
            return answer
        if not same(request.cookies.get(COOKIE, ""), self.site.token):
            return PlainTextResponse("open the address with its token, as `moebox ui` printed it", 403)
        return self._foreign(request)

    def _foreign(self, request: Request) -> Response | None:
        """A change that another page asks for."""
        if request.method in SAFE:
            return None
        origin = urlsplit(request.headers.get("origin", ""))
        if origin.netloc != request.headers.get("host", ""):
            return PlainTextResponse("changes are taken from this page alone (Origin)", 403)
        if not same(request.headers.get(HEADER, ""), self.site.page_token):
            return PlainTextResponse("changes need the token of this page: reload it", 403)
        return None


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return host.rpartition(":")[0] or host


def same(given: str, wanted: str) -> bool:
    """Compared in a time that says nothing about where they differ."""
    return hmac.compare_digest(given.encode(), wanted.encode())
