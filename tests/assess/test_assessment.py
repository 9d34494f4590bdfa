"""The four answers of the first screen, in every place that shows them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from moebox import codec
from moebox.assess.assessment import AssessmentCell
from moebox.assess.commands import run_commands
from moebox.assess.figures import PlannedFigure, compare_load
from moebox.assess.format import format_number as number_text
from moebox.assess.naming import label_parts
from moebox.assess.run import assess_run
from moebox.core.engine_event import AttemptFailed, AttemptReady, AttemptStarted, EngineFinding
from moebox.core.engine_facts import DeviceFacts
from moebox.core.event import ClimbBegan, StepRunning, VerifyBegan
from moebox.core.quirks import match_quirk
from moebox.core.result import LatencyStats, result_document
from moebox.report.expect import with_forecast
from moebox.report.files import render_markdown
from moebox.report.page import build_page, render_html
from moebox.report.sections import compare, memory, summary
from moebox.report.table import ReportTable
from moebox.runs.listing import summarize_run
from moebox.runs.reader import read_run
from moebox.runs.record import ForecastRow, LoadResult, RunRecord
from moebox.store import Run
from tests.bench.example import measurement
from tests.report.making import RECIPE, a_run, level


def answers(record: RunRecord) -> dict[str, AssessmentCell]:
    return {answer.name: answer for answer in assess_run(record).cells}


def failing(runs: Path) -> Run:
    """A run whose engine died of a known cause."""
    run = Run.create("k26", runs=runs)
    run.release_lock()
    run.add_event(AttemptStarted(id="a", model="int4", engine="vllm", argv=("vllm", "serve")))
    run.add_event(
        EngineFinding(
            symptom="kv-too-small",
            title="The cache is too small",
            cause="the KV cache holds fewer tokens than one request of full length",
            remedy="`moebox plan kimi-k2.6 --context 32768` fits",
            excerpt="ValueError: To serve at least one request <script>",
            severity="fatal",
        )
    )
    run.add_event(AttemptFailed(id="a", message="the engine exited with 1"))
    steps = [{"name": "plan", "state": "done"}, {"name": "up", "state": "failed", "why": "the engine exited with 1"}]
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": steps})
    return run


def test_a_good_run_answers_all_four_and_links_its_evidence(tmp_path: Path):
    found = answers(read_run(a_run(tmp_path)))

    assert found["chosen"].text == "vLLM 0.32.0 · int4-g32 · TP8 · 65,536 tokens of context"
    assert (found["right"].text, found["right"].tone) == ("1 of 1 checks passed", "good")
    assert found["fast"].text.startswith("640 tok/s at 64 requests")
    assert found["next"].text.startswith("moebox up ")


def test_a_run_that_was_cut_off_in_its_checks_is_not_green(tmp_path: Path):
    """The checks that it made are no verdict on those that it did not."""
    run = a_run(tmp_path)
    steps = [{"name": "plan", "state": "done"}, {"name": "verify", "state": "running"}]
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": steps})
    record = read_run(run)

    assert (answers(record)["right"].text, answers(record)["right"].tone) == ("interrupted: 1 check done", "warn")
    assert answers(replace(record, locked=True, open_step=""))["right"].text == "still running: 1 check done"
    assert answers(record)["next"].text == f"moebox run --resume {run.id}"
    assert [tile.tone for tile in [summary.checks_tile(record)]] == ["warn"]


def test_a_part_of_the_checks_is_not_green_anywhere(tmp_path: Path):
    """After `verify --only` neither the cell nor the tile is green, because the other checks were not made."""
    record = replace(read_run(a_run(tmp_path)), check_total=12)

    assert (answers(record)["right"].text, answers(record)["right"].tone) == (
        "1 of 1 checks passed, 11 not made",
        "warn",
    )
    assert [(tile.detail, tile.tone) for tile in [summary.checks_tile(record)]] == [("of 1; 11 not made", "warn")]


def test_a_rehearsal_alone_is_no_sign_that_the_model_works(tmp_path: Path):
    """Stopped before the real engine was ever started; up to 0.2 only the journal recorded that, not pipeline.json."""
    run = Run.create("k26", runs=tmp_path)
    run.release_lock()
    run.write_file("recipe.toml", codec.to_toml(RECIPE))
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": [{"name": "plan", "state": "done"}]})
    run.add_event(StepRunning(step="rehearse"))
    run.add_event(AttemptStarted(id="a", model="dummy", engine="vllm", aside=True))
    run.add_event(AttemptReady(id="a"))
    record = read_run(run)

    assert [attempt.title for attempt in record.attempts] == ["rehearsal 1"]
    assert "1 rehearsal among them" in render_markdown(build_page([record]))
    assert answers(record)["right"].text == "not checked: interrupted in rehearse"
    assert answers(record)["next"].text == f"moebox run --resume {run.id}"
    assert record.status == "INTERRUPTED"
    assert replace(record, open_step="").status == "not tried"
    assert summarize_run(run).state_text(live=False) == "interrupted in rehearse"


def test_a_boot_that_failed_beside_a_run_that_goes_on_is_no_failure_of_the_run(tmp_path: Path):
    """Timing the engine's steps may fail, and a failed step may be resumed: the step's state decides."""
    run = failing(tmp_path)
    steps = [{"name": "plan", "state": "done"}, {"name": "up", "state": "running"}]
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": steps})

    assert answers(read_run(run))["next"].text == f"moebox run --resume {run.id}"
    assert summarize_run(run).state_text(live=False) == "interrupted in up"
    run.acquire_lock()
    assert answers(read_run(run))["next"].text == "moebox ps"
    run.release_lock()


def test_checks_made_by_hand_are_taken_up_by_hand(tmp_path: Path):
    """After `moebox up`, `moebox verify --run` was interrupted: there is no whole run to resume."""
    run = a_run(tmp_path)
    run.add_event(VerifyBegan(checks=("reply", "tools")))
    assert answers(read_run(run))["next"].text == f"moebox verify --run {run.id}"


def test_the_speed_stands_beside_its_forecast(tmp_path: Path):
    """The cell counts all loads and figures in range, and gives the forecast of the load that it names."""
    fast = answers(with_forecast(read_run(a_run(tmp_path))))["fast"]

    assert re.search(r"640 tok/s at 64 requests; in range at \d of 3 loads \(\d of 9 figures\)", fast.text)
    assert fast.detail.startswith("forecast ")


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (114.9, "in range"),
        (114.6, "less than 1% below its range"),  # both are 115 as they are shown
        (90.0, "22% below its range"),
        (140.0, "9% above its range"),
    ],
)
def test_how_far_outside_its_band_a_speed_is(measured: float, words: str):
    """A figure and the edge of its range may read the same."""
    pair = PlannedFigure(run=0, what="decode", planned=121.0, measured=measured, expected_range=(114.8, 128.0))

    assert pair.range_text == f"forecast 121 (115 to 128): {words}"
    nothing = replace(pair, planned=0.0, expected_range=(0.0, 0.0))  # a file may hold anything
    assert nothing.range_text == "forecast 0 (0 to 0): 100% above its range"


def test_the_speed_is_judged_by_the_forecast_of_its_own_load(tmp_path: Path):
    """All levels of `moebox run` carry one label; the rate at 64 is not held against the forecast of one stream."""
    run = a_run(tmp_path, levels=())
    for number in (1, 64):
        run.write_json(f"measurements/c{number:04d}.json", level(number, label="random"))
    record = with_forecast(read_run(run))
    fast = answers(record)["fast"]
    row = next(row for row in record.forecast if row.concurrency == 64 and not row.decode_only)

    assert fast.text.startswith("640 tok/s at 64 requests")
    assert f"forecast {number_text(row.output_tok_s)} " in fast.detail


def test_the_forecast_is_of_what_was_really_read_and_replied(tmp_path: Path):
    """Asked were 256 in / 100 out; a template made prompts longer, and the model ended its replies itself.

    The forecast of 100 tokens a reply agreed with the speed of 41 by chance, and its TPOT was 28 % off.
    """
    run = a_run(tmp_path, levels=())
    asked, shorter = (measurement(total_input_tokens=2780, total_output_tokens=tokens) for tokens in (1000, 410))
    forecasts = []
    for found in (asked, shorter):
        run.write_json("measurements/c4.json", result_document(found))
        (row,) = (row for row in with_forecast(read_run(run)).forecast if not row.decode_only)
        forecasts.append(row)

    assert [row.lengths for row in forecasts] == ["278 in / 100 out", "278 in / 41 out"]
    assert forecasts[1].output_tok_s < forecasts[0].output_tok_s
    assert "concurrency 4, 278 in / 41 out" in render_markdown(build_page([with_forecast(read_run(run))])).replace(
        "\u00a0", " "
    )


def test_speeds_of_a_climb_are_distinguished_from_those_of_a_load(tmp_path: Path):
    """A step's 285 tok/s of short prompts stood beside a load's 225 without a word."""
    run = a_run(tmp_path)
    step = {"change": "context 2048", "verdict": "pass", "kept": True, "why": "no slower", "output_tok_s": 285.0}
    run.write_json("climb.json", {"steps": [step], "best": 0})
    note = "Speeds here are of short prompts"

    assert note in render_markdown(build_page([read_run(run)]))
    run.write_json("climb.json", {"steps": [{**step, "output_tok_s": None}], "best": 0})  # by jobs
    assert note not in render_markdown(build_page([read_run(run)]))


def test_a_warning_is_not_counted_as_passed(tmp_path: Path):
    """The first screen, the tile and the section of the checks give one count."""
    run = a_run(tmp_path)
    run.write_json("verdicts/03-json.json", {"name": "json", "verdict": "warn", "why": "not held to the schema"})
    text = render_markdown(build_page([read_run(run)]))

    assert "1 of 2 checks passed; warnings: json" in text
    assert "**1 ** checks passed, of 2" in text
    assert "2 of 2" not in text


def test_a_failed_run_names_step_cause_and_command(tmp_path: Path):
    found = answers(read_run(failing(tmp_path)))

    assert found["failed"].text == "up failed: the engine exited with 1"
    assert found["why"].text.startswith("the KV cache holds fewer tokens")
    assert found["why"].detail.startswith("ValueError: To serve at least one request")
    assert found["next"].text == "moebox plan kimi-k2.6 --context 32768"
    assert found["next"].command


def test_report_and_markdown_show_why_a_run_failed(tmp_path: Path):
    """0.1 wrote a report of a failed run without one word of the reason."""
    page = build_page([read_run(failing(tmp_path))])

    assert "request <script>" not in render_html(page)
    for text in (render_html(page), render_markdown(page)):
        assert "the engine exited with 1" in text
        assert "fewer tokens than one request" in text


def test_a_plan_that_does_not_fit_names_it(tmp_path: Path):
    run = Run.create("big", runs=tmp_path)
    run.release_lock()
    step = {"name": "plan", "state": "failed", "why": "Kimi K2.6 does not fit on 1x-rtx-5090", "hint": "208 GiB of RAM"}
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": [step]})
    found = answers(read_run(run))

    assert "does not fit" in found["failed"].text
    assert found["next"].detail == "208 GiB of RAM"


def test_a_simulation_is_never_green(tmp_path: Path):
    record = replace(read_run(a_run(tmp_path)), simulation=True)
    assessment = assess_run(record)

    assert assessment.simulated
    assert all(answer.tone != "good" for answer in assessment.cells)
    assert answers(record)["right"].text == "simulated: answers were not checked"
    assert "works" not in render_html(build_page([record])).split("Hardware and topology")[0]


def results(records: list[RunRecord]) -> ReportTable:
    """The table of headline figures, which comes last."""
    section = compare.compare_section(records)
    assert section is not None
    table = section.blocks[-1]
    assert isinstance(table, ReportTable)
    return table


def test_unlike_runs_are_not_crowned(tmp_path: Path):
    """A simulated run or another load: figures side by side, no winner, and why not."""
    one, two = read_run(a_run(tmp_path, name="a")), read_run(a_run(tmp_path, name="b", factor=0.1))
    alike = results([one, two])
    simulated = results([one, replace(two, simulation=True)])
    other = Run.open(two.path.name, runs=tmp_path)
    for name in ("c0001", "c0008", "c0064"):
        other.write_json(f"measurements/{name}.json", {**level(8), "input_len": 1024, "output_len": 256})
    loads = results([one, read_run(other)])

    assert alike.note == ""
    assert any(cell.tone == "best" for row in alike.rows for cell in row)
    for table, why in ((simulated, "simulated"), (loads, "different loads")):
        assert why in table.note
        assert not any(cell.tone == "best" or cell.aside for row in table.rows for cell in row)


def test_room_left_is_that_of_the_fullest_gpu(tmp_path: Path):
    """A box with experts in RAM once showed 313 GiB of host memory as room on a 95.6 GiB GPU."""
    gib = 2.0**30
    devices = (
        DeviceFacts(device="gpu0", total_bytes=96 * gib, kv_bytes=52 * gib, free_bytes=44 * gib),
        DeviceFacts(device="gpu1", total_bytes=96 * gib, kv_bytes=60 * gib, free_bytes=36 * gib),
        DeviceFacts(device="ram", total_bytes=768 * gib, weights_bytes=455 * gib, free_bytes=313 * gib),
    )
    record = replace(read_run(a_run(tmp_path)), reported_devices=devices)
    (side,) = memory.memory_sides(record)

    assert memory.memory_cells(record, 0, side)[4].value == 36 * gib
    ram_alone = memory.memory_cells(record, 0, replace(side, devices=side.devices[2:]))
    assert ram_alone[4].text == "–"


def test_prompt_speed_and_latency_are_judged_too():
    """51.5 forecast and 188 measured was "in its range: yes", because only one figure was looked at."""
    row = ForecastRow(concurrency=1.0, tg_tok_s=10.0, pp_tok_s=51.5, low_tok_s=7.0, high_tok_s=13.0)

    row = replace(row, tpot_ms=100.0)
    load = LoadResult(name="one stream", tg_tok_s=10.0, pp_tok_s=188.0, tpot=LatencyStats(mean=100.0))
    figures = {figure.what: figure for figure in compare_load(0, load, row)}

    assert figures["Prompt processing"].expected_range == (51.5 * 0.7, 51.5 * 1.3)
    assert not figures["Prompt processing"].in_range
    latency = figures["Mean TPOT"].expected_range
    assert latency is not None
    assert latency[0] < 100.0 < latency[1]


def test_strip_tile_and_list_name_one_highest_rate(tmp_path: Path):
    """At 64 the client was the limit: that is neither the highest output nor the run's speed."""
    run = a_run(tmp_path, levels=(1, 8))
    run.write_json("measurements/c0064.json", level(64, client_limited=True))
    record = read_run(run)
    tile = next(tile for tile in summary.run_tiles(record) if tile.label == "highest output")

    assert answers(record)["fast"].text.startswith("80.1 tok/s at 8 requests")
    assert (tile.figure, tile.detail.partition(",")[0]) == ("80.1", "at 8 concurrent")
    assert summarize_run(run).output_tok_s == level(8)["output_throughput"]


