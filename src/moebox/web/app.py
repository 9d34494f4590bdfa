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
from moebox.web import calibrations, engines, planning, recipes, runs, trials
from moebox.web.gate import AccessGate, WebSite
from moebox.web.mounts import DISKS
from moebox.web.pages import NO_STORE, error_blocks, read_form, render_page, render_part, serve_script, show_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp

BOXES: tuple[str, ...] = ("8x-rtx-pro-6000-server", "8x-b200", "8x-h200", "2x-rtx-pro-6000-max-q")
BOXES += ("4x-rtx-pro-6000-workstation", "1x-rtx-5090")


def make_app(site: WebSite) -> "ASGIApp":
    """Build the whole site."""

    def route(path: str, handler: Any, method: str = "GET") -> Route:
        return Route(path, functools.partial(handler, site=site), methods=[method])

    def form_route(path: str, handler: Any) -> Route:
        async def take_form(request: Request) -> Response:
            return await run_in_threadpool(handler, await read_form(request), site=site)

        return Route(path, take_form, methods=["POST"])

    routes = [
        route("/", plan_page),
        route("/plan", plan_part),
        route("/plan.json", plan_json),
        route("/models", planning.list_models),
        route("/models/fit", planning.model_fit),
        route("/runs", runs.list_runs),
        form_route("/runs", runs.start_run),
        route("/compare", runs.compare_runs),
        route("/runs/{name}", runs.show_report),
        route("/runs/{name}/live", runs.follow_run),
        route("/runs/{name}/events", runs.stream_events),
        route("/runs/{name}/stop", runs.stop_run, "POST"),
        route("/engines", engines.list_engines),
        route("/engines/{name}/stop", engines.stop_engine, "POST"),
        route("/engines/{name}/watch", engines.show_watch),
        route("/engines/{name}/watch/events", engines.stream_figures),
        route("/tasks", trials.list_task_runs),
        form_route("/tasks", trials.start_tasks),
        *(route(f"/{name}", functools.partial(trials.show_trials, command=name)) for name in trials.FIELDS),
        *(form_route(f"/{name}", functools.partial(trials.start_trial, name)) for name in trials.FIELDS),
        form_route("/upgrade/rollback", trials.roll_back),
        route("/calibrations", calibrations.list_calibrations),
        route("/calibrations/{name}", calibrations.show_calibration),
        route("/calibrations/{name}/remove", calibrations.remove_calibration, "POST"),
        route("/chat", engines.show_chat),
        form_route("/chat", engines.send_message),
        route("/recipes", recipes.list_recipes),
        route("/recipes/{name}", recipes.edit_recipe),
        form_route("/recipes/check", recipes.check_recipe),
        form_route("/recipes/start", recipes.start_recipe),
        form_route("/recipes", recipes.save_recipe),
        serve_script("/page.js", "moebox.report", "script.js"),
        serve_script("/ui.js", "moebox.web", "ui.js"),
    ]
    handlers: dict[Any, Any] = {MoeboxError: show_error, HTTPException: unknown_page}
    return AccessGate(Starlette(routes=routes, exception_handlers=handlers), site)


async def unknown_page(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    blocks = [Prose(paragraphs=("There is no such page. The pages are above.",))]
    return render_page("message.html", problem.status_code, title="moebox", here="", blocks=blocks)


def plan_from_address(request: Request) -> planning.PlanReply:
    """The plan for the query of an address; with `layout`, only that layout is rated again."""
    planning.drop_stale_plans()
    query = planning.parse_query(request.query_params)
    for path in (query.model, query.box):
        DISKS.require_answer(path)
    layout = planning.previous_query(query, request.query_params.get("layout", ""))
    return planning.plan_same_layout(query, layout) if layout else planning.plan_fully(query)


def plan_page(request: Request, *, site: WebSite) -> Response:
    """The controls, with the plan if it is cached; otherwise the page requests it after it has loaded."""
    planning.drop_stale_plans()
    query = planning.parse_query(request.query_params)
    ready = query in planning.cached_plans or "wait" in request.query_params
    return render_page(
        "plan.html",
        title="Plan",
        here="plan",
        query=query,
        models=[(name, title) for name, title, *_ in planning.list_rows()],
        boxes=sorted({*BOXES, *(f"8x-{name}" for name in catalogue.gpus())}),
        engines=registry.engine_names(),
        contexts=planning.CONTEXTS,
        concurrencies=planning.CONCURRENCIES,
        body=plan_fragment(request) if ready else "",
        example=planning.EXAMPLE_BOX if planning.default_box() else None,
    )


def plan_fragment(request: Request) -> Markup:
    """The plan as HTML, or why there is none."""
    try:
        blocks = planning.plan_blocks(plan_from_address(request))
    except MoeboxError as problem:
        blocks = error_blocks(problem)
    return render_part("part.html", blocks=blocks)


def plan_part(request: Request, *, site: WebSite) -> Response:
    """Only the plan, for when a control has moved."""
    return HTMLResponse(plan_fragment(request), headers=NO_STORE)


def plan_json(request: Request, *, site: WebSite) -> Response:
    return Response(codec.to_json(plan_from_address(request).plan), media_type="application/json")
