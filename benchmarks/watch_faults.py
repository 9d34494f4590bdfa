"""Faults in a live endpoint, and whether `moebox watch` names their cause; then quiet minutes, and its alarms counted.

    python -m benchmarks.watch_faults                       # eleven faults, about 20 minutes
    python -m benchmarks.watch_faults --only queue,unread
    python -m benchmarks.watch_faults --quiet 30            # minutes of ordinary load; for a machine without other work

The endpoint is what `make run` starts: llama.cpp with the phantom. Faults are real (processes that are stopped or
killed, busy programs, clients that send too much or never read), but one: the GPU's driver is a stand-in.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.embedded import phantom_recipe
from tests.spin import busy_programs

from moebox import codec, http, phantom

WARM_S, PATIENCE_S, PAUSE_S = 100.0, 150.0, 75.0  # usual load first; for an alert; until the next fault
RULES = "You are a careful assistant. Answer briefly, name units, and never repeat the question. " * 3
TOPICS = ("What is {} + 17?", "Say hello to guest {}.", "Name a colour for room {}.", "Write a list of {} words.")
DRIVER = """import types
class NVMLError(Exception): pass
NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0
nvmlInit = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetTemperature = lambda handle, kind: 91
nvmlDeviceGetClockInfo = lambda handle, kind: 900
nvmlDeviceGetPowerUsage = lambda handle: 250_000
nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=80)
nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: int(open({reasons!r}).read())
"""


@dataclass
class Load:
    """Clients that send chats one after another; faults change what they send."""

    url: str
    key: str = ""
    model: str = "phantom"
    begin: Callable[[], str] = lambda: RULES
    more: dict[str, object] = field(default_factory=dict)
    sent: int = 0
    failed: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def send_chats(self, pause_s: float) -> None:
        rng, turns = random.Random(), list[dict[str, str]]()
        while not self.stop.is_set():
            if len(turns) > rng.choice((2, 4, 6)):
                turns = []
            turns = [{"role": "system", "content": self.begin()}, *turns[1:]]  # as clients do: written again each time
            turns.append({"role": "user", "content": rng.choice(TOPICS).format(rng.randint(2, 99))})
            body = {"model": self.model, "messages": turns, "max_tokens": rng.choice((16, 48, 96)), **self.more}
            headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
            reply = http.post_json(f"{self.url}/chat/completions", body, headers=headers, timeout_s=120)
            self.sent, self.failed = self.sent + 1, self.failed + (not reply.ok)
            text = (reply.json() or {}).get("choices", [{}])[0].get("message", {}).get("content")
            turns = [*turns, {"role": "assistant", "content": text}] if text else []
            self.stop.wait(rng.uniform(0.2, 1.8) * pause_s)

    @contextlib.contextmanager
    def run_clients(self, clients: int, pause_s: float = 1.0) -> Iterator["Load"]:
        threads = [threading.Thread(target=self.send_chats, args=(pause_s,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()


class Place:
    """Folders of one part of the benchmark, its engines and its watch."""

    def __init__(self, folder: Path, **recipe: object) -> None:
        self.folder, self.alerts_seen = folder, 0
        self.reasons = folder / "reasons"
        self.reasons.write_text("0")
        (folder / "driver").mkdir()
        (folder / "driver" / "pynvml.py").write_text(DRIVER.format(reasons=str(self.reasons)))
        self.env = {**os.environ, "MOEBOX_STATE": str(folder / "state"), "MOEBOX_RUNS": str(folder / "runs")}
        self.env |= {"ANNA": "a" * 32, "BEN": "b" * 32, "NO_COLOR": "1"}
        usual: dict[str, object] = {"context": 2048, "max_seqs": 4}
        (folder / "phantom.toml").write_text(codec.to_toml(phantom_recipe(**usual | recipe)))

    def moebox(self, *words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "moebox", *words], env=self.env, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else sys.exit(f"moebox {' '.join(words)}: {done.stderr}")

    def start_engine(self) -> tuple[str, int]:
        """Return the address and the process of the engine."""
        self.moebox("up", str(self.folder / "phantom.toml"), "--detach")
        (row,) = json.loads(self.moebox("ps", "--json"))["engines"]
        return row["base_url"], row["pid"]

    @contextlib.contextmanager
    def run_watch(self, *words: str) -> Iterator[None]:
        argv = [sys.executable, "-m", "moebox", "watch", *words]
        env = {**self.env, "PYTHONPATH": str(self.folder / "driver")}
        with (
            open(self.folder / "watch.txt", "w") as out,
            subprocess.Popen(argv, env=env, stdout=out, stderr=out) as watch,
        ):
            try:
                yield
            finally:
                watch.send_signal(signal.SIGINT)

    def read_alerts(self) -> list[tuple[str, str]]:
        """Names and texts of the alerts since the last call."""
        rows = [json.loads(row) for path in self.folder.glob("runs/*/watch.jsonl") for row in path.open()]
        found = [(row["alert"], row["text"]) for row in rows if "alert" in row]
        new, self.alerts_seen = found[self.alerts_seen :], len(found)
        return new


def try_fault(place: Place, name: str, fault: contextlib.AbstractContextManager[object]) -> bool:
    """Inject a fault until its alert comes. Print what was said, and return whether it has the right name."""
    early = place.read_alerts()
    began, found = time.monotonic(), list[tuple[str, str]]()
    with fault:
        while time.monotonic() - began < PATIENCE_S and name not in dict(found):
            time.sleep(1)
            found += place.read_alerts()
    took = time.monotonic() - began
    print(f"\n{name}: {'right' if name in dict(found) else 'MISSED'} after {took:.0f} s", flush=True)
    for said, text in found:
        print(f"  {said}: {text}", flush=True)
    for said, text in early:
        print(f"  (before it: {said}: {text})", flush=True)
    return name in dict(found)


@contextlib.contextmanager
def read_nothing(url: str) -> Iterator[None]:
    """A client that asks for a long stream and never reads it."""
    host, port = url.split("//")[1].split("/")[0].split(":")
    body = {
        "model": "phantom",
        "prompt": "hello",
        "stream": True,
        "max_tokens": 1500,
        "n_probs": 40,
    }
    data = json.dumps(body | phantom.ENDLESS_TEXT).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        yield


@contextlib.contextmanager
def send_signal(process: int, first: int, last: int = 0) -> Iterator[None]:
    os.kill(process, first)
    try:
        yield
    finally:
        if last:
            os.kill(process, last)


@contextlib.contextmanager
def change_load(load: Load, **fields: object) -> Iterator[None]:
    before = {name: getattr(load, name) for name in fields}
    for name, value in fields.items():
        setattr(load, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(load, name, value)


@contextlib.contextmanager
def throttle_gpu(place: Place) -> Iterator[None]:
    place.reasons.write_text(str(0x40))  # hardware thermal slowdown
    try:
        yield
    finally:
        place.reasons.write_text("0")


def long_text(words: int) -> str:
    return " ".join(random.choices(RULES.split(), k=words))


def engine_faults(place: Place, only: set[str]) -> Iterator[bool]:
    """Faults of one engine under a light load, each after some usual time."""
    url, process = place.start_engine()
    load = Load(url)
    faults: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "queue": lambda: Load(url).run_clients(12, 0.1),
        "context": lambda: Load(url, begin=lambda: long_text(3000)).run_clients(1, 5.0),
        "cache misses": lambda: change_load(load, begin=lambda: f"{random.random()} {time.time()} {RULES}"),
        "unread": lambda: read_nothing(url),
        "crowding": lambda: Load(url, begin=lambda: long_text(500)).run_clients(2, 0.1),
        "throttling": lambda: throttle_gpu(place),
        "slower": lambda: busy_programs(8 * (os.cpu_count() or 1)),
        "hung": lambda: send_signal(process, signal.SIGSTOP, signal.SIGCONT),
        "gone": lambda: send_signal(process, signal.SIGKILL),
    }
    with place.run_watch("--every", "1s", "--canary", "0"), load.run_clients(2):
        time.sleep(WARM_S)
        for name in (name for name in faults if not only or name in only):
            yield try_fault(place, name, faults[name]())
            time.sleep(PAUSE_S)


def draft_fault(place: Place) -> bool:
    """Texts that the draft model does not expect: a grammar that it does not know of."""
    url, _ = place.start_engine()
    load = Load(url)
    with place.run_watch("--every", "1s", "--canary", "0"), load.run_clients(2):
        time.sleep(WARM_S)
        return try_fault(
            place, "acceptance", change_load(load, more={"grammar": "root ::= [q-z ]+", "temperature": 1.5})
        )


def user_fault(place: Place) -> bool:
    """Two users of one address, one of whom sends long prompts without pause."""
    text = '[models.phantom]\nrecipe = "phantom.toml"\npreload = true\n'
    text += "".join(f'[users.{name}]\nkey_env = "{name.upper()}"\nparallel = 8\n' for name in ("anna", "ben"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = place.folder / "models.toml"
    file.write_text(f'name = "desk"\nport = {port}\n{text}')
    argv, url = [sys.executable, "-m", "moebox", "switch", str(file)], f"http://127.0.0.1:{port}/v1"
    with subprocess.Popen(argv, env=place.env, stdout=subprocess.DEVNULL) as switch:
        try:
            while not http.get(f"http://127.0.0.1:{port}/health").ok:
                time.sleep(0.5)
            with (
                place.run_watch(url, "--model", "phantom", "--key-env", "ANNA", "--every", "1s", "--canary", "0"),
                Load(url, key=place.env["ANNA"]).run_clients(1),
                Load(url, key=place.env["BEN"]).run_clients(1),
            ):
                time.sleep(WARM_S + 30)
                crowd = Load(url, key=place.env["BEN"], begin=lambda: long_text(500)).run_clients(6, 0.1)
                return try_fault(place, "one user", crowd)
        finally:
            switch.send_signal(signal.SIGINT)


def count_alarms(place: Place, minutes: float) -> None:
    url, _ = place.start_engine()
    load = Load(url)
    with place.run_watch("--canary", "5m"), load.run_clients(3):
        time.sleep(minutes * 60)
    alerts = place.read_alerts()
    print(f"{len(alerts)} alarms in {minutes:g} minutes, {load.sent} requests, {load.failed} of them failed")
    for name, text in alerts:
        print(f"  {name}: {text}")


@contextlib.contextmanager
def make_place(**recipe: object) -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), **recipe)
        try:
            yield place
        finally:
            for row in json.loads(place.moebox("ps", "--json"))["engines"]:
                place.moebox("down", row["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--quiet", type=float, default=0.0)
    given = parser.parse_args()
    if given.quiet:
        with make_place() as place:
            count_alarms(place, given.quiet)
        return
    only, found = set(filter(None, given.only.split(","))), list[bool]()
    if not only or only - {"acceptance", "one user"}:
        with make_place() as place:
            found += engine_faults(place, only)
    if not only or "acceptance" in only:
        flags = {"spec-type": "draft-simple", "spec-draft-model": str(phantom.gguf_path(draft=True))}
        with make_place(flags=flags) as place:
            found.append(draft_fault(place))
    if not only or "one user" in only:
        with make_place() as place:
            found.append(user_fault(place))
    print(f"\n{sum(found)} of {len(found)} faults named with the right cause")


if __name__ == "__main__":
    main()
