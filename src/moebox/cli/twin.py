"""`moebox twin`: a simulated endpoint of a box one does not own."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli import subject as subjects
from moebox.cli.output import print_result, stderr_console
from moebox.cli.pinned import PlanArgs
from moebox.cli.subject import ForecastTarget
from moebox.core.traits import LAST_PORT
from moebox.errors import ExternalError, refuse_if, refuse_out_of_range
from moebox.flows import boxes, recipes
from moebox.planner.simulate import scheduler_rules
from moebox.serve.keys import TWIN_KEY, keep_key, make_key
from moebox.stream import run_to_end

NOTHING = PlanArgs()


def twin(
    target: str,
    *,
    box: str | None = None,
    port: int | None = None,
    speed: float = 1.0,
    kv_tokens: int | None = None,
    key_env: str = "",
    open: Annotated[bool, Parameter(name="--open", negative=())] = False,
    pinned: Annotated[PlanArgs, Parameter(name="*")] = NOTHING,
    ram: str = "",
    ram_bandwidth: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Serve a simulation of a recipe on a box: OpenAI's API, timed as the forecast says, with made-up text.

    Streams queue, wait for the cache and slow each other down as they would on the box. Every response and page says
    that it is a simulation. It listens on this machine only, and asks for a key: a new one that is printed, unless
    --key-env or the recipe names a variable that holds one. Your other moebox commands find a printed key by
    themselves. Ctrl-C stops it.

    Args:
        target: A recipe file (.toml), or a model as `plan` takes it.
        box: COUNTxGPU such as 8x-rtx-pro-6000-server, or a TOML file; the recipe's box or this machine without it.
        port: Where to listen; the recipe's port without it, 0 for a free one.
        speed: Times faster than the box would be.
        kv_tokens: Cache capacity to assume, such as the one in an engine's log.
        key_env: The environment variable that holds the key.
        open: Ask for no key: every user of this machine may use it.
        pinned: Settings of the plan that must hold; a recipe file has its own.
        ram: Memory to assume, such as 768GiB.
        ram_bandwidth: Its bandwidth, such as 614GB/s.
        json: Print one JSON document with the URL when it listens.
    """
    refuse_out_of_range("--port", port, 0, LAST_PORT)
    refuse_if(not 0 < speed <= 1e6, f"--speed {speed:g} is out of range", hint="2 is twice as fast as the box")
    if recipes.is_recipe(target):
        fixed = pinned != NOTHING
        subject = subjects.target_from_recipe(target, box, has_constraints=fixed, ram=ram, ram_bandwidth=ram_bandwidth)
    else:
        where = boxes.calibrated_box(box, ram=ram, ram_bandwidth=ram_bandwidth)
        subject = subjects.target_from_plan(target, where, pinned.constraints())
    capacity = kv_tokens if kv_tokens is not None else subject.memory.kv_tokens
    subjects.refuse_without_cache(capacity)
    if open:
        flags.refuse_unused("--open asks for no key", key_env=key_env)
    key = os.environ.get(key_env or subject.recipe.listen.key_env, "")
    refuse_if(key_env and not key, f"the environment variable {key_env} holds no key", hint=f"export {key_env}=…")
    made = "" if key or open else make_key()
    listening = bind_socket(subject.recipe.listen.port if port is None else port)
    number = listening.getsockname()[1]
    url = f"http://127.0.0.1:{number}"
    document = {"simulation": True, "url": f"{url}/v1", "model": subject.recipe.served_name, "kv_tokens": capacity}
    with _kept(number, made):
        print_result(
            json,
            document | ({"key": made} if made else {}),
            lambda: _show(subject, url, made, open=open),
        )
        run_to_end(serve_twin(subject, listening, capacity, speed, key="" if open else key or made))
    return 0


@contextlib.contextmanager
def _kept(port: int, key: str) -> Iterator[None]:
    """A key that was made here, written for this user's other commands until the twin ends."""
    path = keep_key(port, key, pid=os.getpid()) if key else None
    try:
        yield
    finally:
        if path:
            path.unlink(missing_ok=True)


def _show(subject: ForecastTarget, url: str, made: str, *, open: bool) -> None:
    """What is simulated, where, and for whom."""
    stderr_console().print(
        f"simulating {twin_title(subject)}\n{url}/v1 serves {subject.recipe.served_name}; Ctrl-C stops it"
    )
    if open:
        stderr_console().print("open: every user of this machine may use it")
    if made:
        print(f"export {TWIN_KEY}={made}\n{url}/?key={made}", file=sys.stderr, flush=True)


def twin_title(subject: ForecastTarget) -> str:
    """What is simulated, in a few words."""
    recipe, spread = subject.recipe, subject.recipe.parallel
    layout = "CPU+GPU" if recipe.hybrid else " ".join(spread.labels)
    return f"{subject.model.title} on {subject.box.name} with {recipe.engine}, {layout}, context {recipe.context:,}"


def bind_socket(port: int) -> socket.socket:
    """A listening socket of this machine only."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(2048)
    except OSError as problem:
        listening.close()
        raise ExternalError(f"port {port}: {problem.strerror}", hint="`--port 0` takes a free one") from None
    return listening


async def serve_twin(
    subject: ForecastTarget, listening: socket.socket, kv_tokens: int, faster: float, *, key: str
) -> None:
    """Serve until interrupted."""
    import uvicorn

    from moebox.twin.app import build_app
    from moebox.twin.engine import TwinEngine

    recipe = subject.recipe
    engine = TwinEngine(subject.speed, scheduler_rules(recipe, kv_tokens, subject.speed), faster=faster)
    app = build_app(engine, model=recipe.served_name, context=recipe.context, title=twin_title(subject), key=key)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listening])
