"""The local page: its routes, and the planning page."""

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
from moebox.web import calibrations, chat, engines, models, planning, recipes, runs, tasks, trials
from moebox.web.gate import AccessGate, WebSite
from moebox.web.mounts import DISKS
from moebox.web.pages import error_blocks, render_page, render_part, serve_script, show_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp

BOXES: tuple[str, ...] = ("8x-rtx-pro-6000-server", "8x-b200", "8x-h200", "2x-rtx-pro-6000-max-q")
BOXES += ("4x-rtx-pro-6000-workstation", "1x-rtx-5090")


def make_app(site: WebSite) -> "ASGIApp":
    """Build the whole site."""

    def get_route(path: str, handler: Any, method: str = "GET") -> Route:
        return Route(path, functools.partial(handler, site=site), methods=[method])

    post_route = functools.partial(get_route, method="POST")

    routes = [
        get_route("/", plan_page),
        get_route("/plan", plan_part),
        Route("/plan.json", plan_json),
        get_route("/models", models.list_models),
        get_route("/models/fit", models.model_fit),
        get_route("/runs", runs.list_runs),
        post_route("/runs", runs.start_run),
        get_route("/compare", runs.compare_runs),
        get_route("/runs/{name}", runs.show_report),
        get_route("/runs/{name}/live", runs.follow_run),
        get_route("/runs/{name}/events", runs.stream_events),
        post_route("/runs/{name}/stop", runs.stop_run),
        get_route("/engines", engines.list_engines),
        post_route("/engines/{name}/stop", engines.stop_engine),
        get_route("/engines/{name}/watch", engines.show_watch),
        get_route("/engines/{name}/watch/events", engines.stream_figures),
        get_route("/tasks", tasks.list_task_runs),
        post_route("/tasks", tasks.start_tasks),
        *(
            route(f"/{command}", functools.partial(handler, command=command))
            for command in ("tune", "upgrade")
            for route, handler in ((get_route, trials.show_trials), (post_route, trials.start_trial))
        ),
        post_route("/upgrade/rollback", trials.roll_back),
        get_route("/calibrations", calibrations.list_calibrations),
        get_route("/calibrations/{name}", calibrations.show_calibration),
        post_route("/calibrations/{name}/remove", calibrations.remove_calibration),
        get_route("/chat", chat.show_chat),
        post_route("/chat", chat.send_message),
        get_route("/recipes", recipes.list_recipes),
        get_route("/recipes/{name}", recipes.edit_recipe),
        post_route("/recipes/check", recipes.check_recipe),
        post_route("/recipes/start", recipes.start_recipe),
        post_route("/recipes", recipes.save_recipe),
        Route("/page.js", serve_script("script.js", "moebox.report")),
        Route("/ui.js", serve_script("ui.js", "moebox.web")),
    ]
    handlers: dict[Any, Any] = {MoeboxError: show_error, HTTPException: unknown_page}
    return AccessGate(Starlette(routes=routes, exception_handlers=handlers), site)


async def unknown_page(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    blocks = [Prose(paragraphs=("There is no such page. The pages are above.",))]
    return render_page("message.html", status=problem.status_code, title="moebox", here="", blocks=blocks)


def plan_from_address(request: Request) -> planning.PlanReply:
    """The plan for the query of an address; with `layout`, only that layout is rated again."""
    planning.drop_stale_plans()
    query = planning.parse_query(request.query_params)
    for path in (query.model, query.box):
        DISKS.require_answer(path)
    layout = planning.previous_query(query, request.query_params.get("layout", ""))
    return planning.plan_same_layout(query, layout) if layout else planning.plan_fully(query)


async def plan_page(request: Request, *, site: WebSite) -> Response:
    """The controls, with the plan if it is cached; otherwise the page requests it after it has loaded."""
    planning.drop_stale_plans()
    query = planning.parse_query(request.query_params)
    known = await run_in_threadpool(models.list_rows)
    ready = planning.is_cached(query) or "wait" in request.query_params
    body = await run_in_threadpool(plan_fragment, request) if ready else Markup("")
    return render_page(
        "plan.html",
        title="Plan",
        here="plan",
        query=query,
        models=[(row.name, row.title) for row in known],
        boxes=sorted({*BOXES, *(f"8x-{name}" for name in catalogue.gpus())}),
        engines=registry.engine_names(),
        contexts=planning.CONTEXTS,
        concurrencies=planning.CONCURRENCIES,
        body=body,
        example=planning.EXAMPLE_BOX if planning.default_box() else None,
    )


def plan_fragment(request: Request) -> Markup:
    """The plan as HTML, or why there is none."""
    try:
        blocks = planning.plan_blocks(plan_from_address(request))
    except MoeboxError as problem:
        blocks = error_blocks(problem)
    return render_part("part.html", blocks=blocks)


async def plan_part(request: Request, *, site: WebSite) -> Response:
    """Only the plan, for when a control has moved."""
    return HTMLResponse(await run_in_threadpool(plan_fragment, request), headers={"Cache-Control": "no-store"})


async def plan_json(request: Request) -> Response:
    answer = await run_in_threadpool(plan_from_address, request)
    return Response(codec.to_json(answer.plan), media_type="application/json")
