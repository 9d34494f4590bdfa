"""`moebox twin`: a simulated endpoint of another box."""

import os
import socket
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli.flags import AsJson, Settings
from moebox.cli.forecast_target import find_target, with_facts
from moebox.cli.output import print_note, print_result
from moebox.core.setting import split_settings
from moebox.core.traits import LAST_PORT
from moebox.core.workload_file import WorkloadFile
from moebox.errors import ExternalError, refuse_if, refuse_out_of_range
from moebox.planner.kv_tiers import cache_tiers
from moebox.planner.simulate import scheduler_rules
from moebox.serve.state import TWIN_KEY, keep_key, make_key
from moebox.stream import run_to_end


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
        box: COUNTxGPU such as 8x-h200 or 1x-rtx-5090+512GB, or a TOML file. Default: the recipe's box, or this machine.
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
    found = with_facts(find_target(target, box, others), assumed.simulation)
    found.refuse_unservable()
    recipe, capacity = found.recipe, found.memory.kv_tokens
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

    document = {"simulation": True, "speed": speed, "url": f"{url}/v1", "model": model, "kv_tokens": capacity}
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
