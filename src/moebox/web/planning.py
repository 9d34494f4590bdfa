"""The plan page, from the query of an address to a plan to the blocks that are shown; and the models that fit.

While a slider moves, only the last layout is rated for the new context and concurrency (a few milliseconds); when it
rests, every layout is searched.
"""

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from moebox import api, codec, detect, units
from moebox.assess.assessment import Assessment, AssessmentCell, Tone
from moebox.assess.devices import planned_parts
from moebox.assess.format import format_number
from moebox.checkpoint import planned_checkpoint, remote
from moebox.core import catalogue, registry
from moebox.core.deployment import Deployment
from moebox.core.plan import Goal, Plan
from moebox.core.recipe import EngineName
from moebox.core.setting import flag_words
from moebox.errors import MoeboxError, refuse_if, require_known
from moebox.flows import recipes
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from moebox.report.block import Block, CustomBlock, ReportChart, bullet_list, chart_blocks
from moebox.report.charts import ChartAxis, ChartSeries, group_equal_devices, line_chart
from moebox.report.sections.memory import join_texts, memory_chart
from moebox.report.svg import run_colour
from moebox.store import calibrations
from moebox.units import plural
from moebox.web.gate import WebSite
from moebox.web.mounts import DISKS
from moebox.web.pages import NO_STORE, error_blocks, render_page, render_part
from moebox.web.recipes import recipe_form

CONTEXTS = (0, *(2**power for power in range(11, 21)))  # the slider's stops: planner's choice, 2,048 … 1,048,576
CONCURRENCIES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MAX_RUNNERS_UP = 5
BOXES: tuple[str, ...] = ("8x-rtx-pro-6000-server", "8x-b200", "8x-h200", "2x-rtx-pro-6000-max-q")
BOXES += ("4x-rtx-pro-6000-workstation", "1x-rtx-5090")
EXAMPLE_BOX = "8x-rtx-pro-6000-server"  # that the page opens with on a machine without a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuery:
    """One position of all controls; 0 leaves a number to the planner, as the command line does."""

    box: str = ""
    model: str = "kimi-k2.6"
    context: int = 0
    concurrency: int = 0
    goal: Goal = "throughput"
    engine: EngineName | None = None
    bold: bool = False
    ram: str = ""
    ram_bandwidth: str = ""


def parse_query(query: Mapping[str, str]) -> PlanQuery:
    """Parse the query of an address. Raise BadInput for an invalid value."""
    goal: Any = query.get("goal") or "throughput"
    engine: Any = query.get("engine") or None
    require_known("goal", goal, get_args(Goal))
    if engine is not None:
        require_known("engine", engine, registry.engine_names())
    box = query.get("box")
    return PlanQuery(
        box=default_box() if box is None else box.strip(),
        model=query.get("model", PlanQuery().model).strip(),
        context=parse_count(query, "context"),
        concurrency=parse_count(query, "concurrency"),
        goal=goal,
        engine=engine,
        bold=query.get("bold") in ("1", "on", "true"),
        ram=query.get("ram", "").strip(),
        ram_bandwidth=query.get("ram_bandwidth", "").strip(),
    )


@functools.cache
def default_box() -> str:
    """The box that the page opens with: this machine if it has a GPU, else an example."""
    return "" if detect.load_box().gpus else EXAMPLE_BOX


def parse_count(query: Mapping[str, str], name: str) -> int:
    """Parse a count; 0 and none at all leave it to the planner."""
    text = query.get(name) or "0"
    refuse_if(not text.isascii() or not text.isdigit() or len(text) > 9, f"{name} {text!r} is not a count")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReply:
    """A plan and the speed model behind it."""

    query: PlanQuery
    plan: Plan
    speed: Speed

    @property
    def context(self) -> int:
        return self.query.context or self.plan.recipe.context

    @property
    def held(self) -> int:
        """Requests of full length that the cache holds."""
        return self.plan.memory.held_sequences(self.context, self.plan.recipe.context)

    @property
    def streams(self) -> int:
        """Requests of full length that decode together: as many as requested and held, else as many as held."""
        return max(1, min(self.query.concurrency or self.plan.recipe.max_seqs or 1, self.held))


