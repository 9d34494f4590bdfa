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
from moebox.web.gate import AccessGate, WebSite
from moebox.web.mounts import DISKS
from moebox.web.pages import error_blocks, error_handler, render_page, render_part, serve_script

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


def make_app(site: WebSite) -> "ASGIApp":
    """The whole site."""

    def get(path: str, handler: Any) -> Route:
        return Route(path, functools.partial(handler, site=site))

    def post(path: str, handler: Any) -> Route:
        return Route(path, functools.partial(handler, site=site), methods=["POST"])

    routes = [
        get("/", plan_page),
        get("/plan", plan_part),
        Route("/plan.json", plan_json),
        get("/runs", runs.list_runs),
        post("/runs", runs.start_run),
        get("/compare", runs.compare_runs),
        get("/runs/{name}", runs.show_report),
        get("/runs/{name}/live", runs.follow_run),
        get("/runs/{name}/events", runs.stream_events),
        post("/runs/{name}/stop", runs.stop_run),
        get("/engines", engines.list_engines),
        get("/engines/{name}/metrics", engines.engine_metrics),
        post("/engines/{name}/stop", engines.stop_engine),
        get("/engines/{name}/watch", watching.show_watch),
        get("/engines/{name}/watch/events", watching.stream_figures),
        get("/tasks", tasks.list_task_runs),
        get("/calibrations", calibrations.list_calibrations),
        get("/calibrations/{name}", calibrations.show_calibration),
        post("/calibrations/{name}/remove", calibrations.remove_calibration),
        get("/chat", chat.show_chat),
        post("/chat", chat.send_message),
        get("/recipes", recipes.list_recipes),
        get("/recipes/{name}", recipes.edit_recipe),
        post("/recipes/check", recipes.check_recipe),
        post("/recipes", recipes.save_recipe),
        Route("/page.js", serve_script("script.js", "moebox.report")),
        Route("/ui.js", serve_script("ui.js", "moebox.web")),
    ]
    handlers: dict[Any, Any] = {
        MoeboxError: error_handler(site),
        HTTPException: functools.partial(unknown_page, site=site),
    }
    return AccessGate(Starlette(routes=routes, exception_handlers=handlers), site)


async def unknown_page(request: Request, problem: Exception, *, site: WebSite) -> Response:
    """An address that nothing has."""
    assert isinstance(problem, HTTPException)
    blocks = [Prose(paragraphs=("There is no such page. The pages are above.",))]
    return render_page(site, "message.html", status=problem.status_code, title="moebox", here="", blocks=blocks)


def plan_from_address(request: Request) -> planning.PlanReply:
    """The plan that the address asks for; with `layout`, only that one is weighed again."""
    planning.drop_stale_plans()
    asked = planning.parse_query(request.query_params)
    for path in (asked.model, asked.box):
        DISKS.require_answer(path)
    layout = planning.previous_query(asked, request.query_params.get("layout", ""))
    return planning.plan_same_layout(asked, layout) if layout else planning.plan_fully(asked)


async def plan_page(request: Request, *, site: WebSite) -> Response:
    """The controls, and the plan in the page where it is known already; else the page asks for it once it is there."""
    planning.drop_stale_plans()
    asked = planning.parse_query(request.query_params)
    models = [(model.name, model.title) for model in catalogue.models().values()]
    ready = planning.is_cached(asked) or "wait" in request.query_params
    body = await run_in_threadpool(plan_fragment, request) if ready else Markup("")
    return render_page(
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


def plan_fragment(request: Request) -> Markup:
    """The answer's blocks as HTML."""
    try:
        blocks = planning.plan_blocks(plan_from_address(request))
    except MoeboxError as problem:
        blocks = error_blocks(problem)
    return render_part("part.html", blocks=blocks)


async def plan_part(request: Request, *, site: WebSite) -> Response:
    """Only the answer, for when a control moved."""
    return HTMLResponse(await run_in_threadpool(plan_fragment, request), headers={"Cache-Control": "no-store"})


async def plan_json(request: Request) -> Response:
    """The same for scripts."""
    answer = await run_in_threadpool(plan_from_address, request)
    return Response(codec.to_json(answer.plan), media_type="application/json")
