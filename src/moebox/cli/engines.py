"""`moebox engines`: list, install and remove versions of engines."""

from typing import TYPE_CHECKING

from moebox import codec
from moebox.cli.flags import AsJson
from moebox.cli.output import print_lines, print_result, stdout_console
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, refuse_if
from moebox.units import format_gb

if TYPE_CHECKING:
    from moebox.serve.installs import InstalledEngine


def engines(*, json: AsJson = False) -> int:
    """List versions of engines on this machine, and the recipes and live engines that use them."""
    from moebox.serve import installs

    installs.remove_stale_parts()
    rows = [*installs.list_installs(), *installs.find_unmanaged()]
    wanted = _saved_recipes()
    users = {id(row): [*installs.live_users(row), *_recipes_using(row, wanted)] for row in rows}
    document = {
        "engines": [{**codec.to_plain(row), "name": row.name, "used_by": users[id(row)]} for row in rows],
        "folder": installs.engines_dir(),
    }

    def show() -> None:
        from rich.table import Table

        if not rows:
            stdout_console().print("no engine is installed: `moebox engines install vllm==VERSION`", markup=False)
            return
        table = Table("engine", "version", "kind", "size", "where", "used by", box=None, pad_edge=False)
        for row in rows:
            kind = row.kind if row.managed else f"{row.kind} ({row.tool})"
            where = row.image or (row.path if not row.managed else row.name)
            size = format_gb(row.bytes) if row.bytes else "–"
            table.add_row(row.engine, row.version, kind, size, where or "–", ", ".join(users[id(row)]) or "–")
        stdout_console().print(table)

    return print_result(json, document, show)


def install(engine: str = "", source: str = "", image: str = "", *, json: AsJson = False) -> int:
    """Install a version beside those that are there: an environment of its own, a build, or an image by digest.

    Recipes that name the version in `engine_version` use it from then on. Packages come from the index that pip, uv or
    /etc/moebox.toml name.

    Args:
        engine: ENGINE==VERSION for a Python package, ENGINE@COMMIT for a build from source.
        source: The source tree of a build: a folder, a git repository or its URL. Default: that of the last build.
        image: Pull this container image with docker or podman.
    """
    from moebox import detect
    from moebox.core.engine_source import parse_source
    from moebox.serve.install import install_engine

    hint = "moebox engines install vllm==0.32.0, llama.cpp@b11669 or --image NAME"
    refuse_if(not engine and not image, "which version?", hint=hint)
    wanted = parse_source(engine, image=image)
    gpus = detect.load_box().gpus if wanted.kind == "build" else ()
    done = install_engine(wanted, tree=source, gpus=gpus, notify=lambda text: print_lines([text], stderr=True))
    text = f'{done.name} is installed; a recipe uses it with engine_version = "{done.version}"'
    return print_result(json, {**codec.to_plain(done), "name": done.name}, lambda: print_lines([text]))


def remove(name: str, *, json: AsJson = False) -> int:
    """Remove a version that moebox installed, and free its disk.

    Args:
        name: The version as `moebox engines` shows it: ENGINE==VERSION, ENGINE@BUILD or an image.
    """
    from moebox.serve.installs import remove_install

    gone = remove_install(name)
    left = _recipes_using(gone, _saved_recipes())
    lines = [f"{gone.name} is removed, {format_gb(gone.bytes)} are free again"]
    lines += [f"warning: the recipe {recipe} still names it" for recipe in left]
    return print_result(json, {"removed": gone.name, "bytes": gone.bytes, "recipes": left}, lambda: print_lines(lines))


def _saved_recipes() -> dict[str, Recipe]:
    from moebox.flows.recipes import saved_recipes

    found = {}
    for name, path in saved_recipes().items():
        try:
            found[name] = codec.read_toml(Recipe, path)
        except BadInput:
            continue  # `moebox up` reports it
    return found


def _recipes_using(row: "InstalledEngine", recipes: dict[str, Recipe]) -> list[str]:
    from moebox.core.engine_source import same_version

    return [
        name
        for name, recipe in recipes.items()
        if recipe.engine == row.engine and recipe.engine_version and same_version(recipe.engine_version, row.version)
    ]