cached_plans: dict[PlanQuery, PlanReply] = {}
MAX_CACHED_PLANS = 256
_calibrated: tuple[tuple[str, int], ...] = ()


def drop_stale_plans() -> None:
    """Drop cached plans if calibrations have changed."""
    global _calibrated
    now = calibrations.store_stamp()
    if now != _calibrated:
        _calibrated = now
        cached_plans.clear()
        plan_same_layout.cache_clear()


def plan_fully(query: PlanQuery) -> PlanReply:
    """Search every layout; plans are cached, because users go back and forth."""
    if query not in cached_plans:
        if len(cached_plans) >= MAX_CACHED_PLANS:
            cached_plans.pop(next(iter(cached_plans)), None)
        cached_plans[query] = plan_within(query, Constraints(goal=query.goal, bold=query.bold, engine=query.engine))
    return cached_plans[query]


@functools.lru_cache(maxsize=512)
def plan_same_layout(query: PlanQuery, layout: PlanQuery) -> PlanReply:
    """Rate only the layout chosen for `layout`; search all layouts if it does not fit."""
    try:
        recipe = plan_fully(layout).plan.recipe
        constraints = Constraints(
            goal=query.goal,
            engine=recipe.engine,
            checkpoint=recipe.checkpoint,
            tp=recipe.parallel.tp,
            pp=recipe.parallel.pp,
            dcp=recipe.parallel.dcp,
            kv=None if recipe.kv == "auto" else recipe.kv,
            speculate=recipe.speculate.method if recipe.speculate else "none",
            image="community" if recipe.runtime.preset else "stock",
        )
        return plan_within(query, constraints)
    except MoeboxError:
        return plan_fully(query)


def plan_within(query: PlanQuery, constraints: Constraints) -> PlanReply:
    known = recipes.find_model(query.model)
    memory = {"ram": query.ram, "ram_bandwidth": query.ram_bandwidth}
    limits = replace(constraints, context=query.context or None, concurrency=query.concurrency or None)
    phantom = recipes.is_phantom(query.model)
    plan = api.plan(query.model if phantom else known, box=query.box or None, **memory, constraints=limits)
    checkpoint = planned_checkpoint(plan.recipe, known.checkpoints)
    box = recipes.calibrated_box(query.box or None, **memory)
    box = replace(box, gpus=(), links=()) if phantom else box
    deployment = Deployment(plan.recipe, known.model, checkpoint, box)
    return PlanReply(query=query, plan=plan, speed=Speed.for_deployment(deployment))


def plan_blocks(answer: PlanReply) -> list[Block]:
    plan = answer.plan
    text = codec.to_toml(plan.recipe)
    form = recipe_form(plan.recipe.name, text, simulate=bool(answer.query.box), opened=False)
    shown: list[Block] = [CustomBlock("assessment", plan_assessment(answer))]
    shown += [CustomBlock("form", form), *chart_blocks(memory_charts(plan)), *chart_blocks([forecast_chart(answer)])]
    shown += bullet_list("Warnings", [join_texts(each.text, " – ", each.remedy) for each in plan.warnings])
    shown += bullet_list("Why", plan.reasons)
    others = [f"{other.title}: {other.loses}" for other in plan.alternatives[:MAX_RUNNERS_UP]]
    return shown + bullet_list("Runners-up", others)


def plan_command(query: PlanQuery) -> str:
    """Return the command that makes the same plan; what is left to the planner is left out."""
    usual = codec.to_document(PlanQuery(model=query.model))
    flags = {name: value for name, value in codec.to_document(query).items() if value != usual[name]}
    return shlex.join(["moebox", "plan", query.model, *flag_words(flags), "-o", "recipe.toml"])


