"""The KV store on disk: slots that survive a restart, and what a full disk, other weights or a kill leave behind."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moebox import codec, files
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.deployment import Deployment
from moebox.core.endpoint import endpoint_from_url
from moebox.core.recipe import KvTiers, Recipe, Runtime
from moebox.engines.kv_store import store_folder
from moebox.errors import ExternalError
from moebox.phantom.text_questions import haystack_questions
from moebox.serve import kv_store, session, state
from moebox.serve.order import prepare_launch
from moebox.store import Run
from tests.embedded import phantom_recipe
from tests.verify.test_returning import ask_code

RECORD = kv_store.RECORD


def stored(folder: Path, **more: object) -> Deployment:
    """The phantom with a store of a small part of a GiB."""
    return deploy(phantom_recipe(kv_tiers=KvTiers(disk_gib=0.01, folder=str(folder)), context=640, **more))


@pytest.mark.siege
def test_a_conversation_survives_a_restart(tmp_path: Path):
    """Saved when the engine stops, restored when it starts, answered from the cache; a changed file is left out."""
    deployment, run = stored(tmp_path / "kv"), Run.create("slots", runs=tmp_path)
    first, second = haystack_questions(random.Random(4), chars=500, depths=(0.4, 0.8))
    with session.engine_session(deployment, run) as live:
        assert ask_code(live.endpoint, first)[0]
    with session.engine_session(deployment, run) as live:
        good, cached = ask_code(live.endpoint, second)
    events = [event.text for event in run.read_events() if event.kind == "engine.slots"]
    slot = Path(store_folder(live.prepared.deployment)) / "slot-0.bin"
    slot.write_bytes(slot.read_bytes()[:-8])
    text = kv_store.restore_slots(endpoint_from_url("127.0.0.1:9", "m"), slot.parent)

    assert (good, cached > 100) == (True, True)
    assert [event.split(" in ")[0].split(" from ")[0] for event in events[:2]] == [
        "1 of 1 slot saved",
        "1 of 1 slot restored",
    ]
    assert "slot-0.bin is not as it was saved and was left out" in text


def test_a_killed_save_leaves_the_older_file(tmp_path: Path):
    """The part of a save that was killed is removed at the next start, and what was recorded stays."""
    deployment = stored(tmp_path)
    folder = kv_store.prepare_store(deployment)
    assert folder
    (folder / "slot-0.bin").write_bytes(b"old")
    (folder / "slot-0.part").write_bytes(b"half of a new o")
    kv_store.prepare_store(deployment)

    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "slot-0.bin"]
    assert (folder / "slot-0.bin").read_bytes() == b"old"


def test_a_store_of_other_weights_or_another_type_is_refused(tmp_path: Path):
    """Weights under the same path may be others by now; a store that was moved here is another engine's."""
    weights = tmp_path / "m.gguf"
    weights.write_bytes(b"one")
    deployment = stored(tmp_path / "kv")
    deployment = replace(deployment, known_checkpoint=None, known_model=None)
    deployment = deployment.with_recipe(replace(deployment.recipe, checkpoint=str(weights)))
    folder = kv_store.prepare_store(deployment)
    weights.write_bytes(b"others")
    with pytest.raises(ExternalError, match="was written with other weights"):
        kv_store.prepare_store(deployment)
    other = deployment.with_recipe(replace(deployment.recipe, kv="q8_0"))
    assert folder
    folder.rename(store_folder(other))
    with pytest.raises(ExternalError, match="was written with kv f16"):
        kv_store.prepare_store(other)


