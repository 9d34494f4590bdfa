"""Where `moebox bench` keeps what it measured: refused before the first request, or shown before it is lost."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.store import Run
from tests.bench.server import HEAD, Behaviour, Peer, Server, chunk, event, good, serving
from tests.sampling import one_in

FEW = ["--model", "m", "--requests", "2", "--output", "3", "--input", "8"]
NOWHERE = "/proc/none"  # takes no file


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are kept."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def bench(server: Server, *words: str) -> int:
    """A short one."""
    return main(["bench", server.url, *FEW, *words])


def measured(run: Path) -> list[str]:
    """The files of its measurements."""
    return sorted(path.name for path in (run / "measurements").iterdir())


@pytest.mark.parametrize("more", [[], ["--json"], ["--pp", "8"]])
@pytest.mark.parametrize("target", ["folder", f"{NOWHERE}.json", "x" * 300, "no/such/folder.json", "y" * 235])
def test_a_file_that_cannot_be_written_is_reported_before_the_first_request(
    target: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 in one line: not after an hour's measurement; the last is too long with what is put behind it."""
    (tmp_path / "folder").mkdir()
    words = FEW if "--pp" not in more else FEW[:2]
    with serving(good) as server:
        assert main(["bench", server.url, *words, *more, "-o", str(tmp_path / target)]) == 2
        assert not server.connections
    printed = capsys.readouterr()
    assert printed.err.count("error: ") == 1
    assert not printed.out
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_for_runs_that_takes_none_is_reported_before_the_first_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a hint that this command can follow."""
    monkeypatch.setenv("MOEBOX_RUNS", NOWHERE)
    with serving(good) as server:
        assert bench(server) == 2
        assert not server.connections
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {NOWHERE}: cannot be written: ")
    assert "MOEBOX_RUNS" in printed
    assert "--runs" not in printed


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("tests", [False, True])
def test_figures_are_shown_before_a_full_disk_loses_them(
    tests: bool, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Then one line, and exit 3."""
    words = ["--model", "m", "--tg", "8", "--set", "repeat=1"] if tests else FEW
    with serving(good) as server:
        assert main(["bench", server.url, *words, *more, "-o", "/dev/full"]) == 3
    printed = capsys.readouterr()
    assert "error: /dev/full: cannot be written: No space left on device" in printed.err
    assert json.loads(printed.out)["kind"] if more else "tok/s" in printed.out


