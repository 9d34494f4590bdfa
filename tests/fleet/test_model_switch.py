"""Several models behind one address: what fits, swaps under load, limits and counts of users, faults."""

import asyncio
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
import yaml

from moebox.bench.prompts import load_trace
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.cli.twin import bind_socket
from moebox.core.deployment import Deployment
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.recipe import Recipe
from moebox.detect.declared import parse_box
from moebox.errors import BadInput, ExternalError
from moebox.flows.watch import user_figures
from moebox.store import Run
from moebox_fleet import model_proxy, model_switch
from moebox_fleet.file import KeyLimits, RouterSettings
from moebox_fleet.model_proxy import ModelProxy, UserUsage
from moebox_fleet.model_switch import ModelBusy, ModelSlot, ModelSwitch, plan_models, sleep_deployment
from moebox_fleet.models_file import ModelEntry, ModelsFile, largest_sets, llama_swap_config, read_models
from moebox_fleet.routers import RouterMember, router_start

URL = "/v1/chat/completions"
UNKNOWN = Recipe(name="r", engine="llama.cpp", model="m", checkpoint="/w/m.gguf", served_name="m")
GATE = threading.Event()  # a toy engine sends the next piece of a given stream when this is set
ASKED, LEFT = threading.Event(), threading.Event()  # a toy engine got a request that lasts forever; it was left


