"""Reports as files: small whatever was measured, the same from the command line, PDF where it can be made."""

import io
import json
import random
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from moebox.bench import samples as columns
from moebox.cli import main
from moebox.report import samples
from moebox.report.files import write_report
from moebox.runs.listing import summarize_run
from moebox.store import Run
from tests.report.making import a_run, level

MEASURED = """
import re, sys
from pathlib import Path
from moebox.report.files import write_report
from moebox.store import Run
write_report([Run(Path(sys.argv[1]))], Path(sys.argv[2]))
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def sampled(requests: int, tokens: int, *, group: int = 1) -> columns.Samples:
    """Requests of `tokens` tokens, 20 ms apart, `group` to a chunk, 64 at a time."""
    made = columns.Samples(zero=0, wall=0.0)
    rng = random.Random(1)
    jitter = [round(rng.gauss(20e6, 1e6)) for _ in range(tokens)]
    for number in range(requests):
        start = number // 64 * 2_300_000_000
        times, now = array("q"), start + 200_000_000
        for gap in jitter[::group]:
            now += gap * group
            times.append(now)
        counts = array("H", [group] * len(times))
        row = {
            "index": number,
            "outcome": 0,
            "status": 200,
            "prompt": 256,
            "output": tokens,
            "cached": 0,
            "asked": tokens,
            "turn": 0,
        }
        made.add_request(times, counts, array("B", bytes(len(times))), due=start, sent=start, ended=now, **row)
    return made


def test_twenty_thousand_requests_make_a_small_page_in_little_memory(tmp_path: Path) -> None:
    """Two million token times are aggregated before anything is drawn: under 5 MB of HTML and 300 MB of memory."""
    run = a_run(tmp_path / "runs", levels=())
    (run.path / "measurements").mkdir()
    (run.path / "measurements" / "big.samples").write_bytes(sampled(20_000, 100).to_bytes())
    run.write_json("measurements/big.json", {**level(64), "samples": "big.samples", "completed": 20_000})
    argv = [sys.executable, "-c", MEASURED, str(run.path), str(tmp_path / "big.html")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 300e6
    text = (tmp_path / "big.html").read_text()
    assert len(text.encode()) < 5e6
    assert "Gaps between tokens" in text
    assert "Throughput over time" in text


def test_the_digest_of_samples_is_right(tmp_path: Path) -> None:
    """Known gaps come back: P50 near 20 ms, every gap counted, tokens per second as sent."""
    (tmp_path / "a.samples").write_bytes(sampled(64, 100).to_bytes())
    digest = samples.digest_samples(tmp_path / "a.samples")
    assert digest is not None
    assert dict(digest.marks)["P50"] == pytest.approx(20, abs=0.5)
    assert sum(digest.counts) == 64 * 99
    assert max(rate for _, rate in digest.over_time) == pytest.approx(64 * 50, rel=0.05)


def test_tokens_that_came_together_share_their_gap(tmp_path: Path) -> None:
    """Five tokens in a chunk every 100 ms are 20 ms each, as with a draft model."""
    (tmp_path / "a.samples").write_bytes(sampled(8, 100, group=5).to_bytes())
    digest = samples.digest_samples(tmp_path / "a.samples")
    assert digest is not None
    assert dict(digest.marks)["P50"] == pytest.approx(20, abs=1.5)
    assert sum(digest.counts) == 8 * 95


def test_a_sample_file_that_is_none_costs_only_its_drawing(tmp_path: Path) -> None:
    """Junk in place of samples: the figures are still reported."""
    run = a_run(tmp_path / "runs")
    (run.path / "measurements" / "c0008.samples").write_bytes(b"junk")
    write_report([run], tmp_path / "r.html")
    assert "Output throughput" in (tmp_path / "r.html").read_text()
    assert samples.digest_samples(run.path / "measurements" / "c0008.samples") is None


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    """Two, and seven, runs: one page, each run named in it, the best marked."""
    for count in (2, 7):
        runs = [a_run(tmp_path / str(count), name=f"run-{number}", factor=1 + number) for number in range(count)]
        write_report(runs, tmp_path / f"{count}.html", markdown=True)
        text = (tmp_path / f"{count}.html").read_text()
        assert "Side by side" in text
        assert all(f"run-{number}" in text for number in range(count))
        assert f"For throughput take run-{count - 1}" in text


def test_the_command_writes_the_files_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`moebox report` with --md and --json names the files it made, and they are there."""
    run = a_run(tmp_path / "runs")
    code = main(
        [
            "report",
            run.id[:15],
            "--runs",
            str(tmp_path / "runs"),
            "--md",
            "--json",
            "-o",
            str(tmp_path / "x" / "r.html"),
        ]
    )
    files = [Path(name) for name in json.loads(capsys.readouterr().out)["files"]]
    assert code == 0
    assert [path.name for path in files] == ["r.html", "r.md"]
    assert all(path.stat().st_size > 1000 for path in files)


