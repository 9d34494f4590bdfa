"""`moebox twin` and `moebox switch`: a simulated endpoint of another box; several models behind one address."""

import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from moebox.checkpoint import deploy
from moebox.cli import flags
from moebox.cli.display import make_table
from moebox.cli.flags import AsJson, Settings, Switch
from moebox.cli.forecast_target import find_target, refuse_without_cache
from moebox.cli.output import print_lines, print_note, print_parts, print_result
from moebox.core.deployment import Deployment
from moebox.core.setting import split_settings
from moebox.core.traits import LAST_PORT
from moebox.core.workload_file import WorkloadFile
from moebox.errors import ExternalError, refuse_if, refuse_out_of_range
from moebox.flows import recipes
from moebox.planner.kv_tiers import RATE_RANGE, cache_tiers
from moebox.planner.simulate import scheduler_rules
from moebox.serve.state import TWIN_KEY, keep_key, make_key
from moebox.store import Run
from moebox.stream import run_to_end
from moebox.units import format_gib, format_seconds


def twin(
    target: str,
    *,
    box: str | None = None,
    port: int | None = None,
    speed: float = 1.0,
    key_env: str = "",
    open: Annotated[bool, Parameter(name="--open", negative=())] = False,
    settings: Settings = (),
    json: AsJson = False,
) -> int:
    """Serve a simulation of a recipe on a box: OpenAI's API, timed as forecast, with made-up text.

    Requests queue, wait for the cache and slow each other down as on the box. Every response and page is marked as a
    simulation. It listens on this machine only and requires a key: a new one that is printed, unless --key-env or the
    recipe names a variable that holds one. Your other moebox commands find a printed key by themselves. Ctrl-C stops
    it.

    Args:
        target: A recipe (a .toml file or a shipped name), or a model as `plan` takes it.
        box: COUNTxGPU such as 8x-rtx-pro-6000-server, or a TOML file. Default: the recipe's box, or this machine.
        port: Port to listen on, 0 for a free one. Default: the recipe's port.
        speed: How many times faster than the box.
        key_env: The environment variable that holds the key.
        open: Require no key: every user of this machine may use it.
        settings: Another value of the recipe, such as parallel.tp=8, planned_for.ram=768GiB, or
            simulation.kv_tokens=200k for the cache capacity in an engine's log; repeatable.
    """
    from moebox.twin.app import build_app
    from moebox.twin.engine import TwinEngine

    refuse_out_of_range("--port", port, 0, LAST_PORT)
    refuse_if(not 0 < speed <= 1e6, f"--speed {speed:g} is out of range", hint="2 is twice as fast as the box")
    assumed, others = split_settings(WorkloadFile(), settings)
    found = find_target(target, box, others)
    recipe, capacity = found.recipe, assumed.simulation.kv_tokens or found.memory.kv_tokens
    refuse_without_cache(capacity)
    if open:
        flags.refuse_unused("--open requires no key", key_env=key_env)
    key = os.environ.get(key_env or recipe.listen.key_env, "")
    refuse_if(key_env and not key, f"the environment variable {key_env} holds no key", hint=f"export {key_env}=…")
    made = "" if key or open else make_key()
    listening = bind_socket(recipe.listen.port if port is None else port)
    number = listening.getsockname()[1]
    url, model = f"http://127.0.0.1:{number}", recipe.served_name
    layout = "CPU+GPU" if recipe.hybrid else " ".join(recipe.parallel.labels)
    name, place = found.deployment.model.title, found.deployment.required_box.name
    title = f"{name} on {place} with {recipe.engine}, {layout}, context {recipe.context:,}"

    def show() -> None:
        print_note(f"simulating {title}\n{url}/v1 serves {model}; Ctrl-C stops it")
        if open:
            print_note("open: every user of this machine may use it")
        if made:  # the console would hide it
            print(f"export {TWIN_KEY}={made}\n{url}/?key={made}", file=sys.stderr, flush=True)

    document = {"simulation": True, "url": f"{url}/v1", "model": model, "kv_tokens": capacity}
    kept = keep_key(number, made, pid=os.getpid()) if made else None  # for this user's other commands
    try:
        print_result(json, document | ({"key": made} if made else {}), show)
        forecast = found.speed
        rules = scheduler_rules(recipe, capacity, forecast, found.memory)
        tiers = None if recipe.prefix_caching is False else cache_tiers(found.deployment, recipe.tiers)
        engine, secret = TwinEngine(forecast, rules, tiers, faster=speed), "" if open else key or made
        app = build_app(engine, model=model, context=recipe.context, title=title, key=secret)
        run_to_end(serve_app(app, listening, grace_s=1))
    finally:
        if kept:
            kept.unlink(missing_ok=True)
    return 0


def bind_socket(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that listens, on the loopback address unless another is given."""
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as problem:
        reason = str(problem.strerror).partition(" (")[0]
        raise ExternalError(f"port {port}: {reason}", hint="`--port 0` takes a free one") from None


async def serve_app(app: Any, listening: socket.socket, *, grace_s: int) -> None:
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=grace_s)
    await uvicorn.Server(config).serve(sockets=[listening])


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
    from moebox.flows.model_proxy import ModelProxy
    from moebox.flows.model_switch import ModelSwitch, plan_models
    from moebox.flows.models_file import largest_sets, llama_swap_config, read_models

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
        seconds = need.start_s if need.sleep == "no" else need.resume_s
        low, high = (format_seconds(seconds / share) for share in reversed(RATE_RANGE))
        sizes = (format_gib(size) if size else "–" for size in (gpu, ram))
        rows.append((name, *sizes, WAYS[need.sleep], f"{low} to {high}" if seconds else "unknown"))
    print_parts(make_table(("model", "each GPU", "RAM", "put away", "back in"), rows))
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
