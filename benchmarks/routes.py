"""False alarms and missed faults of the check `routes`, on the embedded engine with the phantom, or on a toy.

    python benchmarks/routes.py healthy 100 [--toy]        # false alarms in as many runs
    python benchmarks/routes.py faults [NAME ...] [--toy]  # a proxy changes what one route gives; is the route named?

The proxy knows only what a server knows: prompts that it has seen, and requests that are under way. The toy's
probabilities depend on the whole prompt. Beside others, and with a cached prompt, they move as a model's with experts
do: hardly at most positions, and a lot at one in ten, where another expert is chosen.
"""

import argparse
import json
import math
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.quality.toy_server import VOCABULARY, ToyServer
from tests.serving import live

from moebox import http, phantom
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.verdict import CheckVerdict
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from quality import serve_phantom

STRAYS = 0.1  # of positions at which another expert is chosen by another route
FLAGS = ("-np", "4", "-c", "8192")
FAULTS = {  # what happens, and the words that must name the route
    "cached prompts lose their last word": "cached prefixes",
    "cached prompts lose 16 characters in the middle": "cached prefixes",
    "cached prompts begin like another prompt": "cached prefixes",
    "prompts in pieces lose 8 characters at the boundary": "in pieces",
    "prompts in pieces lose the first piece": "in pieces",
    "neighbours exchange their last words": "crowd",
    "log-probabilities in a crowd have noise": "crowd",
    "the last slot loses a word": "slots",
    "short prompts beside long ones are padded": "beside long ones",
    "long cached prompts lose a block": "cached prefixes differ at",
}


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on, and damages those that go by one route."""

    daemon_threads = True

    def __init__(self, inner: str, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.inner, self.fault = inner, fault
        self.seen: list[str] = []
        self.busy: list[str] = []
        self.changes = threading.Condition()

    def damage(self, prompt: str, cached: bool) -> str:
        """The prompt as the faulty route reads it. Waits a moment for neighbours."""
        fault = self.fault
        waits = "neighbours" in fault or "crowd" in fault or "slot" in fault or "beside" in fault
        with self.changes:
            again, begun = prompt in self.seen, [old for old in self.seen if prompt != old and prompt.startswith(old)]
            self.seen += [prompt] if cached else []
            self.busy.append(prompt)
            self.changes.notify_all()
            self.changes.wait_for(lambda: len(self.busy) > 1, timeout=0.15 if waits else 0)
            others = [each for each in self.busy if each != prompt]
            place = self.busy.count(prompt)
        again = again and cached
        if again and fault == "cached prompts lose their last word":
            return prompt.rpartition(" ")[0]
        if again and ("in the middle" in fault or (len(prompt) > 1200 and "lose a block" in fault)):
            size = 16 if "in the middle" in fault else 64
            return prompt[: len(prompt) // 2] + prompt[len(prompt) // 2 + size :]
        if again and "begin like another" in fault:
            return next(old for old in (*self.seen, "") if old[:8] != prompt[:8])[:64] + prompt[64:]
        if begun and cached and "in pieces" in fault:
            cut = max(map(len, begun))
            return prompt[: cut - 8] + prompt[cut:] if "boundary" in fault else prompt[min(map(len, begun)) :]
        if others and "neighbours" in fault:
            return prompt.rpartition(" ")[0] + " " + others[0].rpartition(" ")[2]
        if place > 3 and "last slot" in fault:
            return prompt.rpartition(" ")[0]
        if "padded" in fault and any(len(each) > 4 * len(prompt) for each in others):
            return "\n" * 24 + prompt
        return prompt


class ExpertToy(ToyServer):  # type: ignore[misc]  # tests are not typed for benchmarks
    """A server whose probabilities depend on the whole prompt, and a little on its route."""

    def __init__(self) -> None:
        super().__init__("prefixes")
        self.route = threading.local()

    def is_faulty(self, body: dict[str, Any]) -> bool:
        super().is_faulty(body)
        self.route.name = f"{len(self.busy)} {str(body['prompt']) in self.seen}"
        return False

    def predict(self, before: list[int], top: int) -> dict[int, float]:
        rng, own = random.Random(str(before[-2:])), random.Random(str(before))
        stray = random.Random(f"{before} {self.route.name}")
        spread = 0.0 if self.route.name == "1 False" else 0.4 if stray.random() < STRAYS else 0.02
        logits = [2 * rng.gauss() + own.gauss() + spread * stray.gauss() for _ in range(VOCABULARY)]
        total = math.log(sum(map(math.exp, logits)))
        return dict(sorted(enumerate(value - total for value in logits), key=lambda pair: -pair[1])[:top])


class _Handler(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = http.get(self.server.inner + self.path)
        self._reply(found.status, found.text.encode())

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("prompt") if self.path == "/v1/completions" else None
        if isinstance(prompt, str):
            body["prompt"] = server.damage(prompt, bool(body.get("cache_prompt")))
        status, reply = self._post(body)
        rows = reply["choices"][0]["logprobs"]["content"] if prompt and status == 200 else []
        if "crowd have noise" in server.fault and len(server.busy) > 1:
            for entry in (entry for row in rows for entry in (row, *row["top_logprobs"])):
                entry["logprob"] = min(0.0, entry["logprob"] + random.gauss(0, 0.7))
        if isinstance(prompt, str):
            with server.changes:
                server.busy.remove(prompt)
        self._reply(status, json.dumps(reply).encode())

    def _post(self, body: dict[str, Any]) -> tuple[int, Any]:
        with http.HttpSession() as session:
            found = session.post_json(self.server.inner + self.path, body, timeout_s=300.0)
        return found.status, found.json()

    def _reply(self, status: int, raw: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_fault(inner: Endpoint, fault: str) -> Iterator[Endpoint]:
    """A proxy with one fault in front of a server."""
    proxy = FaultyProxy(inner.server_url, fault)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield endpoint_from_url(f"http://127.0.0.1:{proxy.server_address[1]}", inner.model, engine=inner.engine)
    finally:
        proxy.shutdown()
        proxy.server_close()


@contextmanager
def serve_toy() -> Iterator[Endpoint]:
    with live(ExpertToy()) as server:
        yield endpoint_from_url(server.url, "toy")


def check_routes(endpoint: Endpoint, seed: int) -> CheckVerdict:
    """One run of the check."""
    options = VerifyOptions(seed=seed, parallel=4, context=1400)
    return run_checks(endpoint, options, only=["routes"]).rungs[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("healthy", "faults"))
    parser.add_argument("names", nargs="*", help="number of runs, or faults")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--toy", action="store_true", help="not the phantom, but a toy that costs little")
    given = parser.parse_args()
    good = 0
    with serve_toy() if given.toy else serve_phantom(phantom.gguf_path(), FLAGS) as endpoint:
        if given.what == "healthy":
            runs = int((given.names or ["100"])[0])
            for seed in range(given.first, given.first + runs):
                check = check_routes(endpoint, seed)
                good += check.verdict == "pass"
                print(
                    seed,
                    check.verdict,
                    {probe.name: probe.reason for probe in check.probes},
                    flush=True,
                )
            print(f"{runs - good} alarms in {runs} healthy runs")
            return
        names = given.names or list(FAULTS)
        for name in names:
            with serve_fault(endpoint, name) as faulty:
                check = check_routes(faulty, given.first)
            named = any(FAULTS[name] in probe.reason for probe in check.probes)
            good += named and check.verdict == "fail"
            shown = {probe.name: probe.reason for probe in check.probes}
            print(f"| {name} | {check.verdict} | {'named' if named else 'not named'} | {shown} |", flush=True)
        print(f"{good} of {len(names)} faults named")


if __name__ == "__main__":
    main()
