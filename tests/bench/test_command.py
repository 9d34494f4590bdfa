"""`moebox bench` from the outside: what it prints, keeps and refuses."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from moebox.bench.samples import read_samples
from moebox.cli import main
from moebox.runs.listing import list_summaries
from tests.bench.server import Peer, good, serving


def test_a_sweep_prints_a_table_and_keeps_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each concurrency; the file and the samples beside it."""
    file = tmp_path / "result.json"
    with serving(good) as server:
        flags = ["--concurrency", "1,2", "--requests", "4", "--output", "5", "--input", "8", "-o", str(file)]
        code = main(["bench", server.url, "--model", "m", *flags])
    kept = json.loads(file.read_text())
    shown = capsys.readouterr().out

    assert code == 0
    assert "c1" in shown
    assert "c2" in shown
    assert [result["max_concurrency"] for result in kept["results"]] == [1, 2]
    assert len(read_samples(tmp_path / kept["results"][1]["samples"])) == 4


def test_results_without_a_file_are_kept_in_a_run_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is listed, knows its model, and makes a report; a file of the user's own is enough otherwise."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    words = ["--model", "m", "--requests", "2", "--output", "3", "--input", "8"]
    with serving(good) as server:
        assert main(["bench", server.url, *words, "-o", str(tmp_path / "mine.json")]) == 0
        assert not list_summaries()
        assert main(["bench", server.url, *words]) == 0
    (row,) = list_summaries()
    assert row.model == "m"
    assert row.output_tok_s
    assert f"`moebox report {row.id}`" in capsys.readouterr().err
    assert main(["report", row.id, "-o", str(tmp_path / "report.md")]) == 0
    assert "tok/s" in (tmp_path / "report.md").read_text()


def test_the_report_of_a_bench_says_how_to_do_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The very command, which measures once more."""
    with serving(good) as server:
        words = ["--requests", "3", "--concurrency", "2", "--output", "4", "--input", "8"]
        assert main(["bench", server.url, "--model", "m", *words]) == 0
        assert main(["report", "latest", "-o", str(tmp_path / "r.md")]) == 0
        again = re.search(r"^moebox (bench http://127.*)$", (tmp_path / "r.md").read_text(), re.MULTILINE)
        assert again
        capsys.readouterr()
        assert main([*shlex.split(again[1]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["num_prompts"], document["max_concurrency"]) == (3, 2)


def test_json_is_one_document_in_vllms_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else on stdout."""
    with serving(good) as server:
        words = ["bench", server.url, "--model", "m", "--requests", "2", "--output", "3", "--slo", "ttft=5s", "--json"]
        code = main(words)
    result = json.loads(capsys.readouterr().out)

    assert code == 0
    assert {"request_throughput", "output_throughput", "mean_ttft_ms", "p99_itl_ms", "mean_e2el_ms"} <= set(result)
    assert result["completed"] == 2
    assert isinstance(result["client_limited"], bool), "whether it was depends on how busy the machine is"
    assert result["request_goodput"] == result["request_throughput"]


def test_prefill_and_decode_are_separate(capsys: pytest.CaptureFixture[str]) -> None:
    """PP cold and warm, TG once."""
    with serving(good) as server:
        words = ["bench", server.url, "--model", "m", "--pp", "32", "--tg", "8", "--set", "repeat=1", "--json"]
        code = main(words)
    rows = json.loads(capsys.readouterr().out)["rows"]

    assert code == 0
    assert [(row["test"], row["cold"]) for row in rows] == [("pp32", True), ("pp32", False), ("tg8", True)]
    assert all(row["mean_tok_s"] > 0 for row in rows[:2])
    assert rows[2]["prompt_tokens"] == 9, "how fast eight tokens came is unknown if the machine was too busy to look"


def test_a_failed_try_of_a_decode_test_is_an_answer_of_no(capsys: pytest.CaptureFixture[str]) -> None:
    """One of three requests is refused: the row reports it, and the exit code too, unless that is allowed."""
    seen = itertools.count(1)

    def sometimes(peer: Peer, body: dict[str, object]) -> bool:
        if next(seen) % 3 == 0:
            peer.json(400, {"error": {"message": "not this one"}})
            return True
        return good(peer, body)

    for more, wanted in (([], 1), (["--set", "allow_failures=true"], 0)):
        with serving(sometimes) as server:
            words = ["bench", server.url, "--model", "m", "--tg", "8", "--set", "repeat=6", "--json", *more]
            assert main(words) == wanted
        assert json.loads(capsys.readouterr().out)["rows"][0]["failed"] >= 1


@pytest.mark.parametrize(
    "words",
    [
        ["--concurrency", "many"],
        ["--concurrency", "0"],
        ["--rate", "fast"],
        ["--rate", "-1"],
        ["--duration", "soon"],
        ["--input", "0"],
        ["--workload", "unknown"],
        ["--slo", "quick"],
        ["--search", "rate"],
        ["--workload", "prompts"],
        ["--workload", "trace", "--set", "workload.file=/nowhere"],
        ["--set", "workload.extra=[1]"],
        ["--key-env", "MOEBOX_NO_SUCH_KEY"],
        ["--pp", "x"],
        ["--run", "no-such-run"],
        ["--set", "endpoint.tokenizer=/nowhere/tokenizer.json"],
    ],
)
def test_bad_flags_get_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, an error that says which flag, and no traceback."""
    with serving(good) as server:
        code = main(["bench", server.url, "--model", "m", *words])
    output = capsys.readouterr().err

    assert code == 2
    assert output.count("error:") == 1
    assert "Traceback" not in output


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid:80"])
def test_a_server_that_is_not_there_is_exit_code_3(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Something outside is missing."""
    assert main(["bench", url, "--model", "m"]) == 3
    assert "error:" in capsys.readouterr().err


def test_another_tools_file_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`bench import` reads it, and keeps it in a run when asked to."""
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps({"request_throughput": 1.0, "mean_ttft_ms": 5.0, "output_throughput": 9.0}))

    assert main(["bench", "import", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["tool"] == "vllm bench serve"
    assert main(["bench", "import", str(tmp_path / "none.json")]) == 2
