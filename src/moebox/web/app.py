"""The pages and who may see them.

Nobody but this machine reaches it unless it is bound elsewhere; then every request needs the token, given once in the
address and kept in a cookie. On the loopback address only names of this machine are answered to, so that a page from
elsewhere cannot read it by pointing its own name here.
"""

import functools
import hmac
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from moebox import __version__, codec
from moebox.core import catalogue, registry
from moebox.errors import BadInput, MoeboxError
from moebox.report import palette
from moebox.report.files import report
from moebox.report.page import asset, html, ticked
from moebox.store import Run, briefs
from moebox.web import live, planning

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "moebox-token"
HERE = ("localhost", "127.0.0.1", "[::1]", "::1")
BOXES = (
    "8x-rtx-pro-6000-server",
    "8x-b200",
    "8x-h200",
    "2x-rtx-pro-6000-max-q",
    "4x-rtx-pro-6000-workstation",
    "1x-rtx-5090",
)
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'self'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the pages show and to whom."""

    runs: Path | None = None
    token: str = ""  # "" on the loopback address: none needed
    over: threading.Event = field(default_factory=threading.Event)  # set when the server stops


def application(site: Site) -> "ASGIApp":
    """The whole site."""
    routes = [
        Route("/", functools.partial(plan_page, site=site)),
        Route("/plan", functools.partial(plan_part, site=site)),
        Route("/plan.json", plan_json),
        Route("/runs", functools.partial(runs_page, site=site)),
        Route("/runs/{name}", functools.partial(run_page, site=site)),
        Route("/runs/{name}/live", functools.partial(live_page, site=site)),
        Route("/runs/{name}/events", functools.partial(live_stream, site=site)),
        Route("/page.js", script("script.js", "moebox.report")),
        Route("/ui.js", script("ui.js", "moebox.web")),
    ]
    return Doorkeeper(Starlette(routes=routes, exception_handlers={MoeboxError: told}), site)


class Doorkeeper:
    """Lets in who is from here, or has the token."""

    def __init__(self, app: "ASGIApp", site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer, or turn away."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        answer = self.turned_away(request)
        if answer is None:
            await self.app(scope, receive, send)
        else:
            await answer(scope, receive, send)

    def turned_away(self, request: Request) -> Response | None:
        """Why not, or None."""
        if not self.site.token:
            name = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
            return None if name in HERE else PlainTextResponse("ask for localhost", 421)
        given = request.query_params.get("token")
        if given is not None and same(given, self.site.token):
            answer = RedirectResponse(str(request.url.remove_query_params("token")), 303)
            answer.set_cookie(COOKIE, self.site.token, httponly=True, samesite="strict")
            return answer
        if same(request.cookies.get(COOKIE, ""), self.site.token):
            return None
        return PlainTextResponse("open the address with its token, as `moebox ui` printed it", 403)


def same(a: str, b: str) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(a.encode(), b.encode())


@functools.cache
def templates() -> Environment:
    """Ours and the report's."""
    loaders = ChoiceLoader([PackageLoader("moebox.web"), PackageLoader("moebox.report")])
    made = Environment(loader=loaders, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["ticked"] = ticked
    return made


def page(template: str, **context: Any) -> HTMLResponse:
    """A template with what all pages need."""
    text = (
        templates()
        .get_template(template)
        .render(
            version=__version__,
            light=Markup(palette.variables(palette.LIGHT)),  # noqa: S704  (ours)
            dark=Markup(palette.variables(palette.DARK)),  # noqa: S704
            style=asset("style.css"),
            **context,
        )
    )
    return HTMLResponse(
        text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    )


async def told(request: Request, problem: Exception) -> Response:
    """A failure a person can mend, as a page."""
    assert isinstance(problem, MoeboxError)
    blocks = planning.refusal(problem)
    status = 400 if isinstance(problem, BadInput) else 500
    answer = page("message.html", title="moebox", here="", blocks=blocks)
    answer.status_code = status
    return answer


def script(name: str, package: str) -> Any:
    """One of our scripts."""
    from importlib import resources

    text = resources.files(package).joinpath("templates", name).read_text(encoding="utf-8")

    async def send(request: Request) -> Response:
        return Response(text, media_type="text/javascript")

    return send


def answer_of(request: Request) -> planning.Answer:
    """The plan that the address asks for; with `layout`, only that one is weighed again."""
    one = planning.asked(request.query_params)
    layout = planning.before(one, request.query_params.get("layout", ""))
    return planning.quick(one, layout) if layout else planning.full(one)


async def plan_page(request: Request, *, site: Site) -> Response:
    """The controls, and the plan in the page where it is known already; else the page asks for it once it is there."""
    one = planning.asked(request.query_params)
    models = [(model.name, model.title) for model in catalogue.models().values()]
    ready = planning.known(one) or "wait" in request.query_params
    body = await run_in_threadpool(fragment, request) if ready else Markup("")
    return page(
        "plan.html",
        title="Plan",
        here="plan",
        asked=one,
        models=models,
        boxes=sorted({*BOXES, *(f"8x-{name}" for name in catalogue.gpus())}),
        engines=registry.names(),
        contexts=planning.CONTEXTS,
        concurrencies=planning.CONCURRENCIES,
        body=body,
    )


def fragment(request: Request) -> Markup:
    """The answer's blocks as HTML."""
    try:
        blocks = planning.blocks(answer_of(request))
    except MoeboxError as problem:
        blocks = planning.refusal(problem)
    return Markup(templates().get_template("part.html").render(blocks=blocks))  # noqa: S704  (rendered with escaping)


async def plan_part(request: Request, *, site: Site) -> Response:
    """Only the answer, for when a control moved."""
    return HTMLResponse(await run_in_threadpool(fragment, request), headers={"Cache-Control": "no-store"})


async def plan_json(request: Request) -> Response:
    """The same for scripts."""
    answer = await run_in_threadpool(answer_of, request)
    return Response(codec.to_json(answer.plan), media_type="application/json")


async def runs_page(request: Request, *, site: Site) -> Response:
    """What was run."""
    found = await run_in_threadpool(briefs, site.runs)
    return page("runs.html", title="Runs", here="runs", runs=found)


def run_of(request: Request, site: Site) -> Run:
    """The run in the address; only folders of the list, never a path."""
    name = request.path_params["name"]
    found = next((one for one in briefs(site.runs) if one.id == name), None)
    if found is None:
        raise BadInput(f"no run called {name!r}")
    return Run(found.path)


async def run_page(request: Request, *, site: Site) -> Response:
    """A run's report, made now."""
    run = await run_in_threadpool(run_of, request, site)
    text = await run_in_threadpool(lambda: html(report([run])))
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})


async def live_page(request: Request, *, site: Site) -> Response:
    """A run as it happens."""
    run = await run_in_threadpool(run_of, request, site)
    body = await run_in_threadpool(live_fragment, run)
    return page("live.html", title=run.id, here="runs", name=run.id, body=body)


def live_fragment(run: Run) -> Markup:
    """What there is right now."""
    template = templates().get_template("live_part.html")
    sections, simulation = live.chapters(run)
    text = template.render(sections=sections, simulation=simulation, lines=live.lines(run), live=run.held)
    return Markup(text)  # noqa: S704  (rendered with escaping)


async def live_stream(request: Request, *, site: Site) -> Response:
    """The same again whenever the run folder changes, as server-sent events."""
    run = await run_in_threadpool(run_of, request, site)

    async def events() -> AsyncIterator[str]:
        async for fresh in live.changes(run, site.over):
            if fresh:
                yield f"data: {json.dumps(await run_in_threadpool(live_fragment, run))}\n\n"
            else:
                yield ": still here\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
