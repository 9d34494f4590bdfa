"""Shared by all pages: templates, headers, error pages, form fields."""

from importlib import resources
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from moebox import __version__
from moebox.errors import BadInput, DoesNotFit, MoeboxError, refuse_if
from moebox.report.block import Block, Prose
from moebox.report.page import jinja_environment, style_sheet
from moebox.report.svg import DARK, LIGHT, css_variables

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; img-src data:; "
    "font-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
MAX_FORM_BYTES = 1 << 20


class NotFound(BadInput):
    """No page has this address."""


def render_page(template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    text = (
        jinja_environment("moebox.web")
        .get_template(template)
        .render(
            version=__version__,
            light=Markup(css_variables(LIGHT)),  # noqa: S704  (ours)
            dark=Markup(css_variables(DARK)),  # noqa: S704
            style=style_sheet(),
            **context,
        )
    )
    return HTMLResponse(text, status, headers=HEADERS)


def render_part(template: str, **context: Any) -> Markup:
    return Markup(jinja_environment("moebox.web").get_template(template).render(**context))  # noqa: S704  (rendered with escaping)


def error_blocks(problem: MoeboxError) -> list[Block]:
    """An error as blocks: what is wrong, then how to fix it."""
    head = "Does not fit." if isinstance(problem, DoesNotFit) else "That did not work."
    texts = [problem.message] + ([problem.hint] if problem.hint else [])
    return [Prose(paragraphs=(head,), tone="bad"), Prose(paragraphs=tuple(texts))]


def http_status(problem: MoeboxError) -> int:
    """The HTTP status for an error's exit code."""
    if isinstance(problem, NotFound):
        return 404
    return 400 if isinstance(problem, BadInput) else 409 if problem.exit_code == 1 else 503


async def show_error(request: Request, problem: Exception) -> Response:
    """Turn an error into a page, or into JSON for scripts."""
    assert isinstance(problem, MoeboxError)
    if request.method != "GET":
        document = {"error": problem.message, "hint": problem.hint or ""}
        return JSONResponse(document, http_status(problem), headers={"Cache-Control": "no-store"})
    blocks = error_blocks(problem)
    return render_page("message.html", status=http_status(problem), title="moebox", here="", blocks=blocks)


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
    wrong = [str(name) for name, value in fields.items() if not isinstance(value, str)]
    wrong += [name for name, value in fields.items() if name not in wrong and "\0" in value]
    refuse_if(bool(wrong), f"{', '.join(wrong)}: not text")
    return fields


def serve_script(name: str, package: str) -> Any:
    """Build the handler for one of our scripts."""
    text = resources.files(package).joinpath("templates", name).read_text(encoding="utf-8")

    async def send_script(request: Request) -> Response:
        return Response(text, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    return send_script
