"""The local page: its addresses, and the planning page itself."""

import functools
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from moebox import codec
from moebox.core import catalogue, registry
from moebox.errors import MoeboxError
from moebox.report.block import Prose
from moebox.web import calibrations, chat, engines, planning, recipes, runs, tasks, watching
from moebox.web.gate import Gate, Site
from moebox.web.mounts import MOUNTS
from moebox.web.pages import failed, page, refusal, rendered, script

if TYPE_CHECKING:
    from starlette.types import ASGIApp

BOXES = (
    "8x-rtx-pro-6000-server",
    "8x-b200",
    "8x-h200",
    "2x-rtx-pro-6000-max-q",
    "4x-rtx-pro-6000-workstation",
    "1x-rtx-5090",
)


def application(site: Site) -> "ASGIApp":
    """The whole site."""

    def get(path: str, handler: Any) -> Route:
        return Route(path, functools.partial(handler, site=site))

    def post(path: str, handler: Any) -> Route:
        return Route(path, functools.partial(handler, site=site), methods=["POST"])

    routes = [
        get("/", plan_page),
        get("/plan", plan_part),
        Route("/plan.json", plan_json),
        get("/runs", runs.listing),
        post("/runs", runs.start),
        get("/compare", runs.compared),
        get("/runs/{name}", runs.one),
        get("/runs/{name}/live", runs.followed),
        get("/runs/{name}/events", runs.events),
        post("/runs/{name}/stop", runs.stop),
        get("/engines", engines.listing),
        get("/engines/{name}/metrics", engines.metrics),
        post("/engines/{name}/stop", engines.stop),
        get("/engines/{name}/watch", watching.shown),
        get("/engines/{name}/watch/events", watching.events),
        get("/tasks", tasks.listing),
        get("/calibrations", calibrations.listing),
        get("/calibrations/{name}", calibrations.shown),
        post("/calibrations/{name}/remove", calibrations.remove),
        get("/chat", chat.shown),
        post("/chat", chat.send),
        get("/recipes", recipes.listing),
        get("/recipes/{name}", recipes.edited),
        post("/recipes/check", recipes.check),
        post("/recipes", recipes.save),
        Route("/page.js", script("script.js", "moebox.report")),
        Route("/ui.js", script("ui.js", "moebox.web")),
    ]
    handlers: dict[Any, Any] = {MoeboxError: failed(site), HTTPException: functools.partial(no_page, site=site)}
    return Gate(Starlette(routes=routes, exception_handlers=handlers), site)


async def no_page(request: Request, problem: Exception, *, site: Site) -> Response:
    """An address that nothing has."""
    assert isinstance(problem, HTTPException)
    blocks = [Prose(paragraphs=("There is no such page. The pages are above.",))]
    return page(site, "message.html", status=problem.status_code, title="moebox", here="", blocks=blocks)


def answer_of(request: Request) -> planning.Answer:
    """The plan that the address asks for; with `layout`, only that one is weighed again."""
    planning.refresh()
    asked = planning.asked(request.query_params)
    for path in (asked.model, asked.box):
        MOUNTS.insist(path)
    layout = planning.before(asked, request.query_params.get("layout", ""))
    return planning.quick(asked, layout) if layout else planning.full(asked)


async def plan_page(request: Request, *, site: Site) -> Response:
    """The controls, and the plan in the page where it is known already; else the page asks for it once it is there."""
    planning.refresh()
    asked = planning.asked(request.query_params)
    models = [(model.name, model.title) for model in catalogue.models().values()]
    ready = planning.known(asked) or "wait" in request.query_params
    body = await run_in_threadpool(fragment, request) if ready else Markup("")
    return page(
        site,
        "plan.html",
        title="Plan",
        here="plan",
        asked=asked,
        models=models,
        boxes=sorted({*BOXES, *(f"8x-{name}" for name in catalogue.gpus())}),
        engines=registry.engine_names(),
        contexts=planning.CONTEXTS,
        concurrencies=planning.CONCURRENCIES,
        body=body,
    )


def fragment(request: Request) -> Markup:
    """The answer's blocks as HTML."""
    try:
        blocks = planning.blocks(answer_of(request))
    except MoeboxError as problem:
        blocks = refusal(problem)
    return rendered("part.html", blocks=blocks)


async def plan_part(request: Request, *, site: Site) -> Response:
    """Only the answer, for when a control moved."""
    return HTMLResponse(await run_in_threadpool(fragment, request), headers={"Cache-Control": "no-store"})


async def plan_json(request: Request) -> Response:
    """The same for scripts."""
    answer = await run_in_threadpool(answer_of, request)
    return Response(codec.to_json(answer.plan), media_type="application/json")