@pytest.mark.parametrize("loads", ["1", "1,2"])
def test_kept_is_said_only_of_what_was_kept(loads: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder for runs goes away during the measurement: the figures are there, and the exit code is 3."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        if runs.is_dir():
            shutil.rmtree(runs)
            runs.write_text("in the way")
        return good(peer, body)

    with serving(behaviour) as server:
        assert bench(server, "--concurrency", loads) == 3
    printed = capsys.readouterr()
    assert "c1" in printed.out
    assert printed.err.count("error: ") == 1
    assert "kept: " not in printed.err


@pytest.mark.parametrize(
    ("label", "name"),
    one_in(
        2,
        [("../../../escape", "escape"), ("a/b c", "a-b-c"), ("..", "random"), ("x" * 300, "x" * 60)],
        unpack=True,
    ),
)
@pytest.mark.parametrize("tests", [False, True])
def test_a_label_stays_a_name(
    label: str, name: str, tests: bool, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leads nowhere, fits, and `runs show` finds what has it."""
    words = ["--model", "m", "--tg", "8", "--set", "repeat=1"] if tests else FEW
    with serving(good) as server:
        assert main(["bench", server.url, *words, "--set", f"label={label}"]) == 0
    (run,) = (path for path in runs.iterdir() if path.is_dir())
    name = name if name != "random" or not tests else "pp-tg"
    assert measured(run) == ([f"{name}.json"] if tests else [f"{name}-c1.json", f"{name}-c1.samples"])
    assert {path.name for path in tmp_path.iterdir()} - {"state"} == {"runs"}
    capsys.readouterr()
    assert main(["runs", "show", run.name, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["measurements"]) == 1


def test_another_workload_gets_another_name(runs: Path) -> None:
    """In a run that has one of that name; so does the same measured again: nothing is lost."""
    run = Run.create("mine", runs=runs)
    with serving(good) as server:
        for output, requests in (("3", "2"), ("4", "2"), ("3", "4")):
            words = ["--run", run.id, "--output", output, "--requests", requests, "--input", "8", "--model", "m"]
            assert main(["bench", server.url, *words]) == 0
        for lengths in ("8", "16", "8"):
            assert (
                main(["bench", server.url, "--model", "m", "--tg", lengths, "--set", "repeat=1", "--run", run.id]) == 0
            )
        assert bench(server, "--run", run.id, "--concurrency", "2,2") == 0
    kept = {name: run.read_json(f"measurements/{name}") for name in measured(run.path) if name.endswith(".json")}

    assert list(kept) == [
        "pp-tg-2.json",
        "pp-tg-3.json",
        "pp-tg.json",
        "random-c1-2.json",
        "random-c1-3.json",
        "random-c1.json",
        "random-c2-2.json",
        "random-c2.json",
    ]
    assert [kept[f"random-c1{number}.json"]["completed"] for number in ("", "-2", "-3")] == [2, 2, 4]
    assert kept["random-c1-2.json"]["workload"]["output_tokens"] == 4
    assert kept["random-c1-2.json"]["samples"] == "random-c1-2.samples"


def test_what_is_no_file_of_a_run_is_left_alone(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link or a pipe is refused before the first request; a folder keeps its name."""
    outside = tmp_path / "outside"
    outside.mkdir()
    linked, piped, foldered = (Run.create(name, runs=runs) for name in ("linked", "piped", "foldered"))
    (linked.path / "measurements").symlink_to(outside)
    (piped.path / "measurements").mkdir()
    os.mkfifo(piped.path / "measurements" / "random-c1.json")
    (foldered.path / "measurements" / "random-c1.json").mkdir(parents=True)
    with serving(good) as server:
        for run in (linked, piped):
            run.release_lock()
            assert bench(server, "--run", run.id) == 2
            assert capsys.readouterr().err.count("error: ") == 1
        assert not server.connections
        assert bench(server, "--run", foldered.id) == 0
    assert not list(outside.iterdir())
    assert measured(foldered.path) == ["random-c1-2.json", "random-c1-2.samples", "random-c1.json"]


def test_a_run_is_held_while_something_is_measured_for_it(runs: Path) -> None:
    """So that `runs rm` spares it."""
    run = Run.create("mine", runs=runs)
    run.release_lock()
    seen: list[bool] = []

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        seen.append(Run(run.path).is_locked)
        return good(peer, body)

    spied: Behaviour = behaviour
    with serving(spied) as server:
        assert bench(server, "--run", run.id) == 0
    assert seen
    assert all(seen)


def test_samples_are_not_put_beside_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    """`-o /dev/null` leaves nothing in /dev."""
    before = sorted(os.listdir("/dev"))
    with serving(good) as server:
        assert bench(server, "-o", "/dev/null", "--json") == 0
    assert not json.loads(capsys.readouterr().out)["samples"]
    assert sorted(os.listdir("/dev")) == before


def test_imported_results_of_one_name_are_all_kept(runs: Path, tmp_path: Path) -> None:
    """Two tools called their files the same, with a blank in it."""
    run = Run.create("mine", runs=runs)
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "their result.json"
        file.write_text(json.dumps({"request_throughput": 1.0 + number, "mean_ttft_ms": 5.0, "output_throughput": 9.0}))
        assert main(["bench", "import", str(file), "--run", run.id]) == 0
        assert main(["bench", "import", str(file), "--run", run.id]) == 0
    assert measured(run.path) == ["their-result-0-2.json", "their-result-0.json"]


def test_streams_that_broke_off_are_not_forgotten(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The terminal reported it; so do the strip and the report."""

    def every_second(peer: Peer, body: dict[str, object]) -> bool:
        if len(peer.state.asked) % 2:
            return good(peer, body)
        peer.send(HEAD, chunk(event({"content": " a"})), chunk(event({"content": " b"})), b"0\r\n\r\n")
        return True

    with serving(every_second) as server:
        assert main(["bench", server.url, "--model", "m", "--requests", "8", "--output", "3", "--input", "8"]) == 1
    assert "4 × ended without [DONE]" in capsys.readouterr().out
    assert main(["runs", "show", "latest"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "! fast" in shown
    assert "4 requests failed" in shown


@pytest.mark.parametrize("words", [["--concurrency", "1,2,4"], ["--search", "concurrency", "--slo", "ttft=9s"]])
def test_a_server_that_died_ends_the_sweep(words: list[str], runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Loads after it would fill a table with nothing; what is left is named as a command, the spoilt load included."""

    def dies(peer: Peer, body: dict[str, object]) -> bool:
        if len(peer.state.asked) < 7:
            return good(peer, body)
        peer.state.listener.shutdown(socket.SHUT_RDWR)
        peer.state.close()
        return False

    with serving(dies) as server:
        url = server.url
        assert main(["bench", url, "--model", "m", "--requests", "4", "--output", "3", "--input", "8", *words]) == 3
    printed = capsys.readouterr()
    assert [path.suffix for path in next(runs.iterdir()).glob("measurements/c4*")] == []
    assert (
        f"error: the server has not answered since c2: {url.removeprefix('http://')}: Connection refused" in printed.err
    )
    again = "--concurrency 2,4" if "1,2,4" in words else "--search concurrency"
    assert again in printed.err.partition("resume with: ")[2]
    assert "c2" in printed.out
