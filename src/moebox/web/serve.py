"""Starts the local page: one process, one socket, until interrupted."""

import ipaddress
import secrets
import socket
from pathlib import Path

import uvicorn

from moebox.core.traits import LAST_PORT
from moebox.errors import BadInput, Outside, refuse_outside
from moebox.store import runs_dir
from moebox.web import planning
from moebox.web.app import application
from moebox.web.gate import Site

TRIES = 20  # ports after the asked one, when it is taken and nobody insisted on it


def listen(host: str, port: int, *, insist: bool) -> socket.socket:
    """A bound socket; the next free port where the usual one is taken."""
    refuse_outside("--port", port, 0, LAST_PORT)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in range(port, port + (1 if insist or port == 0 else TRIES)):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, number))
        except OSError as problem:
            made.close()
            if insist or number == port + TRIES - 1:
                raise Outside(
                    f"cannot listen on {host} port {number}: {problem.strerror}", hint="choose another with --port"
                ) from None
            continue
        made.listen(64)
        return made
    raise Outside(f"no free port from {port} on")


def is_loopback(host: str) -> bool:
    """Reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise BadInput(
            f"--host {host!r} is not an address", hint="127.0.0.1 for this machine, 0.0.0.0 for all networks"
        ) from None


def address(host: str, port: int, token: str) -> str:
    """What to open."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


class Server(uvicorn.Server):
    """Tells open streams when it stops, so that none has to be cut off."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self.site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self.site.over.set()
        await super().shutdown(sockets)


def prepare(host: str, port: int, *, insist: bool, runs: Path | None) -> tuple[uvicorn.Server, socket.socket, str]:
    """The server, its socket, and the address to open."""
    runs_dir(runs)  # refuses what is none
    planning.warm()
    token = "" if is_loopback(host) else secrets.token_urlsafe(18)
    made = listen(host, port, insist=insist)
    site = Site(runs=runs, token=token)
    config = uvicorn.Config(
        application(site),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
    )
    return Server(config, site), made, address(host, made.getsockname()[1], token)