def test_a_store_outlives_what_does_not_change_its_bytes(tmp_path: Path):
    """A note beside the weights, and weights that arrive later; another shard or config is refused."""
    weights = tmp_path / "model"
    deployment = replace(stored(tmp_path / "kv"), known_checkpoint=None, known_model=None)
    deployment = deployment.with_recipe(replace(deployment.recipe, checkpoint=str(weights)))
    kv_store.prepare_store(deployment)
    files.write_atomic(weights / "model-00001-of-00001.safetensors", b"one")
    files.write_atomic(weights / "config.json", b"{}")
    for _ in range(2):
        kv_store.prepare_store(deployment)
        files.write_atomic(weights / "README.md", b"a note")
    for name in ("config.json", "model-00001-of-00001.safetensors"):
        before = (weights / name).stat()
        (weights / name).write_bytes(b"[]0")
        with pytest.raises(ExternalError, match="was written with other weights"):
            kv_store.prepare_store(deployment)
        (weights / name).write_bytes(b"{}" if name == "config.json" else b"one")
        os.utime(weights / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    kv_store.prepare_store(deployment)


def test_an_upgraded_engine_gets_a_store_of_its_own(tmp_path: Path):
    """The recipe names no version: the one that is installed counts, not the newest that moebox knows."""
    program, python = tmp_path / "bin" / "vllm", tmp_path / "python-stub"
    files.write_atomic(program, f"#!{python}\n", mode=0o700)
    recipe = Recipe(
        name="r",
        engine="vllm",
        model="gpt-oss-120b",
        checkpoint="mxfp4",
        served_name="m",
        runtime=Runtime(python=str(tmp_path)),
        kv_tiers=KvTiers(ram_gib=1, disk_gib=1, folder=str(tmp_path / "kv")),
    )
    stores = []
    for version in ("0.31.7", "0.31.8", "0.31.8"):
        files.write_atomic(python, f"#!/bin/sh\necho {version}\n", mode=0o700)
        prepared = prepare_launch(deploy(recipe))
        stores.append(store_folder(prepared.deployment))
        assert stores[-1] in " ".join(prepared.argv)
        assert f"vllm-{version}-" in stores[-1]

    assert len(set(stores)) == 2


def test_an_image_pulled_again_under_its_tag_gets_a_store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The digest counts, not the tag; a store of an image that was pulled after its folder was named is refused."""
    tool, tiers = tmp_path / "bin" / "docker", KvTiers(ram_gib=1, disk_gib=0.01, folder=str(tmp_path / "kv"))
    recipe = Recipe(name="r", engine="vllm", model="gpt-oss-120b", checkpoint="mxfp4", served_name="m", kv_tiers=tiers)
    recipe = replace(recipe, runtime=Runtime(kind="docker", image="example/vllm:nightly"))
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    stores = []
    for reply in ("exit 1", "echo sha256:1", "echo sha256:2", "echo sha256:2"):
        files.write_atomic(tool, f"#!/bin/sh\n{reply}\n", mode=0o700)
        stores.append(store_folder(prepare_launch(deploy(recipe)).deployment, outside=True))
    assert len(set(stores)) == 3

    unnamed = deploy(recipe)
    kv_store.prepare_store(unnamed)
    files.write_atomic(tool, "#!/bin/sh\necho sha256:3\n", mode=0o700)
    with pytest.raises(ExternalError, match="was written with image digest sha256:2"):
        kv_store.prepare_store(unnamed)


def test_a_repository_that_moved_on_is_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The branch of a Hub repository points to another commit: blocks of the older weights are not used for it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--example--Moe"
    for commit, blob in (("a" * 40, "0001"), ("b" * 40, "0002")):
        files.write_atomic(repository / "blobs" / blob, b"weights")
        shard = repository / "snapshots" / commit / "model.safetensors"
        shard.parent.mkdir(parents=True)
        shard.symlink_to(repository / "blobs" / blob)
    deployment = replace(stored(tmp_path / "kv"), known_checkpoint=None, known_model=None)
    deployment = deployment.with_recipe(replace(deployment.recipe, checkpoint="example/Moe"))
    files.write_atomic(repository / "refs" / "main", b"a" * 40)
    for _ in range(2):
        kv_store.prepare_store(deployment)
    files.write_atomic(repository / "refs" / "main", b"b" * 40)
    with pytest.raises(ExternalError, match="was written with other weights"):
        kv_store.prepare_store(deployment)


def test_a_store_that_is_too_large_for_its_disk_is_refused(tmp_path: Path):
    """With the size that would fit."""
    deployment = stored(tmp_path)
    tiers = replace(deployment.recipe.tiers, disk_gib=2**23)
    with pytest.raises(ExternalError, match="do not fit") as problem:
        kv_store.prepare_store(deployment.with_recipe(replace(deployment.recipe, kv_tiers=tiers)))
    assert "kv_tiers.disk_gib = " in (problem.value.hint or "")


class FullDisk(BaseHTTPRequestHandler):
    """llama.cpp's slots on a full disk: a part is written, and the save fails."""

    folder = Path()

    def do_GET(self) -> None:
        self.answer(200, [{"id": 0}])

    def do_POST(self) -> None:
        name = json.loads(self.rfile.read(int(self.headers["content-length"])))["filename"]
        (self.folder / name).write_bytes(b"a part")
        self.answer(500, {"error": {"message": "No space left on device"}})

    def answer(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_full_disk_during_a_save_keeps_what_was_there(tmp_path: Path):
    """One line with the reason; the older slot stays and is still restored."""
    folder = kv_store.prepare_store(stored(tmp_path))
    assert folder
    (folder / "slot-0.bin").write_bytes(b"old")
    FullDisk.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), FullDisk)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = kv_store.save_slots(endpoint_from_url(f"127.0.0.1:{server.server_port}", "m"), folder)
    server.shutdown()
    server.server_close()

    assert text.endswith("slot 0 was not saved (HTTP 500: No space left on device)")
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "slot-0.bin"]