def test_known_quirks_are_named_and_not_yellow(tmp_path: Path):
    """A check whose every warning is a known quirk of the engine is named as such; another warning stays yellow."""
    run = a_run(tmp_path)
    reason = "<|x|> in the text: llama.cpp shows tools to the model even under none"
    quirk = match_quirk("llama.cpp", "tools", "choice none", reason)
    assert quirk
    probes = [{"name": "choice none", "verdict": "warn", "reason": reason}]
    check = {"name": "tools", "verdict": "warn", "reason": reason, "quirks": [quirk.text], "probes": probes}
    run.write_json("verdicts/03-tools.json", check)
    record = read_run(run)

    right = answers(record)["right"]
    assert (right.text, right.tone) == ("1 of 2 checks passed; known quirks of the engine: tools", "good")
    assert f"tools: known quirk of {quirk.text}" in assess_run(record).warnings
    assert "known quirks of the engine: tools" in render_markdown(build_page([record]))

    probes.append({"name": "calls", "verdict": "warn", "reason": "a reason that is not known"})
    run.write_json("verdicts/03-tools.json", check)
    right = answers(read_run(run))["right"]
    assert (right.text, right.tone) == ("1 of 2 checks passed; warnings: tools", "warn")


def test_warnings_are_not_green_anywhere(tmp_path: Path):
    """The tile of passed checks is not green if the cell beside it warns."""
    run = a_run(tmp_path)
    run.write_json("verdicts/03-json.json", {"name": "json", "verdict": "warn", "reason": "once in 12"})
    record = read_run(run)
    tile = next(tile for tile in summary.run_tiles(record) if tile.label == "checks passed")

    assert (tile.figure, tile.detail, tile.tone) == ("1", "of 2; 1 with warnings", "warn")
    assert answers(record)["right"].tone == "warn"


