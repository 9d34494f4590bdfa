"""How soon a server that stands still is noticed, and whether slow servers that live are left alone.

    python -m benchmarks.stalls [--stalls 20] [--slow 3600] [--servers 3]

Stalls: a server is stopped (SIGSTOP), or deadlocks, at a random moment of a stream; it prints the time until StallWatch
reports it. Slow: servers of one thread send a token every 10 s for so many seconds; a report is a false alarm.
"""

import argparse
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

from moebox.core.endpoint import endpoint_from_url
from moebox.detect.stall import StallWatch

TOKEN_S = 10.0  # of the slow server
FOUND_S = 20.0  # the promise of docs/security.md
FOREVER_S = 1e9
SERVER = """
import http.server, sys, time
gap, last = float(sys.argv[1]), float(sys.argv[2])
class Talk(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        began = time.monotonic()
        while time.monotonic() - began < last:
            self.wfile.write(b"data: token\\n\\n")
            time.sleep(gap)
        time.sleep(3600)
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Talk)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def watched_server(gap_s: float, last_s: float) -> Iterator[tuple["subprocess.Popen[str]", StallWatch]]:
    """A server that sends a token each `gap_s`, and hangs after `last_s`; its watch, with a client that reads."""
    words = [sys.executable, "-c", SERVER, str(gap_s), str(last_s)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        endpoint = endpoint_from_url(f"127.0.0.1:{server.stdout.readline().strip()}", "m")
        reply = urllib.request.urlopen(f"{endpoint.server_url}/chat", b"{}", timeout=1e6)  # noqa: S310
        with StallWatch(endpoint) as watch:

            def read_reply() -> None:
                received = 0
                with contextlib.suppress(OSError):  # the server was killed
                    while data := reply.read1(4096):
                        received += len(data)
                        watch.note_progress(received)

            threading.Thread(target=read_reply, daemon=True).start()
            yield server, watch
    finally:
        server.kill()
        server.wait()


def seconds_to_report(after_s: float, *, stop: bool) -> float:
    """Seconds from a standstill to its report, by SIGSTOP or a deadlock; infinite if there was none in a minute."""
    with watched_server(0.1, FOREVER_S if stop else after_s) as (server, watch):
        time.sleep(after_s)
        if stop:
            os.kill(server.pid, signal.SIGSTOP)
        still_at = time.monotonic()
        while time.monotonic() < still_at + 60.0:
            if watch.problem:
                return time.monotonic() - still_at
            time.sleep(0.05)
    return math.inf


def main() -> None:
    """Run both parts at the same time and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stalls", type=int, default=20)
    parser.add_argument("--slow", type=float, default=3600.0, help="seconds")
    parser.add_argument("--servers", type=int, default=3, help="slow servers at the same time")
    asked = parser.parse_args()
    draw, until = random.Random(1), time.monotonic() + asked.slow
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(watched_server(TOKEN_S, FOREVER_S))[1] for _ in range(asked.servers)]
        found = []
        for number in range(asked.stalls):
            found.append(seconds_to_report(0.5 + 2 * draw.random(), stop=number % 2 == 0))
            print(f"{'deadlock' if number % 2 else 'SIGSTOP'}: reported after {found[-1]:.1f} s", flush=True)
        time.sleep(max(0.0, until - time.monotonic()))
        alarms = sum(watch.problem is not None for watch in slow)
    good = sum(seconds <= FOUND_S for seconds in found)
    print(f"reported within {FOUND_S:.0f} s: {good} of {len(found)}, the last after {max(found, default=0.0):.1f} s")
    print(f"false alarms: {alarms} of {len(slow)} servers with a token every {TOKEN_S:.0f} s for {asked.slow:.0f} s")


if __name__ == "__main__":
    main()