class SlowSave(FullDisk):
    """llama.cpp in the middle of a save: half of the file is there."""

    half_written, killed = threading.Event(), threading.Event()

    def do_POST(self) -> None:
        name = json.loads(self.rfile.read(int(self.headers["content-length"])))["filename"]
        (self.folder / name).write_bytes(b"half of a new o")
        self.half_written.set()
        self.killed.wait(60)


def test_kill_9_during_a_save_keeps_what_was_there(tmp_path: Path):
    """The process that saves is killed: the older slot is still recorded, and is what the next start restores."""
    deployment = stored(tmp_path)
    folder = kv_store.prepare_store(deployment)
    assert folder
    (folder / "slot-0.bin").write_bytes(b"old")
    record = kv_store.read_record(folder)
    assert record
    digest = kv_store._file_digest(folder / "slot-0.bin")
    (folder / RECORD).write_text(codec.to_json(replace(record, slots={"slot-0.bin": digest})))
    SlowSave.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowSave)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "import sys; from pathlib import Path; from moebox.core.endpoint import endpoint_from_url as at; "
        "from moebox.serve import kv_store; kv_store.save_slots(at(sys.argv[1], 'm'), Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, f"127.0.0.1:{server.server_port}", str(folder)]
    with subprocess.Popen(command) as saving:
        assert SlowSave.half_written.wait(60)
        saving.kill()
    SlowSave.killed.set()
    server.shutdown()
    server.server_close()
    assert (folder / "slot-0.part").exists()
    kv_store.prepare_store(deployment)

    after = kv_store.read_record(folder)
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "slot-0.bin"]
    assert after
    assert after.slots == {"slot-0.bin": kv_store._file_digest(folder / "slot-0.bin")} == {"slot-0.bin": digest}


class AnySlots(FullDisk):
    """A server whose list of slots and reply to a save are given."""

    listed: tuple[int, object] = (200, [])
    saved: tuple[int, object] = (200, {})

    def do_GET(self) -> None:
        self.answer(*self.listed)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(*self.saved)


