"""Access control of the page.

Every request needs the token: first in the address that `moebox ui` prints, then in a cookie. Other users of the
machine have neither. On a Unix socket the kernel checks the mode of its file instead.

On loopback and on a socket the Host header must name this machine, so that another site cannot read this page by
pointing its own name here. A change (POST) needs this site as its Origin: pages of other sites, and of other
ports of this machine, have another.
"""

import hashlib
import hmac
import html
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from moebox.web.live import RunFeed

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")
SAFE_METHODS = ("GET", "HEAD")
TOKEN_BYTES = 24  # 192 bits
REDIRECT_PAGE = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}">'


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSite:
    """The runs that the pages show, and the token that gives access."""

    runs: Path | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES), repr=False)  # "" on a socket only
    any_host: bool = False  # reached from other machines, under names that are not known here
    feeds: dict[str, "RunFeed"] = field(default_factory=dict)  # of runs that pages follow
    stopping: threading.Event = field(default_factory=threading.Event)  # set when the server stops

    @property
    def cookie_name(self) -> str:
        """The cookie's name, different for each server: browsers send cookies of one port of a host to all of them."""
        return f"moebox-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"


class AccessGate:
    """Middleware that refuses requests without access."""

    def __init__(self, app: "ASGIApp", site: WebSite) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        refusal = self.refuse_request(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def refuse_request(self, request: Request) -> Response | None:
        """The reply to a request without access, or None if it may pass."""
        host = request.headers.get("host", "")
        if not self.site.any_host and (host.rpartition(":")[0] or host) not in LOOPBACK_NAMES:
            return PlainTextResponse("use the name localhost", 421)
        if (
            request.method in SAFE_METHODS
            and self.site.token
            and equal_secrets(request.query_params.get("token", ""), self.site.token)
        ):
            return self.accept_token(request)
        if self.site.token and not equal_secrets(request.cookies.get(self.site.cookie_name, ""), self.site.token):
            return PlainTextResponse("open the address with its token, as `moebox ui` printed it", 403)
        if request.method not in SAFE_METHODS and urlsplit(request.headers.get("origin", "")).netloc != host:
            return PlainTextResponse("changes are taken from this page alone (Origin)", 403)
        return None

    def accept_token(self, request: Request) -> Response:
        """Set the cookie and redirect to the address without the token.

        After a link from another site or a file, a browser sends a strict cookie only with requests of the page itself,
        so a page redirects there instead of the HTTP status.
        """
        url = str(request.url.remove_query_params("token"))
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        reply: Response = RedirectResponse(url, 303, headers=headers)
        if request.headers.get("sec-fetch-site") == "cross-site":
            reply = HTMLResponse(REDIRECT_PAGE.format(url=html.escape(url)), headers=headers)
        reply.set_cookie(self.site.cookie_name, self.site.token, httponly=True, samesite="strict")
        return reply


def equal_secrets(given: str, wanted: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(), wanted.encode())
