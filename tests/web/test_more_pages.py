"""Calibrations, tasks and watching on the page: what the commands show, where a browser shows it."""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moebox import detect
from moebox.checkpoint import resolve_model
from moebox.core.calibration import Boot, Calibration, calibrated_box, calibrated_layout, shape_id
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.serve import state
from moebox.store import calibrations as store
from moebox.web import engines
from tests.planner.test_measured import calibration
from tests.report.test_tasks import saved
from tests.serving import live
from tests.web.chromium import Tab
from tests.web.entry import cookie
from tests.web.test_cockpit import post
from tests.web.test_ui import get

Serve = Callable[..., str]
BOX = "8x-h200"
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc 0.42
"""


def faster(boot: Boot) -> Boot:
    """Steps so quick that the planner keeps to this layout."""
    decode = tuple(replace(step, seconds=step.seconds / 4) for step in boot.decode)
    return replace(boot, decode=decode, prefill=tuple(replace(one, seconds=one.seconds / 4) for one in boot.prefill))


@pytest.fixture
def kept() -> Iterator[Calibration]:
    """A calibration of the plan that the page shows for Kimi on eight H200."""
    model, forms = resolve_model("kimi-k2.6")
    box = detect.load_box(BOX)
    recipe = choose_plan(box, model, forms, Constraints(context=65536, concurrency=8)).recipe
    form = next(form for form in forms if recipe.checkpoint in (form.name, form.repo))
    found = calibration(
        id="kimi-vllm-1",
        engine=recipe.engine,
        shape=shape_id(model),
        quant=form.quant,
        place=calibrated_box(box),
        layout=calibrated_layout(recipe),
        notes=("a <b>note</b>",),
    )
    store.store_calibration(replace(found, boots=tuple(faster(boot) for boot in found.boots)))
    yield found
    (store.calibrations_dir() / f"{found.id}.json").unlink(missing_ok=True)


def test_a_calibration_is_listed_shown_used_and_removed(serve: Serve, kept: Calibration):
    """The plan names its basis, before and after; no cached plan outlives the file."""
    url = serve()
    plan = f"plan?box={BOX}&model=kimi-k2.6&context=65536&concurrency=8"

    assert "kimi-vllm-1" in get(url + "calibrations")[1]
    page = get(url + "calibrations/kimi-vllm-1")[1]
    assert "61 layers" in page
    assert "a &lt;b&gt;note&lt;/b&gt;" in page
    assert "steps measured on this box 2026-11-15, 61 layers from 4 and 8" in get(url + plan)[1]
    status, text = post(url, "calibrations/kimi-vllm-1/remove", {})
    assert (status, json.loads(text)["go"]) == (200, "/calibrations")
    assert "results from" in get(url + plan)[1]
    assert "None yet" in get(url + "calibrations")[1]
    assert get(url + "calibrations/kimi-vllm-1")[0] == 404
    assert post(url, "calibrations/kimi/remove", {})[0] == 404


def test_jobs_are_listed_with_their_scores(serve: Serve, tmp_path: Path):
    """A run whose results cannot be read is left out; an empty folder shows how to begin."""
    url = serve(runs=tmp_path)
    assert "No run with jobs yet" in get(url + "tasks")[1]
    run = saved(tmp_path)
    (tmp_path / "20260101-000000-broken-0000").mkdir()
    (tmp_path / "20260101-000000-broken-0000" / "tasks.json").write_text("{")

    page = get(url + "tasks")[1]
    assert run.id in page
    assert "1 of 2 (9–91%)" in page
    assert "repair, hard: 1 of 2" in page
    assert "broken-0000" not in page


received: list[dict[str, object]] = []  # bodies of chat requests


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with vLLM's metrics, known to moebox as a running engine."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            call = {"index": 0, "id": "c1", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
            for delta in ({"reasoning_content": "which zone?"}, {"content": "<b>It is</b>"}, {"tool_calls": [call]}):
                self.wfile.write(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n".encode())
            while "forever" in str(received[-1]["messages"][-1]):  # type: ignore[index]
                time.sleep(0.02)
                try:
                    self.wfile.write(b'data: {"choices": [{"delta": {"content": "."}}]}\n\n')
                except OSError:
                    return  # stopped

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    port = server.server_port
    instance = state.Instance(
        id="k-1",
        run="",
        recipe="r",
        engine="vllm",
        model="kimi",
        base_url=f"http://127.0.0.1:{port}/v1",
        port=port,
        guard=os.getpid(),
        guard_started=state.process_start_tick(os.getpid()),
        ready=1.0,
    )
    monkeypatch.setattr(state, "list_instances", lambda: [instance])
    with live(server):
        yield instance.id


def test_an_engine_is_watched(serve: Serve, engine: str, monkeypatch: pytest.MonkeyPatch):
    """The page asks for events; they hold the engine's figures, drawn, every few seconds."""
    monkeypatch.setattr(engines, "EVERY_S", 0.05)
    url = serve()

    assert f"/engines/{engine}/watch" in get(url + "engines")[1]
    assert "waiting for its metrics" in get(f"{url}engines/{engine}/watch")[1]
    events = urllib.request.Request(f"{url}engines/{engine}/watch/events", headers={"Cookie": cookie(url)})
    with urllib.request.urlopen(events, timeout=30) as stream:
        for _ in range(5):
            line = stream.readline().decode()
            stream.readline()
    part = json.loads(line.removeprefix("data: "))
    assert "answers" in part
    assert "42.0%" in part
    assert "seconds ago" in part
    assert get(f"{url}engines/nosuch/watch")[0] == 404


def test_a_chat_has_settings_shows_calls_and_outlives_a_reload(tab: Tab, serve: Serve, engine: str):
    """System prompt, temperature and limit reach the server; thinking and calls are shown, and all is kept."""
    url = serve()
    received.clear()
    tab.open(f"{url}chat?engine={engine}", ready="document.getElementById('chat')")
    for name, value in (("system", "be brief"), ("temperature", "0.5"), ("max_tokens", "40"), ("text", "time?")):
        tab.run(f"chat.elements.{name}.value = {json.dumps(value)}")
    tab.run("chat.requestSubmit()")
    tab.until("document.querySelectorAll('#talk article').length === 4 && chat.querySelector('[data-stop]').disabled")
    bubbles = "[...document.querySelectorAll('#talk article')].map(one => [one.className, one.textContent])"
    shown = [["user", "time?"], ["thinking", "which zone?"], ["assistant", "<b>It is</b>"]]
    shown.append(["call", 'now {"zone": "UTC"}'])
    assert tab.run(bubbles) == shown
    assert (received[0]["temperature"], received[0]["max_tokens"]) == (0.5, 40)
    assert received[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "time?"},
    ]
    tab.open(f"{url}chat", ready="document.querySelectorAll('#talk article').length === 4")
    assert tab.run(bubbles) == shown
    assert tab.run("chat.elements.system.value") == "be brief"
    tab.run("chat.elements.text.value = 'noon'; chat.requestSubmit()")
    tab.until("document.querySelectorAll('#talk article').length === 8")
    assert received[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "noon"}  # type: ignore[index]
    tab.run("chat.querySelector('[type=reset]').click()")
    tab.until("!document.querySelector('#talk article')")
