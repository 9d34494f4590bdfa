"""`moebox switch`: several models behind one address."""

from pathlib import Path

from moebox.checkpoint import deploy
from moebox.cli.display import make_table
from moebox.cli.flags import Switch
from moebox.cli.output import print_lines, print_note, print_parts
from moebox.cli.twin import bind_socket, serve_app
from moebox.core.deployment import Deployment
from moebox.flows import recipes
from moebox.store import Run
from moebox.stream import run_to_end
from moebox.units import format_gib, format_seconds

WAYS = {"no": "stopped", "1": "asleep, weights in RAM", "2": "asleep, weights dropped"}


def switch(file: Path, *, dry_run: Switch = False) -> int:
    """Serve several models at one address: each is started, put to sleep, resumed or stopped as requests ask for it.

    Models that fit together serve together; the others take turns. A request waits for its model, or gets 503 with
    Retry-After after `wait_s`; it is never answered by another model. docs/living.md describes the file.

    Args:
        file: The models file: `[models.NAME]` with recipe, preload, ttl_s and sleep; `[users.NAME]` with key_env,
            parallel and tokens_per_minute.
        dry_run: Print what fits together, the forecast of each swap, and llama-swap's configuration; start nothing.
    """
    from moebox_fleet.model_proxy import ModelProxy
    from moebox_fleet.model_switch import ModelSwitch, plan_models
    from moebox_fleet.models_file import largest_sets, llama_swap_config, read_models

    found = read_models(file)
    deployments: dict[str, Deployment] = {}
    for name, entry in found.models.items():
        beside = file.parent / entry.recipe
        recipe = recipes.load_recipe(str(beside) if beside.exists() else entry.recipe)
        deployments[name] = deploy(recipe, recipes.planned_box(recipe.planned_for))
    needs, room = plan_models(found, deployments)
    sets, rows = largest_sets(needs, room), []
    for name, need in needs.items():
        awake = need.awake or {}
        gpu = max((size for device, size in awake.items() if device != "ram"), default=0)
        ram = awake.get("ram", 0) if need.sleep == "no" else need.asleep.get("ram", 0)
        _, low, high = map(format_seconds, need.swap_s(asleep=need.sleep != "no"))
        sizes = (format_gib(size) if size else "–" for size in (gpu, ram))
        rows.append((name, *sizes, WAYS[need.sleep], f"{low} to {high}" if need.start_s else "unknown"))
    print_parts(make_table(("model", "each GPU", "RAM", "put away", "back in"), rows))
    if "ram" not in room and (asleep := sum(need.asleep.get("ram", 0) for need in needs.values())):
        print_note(
            f"the box's RAM is not known: {format_gib(asleep)} are taken to fit; `ram` in the recipe's planned_for"
        )
    names = [*map(" + ".join, sets)]
    print_lines([f"together: {'; '.join(names)}" if len(names) > 1 else f"all fit together: {names[0]}"])
    if dry_run:
        print_lines(["", llama_swap_config(found, deployments, sets)])
        return 0
    listening, run = bind_socket(found.port, found.host), Run.create(found.name)

    address = f"http://{found.host}:{listening.getsockname()[1]}/v1"
    print_note(f"{address} serves {', '.join(found.models)}; run {run.path}; Ctrl-C stops all")
    app = ModelProxy(ModelSwitch(found, deployments, run, report=print_note)).build_app()
    run_to_end(serve_app(app, listening, grace_s=5))
    return 0
