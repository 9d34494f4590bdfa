"""Folders of any kind: what is there is reported, what is not is noted, nothing raises."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moebox import codec
from moebox.assess.run import assess_run
from moebox.cli import main
from moebox.core.engine_event import AttemptReady, AttemptStarted
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.core.event import UnknownEvent, VerifyBegan, VerifyEnded
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Score, worst_mark
from moebox.report.expect import with_forecast
from moebox.report.files import make_page, render_markdown
from moebox.report.page import render_html
from moebox.runs.listing import summarize_run
from moebox.runs.loads import imported_load
from moebox.runs.reader import read_run
from moebox.store import Run
from moebox.verify.runner import results_document
from moebox.verify.statistics import build_failure
from tests.report.making import a_run, level

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ["concurrency", "output_throughput", "mean_ttft_ms", "completed", "total_input_tokens", "samples", "workload"]


def test_files_of_moebox_are_not_called_strange(tmp_path: Path) -> None:
    """A timed engine's calibration, the nodes of a launch, a fleet's verdict, the two sides of a comparison."""
    run = a_run(tmp_path)
    for name in ("calibration.json", "nodes.json", "fleet.json"):
        run.write_json(name, {})
    for name in ("A", f"{run.id}-B"):
        (run.path / name).mkdir()
    assert not any("not written by moebox" in gap for gap in read_run(run).gaps)
    run.write_file("notes.txt", "mine")
    assert "ignored, not written by moebox: notes.txt" in read_run(run).gaps


def test_the_memory_of_a_rehearsal_is_not_the_engines(tmp_path: Path) -> None:
    """Few layers leave much room; a launch that fails afterwards has no memory to show, and the attempt is named."""
    run = a_run(tmp_path)
    small = tuple(DeviceFacts(device=f"gpu{n}", weights_bytes=2.0**30, kv_bytes=2.0**36) for n in range(8))
    run.add_event(AttemptStarted(id="a", engine="vllm", aside=True))
    run.add_event(AttemptReady(id="a", facts=EngineFacts(kv_tokens=9_000_000, devices=small)))
    record = read_run(run)
    assert record.kv_tokens == 600_000
    assert [one.configuration for one in record.attempts] == ["vllm", "rehearsal, vllm"]


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    """Every kind of file ends up in its place."""
    record = read_run(a_run(tmp_path))
    assert record.recipe is not None
    assert record.box is not None
    assert [one.concurrency for one in record.loads] == [1, 8, 64]
    assert [one.outcome for one in record.attempts] == ["SUCCESS"]
    assert record.kv_tokens == 600_000
    assert record.reported_devices[0].total_bytes == record.box.gpus[0].memory
    assert record.checks[0].score == Score(passed=10, trials=10, low=0.72, high=1.0)
    assert "10 of 10 (95%: 72–100%)" in render_markdown(make_page([a_run(tmp_path, name="again")]))


def test_an_empty_folder_is_reported_with_what_is_not_there(tmp_path: Path) -> None:
    """Nothing at all still gives a page, and the page lists what is missing."""
    page = make_page([Run(tmp_path)])
    text = render_html(page)
    for name in ("events.jsonl", "measurements/", "verdicts/", "recipe.toml", "box.toml"):
        assert name in text
    assert "Nothing was measured" in text
    assert render_markdown(page)


def test_every_file_cut_at_many_places_still_gives_a_report(tmp_path: Path) -> None:
    """A crash or a bad copy may cut any file anywhere: the others are still read."""
    run = a_run(tmp_path)
    files = [path for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(files) >= 7
    for path in files:
        whole = path.read_bytes()
        for cut in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 2}:
            path.write_bytes(whole[:cut])
            assert read_run(run).id == run.id
        path.write_bytes(b"\xff\xfe\x00 not text \x00")
        assert read_run(run).gaps
        path.write_bytes(whole)


def test_a_folder_of_another_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Unknown fields, kinds and files of a later moebox are passed over and noted."""
    run = a_run(tmp_path)
    run.write_json("run.json", {"format": 7, "moebox": "9.9"})
    recipe = (run.path / "recipe.toml").read_text()
    (run.path / "recipe.toml").write_text(
        recipe.replace("[parallel]", "[parallel]\nquantum = 3\n") + "\n[telepathy]\nrange = 4\n"
    )
    run.add_event(UnknownEvent(name="attempt.teleported", fields={"where": {"a": [1, 2]}}))
    run.write_file("holiday.png", b"\x89PNG")
    record = read_run(run)
    assert record.recipe is not None
    assert record.recipe.parallel.tp == 8
    assert any("format 7" in gap for gap in record.gaps)
    assert any("holiday.png" in gap for gap in record.gaps)
    assert render_html(make_page([run]))