def plan_assessment(answer: PlanReply) -> Assessment:
    """The four cells of a plan: chosen, fits, forecast, next."""
    query, plan = answer.query, answer.plan
    recipe = plan.recipe
    spread = [f"{name.upper()}{size}" for name in ("tp", "pp", "dcp") if (size := getattr(recipe.parallel, name)) > 1]
    engine, checkpoint = registry.engine_display_name(recipe.engine), Path(recipe.checkpoint).name
    words = filter(None, (engine, checkpoint, " ".join(spread), f"{recipe.kv} cache"))
    fits = f"{plural(answer.held, 'request')} of {units.format_count(answer.context)} tokens at a time"
    fits += f" ({query.concurrency} requested)" if query.concurrency else ""
    cache = f"KV cache of {units.format_count(plan.memory.kv_tokens)} tokens"
    cache += " in the engine's log" if plan.memory.counts_steps else ""
    rate = answer.speed.decode_tok_s(answer.streams, answer.context)
    low, high = (format_number(rate * edge) for edge in answer.speed.step_range(answer.streams, answer.context))
    each = f", {format_number(rate / answer.streams)} tok/s each" if answer.streams > 1 else ""
    read = units.format_seconds(answer.speed.prefill_s(answer.context))
    load = f"{full_length(answer)}{each}, a full prompt is read in {read}"
    basis = f"steps {plan.measured}" if plan.measured else f"no calibration of this box: {plan.basis}"
    tone: Tone = "good" if answer.held >= max(query.concurrency, 1) else "warn"
    speed = f"{low} to {high}, {load}; {basis}"
    cells = (
        AssessmentCell(name="chosen", text=" · ".join(words)),
        AssessmentCell(name="fits", text=fits, tone=tone, detail=cache),
        AssessmentCell(name="forecast", text=f"{format_number(rate)} tok/s", detail=speed),
        AssessmentCell(name="next", text=plan_command(query), command=True, detail="or start it below"),
    )
    return Assessment(cells=cells)


def full_length(answer: PlanReply) -> str:
    """The load of the forecast: "2 requests of 65,536 tokens"."""
    return f"{plural(answer.streams, 'request')} of {units.format_count(answer.context)} tokens"


def memory_charts(plan: Plan) -> list[ReportChart]:
    """Memory of every GPU, and of the host if weights lie there."""
    devices = [*map(planned_parts, plan.memory.devices)]
    rows = [(name, "planned", device) for name, device in group_equal_devices(devices)]
    host = [row for row in rows if row[2].on_host]
    held = {part for _, _, device in host for part in device.parts} - {"free", "in use"}
    charts = [memory_chart("Memory per GPU", [row for row in rows if row not in host])]
    return charts + ([memory_chart("Host memory", host)] if held else [])


def forecast_chart(answer: PlanReply) -> ReportChart:
    """Decode rate over concurrency at a few contexts that fit the cache; with a range at the requested one."""
    max_streams = answer.plan.recipe.max_seqs or CONCURRENCIES[-1]
    series = []
    for place, context in enumerate(sorted({1024, 8192, 32768, answer.context})):
        held = answer.plan.memory.held_sequences(context, answer.plan.recipe.context)
        loads = [load for load in CONCURRENCIES[1:] if load <= min(max_streams, held)]
        points = tuple((float(load), answer.speed.decode_tok_s(load, context)) for load in loads)
        factors = [answer.speed.step_range(load, context) for load in loads]
        band = tuple((load, rate * low, rate * high) for (load, rate), (low, high) in zip(points, factors, strict=True))
        band = band if context == answer.context else ()
        name = f"{units.format_count(context)} tokens"
        series.append(ChartSeries(name=name, colour=run_colour(place), points=points, band=band))
    x = ChartAxis(title="concurrent streams", log=True, ticks=(*map(float, CONCURRENCIES[1:]),), format="{:,g}".format)
    label = "Forecast decode rate against streams, by context"
    y = ChartAxis(title="decode tok/s")
    return line_chart("Forecast by context behind each stream", series, x=x, y=y, label=label)