class ToyEngine(BaseHTTPRequestHandler):
    """Answers with its own model's name; a stream pauses between its words."""

    def do_GET(self) -> None:
        self.answer({"data": [{"id": self.server.model}]})  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        model: str = self.server.model  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("forever"):
            ASKED.set()
            if not self.connection.recv(1):  # the client of the engine has gone
                LEFT.set()
            return
        usage = {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 10}}
        if not body.get("stream"):
            self.answer({"model": model, "asked": body.get("model"), "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for piece in body.get("pieces", ()):
            self.wfile.write(piece.encode())
            GATE.wait(20)
        for _ in range(0 if "pieces" in body else 5):
            self.wfile.write(f'data: {{"model":"{model}","choices":[{{}}]}}\n\n'.encode())
            time.sleep(0.02)
        if "pieces" not in body:
            self.wfile.write(f'data: {{"choices":[],"usage":{json.dumps(usage)}}}\n\ndata: [DONE]\n\n'.encode())

    def answer(self, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class ToySession:
    """A session of a toy engine, on a port of its own."""

    def __init__(self, model: str) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), ToyEngine)
        self.server.model = model  # type: ignore[attr-defined]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.endpoint: Endpoint = endpoint_from_url(f"127.0.0.1:{self.server.server_port}", model)
        self.is_alive = True

    def wait_ready(self) -> None:
        """It is ready at once."""

    def stop(self) -> None:
        self.is_alive = False
        self.server.shutdown()
        self.server.server_close()


class ToySwitch(ModelSwitch):
    """Starts toy engines instead of real ones; all else is as it is."""

    fails: tuple[str, ...] = ()
    failure: Exception = ExternalError("out of memory")
    up_at_once = 0

    def _bring_up(self, slot: ModelSlot) -> None:
        if slot.name in self.fails:
            raise self.failure
        slot.session = ToySession(slot.deployment.recipe.served_name)  # type: ignore[assignment]
        slot.state = "up"
        self.up_at_once = max(self.up_at_once, sum(each.state == "up" for each in self.slots.values()))


def make_file(**more: Any) -> ModelsFile:
    entry = ModelEntry(recipe="r", alone=True)
    return ModelsFile(models={"a": entry, "b": entry}, **more)


def make_switch(tmp_path: Path, *, kind: type[ToySwitch] = ToySwitch, **more: Any) -> ToySwitch:
    deployments = {name: deploy(replace(UNKNOWN, served_name=f"served-{name}")) for name in "ab"}
    return kind(make_file(**more), deployments, Run.create("models", runs=tmp_path), report=lambda line: None)


@contextlib.asynccontextmanager
async def serve(proxy: ModelProxy) -> AsyncIterator[httpx2.AsyncClient]:
    """The proxy on a port of its own, as `moebox switch` serves it."""
    listening = bind_socket(0, "127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(proxy.build_app(), log_level="critical", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


async def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  -- no event says so
        await asyncio.sleep(0.01)


def test_swaps_under_load_never_answer_with_another_model(tmp_path: Path):
    """Streams and plain requests of two models that exclude each other, all at once: each gets its own."""

    async def run() -> tuple[list[tuple[str, str]], int, int]:
        switch = make_switch(tmp_path)
        answers: list[tuple[str, str]] = []
        async with serve(ModelProxy(switch)) as client:

            async def ask(name: str, stream: bool) -> None:
                async with client.stream("POST", URL, json={"model": name, "stream": stream}) as reply:
                    text = (await reply.aread()).decode()
                    answers.append((name, text))
                    assert reply.status_code == 200

            for _ in range(6):
                await asyncio.gather(*(ask(name, stream) for name in "ab" for stream in (False, True)))
            swaps = sum(event.kind == "model.swapped" for event in switch.run.read_events())
        return answers, swaps, switch.up_at_once

    answers, swaps, up_at_once = asyncio.run(run())

    assert len(answers) == 24
    for name, text in answers:
        assert f"served-{name}" in text
        assert f"served-{'b' if name == 'a' else 'a'}" not in text
    assert swaps >= 7
    assert up_at_once == 1


def test_a_users_key_opens_no_path_of_the_engines_administration(tmp_path: Path):
    """Only paths that take prompts reach an engine; any other gets 404, and starts no engine."""
    paths = ["/sleep", "/collective_rpc", "/v1/load_lora_adapter", "/release_memory_occupation", "/slots/0"]
    paths += ["/v1/chat/completions/../../../sleep", "/v1/chat/completions%2f..%2f..%2f..%2fsleep", "//sleep"]

    async def run() -> tuple[list[httpx2.Response], str, httpx2.Response]:
        switch = make_switch(tmp_path)
        async with serve(ModelProxy(switch)) as client:
            replies = [await client.post(f"{client.base_url}{path}", json={"model": "a"}) for path in paths]
            state = switch.slots["a"].state
            return replies, state, await client.post("/v1/messages", json={"model": "a"})

    replies, state, answered = asyncio.run(run())

    assert [reply.status_code for reply in replies] == [404] * len(paths)
    assert "/v1/messages" in replies[0].json()["error"]["message"]
    assert (state, answered.status_code) == ("down", 200)


def test_a_request_that_waits_too_long_gets_503_with_retry_after(tmp_path: Path):
    """A stream of the other model is open and is not cut; the next request gets its model."""

    async def run() -> tuple[httpx2.Response, str, httpx2.Response]:
        switch = make_switch(tmp_path, wait_s=1.0)
        async with serve(ModelProxy(switch)) as client:
            async with switch.hold_model("a"):
                busy = await client.post(URL, json={"model": "b"})
                state = switch.slots["a"].state
            return busy, state, await client.post(URL, json={"model": "b"})

    busy, state, later = asyncio.run(run())

    assert (busy.status_code, int(busy.headers["retry-after"]) >= 1) == (503, True)
    assert state == "up"
    assert later.json()["model"] == "served-b"


def test_a_model_that_does_not_start_or_died_is_one_line(tmp_path: Path):
    """The other one goes on; an engine that ended is started again by the next request."""

    async def run() -> list[httpx2.Response]:
        switch = make_switch(tmp_path)
        switch.fails = ("b",)
        async with serve(ModelProxy(switch)) as client:
            ask = lambda name: client.post(URL, json={"model": name})  # noqa: E731
            replies = [await ask("a"), await ask("b"), await ask("a"), await ask("c")]
            session = switch.slots["a"].session
            assert session
            session.stop()
            return [*replies, await ask("a")]

    replies = asyncio.run(run())

    assert [reply.status_code for reply in replies] == [200, 503, 200, 404, 200]
    assert replies[1].json()["error"]["message"] == "b does not start: out of memory"
    assert "there are a, b" in replies[3].text


def test_a_swap_that_ends_in_any_error_is_answered_at_once(tmp_path: Path):
    """Requests do not wait for a task that has died."""

    async def run() -> httpx2.Response:
        switch = make_switch(tmp_path)
        switch.fails, switch.failure = ("a",), RuntimeError("no such thing")
        async with serve(ModelProxy(switch)) as client, asyncio.timeout(20):
            return await client.post(URL, json={"model": "a"})

    reply = asyncio.run(run())

    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "a does not start: RuntimeError: no such thing"


def test_an_engine_of_another_model_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Started or resumed, it is stopped before the next one starts, and the next request gets its model."""
    sessions: list[ToySession] = []
    models = ["another", "another", "m", "m"]

    def launch_toy(*_: object) -> ToySession:
        sessions.append(ToySession(models[len(sessions)]))
        sessions[-1].endpoint = replace(sessions[-1].endpoint, model="m")
        return sessions[-1]

    monkeypatch.setattr(model_switch, "prepare_launch", lambda *_, **__: None)
    monkeypatch.setattr(model_switch, "launch_engine", launch_toy)

    async def run() -> tuple[list[int], list[str], list[bool]]:
        file, run = ModelsFile(models={"small": ModelEntry(recipe="r")}), Run.create("models", runs=tmp_path)
        switch = ModelSwitch(file, {"small": planned()["small"]}, run, report=lambda line: None)
        slot, statuses, states = switch.slots["small"], [], []
        async with serve(ModelProxy(switch)) as client:
            for place in range(5):
                if place == 3:
                    await switch._put_away(slot)
                    states.append(slot.state)
                    sessions[2].server.model = "another"  # type: ignore[attr-defined]
                statuses.append((await client.post(URL, json={"model": "small"})).status_code)
                states.append(slot.state)
            return statuses, states, [session.is_alive for session in sessions]

    statuses, states, alive = asyncio.run(run())

    assert statuses == [503, 503, 200, 503, 200]
    assert states == ["down", "down", "up", "asleep", "down", "up"]
    assert alive == [False, False, False, True]


def test_only_models_on_the_same_gpus_leave(tmp_path: Path):
    """The model that was not used for the longest stays if it stands on another GPU."""
    base = planned()["whole"]
    on_gpus = {"x": "0", "y": "1", "z": "1"}
    deployments = {
        name: base.with_recipe(replace(base.recipe, served_name=name, env={"CUDA_VISIBLE_DEVICES": gpu}))
        for name, gpu in on_gpus.items()
    }

    async def run() -> dict[str, str]:
        file = ModelsFile(models={name: ModelEntry(recipe="r") for name in on_gpus})
        switch = ToySwitch(file, deployments, Run.create("models", runs=tmp_path), report=lambda line: None)
        async with serve(ModelProxy(switch)) as client:
            for name in on_gpus:
                assert (await client.post(URL, json={"model": name})).json()["model"] == name
            return {row["id"]: row["state"] for row in (await client.get("/v1/models")).json()["data"]}

    assert asyncio.run(run()) == {"x": "up", "y": "asleep", "z": "up"}


def test_a_model_that_comes_as_the_wait_ends_is_used(tmp_path: Path):
    """Its request counts as open until its reply has ended, and not for longer."""

    class LateSwitch(ToySwitch):
        async def _exchange_models(self, slot: ModelSlot) -> None:
            self._bring_up(slot)
            time.sleep(0.3)  # noqa: ASYNC251  -- the end of the wait and the turn fall into the same step of the loop
            await asyncio.sleep(0)

    async def run() -> tuple[int, int]:
        switch = make_switch(tmp_path, kind=LateSwitch, wait_s=0.2)
        async with serve(ModelProxy(switch)) as client:
            reply = await client.post(URL, json={"model": "a"})
            return reply.status_code, switch.slots["a"].open_requests

    assert asyncio.run(run()) == (200, 0)


def test_users_have_keys_limits_and_a_bill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Tokens by key from the engine's own counts, the price by time, metrics by user, and traces without any text."""
    monkeypatch.setenv("ANNA", "key-of-anna")
    monkeypatch.setenv("BERT", "key-of-bert")
    users = {"anna": KeyLimits(key_env="ANNA", tokens_per_minute=60), "bert": KeyLimits(key_env="BERT")}

    async def run() -> tuple[list[httpx2.Response], httpx2.Response, Run]:
        switch = make_switch(tmp_path, users=users, prices={"hour": 3600.0}, keep_traces=True)
        async with serve(ModelProxy(switch)) as client:
            body = {"model": "a", "messages": [{"role": "user", "content": "a secret plan"}]}
            replies = []
            for key, stream in (("anna", False), ("anna", True), ("anna", False), ("bert", False), ("eve", False)):
                headers = {"authorization": f"Bearer key-of-{key}"}
                replies.append(await client.post(URL, json={**body, "stream": stream}, headers=headers))
            assert (await client.get("/metrics")).status_code == 401
            metrics = await client.get("/metrics", headers={"x-api-key": "key-of-bert"})
        return replies, metrics, switch.run

    replies, metrics, run_folder = asyncio.run(run())
    figures, top = user_figures(metrics.text)
    rows = {row["user"]: row for row in json.loads((run_folder.path / "usage.json").read_text())}
    traces = (run_folder.path / "traces.jsonl").read_text()

    assert [reply.status_code for reply in replies] == [200, 200, 429, 200, 401]
    assert '"usage"' not in replies[1].text  # the client did not ask for it
    assert (rows["anna"]["prompt_tokens"], rows["anna"]["output_tokens"], rows["anna"]["cached_tokens"]) == (60, 14, 20)
    assert (rows["anna"]["requests"], rows["anna"]["refused"], rows["bert"]["requests"]) == (2, 1, 1)
    assert rows["anna"]["money"] > 0
    assert (top, figures["users"], figures["top_user_share"]) == ("anna", 2, pytest.approx(74 / 111))
    assert figures["first_byte"] > 0
    assert "key-of" not in metrics.text
    assert main(["--runs", str(tmp_path), "runs", "show", run_folder.id]) == 0
    assert "anna" in capsys.readouterr().out
    assert "secret" not in traces
    assert len(load_trace(str(run_folder.path / "traces.jsonl"))) == 3


CHAT_USAGE = (
    '"usage": {"prompt_tokens": 1000, "completion_tokens": %d, "prompt_tokens_details": {"cached_tokens": 400}}'
)
STREAMS = {
    "OpenAI": (URL, ['data: {"choices": [{}]}\n\n', f'data: {{"choices": [], {CHAT_USAGE % 50}}}\n\ndata: [DONE]\n\n']),
    "CRLF": (URL, ['data: {"choices": [{}]}\r\n\r\n', f'data: {{"choices": [], {CHAT_USAGE % 50}}}\r\n\r\n']),
    "usage in each event": (
        URL,
        [f'data: {{"choices": [{{}}], {CHAT_USAGE % 1}}}\n\n', f'data: {{"choices": [{{}}], {CHAT_USAGE % 50}}}\n\n'],
    ),
    "cut inside of an event": (URL, ['data: {"choices": [], ', f"{CHAT_USAGE % 50}}}\n", "\ndata: [DONE]\n\n"]),
    "no empty line at the end": (URL, [f'data: {{"choices": [], {CHAT_USAGE % 50}}}']),
    "Anthropic": (
        "/v1/messages",
        [
            'event: message_start\ndata: {"message": {"usage": {"input_tokens": 600,'
            ' "cache_read_input_tokens": 400}}}\n\n',
            'event: message_delta\ndata: {"usage": {"input_tokens": 600, "output_tokens": 50}}\n\n',
        ],
    ),
    "responses": (
        "/v1/responses",
        [
            'event: response.created\ndata: {"response": {"usage": null}}\n\n',
            'event: response.completed\ndata: {"response": {"usage": {"input_tokens": 1000, "output_tokens": 50,'
            ' "input_tokens_details": {"cached_tokens": 400}}}}\n\n',
        ],
    ),
}


def test_tokens_of_every_kind_of_stream_are_counted_once(tmp_path: Path):
    """Bytes pass as they come; each stream counts 1,000, 50 and 400 tokens, and is a row of the trace."""

    async def run() -> tuple[dict[str, tuple[object, ...]], int]:
        switch, counts = make_switch(tmp_path, keep_traces=True), {}
        proxy = ModelProxy(switch)
        GATE.set()
        async with serve(proxy) as client:
            for kind, (path, pieces) in STREAMS.items():
                body = {"model": "a", "stream": True, "pieces": pieces, "stream_options": {"include_usage": True}}
                proxy.usage["everyone"] = usage = UserUsage()
                text = (await client.post(path, json=body)).text
                passed = text == "".join(pieces)
                counts[kind] = (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens, passed)
        return counts, len(load_trace(str(switch.run.path / "traces.jsonl")))

    counts, rows = asyncio.run(run())

    assert counts == dict.fromkeys(STREAMS, (1000, 50, 400, True))
    assert rows == len(STREAMS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("asked", [True, False])
def test_an_event_passes_before_the_next_one_is_written(tmp_path: Path, end: str, asked: bool):
    """Whatever ends its lines. The usage that the proxy asked for itself is left out, and only that."""
    first, usage = (
        f': ping{end}data: {{"choices": [{{}}]}}{end * 2}',
        f'data: {{"choices": [], {CHAT_USAGE % 50}}}{end * 2}',
    )
    last = f"data: [DONE]{end * 2}"

    async def run() -> list[str]:
        GATE.clear()
        async with serve(ModelProxy(make_switch(tmp_path))) as client:
            body = {"model": "a", "stream": True, "pieces": [first, usage[:20], usage[20:] + last]}
            body["stream_options"] = {"include_usage": asked}
            async with client.stream("POST", URL, json=body) as reply:
                pieces = reply.aiter_text()
                found = [await anext(pieces)]
                assert not GATE.is_set()
                GATE.set()
                return [*found, "".join([piece async for piece in pieces])]

    before, after = asyncio.run(run())

    assert before == first
    assert after.replace("\r", "") == (usage + last if asked else last).replace("\r", "")


def test_a_request_ends_in_the_engine_when_its_client_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before the first byte of a reply too; it no longer counts against the user's limit."""
    monkeypatch.setenv("ANNA", "key")
    ASKED.clear()
    LEFT.clear()

    async def run() -> tuple[bool, int, httpx2.Response]:
        switch = make_switch(tmp_path, users={"anna": KeyLimits(key_env="ANNA", parallel=1)})
        proxy = ModelProxy(switch)
        async with serve(proxy) as client:
            client.headers["authorization"] = "Bearer key"
            asking = asyncio.create_task(client.post(URL, json={"model": "a", "forever": True}))
            await asyncio.to_thread(ASKED.wait, 10)
            asking.cancel()
            left = await asyncio.to_thread(LEFT.wait, 5)
            await wait_until(lambda: not left or not proxy.usage["anna"].open)
            return left, switch.slots["a"].open_requests, await client.post(URL, json={"model": "a"})

    left, opened, reply = asyncio.run(run())

    assert (left, opened, reply.status_code) == (True, 0, 200)


def test_a_model_is_not_put_away_for_a_client_that_has_gone(tmp_path: Path):
    """A swap that has not begun is given up, and the model that should leave serves on."""

    async def run() -> tuple[list[str], httpx2.Response]:
        switch = make_switch(tmp_path)
        async with serve(ModelProxy(switch)) as client:
            async with switch.hold_model("a"), asyncio.timeout(10):
                asking = asyncio.create_task(client.post(URL, json={"model": "b"}))
                await wait_until(lambda: switch.slots["a"].leaving)
                asking.cancel()
                await wait_until(lambda: not switch.slots["a"].leaving)
                reply = await client.post(URL, json={"model": "a"})
            await client.post(URL, json={"model": "a"})
            return [slot.state for slot in switch.slots.values()], reply

    states, reply = asyncio.run(run())

    assert (states, reply.status_code) == (["up", "down"], 200)


def test_a_body_is_read_up_to_the_limit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The answer comes while most of the body is not sent yet."""
    monkeypatch.setattr(model_proxy, "MAX_BODY_BYTES", 2**16)

    async def run() -> bytes:
        async with serve(ModelProxy(make_switch(tmp_path))) as client, asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            head = f"POST {URL} HTTP/1.1\r\nHost: p\r\nContent-Length: {2**30}\r\n\r\n"
            writer.write(head.encode() + bytes(2**17))
            line = await reader.readline()
            writer.close()
            return line

    assert b"413" in asyncio.run(run())


def planned(box: str = "2x-h200", **ram: object) -> dict[str, Deployment]:
    """Two models with vLLM on the same two GPUs."""
    place = replace(parse_box(box), ram=512 * 2**30)
    recipe = Recipe(name="r", engine="vllm", model="gpt-oss-120b", checkpoint="mxfp4", served_name="m")
    half = replace(recipe, memory_utilization=0.45, listen=replace(recipe.listen, port=0))
    whole = replace(half, memory_utilization=0.9)
    return {"small": deploy(half, place), "other": deploy(half, place), "whole": deploy(whole, place)}


def test_what_fits_together_is_planned_with_the_ram_of_sleeping_weights():
    """Two halves of the GPUs serve together, the whole one alone; weights sleep in RAM only if it holds them."""
    entries = {name: ModelEntry(recipe="r") for name in ("small", "other", "whole")}
    file, deployments = ModelsFile(models=entries), planned()
    needs, room = plan_models(file, deployments)
    awake = sleep_deployment(deployments["whole"], needs["whole"]).recipe
    poor = {name: each.on_box(replace(each.required_box, ram=80 * 2**30)) for name, each in deployments.items()}
    document = yaml.safe_load(llama_swap_config(file, deployments, largest_sets(needs, room)))

    assert largest_sets(needs, room) == [("small", "other"), ("whole",)]
    assert needs["whole"].asleep["ram"] == needs["whole"].weights > 50 * 2**30
    assert (awake.flags["enable-sleep-mode"], awake.env["VLLM_SERVER_DEV_MODE"]) == (True, "1")
    assert [each.sleep for each in plan_models(file, poor)[0].values()].count("1") < 2
    assert document["matrix"]["sets"] == {"set0": "m0 & m1", "set1": "m2"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no model"),
        ('[models.A]\nrecipe="r"', "lower-case"),
        ('host="0.0.0.0"\n[models.a]\nrecipe="r"', "others could use it"),
        ('[models.a]\nrecipe="r"\n[users.x]\nkey_env=""', "key_env"),
        ('[models.a]\nrecip="r"', "recip"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, problem: str):
    """With the place and how to fix it."""
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=problem):
        read_models(path)


def test_a_dry_run_shows_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """What fits together, how long a swap takes, and llama-swap's file."""
    (tmp_path / "models.toml").write_text('[models.p]\nrecipe = "phantom"\n')
    assert main(["switch", str(tmp_path / "models.toml"), "--dry-run"]) == 0
    assert "all fit together: p" in capsys.readouterr().out


def test_weights_do_not_come_back_faster_than_the_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """571.6 GiB over eight slots of 64 GB/s take 1.2 s; RAM of which nothing is known is named, not assumed."""
    plan = ["plan", "kimi-k2.6", "--box", "8x-h200", "--engine", "vllm"]
    assert main([*plan, "--output", str(tmp_path / "kimi.toml")]) == 0
    (tmp_path / "models.toml").write_text('[models.a]\nrecipe = "kimi.toml"\n[models.b]\nrecipe = "kimi.toml"\n')
    capsys.readouterr()
    assert main(["switch", str(tmp_path / "models.toml"), "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "1.2 s to" in shown.out
    assert "the box's RAM is not known: 1.12 TiB are taken to fit" in shown.err


def test_a_wait_that_ends_while_the_model_comes_loses_no_turn(tmp_path: Path):
    """A client that gave up leaves nothing open, so the model can be put away."""

    async def run() -> int:
        switch = make_switch(tmp_path, wait_s=1.0)
        async with switch.hold_model("a"):
            with pytest.raises(ModelBusy):
                async with switch.hold_model("b"):
                    pass
        async with switch.hold_model("a"):
            pass
        await asyncio.gather(*(slot.swap for slot in switch.slots.values() if slot.swap))
        opened = sum(slot.open_requests + len(slot.waiting) for slot in switch.slots.values())
        switch.stop_engines()
        return opened

    assert asyncio.run(run()) == 0


def test_litellm_gets_a_key_for_each_user(tmp_path: Path):
    """A script that a shell accepts, with the keys by name only; other routers have none, and say so."""
    users = {"anna": KeyLimits(key_env="ANNA", parallel=2, tokens_per_minute=5000)}
    router = RouterSettings(kind="litellm", key_env="MASTER", users=users)
    members = (RouterMember(name="m", root="http://127.0.0.1:8000"),)
    start = router_start(router, "model", members)
    script = tmp_path / "keys.sh"
    script.write_text(start.files["keys.sh"].replace("curl -fsS", "printf '%s\\n'"))
    shell = subprocess.run(
        ["bash", str(script)],
        env={"ANNA": "k1", "MASTER": "k2", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )

    assert shell.returncode == 0, shell.stderr
    assert yaml.safe_load(start.files["litellm.yaml"])["general_settings"]["database_url"] == "os.environ/DATABASE_URL"
    assert {"DATABASE_URL", "MASTER"} <= set(start.key_envs)
    assert "k1" not in start.files["keys.sh"]
    assert '\\"max_parallel_requests\\": 2' in start.files["keys.sh"]
    with pytest.raises(BadInput, match="has no keys of users"):
        router_start(replace(router, kind="sglang-router"), "model", members)
