"""What `runs`, `runs show`, `report` and `pack` say of a run of `moebox bench`."""

import json
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox.cli import main, output
from moebox.core.event import ServerMeasured
from moebox.runs.listing import RunSummary, list_summaries
from moebox.store import Run
from tests.bench.server import Behaviour, Peer, Server, good, serving

pytestmark = pytest.mark.slow

KEY, VARIABLE = "sekret-1234567890", "BENCH_TEST_KEY"
FEW = ["--model", "org/m", "--input", "8", "--output", "3"]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path) -> Iterator[Path]:
    """Where runs are kept; the server's key is in the environment, and the terminal is wide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
        patch.setenv(VARIABLE, KEY)
        patch.setenv("COLUMNS", "400")
        output.stdout_console.cache_clear()
        yield tmp_path / "runs"
    output.stdout_console.cache_clear()


def bench(server: Server, *words: str) -> int:
    return main(["bench", server.url, *FEW, "--key-env", VARIABLE, *words])


def only_run(runs: Path) -> Run:
    (path,) = (path for path in runs.iterdir() if path.is_dir())
    return Run(path)


def texts(run: Run, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What every command that shows a run prints or writes of it, by command."""
    run.release_lock()
    capsys.readouterr()
    assert main(["runs", "show", run.id]) == 0
    shown = capsys.readouterr().out
    assert main(["runs"]) == 0
    listed = capsys.readouterr().out
    assert main(["report", run.id, "--md", "-o", str(run.path.parent / "r.html")]) == 0
    assert main(["pack", run.id, "--no-pdf", "-o", str(run.path.parent / "packed")]) == 0
    (run.path.parent / "r.html").rename(run.path.parents[1] / "r.html")
    (run.path.parent / "packed").rename(run.path.parents[1] / "packed")
    return {
        "show": shown,
        "runs": listed,
        "md": (run.path.parent / "r.md").read_text(),
        "html": (run.path.parents[1] / "r.html").read_text(),
        "pack": (run.path.parents[1] / "packed" / "README.md").read_text(),
    }


def next_command(shown: str) -> str:
    """The command under "next" of `runs show`."""
    found = re.search(r"^[!· ]*next +(.+)$", shown, re.MULTILINE)
    assert found
    return found[1].strip()


def count_down(requests: int) -> Behaviour:
    """A server during whose request of this number the command gets a Ctrl-C."""
    seen: list[int] = []

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        seen.append(1)
        if len(seen) == requests:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        return good(peer, body)

    return behaviour