def test_runs_are_listed_shown_and_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list, one run, and deletion that asks for the full name and spares what is being worked on."""
    run = a_run(tmp_path)
    home = ["--runs", str(tmp_path)]
    assert main(["runs", "--json", *home]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["id"] == run.id
    assert main(["runs", "show", "latest", "--json", *home]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kv_tokens"] == 600_000
    assert [row["concurrency"] for row in shown["measurements"]] == [1, 8, 64]
    assert main(["runs", "show", "latest", *home]) == 0
    out = capsys.readouterr().out
    assert "vLLM 0.32.0 · int4-g32 · TP8 · 65,536 tokens of context" in out
    assert "1 of 1 checks passed" in out
    assert main(["runs", "rm", run.id[:15], "--yes", *home]) == 2
    assert run.acquire_lock()
    assert main(["runs", "rm", run.id, "--yes", *home]) == 3
    run.release_lock()
    assert main(["runs", "rm", run.id, "--yes", *home]) == 0
    assert not run.path.exists()


@pytest.mark.parametrize(("reply", "code"), [("", 2), ("n\n", 1), ("y\n", 0)])
def test_deleting_asks_and_needs_a_reply(
    reply: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard input may be closed, as in a cron job."""
    run = a_run(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(reply))
    assert main(["runs", "rm", run.id, "--runs", str(tmp_path)]) == code
    output = capsys.readouterr()
    assert run.path.exists() == (code != 0)
    assert ("--yes" in output.err) == (code == 2)
    assert "[y/N]" in output.err


def test_no_way_to_make_a_pdf_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither Chromium nor WeasyPrint: exit 3, what to install, and the HTML is there all the same."""
    monkeypatch.setenv("MOEBOX_BROWSER", "")
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    run = a_run(tmp_path / "runs")
    assert main(["report", str(run.path), "--pdf", "-o", str(tmp_path / "r.html")]) == 3
    assert "apt install chromium" in capsys.readouterr().err
    assert (tmp_path / "r.html").exists()


def test_an_unusable_browser_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that makes no PDF ends in one line."""
    monkeypatch.setenv("MOEBOX_BROWSER", "true")
    assert main(["report", str(a_run(tmp_path / "runs").path), "--pdf", "-o", str(tmp_path / "r.html")]) == 3
    assert "made no PDF" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and the command that lists the runs."""
    assert main(["report", "nothing", "--runs", str(tmp_path)]) == 2
    assert "moebox runs" in capsys.readouterr().err
    Run.create("x", runs=tmp_path).release_lock()
    assert main(["report", "latest", "--runs", str(tmp_path), "-o", "/proc/nowhere/r.html"]) == 2


@pytest.mark.parametrize("command", [["runs"], ["ui"], ["report"], ["runs", "show"], ["runs", "--json"]], ids=" ".join)
def test_a_file_is_no_folder_of_runs(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """In every command that shows runs."""
    assert main([*command, "--runs", "/etc/passwd"]) == 2
    assert "/etc/passwd: is a file, not a folder of runs" in capsys.readouterr().err


def test_the_recipe_on_the_page_is_the_recipe(tmp_path: Path) -> None:
    """Only what differs from the defaults is printed, and it reads back to the very same recipe."""
    import tomllib

    from moebox import codec
    from moebox.core.recipe import Hybrid, Recipe, Speculate
    from moebox.report.sections.reproduce import non_default_settings
    from tests.report.making import RECIPE

    for recipe in (
        RECIPE,
        replace(RECIPE, hybrid=Hybrid(experts=((1, 2), (59, 60))), env={"A": "b"}, flags={"x": ["1", "y"]}),
        replace(RECIPE, speculate=Speculate(draft="d"), thinking=False, context=1024),
    ):
        text = codec.to_toml(non_default_settings(recipe))
        assert codec.decode(Recipe, tomllib.loads(text), where="page") == recipe
        assert len(text) < 700


def test_a_run_without_a_recipe_shows_its_measurement_and_one_p99(tmp_path: Path) -> None:
    """After `moebox bench URL` the caption has the percentiles of the table, and the page shows the measurement."""
    run = Run.create("bench", runs=tmp_path)
    run.release_lock()
    (run.path / "measurements").mkdir()
    (run.path / "measurements" / "a.samples").write_bytes(sampled(64, 100).to_bytes())
    measured = level(4, median_itl_ms=21.0, p50_itl_ms=21.0, p99_itl_ms=77.7)
    run.write_json("measurements/a.json", {**measured, "samples": "a.samples"})
    write_report([run], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "concurrency 4 21.0 ms and 77.7 ms" in text
    assert "Nothing was measured" not in text
    assert "This run has no recipe" in text
    assert "moebox verify URL" in text


def test_a_benchmark_of_a_twin_is_marked_as_a_simulation_in_every_list(tmp_path: Path) -> None:
    """There is no recipe: the replies named the model, and the measurement kept it."""
    run = Run.create("bench", runs=tmp_path)
    run.release_lock()
    run.write_json("measurements/a.json", level(4, simulation=True))
    assert summarize_run(run).simulation
    write_report([run], tmp_path / "r.html")
    assert "moebox verify URL" not in (tmp_path / "r.html").read_text()