def test_a_plan_that_failed_is_asked_again_with_what_its_hint_changes(tmp_path: Path):
    """The same command would fail in the same way."""
    run = Run.create("kimi", runs=tmp_path)
    run.release_lock()
    step = {"name": "plan", "state": "failed", "why": "does not fit", "hint": "--ram 480GiB: with that much it fits"}
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": [step]})
    record = read_run(run)

    assert answers(record)["next"].text == "moebox plan kimi-k2.6 --ram 480GiB"
    assert summary.summary_paragraphs([record])[0] == "Plan failed: does not fit. --ram 480GiB: with that much it fits."


def test_a_simulation_is_reproduced_as_a_simulation(tmp_path: Path):
    """`moebox up` of its recipe would need the simulated box."""
    record = replace(read_run(a_run(tmp_path)), simulation=True)

    assert run_commands(record).startswith("moebox run kimi-k2.6 --box ")
    assert run_commands(record).endswith(" --twin --concurrency 1,8,64")


def test_a_climb_that_was_cut_off_is_taken_up_as_one(tmp_path: Path):
    """It has the recipe it began with, and no other yet."""
    run = Run.create("climb-k26", runs=tmp_path)
    run.write_file("start.toml", codec.to_toml(RECIPE))
    run.add_event(ClimbBegan(recipe="k26"))
    run.release_lock()
    found = answers(read_run(run))

    assert found["chosen"].text.startswith("vLLM 0.32.0 · int4-g32")
    assert found["next"].text == f"moebox climb --resume {run.id}"
    assert summarize_run(run).state_text(live=False) == "interrupted in climb"
    run.write_file("best.toml", codec.to_toml(RECIPE))
    assert summarize_run(run).state_text(live=False) == "ended"
    assert "--resume" not in answers(read_run(run))["next"].text


