"""Recipes on the page: show, edit, check as `moebox up` does, and save."""

import re
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox import codec, engines, files
from moebox.checkpoint import deploy
from moebox.core import registry, validation
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, DoesNotFit
from moebox.flows.fit import find_recipe_misfit
from moebox.serve import recipes
from moebox.units import format_count
from moebox.web.gate import WebSite
from moebox.web.pages import NotFound, read_form, render_page

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


async def list_recipes(request: Request, *, site: WebSite) -> Response:
    """List the user's own recipes and those that ship with moebox."""
    own, shipped = (
        {name: describe_recipe(path) for name, path in sorted(found.items())}
        for found in (recipes.saved_recipes(), recipes.shipped_recipes())
    )
    return render_page(site, "recipes.html", title="Recipes", here="recipes", own=own, shipped=shipped)


def describe_recipe(path: Path) -> str:
    """A recipe file in one line, or its error if it cannot be read."""
    try:
        recipe = validation.read_recipe(path)
    except BadInput as problem:
        return problem.message
    place = "experts in RAM" if recipe.hybrid else recipe.parallel.text
    context = f"context {format_count(recipe.context)}" if recipe.context else ""
    parts = (
        recipe.model,
        recipe.checkpoint,
        registry.engine_display_name(recipe.engine),
        place,
        context,
        recipe.planned_for.box,
    )
    return ", ".join(filter(None, parts))


async def edit_recipe(request: Request, *, site: WebSite) -> Response:
    """Show one recipe's text."""
    name = request.path_params["name"]
    known = {**recipes.shipped_recipes(), **recipes.saved_recipes()}
    if name not in known:
        raise NotFound(f"no recipe called {name!r}")
    text = codec.read_text(known[name])
    return render_page(
        site, "recipe.html", title=name, here="recipes", name=name, text=text, own=name in recipes.saved_recipes()
    )


def parse_recipe(text: str) -> Recipe:
    """Parse and check a recipe. Raise BadInput with the first error, as `moebox up` does."""
    recipe = codec.decode(Recipe, codec.parse_toml(text, where="recipe"), where="recipe")
    engines.check_recipe(deploy(recipe))
    return recipe


async def check_recipe(request: Request, *, site: WebSite) -> Response:
    """Check a recipe."""
    fields = await read_form(request)
    recipe = await run_in_threadpool(parse_recipe, fields.get("text", ""))
    if misfit := await run_in_threadpool(find_recipe_misfit, deploy(recipe)):
        raise DoesNotFit(misfit.text, hint=misfit.remedy)
    return JSONResponse({"good": f"{recipe.engine}, {recipe.checkpoint}: every setting is known, and it fits"})


async def save_recipe(request: Request, *, site: WebSite) -> Response:
    """Check a recipe and save it for `moebox up NAME`. A shipped recipe is never overwritten."""
    fields = await read_form(request)
    name = fields.get("name", "").strip()
    if not NAME.fullmatch(name):
        raise BadInput(f"name {name!r}: lower-case letters, digits, dots and dashes")
    if name in recipes.shipped_recipes():
        raise BadInput(f"{name} ships with moebox", hint="save it under another name")
    await run_in_threadpool(parse_recipe, fields.get("text", ""))
    path = recipes.saved_recipes_dir() / f"{name}.toml"
    with files.report_write_errors(path):
        await run_in_threadpool(files.write_atomic, path, fields.get("text", ""))
    return JSONResponse({"go": f"/recipes/{name}", "path": str(path)}, 201)
