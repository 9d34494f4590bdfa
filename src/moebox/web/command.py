"""`moebox ui`: the command itself; it stands here because the command line imports no pages."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

USUAL_PORT = 8717


def ui(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    open: Annotated[bool, Parameter(name="--open", negative=())] = False,
    runs: Path | None = None,
) -> int:
    """Serve the local page: plan with sliders, the runs, one of them live. Ctrl-C ends it.

    On any address but this machine's own, the page is opened with a token that is printed once.

    Args:
        host: The address to listen on.
        port: The port; the first free one from 8717 on without it.
        open: Open it in the browser.
        runs: The folder that holds the runs.
    """
    from moebox.web.serve import prepare

    server, listening, address = prepare(host, USUAL_PORT if port is None else port, insist=port is not None, runs=runs)
    print(address, flush=True)
    if open:
        import webbrowser

        webbrowser.open(address)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        print("", file=sys.stderr)
    finally:
        listening.close()
    return 0
