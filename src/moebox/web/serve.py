"""The local page: its routes, and its server: one process, one socket, until interrupted."""

import contextlib
import functools
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moebox.core.traits import LAST_PORT
from moebox.errors import BadInput, ExternalError, MoeboxError, refuse_if, refuse_out_of_range
from moebox.report.block import Prose
from moebox.store import runs_dir
from moebox.web import calibrations, engines, planning, recipes, runs, trials
from moebox.web.gate import AccessGate, WebSite
from moebox.web.pages import read_form, render_page, serve_script, show_error

PORT_TRIES = 20  # ports that are tried if the usual one is taken and none was requested
BACKLOG = 64  # connections that wait to be accepted


def make_app(site: WebSite) -> AccessGate:
    """Build the whole site."""

    def route(path: str, handler: Any, method: str = "GET") -> Route:
        return Route(path, functools.partial(handler, site=site), methods=[method])

    def form_route(path: str, handler: Any) -> Route:
        async def take_form(request: Request) -> Response:
            return await run_in_threadpool(handler, await read_form(request), site=site)

        return Route(path, take_form, methods=["POST"])

    routes = [
        route("/", planning.plan_page),
        route("/plan", planning.plan_part),
        route("/plan.json", planning.plan_json),
        route("/models", planning.list_models),
        route("/models/fit", planning.model_fit),
        route("/runs", runs.list_runs),
        form_route("/runs", runs.start_run),
        route("/compare", runs.compare_runs),
        route("/runs/{name}", runs.show_report),
        route("/runs/{name}/live", runs.follow_run),
        route("/runs/{name}/events", runs.stream_events),
        route("/runs/{name}/stop", runs.stop_run, "POST"),
        route("/engines", engines.list_engines),
        route("/engines/{name}/stop", engines.stop_engine, "POST"),
        route("/engines/{name}/watch", engines.show_watch),
        route("/engines/{name}/watch/events", engines.stream_figures),
        route("/tasks", trials.list_task_runs),
        form_route("/tasks", trials.start_tasks),
        *(route(f"/{name}", functools.partial(trials.show_trials, command=name)) for name in trials.FIELDS),
        *(form_route(f"/{name}", functools.partial(trials.start_trial, name)) for name in trials.FIELDS),
        form_route("/upgrade/rollback", trials.roll_back),
        route("/calibrations", calibrations.list_calibrations),
        route("/calibrations/{name}", calibrations.show_calibration),
        route("/calibrations/{name}/remove", calibrations.remove_calibration, "POST"),
        route("/chat", engines.show_chat),
        form_route("/chat", engines.send_message),
        route("/recipes", recipes.list_recipes),
        route("/recipes/{name}", recipes.edit_recipe),
        form_route("/recipes/check", recipes.check_recipe),
        form_route("/recipes/start", recipes.start_recipe),
        form_route("/recipes", recipes.save_recipe),
        serve_script("/page.js", "moebox.report", "script.js"),
        serve_script("/ui.js", "moebox.web", "ui.js"),
    ]
    handlers: dict[Any, Any] = {MoeboxError: show_error, HTTPException: unknown_page}
    return AccessGate(Starlette(routes=routes, exception_handlers=handlers), site)


async def unknown_page(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    blocks = [Prose(paragraphs=("There is no such page. The pages are above.",))]
    return render_page("message.html", problem.status_code, title="moebox", here="", blocks=blocks)


def listen_on_port(host: str, port: int, *, exact_port: bool) -> socket.socket:
    """Bind a socket, to the next free port if the usual one is taken."""
    refuse_out_of_range("--port", port, 0, LAST_PORT)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = ":" in host and socket.has_dualstack_ipv6()  # "::" is for IPv4 too
    last = port if exact_port or port == 0 else port + PORT_TRIES - 1
    while True:
        try:
            return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        except OSError as problem:
            if port == last:
                reason = str(problem.strerror).partition(" (")[0]  # the address is named in front of it
                text = f"cannot listen on {host} port {port}: {reason}"
                raise ExternalError(text, hint="choose another with --port") from None
            port += 1


def listen_on_file(path: Path) -> socket.socket:
    """Listen on a Unix socket that only this user may connect to; replace one whose process is gone."""
    if os.path.lexists(path):
        _remove_stale(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(made.fileno(), 0o600)  # before bind: Linux gives the file this mode, so it never has another
        made.bind(str(path))
        made.listen(BACKLOG)
    except OSError as problem:
        made.close()
        text = f"--socket {path}: cannot listen there: {problem.strerror or problem}"  # no number if it is too long
        raise ExternalError(text, hint="name a file in a folder of yours") from None
    return made


def _remove_stale(path: Path) -> None:
    """Remove a socket of this user that no process listens on; refuse anything else."""
    status = path.lstat()
    refuse_if(not stat.S_ISSOCK(status.st_mode), f"--socket {path}: exists and is not a socket")
    refuse_if(status.st_uid != os.geteuid(), f"--socket {path}: belongs to another user", hint="name another file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass  # its process is busy, but there
    raise ExternalError(f"--socket {path}: another process listens there", hint="stop it, or name another file")


def is_loopback(host: str) -> bool:
    """True if the address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        hint = "127.0.0.1 for this machine, 0.0.0.0 for all networks"
        raise BadInput(f"--host {host!r} is not an address", hint=hint) from None


class PageServer(uvicorn.Server):
    """A server that ends open streams before it stops."""

    def __init__(self, config: uvicorn.Config, site: WebSite) -> None:
        super().__init__(config)
        self.site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.site.stopping.set()
        await super().shutdown(sockets)


def prepare_server(
    host: str, port: int, *, exact_port: bool, runs: Path | None = None, file: Path | None = None
) -> tuple[uvicorn.Server, socket.socket, str]:
    """Prepare the server, its socket and the address to open; `file` is a Unix socket instead of host and port."""
    runs_dir(runs)  # raises if it is not a folder
    with contextlib.suppress(MoeboxError):
        planning.plan_fully(planning.PlanQuery(box=planning.default_box()))  # the page's first one
    if file is not None:
        site, made = WebSite(runs=runs, token=""), listen_on_file(file)
        shown = f"unix:{file}"
    else:
        site = WebSite(runs=runs, any_host=not is_loopback(host))
        made = listen_on_port(host, port, exact_port=exact_port)
        name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
        shown = f"http://{name}:{made.getsockname()[1]}/?token={site.token}"
    config = uvicorn.Config(
        make_app(site), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=3
    )
    return PageServer(config, site), made, shown
