"""`moebox ui`. It is in this package because cli/ does not import web/."""

import contextlib
import html
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.errors import refuse_if

LOOPBACK = "127.0.0.1"
USUAL_PORT = 8717


def ui(
    *,
    host: str = LOOPBACK,
    port: int | None = None,
    socket: Path | None = None,
    open: Annotated[bool, Parameter(name="--open", negative=())] = False,
) -> int:
    """Serve the local page: plan, start, follow, chat, tune, upgrade and compare. Ctrl-C ends it.

    The printed address holds a token, new for each start: other users of this machine have none, and get no page.

    Args:
        host: The address to listen on.
        port: The port; the first free one from 8717 on without it.
        socket: A Unix socket to listen on instead, which only your account may use; `ssh -L 8717:PATH` forwards it.
        open: Open it in the browser.
    """
    from moebox.web.serve import prepare_server

    chosen = host != LOOPBACK or port is not None or open
    refuse_if(socket and chosen, "--socket takes the place of --host, --port and --open")
    server, listening, address = prepare_server(
        host, USUAL_PORT if port is None else port, exact_port=port is not None, file=socket
    )
    print(address, flush=True)
    try:
        with _open_browser(address) if open else contextlib.nullcontext():
            server.run(sockets=[listening])
    except KeyboardInterrupt:
        print("", file=sys.stderr)
    finally:
        listening.close()
        if socket:
            socket.unlink(missing_ok=True)
    return 0


@contextlib.contextmanager
def _open_browser(address: str) -> Iterator[None]:
    """Open the address through a file that only this user may read, because any user may read command lines."""
    import webbrowser

    from moebox import files
    from moebox.serve import state
    from moebox.web.gate import REDIRECT_PAGE

    path = state.state_dir() / f"ui-{os.getpid()}.html"
    with files.report_write_errors(path):
        files.write_atomic(path, REDIRECT_PAGE.format(url=html.escape(address)), mode=0o600)
    try:
        webbrowser.open(path.absolute().as_uri())
        yield
    finally:
        path.unlink(missing_ok=True)
