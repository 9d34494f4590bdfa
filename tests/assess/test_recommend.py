"""Recommendations come from the figures, and only from them."""

from dataclasses import replace
from pathlib import Path

from moebox import codec
from moebox.assess.naming import label_runs
from moebox.assess.recommend import recommend
from moebox.report.page import render_html
from moebox.runs.reader import read_run
from moebox.runs.record import ForecastRow, RunRecord
from tests.report.making import a_run, level

EXAMPLES = Path(__file__).parents[2] / "examples"


def record(tmp_path: Path, **more: object) -> RunRecord:
    """A run with something particular about its highest load."""
    run = a_run(tmp_path, levels=(1, 8))
    run.write_json("measurements/c0064.json", level(64, **more))
    return label_runs([read_run(run)])[0]


def titles(*records: RunRecord) -> list[str]:
    """What is recommended."""
    return [advice.title for advice in recommend(records)]


def test_a_clean_run_that_scales_gets_no_advice_it_does_not_need(tmp_path: Path) -> None:
    """Throughput that grows with load, answers that are right: nothing to fix."""
    assert titles(record(tmp_path, mean_ttft_ms=400.0, p99_ttft_ms=700.0)) == []


def test_the_knee_is_the_lowest_load_with_nine_tenths_of_the_output(tmp_path: Path) -> None:
    """Eight times the load for a twelfth more output is named, with both latencies."""
    advice = recommend([record(tmp_path, output_throughput=87.0, mean_ttft_ms=9_000.0)])
    knee = next(one for one in advice if one.title == "Limit concurrency to 8 for throughput and interactive use")
    assert "92% of the highest output" in knee.text
    assert "9.00 s" in knee.text


def test_failures_wrong_answers_and_a_slow_client_come_first(tmp_path: Path) -> None:
    """What spoils every other figure stands before any tuning."""
    run = a_run(tmp_path, levels=(1, 8))
    run.write_json("verdicts/07-tools.json", {"name": "tools", "verdict": "fail", "reason": "cut in half"})
    run.write_json("measurements/c0064.json", level(64, failed=9, client_limited=True))
    found = titles(label_runs([read_run(run)])[0])
    assert found[:2] == ["Fix the failing checks first", "Find out why requests fail"]
    assert "Measure again from a faster client" in found


def test_a_load_that_was_offered_is_named_by_its_rate(tmp_path: Path) -> None:
    """Requests came at 2.5 a second, whatever was still running: "at a concurrency of –" is never shown."""
    run = a_run(tmp_path, levels=(1, 8))
    offered = {**level(64, failed=9, client_limited=True), "concurrency": None, "request_rate": 2.5}
    run.write_json("measurements/r2.json", offered)
    texts = " ".join(advice.text for advice in recommend(label_runs([read_run(run)])))

    assert "requests failed at 2.5/s." in texts
    assert "At 2.5/s the client was the bottleneck" in texts


def test_what_may_hold_it_back_is_something_the_box_has(tmp_path: Path) -> None:
    """CUDA graphs are not suspected on a CPU."""
    row = ForecastRow(concurrency=8, output_tok_s=500.0, low_tok_s=450.0, high_tok_s=550.0)
    slow = replace(record(tmp_path), forecast=(row,))
    bare = replace(slow, box=replace(slow.box, gpus=()))
    texts = [next(one.text for one in recommend([it]) if one.title.startswith("Find what")) for it in (slow, bare)]

    assert "below the range's 450" in texts[0]
    assert [("CUDA graphs" in text, "threads" in text) for text in texts] == [(True, False), (False, True)]


def test_several_tokens_a_chunk_are_recognised(tmp_path: Path) -> None:
    """ITL twice TPOT means a draft at work, as in the Lambda K2.6 guide (44.5 against 21.14 ms: 2.1 tokens)."""
    advice = recommend([record(tmp_path, mean_itl_ms=44.5, mean_tpot_ms=21.14)])
    assert any("about 2.1 tokens" in one.text for one in advice)


def imported(name: str, home: Path) -> list[RunRecord]:
    """The runs of an example."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("render_examples", EXAMPLES / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runs = module.imported(codec.load_toml(EXAMPLES / f"{name}.toml"), home)
    return label_runs([read_run(run) for run in runs])


def test_the_january_report_is_read_better_than_its_authors_did(tmp_path: Path) -> None:
    """The INT4 run's small cache is found, with the room that was left; 1,024 is the knee of the NVFP4 run."""
    records = imported("sm120-january", tmp_path)
    found = {one.title: one.text for one in recommend(records)}
    assert "13 requests of this length" in found["Give the KV cache more room"] or any(
        "13 requests of this length" in one.text and "19.71 GiB" in one.text for one in recommend(records)
    )
    (knee,) = (text for title, text in found.items() if "1,024 for throughput" in title)
    assert "3.56 s instead of 12.4 s" in knee
    assert "5.9×" in found["For throughput take K2-Thinking NVFP4"]
    assert [attempt.outcome for record in records for attempt in record.attempts].count("FAILED") == 2


def test_placements_are_compared_by_prompt_length(tmp_path: Path) -> None:
    """IQ3_K generates faster, Q4_X reads faster: the break-even is prompts 2.2 times the answers."""
    records = imported("hybrid-max-q", tmp_path)
    choice = next(one for one in recommend(records) if one.title == "Choose by prompt length")
    assert "2.2 times" in choice.text


def test_every_example_carries_its_sources(tmp_path: Path) -> None:
    """No figure without where it is from, in the file and on the page."""
    from moebox.report.page import build_page

    for path in sorted(EXAMPLES.glob("*.toml")):
        records = imported(path.stem, tmp_path / path.stem)
        assert all(record.info.sources for record in records)
        assert all(one.source for record in records for one in record.loads)
        text = render_html(build_page(records))
        assert records[0].info.sources[0]["title"] in text
