"""Shared by all pages: templates, headers, error pages, form fields."""

from importlib import resources
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from moebox import __version__
from moebox.errors import BadInput, DoesNotFit, MoeboxError, refuse_if
from moebox.report.block import Block, Prose
from moebox.report.page import jinja_environment, style_sheet
from moebox.report.svg import DARK, LIGHT, css_variables

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; img-src data:; "
    "font-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
NO_STORE = {"Cache-Control": "no-store"}
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", **NO_STORE}
MAX_FORM_BYTES = 1 << 20


class NotFound(BadInput):
    """No page has this address."""


def render_page(template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
    text = render_part(
        template,
        version=__version__,
        light=Markup(css_variables(LIGHT)),  # noqa: S704  (ours)
        dark=Markup(css_variables(DARK)),  # noqa: S704
        style=style_sheet(),
        **context,
    )
    return HTMLResponse(text, status, headers=HEADERS)


def render_part(template: str, **context: Any) -> Markup:
    return Markup(jinja_environment("moebox.web").get_template(template).render(**context))  # noqa: S704  (rendered with escaping)


def error_blocks(problem: MoeboxError) -> list[Block]:
    """An error as blocks: what is wrong, then how to fix it."""
    head = "Does not fit." if isinstance(problem, DoesNotFit) else "That did not work."
    texts = [problem.message] + ([problem.hint] if problem.hint else [])
    return [Prose(paragraphs=(head,), tone="bad"), Prose(paragraphs=tuple(texts))]


async def show_error(request: Request, problem: Exception) -> Response:
    """Turn an error into a page, or into JSON for scripts."""
    assert isinstance(problem, MoeboxError)
    status = 404 if isinstance(problem, NotFound) else {1: 409, 2: 400}.get(problem.exit_code, 503)
    if request.method != "GET":
        return JSONResponse({"error": problem.message, "hint": problem.hint or ""}, status, headers=NO_STORE)
    return render_page("message.html", status, title="moebox", here="", blocks=error_blocks(problem))


async def read_form(request: Request) -> dict[str, str]:
    """Read the text fields of a JSON body. Raise BadInput for anything else."""
    body = await request.body()
    refuse_if(len(body) > MAX_FORM_BYTES, "the form is too large")
    try:
        fields = await request.json()
    except ValueError:
        raise BadInput("the form is not JSON") from None
    if not isinstance(fields, dict):
        raise BadInput("the form has no fields")
    wrong = [name for name, value in fields.items() if not isinstance(value, str) or "\0" in value]
    refuse_if(wrong, f"{', '.join(wrong)}: not text")
    return fields


def serve_script(path: str, package: str, name: str) -> Route:
    text = resources.files(package).joinpath("templates", name).read_text(encoding="utf-8")
    headers = {"Cache-Control": "no-cache"}
    return Route(path, lambda request: Response(text, media_type="text/javascript", headers=headers))