def list_rows() -> list[tuple[str, str, str, str, str]]:
    """Return catalogue, phantom and what was read from the Hub: name, title, parameters, size, words to search."""
    known = [(each.model.name, each.model.title, each.model, each.checkpoints) for each in recipes.known_models()]
    read = [(each.repo, f"read on {each.read_on}", each.model, each.checkpoints) for each in remote.kept_models()]
    rows = []
    for name, title, model, checkpoints in (*known, *read):
        sizes = sorted({each.total_bytes for each in checkpoints})
        ends = map(units.format_gb, (*sizes[:1], *sizes[-1:]))  # the smallest and the largest
        total, active = map(units.format_params, (model.total_parameters, model.active_parameters))
        words = " ".join((name, title, model.repo, *(f"{each.name} {each.repo}" for each in checkpoints)))
        rows.append((name, title, f"{total}, {active} active", " to ".join(dict.fromkeys(ends)), words.lower()))
    return rows


def plan_from_address(request: Request) -> PlanReply:
    """The plan for the query of an address; with `layout`, only that layout is rated again."""
    drop_stale_plans()
    query = parse_query(request.query_params)
    for path in (query.model, query.box):
        DISKS.require_answer(path)
    layout = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", request.query_params.get("layout", ""))  # "65536:8"
    if not layout:
        return plan_fully(query)
    return plan_same_layout(query, replace(query, context=int(layout[1]), concurrency=int(layout[2])))


def plan_page(request: Request, *, site: WebSite) -> Response:
    """The controls, with the plan if it is cached; otherwise the page requests it after it has loaded."""
    drop_stale_plans()
    query = parse_query(request.query_params)
    return render_page(
        "plan.html",
        title="Plan",
        here="plan",
        query=query,
        models=[(name, title) for name, title, *_ in list_rows()],
        boxes=sorted({*BOXES, *(f"8x-{name}" for name in catalogue.gpus())}),
        engines=registry.engine_names(),
        contexts=CONTEXTS,
        concurrencies=CONCURRENCIES,
        body=plan_fragment(request) if query in cached_plans or "wait" in request.query_params else "",
        example=EXAMPLE_BOX if default_box() else None,
    )


def plan_fragment(request: Request) -> Markup:
    """The plan as HTML, or why there is none."""
    try:
        blocks = plan_blocks(plan_from_address(request))
    except MoeboxError as problem:
        blocks = error_blocks(problem)
    return render_part("part.html", blocks=blocks)


def plan_part(request: Request, *, site: WebSite) -> Response:
    """Only the plan, for when a control has moved."""
    return HTMLResponse(plan_fragment(request), headers=NO_STORE)


def plan_json(request: Request, *, site: WebSite) -> Response:
    return Response(codec.to_json(plan_from_address(request).plan), media_type="application/json")


def list_models(request: Request, *, site: WebSite) -> Response:
    """List the models that match the search; the page then asks for each whether it fits on the box."""
    words = request.query_params.get("q", "").lower().split()
    box = parse_query(request.query_params).box
    rows = [row for row in list_rows() if all(word in row[-1] for word in words)]
    problem: MoeboxError | None = None
    try:
        DISKS.require_answer(box)
        detect.load_box(box or None)
    except MoeboxError as wrong_box:
        rows, problem = [], wrong_box
    context = {"rows": rows, "query": " ".join(words), "box": box, "problem": problem}
    return render_page("models.html", title="Models", here="models", **context)


def model_fit(request: Request, *, site: WebSite) -> Response:
    """Whether a model fits on a box: the plan in a line, or what is missing."""
    query = parse_query(request.query_params)
    DISKS.require_answer(query.box)
    try:
        answer = plan_fully(query)
        chosen, _, forecast, _ = plan_assessment(answer).cells
        text, tone = f"{chosen.text}: {forecast.text}, {full_length(answer)}", "good"
    except MoeboxError as problem:
        text, tone = problem.message, "quiet"
    return JSONResponse({"text": text, "tone": tone}, headers=NO_STORE)