def test_nan_and_nothing_completed_are_shown_as_such(tmp_path: Path) -> None:
    """A measurement without one good request has dashes and a remark, no NaN anywhere."""
    run = a_run(tmp_path, levels=())
    empty = {**level(8), "completed": 0, "failed": 8, "output_throughput": math.nan, "mean_ttft_ms": math.inf}
    (run.path / "measurements").mkdir()
    (run.path / "measurements" / "a.json").write_text(
        json.dumps(empty).replace("NaN", "null").replace("Infinity", "null")
    )
    run.write_json("measurements/b.json", {**level(16), "completed": 0, "mean_tpot_ms": math.nan})
    text = render_html(make_page([run]))
    assert "no request completed" in text
    assert "NaN" not in text.partition("<script>")[0]
    assert "Find out why requests fail" in text


def test_an_incomplete_journal_and_a_full_disk_are_reported(tmp_path: Path) -> None:
    """The report names the incomplete last event and the writes that a full disk refused."""
    run = a_run(tmp_path)
    run.lost["measurements/x.json"] = 2
    run.add_event(UnknownEvent(name="later"))
    with open(run.path / "events.jsonl", "a") as journal:
        journal.write('{"time": 3, "kind": "att')
    text = render_html(make_page([run]))
    assert "was cut short by a crash and dropped" in text
    assert "measurements/x.json: 2 writes lost to a full disk" in text


def test_a_simulation_is_marked_everywhere(tmp_path: Path) -> None:
    """Banner, every heading, every table row, Markdown: none can be cut out and shown as measured."""
    run = a_run(tmp_path, levels=())
    run.write_json("measurements/c8.json", {**level(8), "simulation": True})
    page = make_page([run])
    text = render_html(page)
    assert 'class="banner"' in text
    assert text.count("<h2>") == text.count('<span class="simulated">simulated</span></h2>') == len(page.sections)
    rows = render_markdown(page)
    assert "> **Simulation:**" in rows
    assert all(line.endswith("(simulated)") for line in rows.splitlines() if line.startswith("## "))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), JSON, max_size=8))
def test_any_measurement_can_be_read(row: dict[str, object]) -> None:
    """Whatever the fields hold, a level comes of it and its figures are finite or absent."""
    made = imported_load(row, name="x", folder=Path("/nonexistent"))
    for value in (made.concurrency, made.output_tok_s, made.ttft.mean, made.input_tokens):
        assert value is None or math.isfinite(value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(["name", "verdict", "probes", "evidence", "score", "seconds"]) | st.text(max_size=6),
        JSON,
        max_size=6,
    )
)
def test_any_verdict_can_be_read(tmp_path_factory: pytest.TempPathFactory, row: dict[str, object]) -> None:
    """Whatever the fields hold, it is a check or a gap, never neither."""
    run = Run(tmp_path_factory.mktemp("run"))
    run.write_json("verdicts/x.json", row)
    record = read_run(run)
    assert len(record.checks) + any("verdicts/x.json" in gap for gap in record.gaps) >= 1


@pytest.mark.parametrize("name", ["samples", "../../../etc/passwd", "/etc/passwd"])
def test_samples_are_only_taken_from_the_run_itself(tmp_path: Path, name: str) -> None:
    """A measurement that points elsewhere brings no foreign file into the report."""
    made = imported_load({"samples": name, "output_throughput": 1.0}, name="x", folder=tmp_path)
    assert made.samples is None