def test_a_recipe_that_leaves_the_context_open_has_the_models_in_every_table(tmp_path: Path):
    """A recipe without a context does not show 0 in tables and run names."""
    runs = [a_run(tmp_path, name=name) for name in ("open", "set")]
    runs[0].write_file("recipe.toml", codec.to_toml(replace(RECIPE, context=0)))
    records = [replace(read_run(run), label="") for run in runs]

    assert [label_parts(record)[-2] for record in records] == ["the model's context", "64k"]
    assert compare.SETTINGS["Context"](records[0]) == "the model's"
    assert "the model's" in compare.model_cells(records[0], 0)
    assert [row.output_tok_s > 0 for row in with_forecast(records[0]).forecast] == [True] * 3


def test_a_pipeline_left_in_its_step_bench_is_resumed_as_a_whole(tmp_path: Path):
    """`moebox run` has a step of that name: what is missing is more than a `moebox bench`."""
    run = a_run(tmp_path)
    steps = [{"name": "plan", "state": "done"}, {"name": "bench", "state": "running"}]
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": steps})
    left = answers(read_run(run))["next"].text
    failed = [steps[0], {"name": "bench", "state": "failed", "why": "the engine died"}]
    run.write_json("pipeline.json", {"request": {"model": "kimi-k2.6"}, "steps": failed})

    assert left == f"moebox run --resume {run.id}"
    assert answers(read_run(run))["next"].text == f"moebox run --resume {run.id}"