@pytest.mark.parametrize(
    ("listed", "saved", "text"),
    [
        ((200, 5), (200, {}), "no slot was saved: GET /slots: HTTP 200: 5"),
        (
            (501, {"error": {"message": "no slots here"}}),
            (200, {}),
            "no slot was saved: GET /slots: HTTP 501: no slots here",
        ),
        (
            (200, [{}, {}]),
            (200, [1]),
            "0 of 2 slots saved in STORE; slot 0, 1 was not saved (no n_saved in the reply)",
        ),
        (
            (200, [{}, {}]),
            (200, {"n_saved": 0}),
            "0 of 2 slots saved in STORE; slot 0, 1 was not saved (it is empty)",
        ),
        ((200, [{}]), (200, "7"), "0 of 1 slot saved in STORE; slot 0 was not saved (no n_saved in the reply)"),
        ((200, [{}]), (200, {"n_saved": 7}), "0 of 1 slot saved in STORE; slot 0 was not saved (nothing written)"),
    ],
)
def test_an_engine_is_stopped_even_if_its_slots_cannot_be_saved(
    tmp_path: Path, listed: tuple[int, object], saved: tuple[int, object], text: str
):
    """`moebox down` ends the engine, and the run has the reason in one line; a run that was removed is no obstacle."""
    store = kv_store.prepare_store(stored(tmp_path / "kv"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Slots", (AnySlots,), {"listed": listed, "saved": saved}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for run in (Run.create("kept", runs=tmp_path), Run.create("removed", runs=tmp_path)):
        engine = subprocess.Popen(["sleep", "60"])
        instance = state.Instance(
            id=run.id,
            run=str(run.path),
            recipe="r",
            engine="llama.cpp",
            model="m",
            base_url=f"http://127.0.0.1:{server.server_port}/v1",
            port=server.server_port,
            guard=engine.pid,
            guard_started=state.process_start_tick(engine.pid),
            ready=1.0,
            kv_store=str(store),
        )
        state.save_instance(instance)
        if run.id.startswith("removed"):
            shutil.rmtree(run.path)
        threading.Thread(target=engine.wait, daemon=True).start()
        assert main(["down", run.id]) == 0
        assert engine.wait(10) == -signal.SIGTERM
        if run.path.exists():
            assert [event.text for event in run.read_events() if event.kind == "engine.slots"] == [
                text.replace("STORE", str(store))
            ]
    server.shutdown()
    server.server_close()


class ThreeSlots(FullDisk):
    """Three slots of 100 bytes each."""

    def do_GET(self) -> None:
        self.answer(200, [{}, {}, {}])

    def do_POST(self) -> None:
        name = json.loads(self.rfile.read(int(self.headers["content-length"])))["filename"]
        (self.folder / name).write_bytes(b"x" * 100)
        self.answer(200, {"n_saved": 7})


def test_a_store_keeps_to_its_size_when_slots_are_saved(tmp_path: Path):
    """What does not fit is not restored later: neither a slot that was just saved nor one that a start trims."""
    deployment = stored(tmp_path)
    tiers = replace(deployment.recipe.tiers, disk_gib=250 / 2**30)
    deployment = deployment.with_recipe(replace(deployment.recipe, kv_tiers=tiers))
    folder = kv_store.prepare_store(deployment)
    assert folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Slots", (ThreeSlots,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = kv_store.save_slots(endpoint_from_url(f"127.0.0.1:{server.server_port}", "m"), folder)
    server.shutdown()
    server.server_close()
    record = kv_store.read_record(folder)
    smaller = replace(deployment.recipe, kv_tiers=replace(tiers, disk_gib=150 / 2**30))
    kv_store.prepare_store(deployment.with_recipe(smaller))
    trimmed = kv_store.read_record(folder)

    assert text == f"2 of 3 slots saved in {folder}; slot 0 was not saved (kv_tiers.disk_gib is too small for it)"
    assert record
    assert trimmed
    assert ([*record.slots], [*trimmed.slots]) == (["slot-1.bin", "slot-2.bin"], ["slot-2.bin"])
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "slot-2.bin"]


@pytest.mark.siege
def test_a_run_that_was_removed_does_not_keep_its_engine(tmp_path: Path):
    """The session stops the engine and forgets it, though nothing can be written into the run's folder any more."""
    run = Run.create("gone", runs=tmp_path)
    with session.engine_session(stored(tmp_path / "kv"), run) as live:
        shutil.rmtree(run.path)
    assert live.guard.poll() is not None
    assert not state.list_instances()


def test_the_oldest_files_leave_a_store_that_has_grown(tmp_path: Path):
    """vLLM's files have no limit of their own."""
    for number in range(4):
        path = tmp_path / "blocks" / f"{number}.bin"
        files.write_atomic(path, b"x" * 100)
        os.utime(path, (number, number))

    assert kv_store.trim_store(tmp_path, kv_store.StoreRecord(identity={}, most=250)) == 200
    assert sorted(path.name for path in (tmp_path / "blocks").iterdir()) == ["2.bin", "3.bin"]
