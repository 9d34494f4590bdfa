"""`moebox switch`: several models behind one address."""

from pathlib import Path
from typing import TYPE_CHECKING

from moebox.cli.display import make_table
from moebox.cli.flags import Switch
from moebox.cli.output import print_lines, stdout_console
from moebox.units import format_gib, format_seconds

if TYPE_CHECKING:
    from moebox.core.deployment import Deployment

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
    import uvicorn

    from moebox.checkpoint import deploy
    from moebox.cli.twin import bind_socket
    from moebox.fleet.models_file import largest_sets, llama_swap_config, read_models
    from moebox.flows import recipes
    from moebox.flows.model_proxy import ModelProxy
    from moebox.flows.model_switch import ModelSwitch, plan_models
    from moebox.planner.kv_tiers import RATE_RANGE
    from moebox.store import Run
    from moebox.stream import run_to_end

    found = read_models(file)
    deployments: dict[str, Deployment] = {}
    for name, entry in found.models.items():
        beside = file.parent / entry.recipe
        recipe = recipes.load_recipe(str(beside) if beside.exists() else entry.recipe)
        deployments[name] = deploy(recipe, recipes.box_for_recipe(recipe))
    needs, room = plan_models(found, deployments)
    sets, rows = largest_sets(needs, room), []
    for name, need in needs.items():
        awake = need.awake or {}
        gpu = max((size for device, size in awake.items() if device != "ram"), default=0)
        ram = awake.get("ram", 0) if need.sleep == "no" else need.asleep.get("ram", 0)
        seconds = need.start_s if need.sleep == "no" else need.resume_s
        low, high = (format_seconds(seconds / share) for share in reversed(RATE_RANGE))
        sizes = (format_gib(size) if size else "–" for size in (gpu, ram))
        rows.append((name, *sizes, WAYS[need.sleep], f"{low} to {high}" if seconds else "unknown"))
    stdout_console().print(make_table(("model", "each GPU", "RAM", "put away", "back in"), rows))
    names = [*map(" + ".join, sets)]
    print_lines([f"together: {'; '.join(names)}" if len(names) > 1 else f"all fit together: {names[0]}"])
    if dry_run:
        print_lines(["", llama_swap_config(found, deployments, sets)])
        return 0
    listening, run = bind_socket(found.port, found.host), Run.create(found.name)

    async def serve_models() -> None:
        switched = ModelSwitch(found, deployments, run, report=lambda line: print_lines([line], stderr=True))
        app = ModelProxy(switched).build_app()
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        await uvicorn.Server(config).serve(sockets=[listening])

    address = f"http://{found.host}:{listening.getsockname()[1]}/v1"
    print_lines([f"{address} serves {', '.join(found.models)}; run {run.path}; Ctrl-C stops all"], stderr=True)
    run_to_end(serve_models())
    return 0