def test_keys_in_evidence_and_commands_are_hidden(tmp_path: Path) -> None:
    """The launch line's key and one that a server echoed never reach the page."""
    run = a_run(tmp_path)
    exchange = {
        "method": "POST",
        "url": "http://127.0.0.1:1/v1",
        "request": {"api_key": "abcdef123456"},
        "response": "Authorization: Bearer tok-1234567890",
        "status": 401,
    }
    probe = {"name": "p", "verdict": "fail", "evidence": [exchange]}
    run.write_json("verdicts/x.json", {"name": "x", "verdict": "fail", "probes": [probe]})
    text = render_html(make_page([run])) + render_markdown(make_page([run]))
    for secret in ("sk-verysecret99", "abcdef123456", "tok-1234567890"):
        assert secret not in text


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(
        [
            "run.json",
            "plan.json",
            "climb.json",
            "pipeline.json",
            "kernels.json",
            "measurements/a.json",
            "verdicts/a.json",
        ]
    ),
    JSON | st.dictionaries(st.sampled_from(["steps", "memory", "forecast", "levels", "rungs", "facts", "scans"]), JSON),
    st.sampled_from(
        ["attempt.started", "attempt.failed", "attempt.ready", "engine.finding", "climb.kept", "journal.lost"]
    ),
    st.dictionaries(
        st.sampled_from(["number", "finding", "facts", "argv", "files", "why", "gain", "devices", "time"]), JSON
    ),
)
def test_any_document_anywhere_gives_a_report(
    tmp_path_factory: pytest.TempPathFactory, name: str, document: object, kind: str, data: dict[str, object]
) -> None:
    """Whatever JSON stands in any file or event, there is a page."""
    run = Run(tmp_path_factory.mktemp("run"))
    run.write_json(name, document)
    run.add_event(UnknownEvent(name=kind, fields=data))
    assert render_html(make_page([run]))


def test_a_page_with_thousands_of_exchanges_stays_small(tmp_path: Path) -> None:
    """Evidence is shown as far as a page can hold it; what went wrong gets more room."""
    run = a_run(tmp_path)
    exchange = {"method": "POST", "url": "/v1", "request": {"q": "x" * 3000}, "status": 200, "response": "y" * 3000}
    for number in range(12):
        probes = [{"name": f"p{n}", "verdict": "pass", "evidence": [exchange] * 20} for n in range(12)]
        probes.append({"name": "wrong", "verdict": "fail", "evidence": [exchange] * 20})
        run.write_json(f"verdicts/{number:02d}.json", {"name": f"check {number}", "verdict": "fail", "probes": probes})
    text = render_html(make_page([run]))
    assert len(text) < 5e6
    assert "more pieces of evidence in the run folder" in text


def checked_run(
    runs: Path, *checks: CheckVerdict, failures: tuple[Failure, ...] = (), stopped: str = ""
) -> tuple[CheckResults, Run]:
    """Results of checks, and the run folder that they leave."""
    run = a_run(runs)
    (run.path / "verdicts" / "02-arithmetic.json").unlink()
    for number, check in enumerate(checks):
        run.write_json(f"verdicts/{number:02d}-{check.name}.json", codec.to_plain(check))
    results = CheckResults(url="http://127.0.0.1:1/v1", model="m", rungs=checks, slips=failures, stopped=stopped)
    run.write_json("verify.json", results_document(results))
    return results, run


RARE = [CheckVerdict(name=name, verdict="warn", reason="no reply") for name in ("plain", "json", "tools")]
GOOD = [CheckVerdict(name=name, verdict="pass") for name in ("plain", "json", "tools")]
RESULTS: dict[str, tuple[list[CheckVerdict], dict[str, Any], str]] = {
    "a fault seen once in each check": (
        RARE,
        {"failures": (build_failure("transport", 3, 12, examples=["cut"]),)},
        "bad",
    ),
    "wrong answers, few in each check": (
        GOOD,
        {"failures": (build_failure("answer", 9, 12, attributed_to="model"),)},
        "bad",
    ),
    "out of time": ([*GOOD, CheckVerdict(name="vision", verdict="skip")], {"stopped": "out of time"}, "warn"),
    "warnings": (RARE, {"failures": (build_failure("transport", 3, 900),)}, "warn"),
    "good": (GOOD, {}, "good"),
}


@pytest.mark.parametrize(("checks", "more", "tone"), RESULTS.values(), ids=RESULTS)
def test_a_report_never_contradicts_the_checks(
    checks: list[CheckVerdict], more: dict[str, Any], tone: str, tmp_path: Path
) -> None:
    """`moebox verify`, the report and the list of runs show the same verdict."""
    results, run = checked_run(tmp_path, *checks, **more)
    record = read_run(run)
    right = next(answer for answer in assess_run(record).cells if answer.name == "right")

    assert right.tone == tone
    assert summarize_run(run).verdict == results.verdict
    passed, tried = len(results.checks_with("pass")), len([check for check in checks if check.verdict != "skip"])
    assert right.text.startswith(f"{passed} of {tried} checks passed")
    assert ("all checks together" in right.text) == (results.verdict != worst_mark(check.verdict for check in checks))


