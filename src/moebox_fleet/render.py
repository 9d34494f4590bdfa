"""`moebox fleet render`: the router's configuration and the members' launch files, to run without moebox."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Literal

from moebox import yaml_text as yaml
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.data import FOLDER
from moebox.errors import refuse_if
from moebox.flows.recipes import load_recipe, planned_box, refuse_misfit
from moebox.render import load_template, render
from moebox_fleet import routers
from moebox_fleet.file import Fleet, RouterKind, read_fleet, recipe_path, served_name

FleetFormat = Literal["router", "compose", "k8s", "slurm"]
Files = dict[str, str]  # name -> text
# The router's file by format, its template, and how the names of the members' files end.
FILES: dict[FleetFormat, tuple[str, str, str]] = {
    "router": ("router.sh", "router.sh.j2", ""),
    "compose": ("compose.yaml", "router_compose.yaml.j2", ".yaml"),
    "k8s": ("router.yaml", "router_k8s.yaml.j2", ".yaml"),
    "slurm": ("fleet.sh", "router_jobs.sh.j2", ".sbatch"),
}
# Members' hosts: a Service has a member's name; a script fills in the hosts of Slurm. Otherwise the recipe's own.
HOSTS: dict[FleetFormat, str] = {"k8s": "{name}", "slurm": "@{name}@"}


def render_fleet(
    path: Path, fleet_format: FleetFormat, *, kind: RouterKind | None = None, force: bool = False
) -> Files:
    """All files of a fleet in one format; `force` takes members that do not fit their box."""
    fleet = read_fleet(path)
    if kind:
        fleet = replace(fleet, router=replace(fleet.router, kind=kind))
    refuse_if(not fleet.router.port, f"{path}: router.port: a rendered fleet needs a fixed port", hint="e.g. 8080")
    recipes = _read_recipes(fleet, path)
    for member in fleet.member:
        if member.name in recipes and not force:
            recipe = recipes[member.name]
            refuse_misfit(deploy(recipe, planned_box(recipe.planned_for, member.box) if member.box else None))
    model = served_name(fleet.member, recipes)
    bind = "0.0.0.0" if fleet_format == "k8s" else ""  # noqa: S104
    members = _router_members(fleet, recipes, host=HOSTS.get(fleet_format, ""))
    start = routers.router_start(fleet.router, model, members, host=bind)
    known = routers.router_traits()[fleet.router.kind]
    install = f"pip install --quiet --no-cache-dir '{known.package}=={known.tested}'"
    written = f"# Written by moebox from {path.name}; change that and render again."
    file, template, suffix = FILES[fleet_format]
    text = load_template(template).render(
        fleet=fleet,
        name=f"{fleet.name}-router",
        router=fleet.router,
        known=known,
        start=start,
        command=f"{install} && exec python3 {shlex.join(start.argv)}",
        metrics_port=routers.metrics_port(fleet.router),
        ports={name: recipe.listen.port for name, recipe in recipes.items()},
        words=_slurm_words(start, list(recipes)),
        wait=(FOLDER / "slurm_wait.sh").read_text(encoding="utf-8"),
        written=written,
    )
    configs = {name: f"{written}\n{config}" for name, config in start.files.items()}
    if fleet_format == "router":
        return {file: text, **configs}
    launches = {f"{name}{suffix}": render(deploy(recipe), fleet_format) for name, recipe in recipes.items()}
    if fleet_format == "k8s":
        launches[file] = text
        return {"kustomization.yaml": f"{written}\n{yaml.dump_kustomization(launches, fleet.name)}", **launches}
    return {file: text, **launches, **configs}


def _read_recipes(fleet: Fleet, path: Path) -> dict[str, Recipe]:
    """The recipe of each member, by name. Members with the same port get different ones."""
    found: dict[str, Recipe] = {}
    taken: set[int] = {fleet.router.port, routers.metrics_port(fleet.router)}
    for member in fleet.member:
        if not member.recipe:
            continue
        recipe = load_recipe(recipe_path(path, member))
        port = recipe.listen.port or 8000
        while port in taken:
            port += 1
        taken.add(port)
        found[member.name] = replace(recipe.with_port(port), name=member.name)
    return found


def _router_members(fleet: Fleet, recipes: dict[str, Recipe], *, host: str = "") -> tuple[routers.RouterMember, ...]:
    """Members as the router reaches them; `host` is a pattern for the host of those that are started."""
    members = []
    for member in fleet.member:
        root, key_env = member.url.rstrip("/").removesuffix("/v1"), member.key_env
        if recipe := recipes.get(member.name):
            where = host.format(name=member.name) if host else recipe.listen.host
            root, key_env = f"http://{where}:{recipe.listen.port}", recipe.listen.key_env
        members.append(routers.RouterMember(name=member.name, root=root, key_env=key_env, weight=member.weight))
    return tuple(members)


def _slurm_words(start: routers.RouterStart, members: list[str]) -> list[str]:
    """The router's arguments in a script that knows the members' hosts as variables."""
    words = []
    for argument in start.argv:
        word = f"running-{argument}" if argument in start.files else shlex.quote(argument)
        for place, name in enumerate(members):
            if f"@{name}@" in argument:
                word = f'"{argument.replace(f"@{name}@", f"$host_{place}")}"'
        words.append(word)
    return words