def test_an_open_loop_is_named_by_its_rate_everywhere(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cap on the requests in flight is not a concurrency that the loop had."""
    with serving(good) as server:
        assert bench(server, "--rate", "60,150", "--concurrency", "8", "--requests", "6") == 0
        table = capsys.readouterr().out
    found = texts(only_run(runs), capsys)

    assert "60/s" in table
    assert "150/s" in table
    for text in found.values():
        assert "at 8" not in text
        assert not re.search("(?<!--)concurrency 8", text)
        assert "concurrency of 8" not in text
    assert re.search(r"fast +[\d,]+ tok/s at (60|150)/s", found["show"])
    assert re.search(r"highest output, at (60|150)/s", found["md"])
    assert re.search(r"60/s .+; 150/s ", found["md"])
    assert "| Rate req/s |" in found["md"]
    assert "Concurrency |" not in found["md"]
    assert re.search(r"tok/s at (60|150)/s", found["pack"])
    assert "requests per second offered" in found["html"]
    assert re.search(r"Highest [\d,]+ at (60|150)/s\.", found["md"])


def test_open_and_closed_loops_of_one_workload_are_drawn_apart(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests a second and concurrent requests are not on one axis."""
    with serving(good) as server:
        assert bench(server, "--concurrency", "1,2", "--requests", "4") == 0
        run = only_run(runs)
        run.release_lock()
        assert bench(server, "--rate", "60,150", "--requests", "4", "--run", run.id) == 0
    page = texts(run, capsys)["html"]

    assert "Output throughput against concurrent requests" in page
    assert "Output throughput against requests per second offered" in page


def test_a_missed_slo_stands_beside_the_figures(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The share that bench prints; a speed at which the SLO was missed is not shown without it."""
    with serving(good) as server:
        assert bench(server, "--concurrency", "1", "--requests", "4", "--slo", "ttft=1us") == 0
        assert "0% of requests met the SLO" in capsys.readouterr().out
    found = texts(only_run(runs), capsys)

    assert re.search(r"^! fast +.+ tok/s at 1 request, 0% of requests met the SLO", found["show"], re.MULTILINE)
    assert found["md"].count("0% of requests met the SLO") == 1
    assert "| Met the SLO |" in found["md"]
    assert "**0%**" not in found["md"], "none is the best at missing it"
    assert "The server calls its model org/m. This run has no recipe, so its box is not known." in found["md"]
    assert re.search(r"highest output, .+0% met the SLO", found["md"])
    assert "0% of requests met the SLO" in found["html"]
    assert "0% of requests met the SLO" in found["pack"]


def test_failed_requests_did_not_meet_the_slo(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the requests fail and the others are good: bench and the run both say half."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        numbers.append(1)
        if len(numbers) % 2:
            return good(peer, body)
        peer.json(500, {"error": {"message": "no"}})
        return True

    numbers: list[int] = []
    with serving(behaviour) as server:
        assert bench(server, "--requests", "4", "--slo", "ttft=60s") == 1
        assert "50% of requests met the SLO" in capsys.readouterr().out
    assert "50% of requests met the SLO" in texts(only_run(runs), capsys)["show"]


def test_the_fastest_load_that_met_the_slo_is_the_answer(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A load that missed it is in the table, not in the headline."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        flying.append(1)
        time.sleep(1.0 if len(flying) > 1 else 0.05)
        done = good(peer, body)
        flying.pop()
        return done

    flying: list[int] = []
    with serving(behaviour) as server:
        assert bench(server, "--concurrency", "1,8", "--slo", "ttft=700ms") == 0
    run = only_run(runs)
    for path in run.path.rglob("*.json"):  # on a busy machine the client was late, and its loads are no answers
        path.write_text(re.sub(r'("client_limited": ?)true', r"\1false", path.read_text()))
    assert re.search(r"at 1 request, \d+% of requests met the SLO", texts(run, capsys)["show"])


@pytest.mark.parametrize("checked", [False, True])
def test_every_printed_command_names_model_and_key(
    checked: bool, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable with the key is named, the key itself is nowhere."""
    with serving(good) as server:
        url = server.url
        assert bench(server, "--requests", "2") == 0
        run = only_run(runs)
        run.release_lock()
        access = f"{url}/v1 --model org/m --key-env {VARIABLE}"
        if checked:
            words = [server.url, "--model", "org/m", "--key-env", VARIABLE, "--only", "alive", "--run", run.id]
            assert main(["verify", *words]) in (0, 1)
    found = texts(run, capsys)

    assert f"moebox bench {access} --input 8 --output 3 --concurrency 1 --requests 2" in found["md"]
    assert next_command(found["show"]).startswith((f"moebox verify {access}", f"moebox bench {access}"))
    assert (f"\nmoebox verify {access}\n" in found["md"]) == checked
    kept = [path for path in runs.parent.rglob("*") if path.is_file()]
    assert [path for path in kept if KEY.encode() in path.read_bytes()] == []
    assert KEY not in "".join(found.values())


def test_a_run_without_a_key_names_none(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is not set is not stored either: it may be a key that was typed in its place."""
    with serving(good) as server:
        assert main(["bench", server.url, *FEW, "--requests", "2"]) == 0
    assert "--key-env" not in texts(only_run(runs), capsys)["md"]


def test_measuring_again_repeats_the_whole_command(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flagged load: with its rate, lengths, number of requests and SLO."""
    with serving(good) as server:
        url = server.url
        words = ["--rate", "80", "--concurrency", "4", "--requests", "5", "--slo", "ttft=9s"]
        assert bench(server, *words) == 0
        run = only_run(runs)
        (path,) = (run.path / "measurements").glob("*.json")
        run.write_json(f"measurements/{path.name}", {**json.loads(path.read_text()), "flags": ["disturbed: others"]})
    asked = f"moebox bench {url}/v1 --model org/m --key-env {VARIABLE} --input 8 --output 3 --rate 80"

    assert next_command(texts(run, capsys)["show"]) == f"{asked} --concurrency 4 --requests 5 --slo ttft=9s"


def test_how_the_server_was_reached_is_repeated(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings of the connection are part of the command."""
    run = Run.create("bench-m", runs=runs)
    with serving(good) as server:
        url = server.url
        assert bench(server, "--requests", "2", "--set", "endpoint.tokenizer=/none.json", "--run", run.id) != 0
        assert bench(server, "--requests", "2", "--run", run.id) == 0
    flags = ("--set", "endpoint.insecure=true")
    run.add_event(ServerMeasured(url=f"{url}/v1", model="org/m", connection=flags))

    assert f"--model org/m {shlex.join(flags)} --input 8" in texts(run, capsys)["md"]


def states(run: Run) -> RunSummary:
    (row,) = list_summaries()
    assert row.id == run.id
    return row


def test_an_interrupted_bench_is_interrupted_everywhere(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next step is the command that bench itself prints: it measures the loads that are left."""
    with serving(count_down(12)) as server:
        assert bench(server, "--concurrency", "1,2,4") == 130
        resume = re.findall(r"resume with: (.+)", capsys.readouterr().err)
        run = only_run(runs)
        found = texts(run, capsys)

        assert "Interrupted in bench" in found["show"]
        assert "interrupted in bench" in found["runs"]
        assert "The run was interrupted in bench" in found["md"]
        assert states(run).state_text(live=False) == "interrupted in bench"
        assert [next_command(found["show"])] == resume
        assert "--concurrency 2,4" in resume[0]
        assert f"--key-env {VARIABLE} --run {run.id}" in resume[0]

        assert main(shlex.split(resume[0])[1:]) == 0
    run.release_lock()
    assert states(run).state_text(live=False) == "ended"


def test_an_interrupted_bench_of_an_earlier_version_is_interrupted_too(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its journal does not say what is left, but the figures are marked as partial."""
    with serving(good) as server:
        url = server.url
        assert bench(server, "--requests", "2") == 0
    run = only_run(runs)
    (path,) = (run.path / "measurements").glob("*.json")
    run.write_json(f"measurements/{path.name}", {**json.loads(path.read_text()), "partial": True})
    event = {"time": 1.0, "kind": "bench.server", "data": {"url": f"{url}/v1", "model": "org/m"}}
    (run.path / "events.jsonl").write_text(json.dumps(event) + "\n")
    found = texts(run, capsys)

    assert "interrupted in bench" in found["runs"]
    command = f"moebox bench {url}/v1 --model org/m --input 8 --output 3 --concurrency 1 --requests 2"
    assert next_command(found["show"]) == command


def test_a_bench_of_which_every_request_failed_has_failed_everywhere(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """List, run, report and page agree, and the error is named."""

    def refuse(peer: Peer, body: dict[str, object]) -> bool:
        peer.json(500, {"error": {"message": "out of cheese"}})
        return True

    with serving(refuse) as server:
        url = server.url
        assert bench(server, "--requests", "3") == 1
    run = only_run(runs)
    found = texts(run, capsys)

    assert "failed in bench" in found["runs"]
    assert states(run).state_text(live=False) == "failed in bench"
    for name in ("show", "md", "html", "pack"):
        assert "Bench failed: no request was answered" in found[name]
        assert "out of cheese" in found[name]
    assert next_command(found["show"]).startswith(f"moebox verify {url}/v1 --model org/m --key-env {VARIABLE}")


def cut(run: Run, number: int) -> None:
    path = sorted((run.path / "measurements").glob("*.json"))[number]
    half = path.with_suffix(".half")
    half.write_text(path.read_text()[:500])
    half.rename(path)


def test_a_damaged_measurement_is_not_one_that_was_never_made(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headline says so, of one of several and of the only one."""
    with serving(good) as server:
        assert bench(server, "--concurrency", "1,2") == 0
    run = only_run(runs)
    cut(run, 1)
    found = texts(run, capsys)
    (runs.parent / "packed").rename(runs.parent / "first")
    cut(run, 0)
    whole = texts(run, capsys)

    assert ", 1 measurement damaged" in found["show"]
    assert re.search(r"^! fast +[\d,]+ tok/s at 1 request", found["show"], re.MULTILINE)
    assert "measurements/random-c2.json" in found["show"]
    assert "1 measurement damaged" in found["runs"]
    for name in ("show", "md", "html", "pack"):
        assert "2 measurements damaged" in whole[name]
        assert "not measured" not in whole[name]
    assert "2 measurements damaged" in whole["runs"]
    assert "Nothing was measured" not in whole["md"]
    assert "measurements/: none" not in whole["md"]
    assert next_command(whole["show"]).startswith("moebox bench ")


def test_a_package_says_how_to_do_it_again(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the report."""
    with serving(good) as server:
        url = server.url
        assert bench(server, "--requests", "2") == 0
    readme = texts(only_run(runs), capsys)["pack"]
    command = f"    moebox bench {url}/v1 --model org/m --key-env {VARIABLE} --input 8 --output 3"

    assert command in readme.partition("## Do it again")[2]


def test_no_control_character_leaves_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model's name with escapes and a line of its own: neither a terminal nor a page obeys it."""
    with serving(good) as server:
        name = "odd\x1b[2J\x9b\n# forged"
        assert main(["bench", server.url, "--model", name, "--requests", "2", "--output", "3"]) == 0
    for where, text in texts(only_run(runs), capsys).items():
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), where
        assert where != "pack" or "\n# forged" not in text


def test_loads_with_as_many_requests_are_one_command(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four requests are also the usual number for one stream: the other load had a command of its own."""
    with serving(good) as server:
        assert bench(server, "--concurrency", "1,2", "--requests", "4") == 0
    commands = re.findall(r"^moebox bench .+", texts(only_run(runs), capsys)["md"], re.MULTILINE)

    assert len(commands) == 1
    assert "--concurrency 1,2 --requests 4" in commands[0]
