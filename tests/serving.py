"""A small HTTP server of a test's own, live while the test runs."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import TypeVar

ServerT = TypeVar("ServerT", bound=ThreadingHTTPServer)


@contextlib.contextmanager
def live(server: ServerT) -> Iterator[ServerT]:
    """`server` answers until the end."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
