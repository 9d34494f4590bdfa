"""`moebox fleet render`: the router's configuration and the members' launch files, to run without moebox."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from moebox import yaml_text as yaml
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.data import FOLDER
from moebox.errors import BadInput
from moebox.fleet import routers
from moebox.fleet.file import Fleet, RouterKind, read_fleet, recipe_path, served_name
from moebox.flows.recipes import box_for_recipe, load_recipe, refuse_misfit
from moebox.render import render

FleetFormat = Literal["router", "compose", "k8s", "slurm"]
FLEET_FORMATS: tuple[FleetFormat, ...] = get_args(FleetFormat)
Files = dict[str, str]  # name -> text
GPUS_NOTE = """# Needs Compose 2.20 or newer (include). Every member takes all GPUs of its machine:
# where several share a machine, give each its own `device_ids`.
"""
WRITTEN = "# Written by moebox from {file}; change that and render again."


def render_fleet(
    path: Path, fleet_format: FleetFormat, *, kind: RouterKind | None = None, force: bool = False
) -> Files:
    """All files of a fleet in one format; `force` takes members that do not fit their box."""
    fleet = read_fleet(path)
    if kind:
        fleet = replace(fleet, router=replace(fleet.router, kind=kind))
    if not fleet.router.port:
        raise BadInput(f"{path}: router.port: a rendered fleet needs a fixed port", hint="e.g. 8080")
    recipes = _read_recipes(fleet, path)
    for member in fleet.member:
        if member.name in recipes and not force:
            recipe = recipes[member.name]
            refuse_misfit(deploy(recipe, box_for_recipe(recipe, member.box) if member.box else None))
    model = served_name(fleet.member, recipes)
    written = WRITTEN.format(file=path.name)
    if fleet_format == "k8s":
        return _render_kubernetes(fleet, recipes, model, written)
    host = "@{name}@" if fleet_format == "slurm" else ""  # the script fills in the hosts
    start = routers.router_start(fleet.router, model, _router_members(fleet, recipes, host=host))
    configs = {name: f"{written}\n{text}" for name, text in start.files.items()}
    if fleet_format == "router":
        return {"router.sh": routers.router_script(fleet.router, start, title=fleet.name), **configs}
    if fleet_format == "slurm":
        files = {f"{name}.sbatch": render(deploy(recipe), "slurm") for name, recipe in recipes.items()}
        return {"fleet.sh": _slurm_script(fleet, recipes, start, written), **files, **configs}
    files = {f"{name}.yaml": render(deploy(recipe), "compose") for name, recipe in recipes.items()}
    service = routers.compose_service(fleet.router, start, list(recipes))
    document: dict[str, object] = {"include": list(files)} if files else {}
    document["services"] = {f"{fleet.name}-router": service}
    head = f"{written}\n{GPUS_NOTE}" if len(recipes) > 1 else f"{written}\n"
    return {"compose.yaml": head + yaml.dump_yaml(document), **files, **configs}


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


def _render_kubernetes(fleet: Fleet, recipes: dict[str, Recipe], model: str, written: str) -> Files:
    members = _router_members(fleet, recipes, host="{name}")  # every member has a Service with its name
    start = routers.router_start(fleet.router, model, members, host="0.0.0.0")  # noqa: S104
    files = {f"{name}.yaml": render(deploy(recipe), "k8s") for name, recipe in recipes.items()}
    name = f"{fleet.name}-router"
    documents = routers.router_manifests(name, fleet.router, start)
    documents += routers.network_policies(name, {member: recipe.listen.port for member, recipe in recipes.items()})
    files["router.yaml"] = f"{written}\n" + yaml.dump_documents(documents)
    return {"kustomization.yaml": f"{written}\n{yaml.dump_kustomization(files, fleet.name)}", **files}


def _slurm_script(fleet: Fleet, recipes: dict[str, Recipe], start: routers.RouterStart, written: str) -> str:
    """A script that submits every member, waits until each answers, and runs the router. Its end cancels the jobs."""
    kind, tested = fleet.router.kind, routers.router_traits()[fleet.router.kind].tested
    about = f"# {fleet.name}: submits {len(recipes)} members and runs {kind} ({tested}) here."
    lines = [
        *routers.script_head(fleet.router, start, written, about),
        (FOLDER / "slurm_wait.sh").read_text(encoding="utf-8"),
        *(f'jobs+=("$(sbatch --parsable {shlex.quote(name)}.sbatch)")' for name in recipes),
    ]
    for place, recipe in enumerate(recipes.values()):
        lines.append(f'host_{place}="$(wait_for "${{jobs[{place}]}}" {recipe.listen.port})"  # {recipe.name}')
    # The shell fills in the members' hosts in the router's files and arguments.
    sed = " ".join(f'-e "s/@{name}@/$host_{place}/"' for place, name in enumerate(recipes))
    lines += [f"sed {sed} {shlex.quote(file)} > {shlex.quote(f'running-{file}')}" for file in start.files]
    command = ['"$PYTHON"']
    for argument in start.argv:
        word = f"running-{argument}" if argument in start.files else shlex.quote(argument)
        for place, name in enumerate(recipes):
            if f"@{name}@" in argument:
                word = f'"{argument.replace(f"@{name}@", f"$host_{place}")}"'
        command.append(word)
    return "\n".join([*lines, " ".join(command)]) + "\n"
