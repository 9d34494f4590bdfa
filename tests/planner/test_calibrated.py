"""Calibrations combined with the fit: never much worse than without them, and honest about what was not timed."""

import itertools
import math
import statistics
from dataclasses import replace

import pytest

from moebox.checkpoint import resolve_model
from moebox.core.calibration import Boot, Calibration, calibrated_box, calibrated_layout, shape_id
from moebox.detect import load_box
from moebox.planner.forecast import serving_range
from moebox.planner.schedule import SchedulerRules
from moebox.planner.simulate import SimulatedWorkload, simulate
from moebox.planner.speed import Speed
from moebox.planner.speed.boots import combine_with_fit
from moebox.planner.speed.measured import RANGE_SIGMAS, MeasuredSpeed, find_measured_speed
from tests.planner.deployed import on
from tests.planner.rows import calibration_drift
from tests.planner.test_measured import CHUNK, RECIPE, boot, calibration, h200


def test_simulated_boots_that_drift_are_never_worse_than_no_calibration():
    """150 calibrations of engines with known constants; benchmarks/calibration_drift.py has the simulator."""
    drift = calibration_drift()
    sets = drift.simulate_figures(150, seed=11)
    figures = [each for calibrated in sets for each in calibrated]

    for calibrated in sets:
        assert drift.mean_error(calibrated) <= drift.mean_error(calibrated, fitted=True) + 0.03
    assert statistics.fmean(each.worse_by > 0.03 for each in figures) <= 0.02
    assert statistics.fmean(each.is_inside for each in figures) >= 0.8
    assert drift.mean_error(figures) < 0.6 * drift.mean_error(figures, fitted=True)


def test_timed_seconds_count_by_their_error():
    """A step timed well is taken, a step timed badly hardly moves the fit, and both errors shrink."""
    found = combine_with_fit({"well": (1.2, 0.01), "badly": (1.2, 0.5)}, {"well": 1.0, "badly": 1.0}, 0.1)

    assert found["well"][0] == pytest.approx(1.2, rel=0.01)
    assert found["badly"][0] == pytest.approx(1.0, abs=0.03)
    assert found["well"][1] < 0.01 < found["badly"][1] < 0.2


def test_a_fit_that_well_timed_steps_contradict_counts_less_for_the_others():
    """Steps timed well took twice as long as the fit says, so a doubtful one is believed more."""
    good = dict.fromkeys(range(5), (2.0, 0.02))
    contradicted = combine_with_fit({**good, 9: (2.0, 0.2)}, dict.fromkeys((*good, 9), 1.0), 0.1)
    alone = combine_with_fit({9: (1.2, 0.2)}, {9: 1.0}, 0.1)

    assert contradicted[9][0] > 1.7
    assert alone[9][0] < 1.06


def without(found: Calibration, layers: int, **more: object) -> tuple[Boot, ...]:
    """The boots, with one of them changed."""
    return tuple(replace(each, **more) if each.layers == layers else each for each in found.boots)  # type: ignore[arg-type]


def test_drift_and_hurry_widen_the_range():
    """A boot that drifted by 22%, and one that had no time to repeat its steps besides."""
    quiet = h200("sglang-qwen", 36)[0]
    found = quiet.calibration
    drifted = replace(quiet, calibration=replace(found, boots=without(found, 4, drift=0.22)))
    hurried = replace(quiet, calibration=replace(found, boots=without(found, 4, drift=0.22, left_out=11)))

    assert quiet.error_at(1) < drifted.error_at(1) < hurried.error_at(1)
    assert hurried.error_at(64) < hurried.error_at(1)