def test_half_of_the_checks_is_not_listed_as_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`moebox runs` and the report show that checks are missing, although all that were made passed."""
    _, run = checked_run(tmp_path, *GOOD)
    names = tuple(check.name for check in GOOD)
    run.add_event(VerifyBegan(url="http://127.0.0.1:1/v1", model="m", checks=names, of=2 * len(GOOD)))
    run.add_event(VerifyEnded(verdict="pass"))

    assert summarize_run(run).checks_text == "in part"
    assert main(["runs", "--runs", str(tmp_path), "--json"]) == 0
    assert [row["verdict"] for row in json.loads(capsys.readouterr().out)["runs"]] == ["in part"]
    right = next(cell for cell in assess_run(read_run(run)).cells if cell.name == "right")
    assert right.tone != "good"
    assert "3 of 3 checks passed, 3 not made" in right.text


@pytest.mark.parametrize(
    "others",
    [{"verdict": "passed"}, {"name": "plain", "verdict": "OK"}, {"rung": "plain", "passed": True}, {"verdict": None}],
    ids=str,
)
@pytest.mark.parametrize("verdict", ["fail", "warn", "pass", 7, ["fail"]], ids=str)
def test_list_and_report_agree_on_verdicts_that_others_wrote(
    others: dict[str, Any], verdict: object, tmp_path: Path
) -> None:
    """Also without a name, or with "passed" for "pass"."""
    run = a_run(tmp_path)
    (run.path / "verdicts" / "02-arithmetic.json").unlink()
    run.write_json("verdicts/00-plain.json", others)
    run.write_json("verify.json", {"verdict": verdict, "rungs": [others]})
    marks = {check.verdict for check in read_run(run).checks}

    assert summarize_run(run).verdict == next((mark for mark in ("fail", "warn", "pass") if mark in marks), "")


def test_endless_failures_are_shown_in_a_few_lines(tmp_path: Path) -> None:
    """A foreign verify.json cannot make a page of 16 MB, and its verdict reaches the list of runs."""
    run = a_run(tmp_path)
    (run.path / "verdicts" / "02-arithmetic.json").unlink()
    run.write_json("verdicts/00-plain.json", {"name": "plain", "verdict": "pass"})
    counts = {"seen": 3, "of": 12, "low": 0.1, "high": 0.5}
    failures = [{"kind": f"{n}" * 10_000, "verdict": "fail", "example": "e" * 100_000, **counts} for n in range(50)]
    checks = [{"name": "plain", "verdict": "pass"}]
    run.write_json("verify.json", {"url": "", "model": "m", "verdict": "fail", "rungs": checks, "slips": failures})

    assert summarize_run(run).verdict == "fail"
    assert len(read_run(run).all_checks[-1].reason) < 10_000


def test_a_load_beyond_what_is_simulated_has_no_forecast(tmp_path: Path) -> None:
    """So many requests of one token fit into the cache at once, and took a minute and more."""
    run = a_run(tmp_path, levels=(1,))
    run.write_json("measurements/many.json", level(70_000, input_len=1, output_len=1, num_prompts=10**9))

    assert [row.concurrency for row in with_forecast(read_run(run)).forecast] == [1]


def test_a_sum_of_checks_that_were_made_again_is_not_shown(tmp_path: Path) -> None:
    """The folder has newer checks than the sum."""
    checks, more, _ = RESULTS["a fault seen once in each check"]
    _, run = checked_run(tmp_path, *checks, **more)
    run.write_json("verdicts/00-plain.json", codec.to_plain(GOOD[0]))

    assert read_run(run).check_names("fail") == []
    assert summarize_run(run).verdict == "warn"


def test_a_sum_that_failed_is_shown_with_the_failure_and_the_command(tmp_path: Path) -> None:
    """The command names no check, for there is none of that name."""
    checks, more, _ = RESULTS["a fault seen once in each check"]
    _, run = checked_run(tmp_path, *checks, **more)
    record = read_run(run)

    (check,) = record.failed_checks
    assert check.reason == "transport: 3 of 12, such as: cut"
    following = next(answer for answer in assess_run(record).cells if answer.name == "next")
    assert "moebox verify" in following.text
    assert "--only" not in following.text
