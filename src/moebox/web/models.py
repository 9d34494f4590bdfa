"""Models on the page: the catalogue, the phantom and rows read from the Hub, and which of them fit on a box."""

from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox import detect
from moebox.checkpoint import remote
from moebox.errors import MoeboxError
from moebox.flows import recipes
from moebox.units import format_gb, format_params
from moebox.web import planning
from moebox.web.gate import WebSite
from moebox.web.mounts import DISKS
from moebox.web.pages import render_page


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    name: str
    title: str
    parameters: str
    size: str
    words: str  # that the search looks at


def list_rows() -> list[ModelRow]:
    """Return all models: catalogue, phantom, and repositories that were read from the Hub."""
    known = [(each.model.name, each.model.title, each.model, each.checkpoints) for each in recipes.known_models()]
    read = [(each.repo, f"read on {each.read_on}", each.model, each.checkpoints) for each in remote.kept_models()]
    rows = []
    for name, title, model, checkpoints in (*known, *read):
        sizes = sorted({each.total_bytes for each in checkpoints})
        size = " to ".join(dict.fromkeys(map(format_gb, (*sizes[:1], *sizes[-1:]))))  # the smallest and the largest
        parameters = f"{format_params(model.total_parameters)}, {format_params(model.active_parameters)} active"
        names = " ".join((name, title, model.repo, *(f"{each.name} {each.repo}" for each in checkpoints)))
        rows.append(ModelRow(name=name, title=title, parameters=parameters, size=size, words=names.lower()))
    return rows


async def list_models(request: Request, *, site: WebSite) -> Response:
    """List the models that match the search; the page then asks for each whether it fits on the box."""
    words = request.query_params.get("q", "").lower().split()
    box = planning.parse_query(request.query_params).box
    rows = [row for row in await run_in_threadpool(list_rows) if all(word in row.words for word in words)]
    problem: MoeboxError | None = None
    try:
        DISKS.require_answer(box)
        await run_in_threadpool(detect.load_box, box or None)
    except MoeboxError as wrong_box:
        rows, problem = [], wrong_box
    context = {"rows": rows, "query": " ".join(words), "box": box, "problem": problem}
    return render_page("models.html", status=200, title="Models", here="models", **context)


async def model_fit(request: Request, *, site: WebSite) -> Response:
    """Whether a model fits on a box: the plan in a line, or what is missing."""
    query = planning.parse_query(request.query_params)

    def plan_line() -> dict[str, str]:
        DISKS.require_answer(query.box)
        try:
            answer = planning.plan_fully(query)
        except MoeboxError as problem:
            return {"text": problem.message, "tone": "quiet"}
        chosen, _, forecast, _ = planning.plan_assessment(answer).cells
        return {"text": f"{chosen.text}: {forecast.text}, {planning.full_length(answer)}", "tone": "good"}

    return JSONResponse(await run_in_threadpool(plan_line), headers={"Cache-Control": "no-store"})