def test_kinds_of_step_that_were_not_timed_are_within_their_range():
    """Only some batches at 256 tokens: the others follow the published rows' shape, four of five within the range."""
    inside = []
    for (model, layers), kept in itertools.product(
        (("kimi", 12), ("dsv3", 12), ("qwen-again", 36), ("sglang-qwen", 36)), ((1, 8, 64), (1, 64), (1, 2, 16))
    ):
        whole, real = h200(model, layers)
        fitted = {
            (each.batch, each.context): each.fixed_s + layers * each.layer_s for each in whole.calibration.expected
        }
        boots = tuple(
            replace(each, decode=tuple(step for step in each.decode if step.batch in kept and step.context == 256))
            for each in whole.calibration.boots
        )
        reading = MeasuredSpeed(
            calibration=replace(whole.calibration, boots=boots),
            layers=layers,
            chunk=CHUNK,
            fitted=lambda batch, context, table=fitted: table[round(batch), round(context)],  # type: ignore[misc]
        )
        for step in real.decode:
            if step.context == 256 and step.batch not in kept:
                off = math.log(reading.decode_s(step.batch, 256) / step.seconds)
                inside.append(abs(off) <= RANGE_SIGMAS * reading.step_spread(step.batch, 256))
                assert reading.step_spread(step.batch, 256) > min(reading.step_spread(size, 256) for size in kept)
    assert sum(inside) >= 0.8 * len(inside) > 30


def test_a_disturbed_calibration_is_used_with_a_word_and_a_wide_range():
    """Published rows decide beside it, the range is at least theirs, and one of a quiet machine is preferred."""
    model, forms = resolve_model("kimi-k2.6")
    form = next(each for each in forms if each.quant == "int4-g32")
    plain = load_box("8x-h200")
    recipe = replace(RECIPE, parallel=replace(RECIPE.parallel, tp=8))
    quiet = calibration(shape=shape_id(model), place=calibrated_box(plain), layout=calibrated_layout(recipe))
    line = "other programs (python) used 1.8 of 2 cores"
    busy = replace(quiet, id="d", date="2026-11-16", disturbed=(line,))

    only = Speed.for_deployment(on(replace(plain, calibrations=(busy,)), model, form, recipe))
    assert only.calibration_text.endswith(f"the machine was disturbed: {line}")
    assert only.step_range(1, 1024)[1] > 1.5
    both = replace(plain, calibrations=(quiet, busy))
    found = find_measured_speed(both, model, form, recipe, chunk=CHUNK)
    assert found is not None
    assert found.calibration == quiet
    named = replace(quiet, version="0.32.0+cu129")
    for version, applies in (("v0.32.0", True), ("0.32", True), ("0.31.0", False), ("", True)):
        assert named.applies_to(plain, model, form, replace(recipe, engine_version=version)) == applies


def test_more_layers_from_a_disturbed_boot_are_never_faster_than_the_boot():
    """However little it counts, its steps stay possible."""
    reading = MeasuredSpeed(calibration=calibration(disturbed=("x",), boots=(boot(4), boot(8))), layers=61, chunk=CHUNK)
    assert all(reading.decode_s(step.batch, step.context) >= step.seconds for step in boot(8).decode)


def test_a_load_that_queues_has_the_range_of_the_batch_that_runs():
    """A server of four slots never runs eight at once, so eight requests are forecast as surely as four."""
    reading = h200("sglang-qwen", 36)[0]
    boots = tuple(
        replace(each, decode=tuple(step for step in each.decode if step.batch <= 4))
        for each in reading.calibration.boots
    )
    measured = Speed(measured=replace(reading, calibration=replace(reading.calibration, boots=boots)))
    rules = SchedulerRules(
        kv_tokens=100_000, context=4096, max_seqs=4, step_tokens=CHUNK, prompts_first=False, reserves_output=False
    )
    four, eight = (
        simulate(measured, rules, SimulatedWorkload(input=256, output=64, requests=16, concurrency=streams))
        for streams in (4, 8)
    )

    assert (four.peak_batch, eight.peak_batch) == (4, 4)
    assert serving_range(eight, measured) == serving_range(four, measured)
    assert measured.step_range(8, 288)[1] > measured.step_range(4, 288)[1]
