"""Recipes on the page: show, edit, check as `moebox up` does, save and start."""

import re
from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox import api, codec, engines, files
from moebox.assess.format import format_number
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.errors import MoeboxError, refuse_if, suggest_names
from moebox.flows import recipes
from moebox.report.block import Block, Prose
from moebox.report.table import ReportTable, TableCell, table_blocks
from moebox.units import format_count
from moebox.web.gate import WebSite
from moebox.web.pages import NotFound, render_page, render_part
from moebox.web.runs import run_command, start_command

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
GROUPS = {"Yours": "saved", "Of runs": "run", "Shipped with moebox": "shipped"}
STARTS = {  # the last step of a run that the page starts, in words
    "up": "serve it",
    "verify": "serve it and check its answers",
    "report": "check, tune, measure, report",
}


def list_recipes(request: Request, *, site: WebSite) -> Response:
    """List the user's own recipes, those of runs, and those that ship with moebox, as `moebox recipes` does."""
    rows = recipes.list_recipes(site.runs)
    groups = [(title, [row for row in rows if row.source == source and row.path]) for title, source in GROUPS.items()]
    return render_page("recipes.html", title="Recipes", here="recipes", groups=groups)


def edit_recipe(request: Request, *, site: WebSite) -> Response:
    name = request.path_params["name"]
    rows = recipes.list_recipes(site.runs)
    row = next((row for row in rows if row.name == name and row.path), None)
    if row is None:
        raise NotFound(f"no recipe {name!r}", hint=suggest_names(name, sorted(row.name for row in rows)))
    form = recipe_form(name, codec.read_text(Path(row.path)), simulate=bool(row.box), opened=True)
    return render_page("recipe.html", title=name, here="recipes", name=name, form=form)


def recipe_form(name: str, text: str, *, simulate: bool, opened: bool) -> Markup:
    """The form that edits, checks, saves and starts a recipe."""
    context = {"name": name, "text": text, "simulate": simulate, "opened": opened, "starts": STARTS}
    return render_part("recipe_form.html", **context)


def parse_recipe(text: str) -> Recipe:
    """Parse and check a recipe. Raise BadInput with the first error, as `moebox up` does."""
    recipe = codec.decode(Recipe, codec.parse_toml(text, where="recipe"), where="recipe")
    engines.check_recipe(deploy(recipe))
    return recipe


def check_recipe(fields: dict[str, str], *, site: WebSite) -> Response:
    """Check a recipe: its settings, whether it fits, and its forecast."""
    recipe = parse_recipe(fields.get("text", ""))
    recipes.refuse_misfit(deploy(recipe))
    blocks = forecast_blocks(recipe)
    fits = ", and it fits" if isinstance(blocks[0], ReportTable) else ""  # not judged without model, checkpoint or box
    good = f"{recipe.engine}, {recipe.checkpoint}: every setting is known{fits}"
    return JSONResponse({"good": good, "html": render_part("part.html", blocks=blocks)})


def forecast_blocks(recipe: Recipe) -> list[Block]:
    """The forecast of a recipe as a table, or why there is none."""
    try:
        rows = api.forecast(recipe)
    except MoeboxError as problem:
        return [Prose(paragraphs=(f"No forecast: {problem.message}",), tone="quiet")]
    lines: dict[int, list[TableCell]] = {row["concurrency"]: [] for row in rows}
    for row in rows:
        aside = f" {format_number(row['low_tok_s'])} to {format_number(row['high_tok_s'])}"
        known = TableCell(text=format_number(row["decode_tok_s"]), aside=aside)
        over = TableCell(text="–", title="the cache does not hold so many")
        lines[row["concurrency"]].append(known if row["fits"] else over)
    heads = ("streams", *dict.fromkeys(f"at {format_count(row['context'])} tokens" for row in rows))
    note = "Tokens per second of all streams together, with their range, by the tokens behind each stream."
    table = [(TableCell(text=str(streams)), *cells) for streams, cells in lines.items()]
    return [*table_blocks(heads, table, text=(), caption="Forecast, decode tok/s", note=note, sortable=False)]


def save_recipe(fields: dict[str, str], *, site: WebSite) -> Response:
    """Check a recipe and save it for `moebox up NAME`."""
    path = store_recipe(fields)
    return JSONResponse({"go": f"/recipes/{path.stem}", "path": str(path)}, 201)


def store_recipe(fields: dict[str, str]) -> Path:
    """Check a recipe and write its file, if it is not a shipped one as it is. A shipped recipe is never overwritten."""
    name, text = fields.get("name", "").strip(), fields.get("text", "")
    refuse_if(not NAME.fullmatch(name), f"name {name!r}: lower-case letters, digits, dots and dashes")
    shipped = recipes.shipped_recipes().get(name)
    if shipped and codec.read_text(shipped).split() == text.split():
        return shipped
    refuse_if(shipped, f"{name} ships with moebox", hint="save it under another name")
    parse_recipe(text)
    path = recipes.saved_recipes_dir() / f"{name}.toml"
    with files.report_write_errors(path):
        files.write_atomic(path, text)
    return path


def start_recipe(fields: dict[str, str], *, site: WebSite) -> Response:
    """Save a recipe and start `moebox run` with it; reply with the run's page."""
    recipes.refuse_misfit(deploy(parse_recipe(fields.get("text", ""))))
    path = store_recipe(fields)
    end = {"twin": "1"} if fields.get("twin") else {"keep": "1"}  # a simulation ends with its run
    return start_command(run_command({"recipe": str(path), "until": fields.get("until", "up"), **end}), site)
