"""`moebox fleet render`: the router's configuration and the members' launch files, as a folder that needs no moebox."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from moebox import yaml_text as yaml
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.engines import build_launch
from moebox.errors import BadInput
from moebox.fleet import k8s, routers
from moebox.fleet.file import Fleet, RouterKind, read_fleet, recipe_path, served_name
from moebox.render import render
from moebox.serve.recipes import read_recipe

FleetFormat = Literal["router", "compose", "k8s", "slurm"]
FLEET_FORMATS: tuple[FleetFormat, ...] = get_args(FleetFormat)
Files = dict[str, str]  # name -> text
GPUS_NOTE = """# Needs Compose 2.20 or newer (include). Every member takes all GPUs of its machine:
# where several share a machine, give each its own `device_ids`.
"""
WAITING = r"""PYTHON="${PYTHON:-python3}"
jobs=()
cancel() { if (( ${#jobs[@]} )); then scancel "${jobs[@]}"; fi; }
trap cancel EXIT
trap 'exit 130' INT TERM

# wait_for JOB PORT: the member's first node, once it answers
wait_for() {
  local host=''
  while true; do
    case "$(squeue --noheader --jobs "$1" --format %T 2>/dev/null)" in
      RUNNING)
        host="$(squeue --noheader --jobs "$1" --format %B)"
        host="$(scontrol show node "$host" --oneliner | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')"
        if curl --silent --fail --max-time 5 "http://$host:$2/health" >/dev/null; then
          echo "$host"
          return
        fi ;;
      PENDING|CONFIGURING) ;;
      *) echo "job $1 is not running any more" >&2; return 1 ;;
    esac
    sleep 5
  done
}
"""
WRITTEN = "# Written by moebox from {file}; change that and render again."


def render_fleet(path: Path, fleet_format: FleetFormat, *, kind: RouterKind | None = None) -> Files:
    """Every file of the fleet in this form."""
    fleet = read_fleet(path)
    if kind:
        fleet = replace(fleet, router=replace(fleet.router, kind=kind))
    if not fleet.router.port:
        raise BadInput(f"{path}: router.port: a file that stands alone needs a port of its own", hint="e.g. 8080")
    recipes = _recipes(fleet, path)
    model = served_name(fleet.member, recipes)
    forms = {"router": _router, "compose": _compose, "k8s": _kubernetes, "slurm": _slurm}
    return forms[fleet_format](fleet, recipes, model, WRITTEN.format(file=path.name))


def _recipes(fleet: Fleet, path: Path) -> dict[str, Recipe]:
    """Each member's recipe under the member's name; members of one machine get ports of their own."""
    found: dict[str, Recipe] = {}
    taken: set[int] = {fleet.router.port, routers.metrics_port(fleet.router)}
    for member in fleet.member:
        if not member.recipe:
            continue
        recipe = read_recipe(recipe_path(path, member))
        port = recipe.listen.port or 8000
        while port in taken:
            port += 1
        taken.add(port)
        found[member.name] = replace(recipe.with_port(port), name=member.name)
    return found


def _targets(fleet: Fleet, recipes: dict[str, Recipe], *, host: str = "") -> tuple[routers.RouterMember, ...]:
    """Members as the router reaches them; `host` is a pattern for the host of those that are started."""
    targets = []
    for member in fleet.member:
        recipe = recipes.get(member.name)
        if recipe is None:
            root = member.url.rstrip("/").removesuffix("/v1")
            targets.append(
                routers.RouterMember(name=member.name, root=root, key_env=member.key_env, weight=member.weight)
            )
            continue
        where = host.format(name=member.name) if host else recipe.listen.host
        own = fleet.router.kind == "llama-swap"
        targets.append(
            routers.RouterMember(
                name=member.name,
                root=f"http://{where}:{recipe.listen.port}",
                key_env=recipe.listen.key_env,
                command=build_launch(deploy(recipe)).argv if own else (),
                weight=member.weight,
            )
        )
    return tuple(targets)


def _router(fleet: Fleet, recipes: dict[str, Recipe], model: str, written: str) -> Files:
    start = routers.router_start(fleet.router, model, _targets(fleet, recipes))
    files = {name: f"{written}\n{text}" for name, text in start.files.items()}
    return {"router.sh": routers.router_script(fleet.router, start, title=fleet.name), **files}


def _compose(fleet: Fleet, recipes: dict[str, Recipe], model: str, written: str) -> Files:
    start = routers.router_start(fleet.router, model, _targets(fleet, recipes))
    files = {f"{name}.yaml": render(deploy(recipe), "compose") for name, recipe in recipes.items()}
    service = routers.compose_service(fleet.router, start, list(recipes))
    document: dict[str, object] = {"include": list(files)} if files else {}
    document["services"] = {f"{fleet.name}-router": service}
    head = f"{written}\n{GPUS_NOTE}" if len(recipes) > 1 else f"{written}\n"
    configs = {name: f"{written}\n{text}" for name, text in start.files.items()}
    return {"compose.yaml": head + yaml.dump_yaml(document), **files, **configs}


def _kubernetes(fleet: Fleet, recipes: dict[str, Recipe], model: str, written: str) -> Files:
    # In a cluster every member has a Service, and so an address, of its own.
    start = routers.router_start(fleet.router, model, _targets(fleet, recipes, host="{name}"), host="0.0.0.0")  # noqa: S104
    files = {f"{name}.yaml": render(deploy(recipe), "k8s") for name, recipe in recipes.items()}
    name = f"{fleet.name}-router"
    documents = k8s.router_manifests(name, fleet.router, start)
    documents += k8s.network_policies(name, {member: recipe.listen.port for member, recipe in recipes.items()})
    files["router.yaml"] = f"{written}\n" + yaml.dump_documents(documents)
    base = k8s.kustomization_manifest(sorted(files), labels={"app.kubernetes.io/part-of": fleet.name})
    return {"kustomization.yaml": f"{written}\n" + yaml.dump_yaml(base), **files}


def _slurm(fleet: Fleet, recipes: dict[str, Recipe], model: str, written: str) -> Files:
    files = {f"{name}.sbatch": render(deploy(recipe), "slurm") for name, recipe in recipes.items()}
    start = routers.router_start(fleet.router, model, _targets(fleet, recipes, host="@{name}@"))
    configs = {name: f"{written}\n{text}" for name, text in start.files.items()}
    return {"fleet.sh": _submit(fleet, recipes, start, written), **files, **configs}


def _submit(fleet: Fleet, recipes: dict[str, Recipe], start: routers.RouterStart, written: str) -> str:
    """A script that submits every member, waits until each answers, and runs the router; its end cancels the jobs."""
    known = routers.router_traits()[fleet.router.kind]
    if not known.balances:
        raise BadInput(f"{fleet.router.kind} starts its members itself and is not rendered for Slurm")
    lines = [
        "#!/usr/bin/env bash",
        written,
        f"# {fleet.name}: submits {len(recipes)} members and runs {fleet.router.kind} ({known.tested}) here.",
        f"# {known.note}",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        *(f': "${{{name}:?holds a key}}"' for name in start.key_envs),
        *(f"export {name}={shlex.quote(value)}" for name, value in start.env.items()),
        WAITING,
        *_jobs(recipes),
        *_run_router(start, list(recipes)),
    ]
    return "\n".join(lines) + "\n"


def _jobs(recipes: dict[str, Recipe]) -> list[str]:
    """Submit every member, then wait until each answers."""
    submitted = [f'jobs+=("$(sbatch --parsable {shlex.quote(name)}.sbatch)")' for name in recipes]
    hosts = [
        f'host_{place}="$(wait_for "${{jobs[{place}]}}" {recipe.listen.port})"  # {recipe.name}'
        for place, recipe in enumerate(recipes.values())
    ]
    return [*submitted, *hosts]


def _run_router(start: routers.RouterStart, members: list[str]) -> list[str]:
    """Run the router, with the members' hosts in its files and arguments."""
    sed = " ".join(f'-e "s/@{name}@/$host_{place}/"' for place, name in enumerate(members))
    files = [f"sed {sed} {shlex.quote(file)} > {shlex.quote(f'running-{file}')}" for file in start.files]
    words = [_with_hosts(word, members) for word in start.argv]
    running = [f"running-{word}" if word in start.files else word for word in words]
    return [*files, '"$PYTHON" ' + " ".join(running)]


def _with_hosts(word: str, names: list[str]) -> str:
    """A word of the router's command, quoted; a member's place filled by the shell."""
    for place, name in enumerate(names):
        if f"@{name}@" in word:
            return f'"{word.replace(f"@{name}@", f"$host_{place}")}"'
    return shlex.quote(word)
