"""`rehearse --measure`: two boots become a calibration; whatever fails is named, and nothing half is kept."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from moebox import codec
from moebox.checkpoint import resolve_model
from moebox.core.calibration import Boot, CalibratedBox, Calibration, DecodeStep, PrefillStep
from moebox.core.deployment import Deployment
from moebox.core.recipe import Hybrid, Listen, Recipe, Runtime
from moebox.detect import load_box
from moebox.errors import AnswerIsNo, BadInput
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate import (
    FILE,
    calibrate,
    choose_depths,
    merge_boots,
    merge_with_stored,
    recipe_at_depth,
    shallower_depth,
)
from moebox.flows.calibrate_boot import TimingPoint, order_outer_first, timing_grid
from moebox.planner.speed.measured import MeasuredSpeed
from moebox.serve.faults import LaunchFailed
from moebox.serve.state import marked_processes
from moebox.store import Run, calibrations

ENGINE = Path(__file__).with_name("stepping.py")
BUDGET_S = 600.0  # an upper bound: what is timed takes seconds


def acting(mode: str) -> Recipe:
    """Kimi on the stand-in."""
    return Recipe(
        name="kimi",
        engine="vllm",
        engine_version="0.32.0",
        model="kimi-k2.6",
        checkpoint="moonshotai/Kimi-K2.6",
        served_name="kimi",
        context=1024,
        max_seqs=2,
        batched_tokens=256,
        runtime=Runtime(entry=shlex.join([sys.executable, str(ENGINE), mode]), kind="native"),
        listen=Listen(port=0),
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder."""
    return Run.create("measure", runs=tmp_path / "runs")


def boots(run: Run) -> tuple[Boot, ...]:
    """What the run folder has."""
    return codec.decode(Calibration, run.read_json(FILE), where=FILE).boots


@pytest.fixture(autouse=True)
def any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is a script of this Python, which has no vLLM to be asked for its version."""
    monkeypatch.setattr("moebox.serve.preflight.check_version", lambda *_: None)
    monkeypatch.setattr("moebox.flows.calibrate_boot.STEP_LIMITS", (8, 8))  # what is timed matters here, not how well
    monkeypatch.setattr("moebox.flows.calibrate_boot.MAX_LOOKS", 2)
    monkeypatch.setattr("moebox.flows.calibrate_timing.TRIES", 1)
    monkeypatch.setattr("moebox.flows.calibrate_timing.MANY", 1)


def test_two_boots_become_a_calibration(run: Run) -> None:
    """Prompts and decode steps at both depths, the cache's tokens carried on, nothing left running."""
    lines: list[str] = []
    found = calibrate(acting("good"), run, layers=(4, 8), budget_s=BUDGET_S, notify=lines.append)

    assert found.depths == (4, 8)
    assert (found.layers, found.engine, found.version) == (61, "vllm", "0.32.0")
    reading = MeasuredSpeed(calibration=found, layers=12, chunk=256)
    assert reading.decode_times[1]
    assert reading.prompt_times
    assert reading.cache_tokens == pytest.approx((120e9 - 12 * 9e9) / 1152 / 12, rel=0.001)
    assert calibrations.find_calibration(found.id) == found
    assert "booting with 4 layers, 8 layers" in lines[0]
    assert not marked_processes()


def test_a_second_run_refines_the_first(run: Run, tmp_path: Path) -> None:
    """Another depth is added to what is known."""
    first = calibrate(acting("good"), run, layers=(4, 8), budget_s=BUDGET_S)
    again = Run.create("again", runs=tmp_path / "more")
    second = calibrate(acting("good"), again, layers=(4, 6), budget_s=BUDGET_S)
    # Of a quiet and a disturbed one the quiet one counts alone: this machine may have been busy during one of them
    kept = [codec.decode(Calibration, each.read_json(FILE), where=FILE) for each in (run, again)]
    unlike = bool(kept[0].disturbed) != bool(kept[1].disturbed)
    assert (second.id, second.depths) == (first.id, (4, 6, 8)) or unlike
    assert len(calibrations.stored_calibrations().calibrations) == 1


def test_a_depth_that_is_too_large_is_taken_shallower(run: Run) -> None:
    """12 layers run out of memory, 8 do as well, 6 are measured; it reports it."""
    found = calibrate(acting("oom-above-7"), run, layers=(4, 12), budget_s=BUDGET_S)
    assert found.depths == (4, 6)
    assert "12 layers ran out of memory; 8 layers taken instead" in found.notes
    assert "8 layers ran out of memory; 6 layers taken instead" in found.notes
    assert not marked_processes()


def test_an_engine_that_dies_at_the_second_depth_leaves_no_half_calibration(run: Run) -> None:
    """Named, with the first depth in the run folder and nothing in the store."""
    with pytest.raises(AnswerIsNo, match=r"vllm ended with code 7 while 8 layers were measured"):
        calibrate(acting("dies-above-4"), run, layers=(4, 8), budget_s=BUDGET_S)
    assert [boot.layers for boot in boots(run)][:1] == [4]
    assert not calibrations.stored_calibrations().calibrations
    assert not marked_processes()


def test_no_memory_for_any_second_depth_is_reported(run: Run) -> None:
    """Nothing lies between 4 and 5."""
    with pytest.raises(LaunchFailed, match="memory"):
        calibrate(acting("oom-above-4"), run, layers=(4, 5), budget_s=BUDGET_S)
    assert not calibrations.stored_calibrations().calibrations


def test_streams_that_never_decode_together_are_left_out_and_named(run: Run) -> None:
    """SGLang with 64 long prompts: that step does not exist, and everything else is worth having."""
    found = calibrate(acting("alone"), run, layers=(4, 8), budget_s=BUDGET_S)
    assert MeasuredSpeed(calibration=found, layers=12, chunk=256).decode_times.keys() == {1}
    assert "4 layers: left out: 2 streams at 208 tokens never decoded together for 8 steps" in found.notes


def test_requests_that_fail_are_reported_in_the_servers_words(run: Run) -> None:
    """HTTP 500 is the answer no."""
    with pytest.raises(AnswerIsNo, match="HTTP 500: EngineCore encountered an issue"):
        calibrate(acting("refuses"), run, layers=(4, 8), budget_s=BUDGET_S)
    assert not marked_processes()


def test_prompts_from_a_cache_are_never_timed(run: Run) -> None:
    """ik_llama.cpp compares prompts by their text, and tokens without text were all the same to it."""
    with pytest.raises(AnswerIsNo, match=r"127 of 128 prompt tokens came from the server's prefix cache"):
        calibrate(acting("caches"), run, layers=(4, 8), budget_s=BUDGET_S)
    assert not calibrations.stored_calibrations().calibrations


def test_drift_is_seen_and_widens_the_band(run: Run) -> None:
    """Every request is slower than the one before: said, and in the spread of every step."""
    found = calibrate(acting("slows"), run, layers=(4, 8), budget_s=BUDGET_S)
    assert any("speed drifted by +" in note for note in found.notes)
    assert min(step.spread for boot in found.boots for step in boot.decode) > 0.02


@dataclasses.dataclass
class OneGpu:
    """A driver with a GPU on which another program is busy, and a second one from the `later`th look on."""

    later: int
    looks: int = 0

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU {index}"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self.looks += 1
        pids = (4711, 4712) if self.looks >= self.later else (4711,)
        return [SimpleNamespace(pid=pid, usedGpuMemory=8 * 2**30) for pid in pids]


def test_another_process_on_the_gpu_is_named_whenever_it_comes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was there before the boots, once; one that came while the second boot was timed."""
    driver = OneGpu(later=6)  # three looks a boot: before it, when it is up, when it is timed
    monkeypatch.setattr("moebox.detect.nvml.load_nvml", lambda: driver)
    monkeypatch.setattr("moebox.flows.calibrate.detect.load_box", lambda: load_box("1x-h200"))
    recipe = dataclasses.replace(acting("good"), env={"CUDA_VISIBLE_DEVICES": "0"})
    found = calibrate(recipe, run, layers=(4, 8), budget_s=BUDGET_S)

    reported = [note for note in found.notes if "another process" in note]
    assert reported == [f"another process used GPU 0: pid {pid}, 8.00 GiB" for pid in (4711, 4712)]
    assert driver.looks == 6


def test_ctrl_c_keeps_what_was_measured_and_stops_the_engine(tmp_path: Path) -> None:
    """As a person would: SIGINT to the command in the middle of the first boot."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(codec.to_toml(dataclasses.replace(acting("good"), engine_version="")))
    words = ["rehearse", str(recipe), "--measure", "--layers", "4,8", "--runs", str(tmp_path / "runs")]
    command = subprocess.Popen([sys.executable, "-m", "moebox", *words], stderr=subprocess.PIPE, text=True)
    assert command.stderr
    for line in command.stderr:
        if "4 layers: 5 of" in line:
            break
    command.send_signal(signal.SIGINT)
    reported = command.stderr.read()
    assert command.wait(60) == 130
    assert "interrupted; what was measured is in" in reported.replace("\n", " ")
    folder = next((tmp_path / "runs").iterdir())
    kept = json.loads((folder / FILE).read_text())
    assert kept["boots"][0]["layers"] == 4
    assert "interrupted: incomplete" in kept["notes"]
    assert not calibrations.stored_calibrations().calibrations
    until = time.monotonic() + 20
    while marked_processes() and time.monotonic() < until:
        time.sleep(0.2)
    assert not marked_processes()
    assert os.environ["MOEBOX_CALIBRATIONS"]


def test_depths_have_every_kind_and_fit() -> None:
    """One dense layer and three with experts, then as many as half of the memory holds."""
    model, forms = resolve_model("kimi-k2.6")
    form = next(one for one in forms if one.quant == "int4-g32")
    deployment = Deployment(acting("good"), model, form, load_box("8x-h200"))
    few, more = choose_depths(deployment)
    assert few.layers == 4
    assert few.layers < more.layers <= 24
    with pytest.raises(BadInput, match="takes two depths"):
        choose_depths(deployment, (8, 4))


def test_experts_on_gpus_and_in_ram_take_a_third_boot(tmp_path: Path) -> None:
    """Seed 004's kind of box: the third boot has some expert layers on GPUs, spread over the same GPUs."""
    model, forms = resolve_model("kimi-k2.6")
    form = next(one for one in forms if one.format == "gguf")
    recipe = dataclasses.replace(
        acting("good"), engine="ik_llama.cpp", hybrid=Hybrid(experts=((1, 2, 3), (58, 59, 60)))
    )
    box = load_box("2x-rtx-pro-6000-max-q", ram="768GiB")
    depths = choose_depths(Deployment(recipe, model, form, box), (4, 8))
    assert [(depth.layers, depth.gpu_experts) for depth in depths] == [(4, 0), (8, 0), (8, 3)]
    assert shallower_depth(Boot(layers=8, gpu_experts=7), above=4) == Boot(layers=6, gpu_experts=5)
    tiny = dataclasses.replace(
        model, hidden=64, vocab=512, moe=dataclasses.replace(model.moe, experts=8, used=2, intermediate=64)
    )
    deployment = Deployment(recipe, tiny, dataclasses.replace(form, quant="Q4_0"), box)
    small = recipe_at_depth(deployment, depths[2], tmp_path / "x.gguf")
    assert small.hybrid is not None
    assert small.hybrid.experts == ((1, 3), (2,))


def test_the_most_telling_points_come_first() -> None:
    """One prompt and one stream before anything else; the widest batch soon; no point beyond context or cache."""
    points = timing_grid(
        dataclasses.replace(acting("good"), max_seqs=64), chunk=8192, longest=32768, cache_tokens=100_000
    )
    assert points[0].batch == 0
    assert points[1] == TimingPoint(batch=1, context=256)
    assert points[2] == TimingPoint(batch=64, context=256)
    assert max(point.context for point in points) <= 32768
    assert max(point.batch * point.context for point in points) <= 100_000
    assert len(set(points)) == len(points)
    assert sorted(order_outer_first([1, 2, 4, 8, 16])) == [1, 2, 4, 8, 16]
    assert order_outer_first([1]) == [1]
    small = timing_grid(acting("good"), chunk=512, longest=512, cache_tokens=8192)  # contexts that differ by a factor
    assert {point.context for point in small if point.batch} == {80, 320}


def test_only_steps_in_which_all_streams_decode_count() -> None:
    """Before the last stream begins and after the first ends a step holds fewer of them."""
    slow = [0.0, 1.0, 2.0, 2.1, 2.2, 2.3]
    late = [2.0, 2.1, 2.2, 2.3, 3.3]
    assert timing.shared_gaps([slow, late]) == pytest.approx([0.1, 0.1, 0.1])
    assert timing.shared_gaps([slow, []]) == []


def test_boots_of_the_same_depth_are_averaged() -> None:
    """And disagreement is their error."""
    first = Boot(
        layers=4,
        decode=(DecodeStep(batch=1, context=256, seconds=0.01, spread=0.01),),
        prefill=(PrefillStep(tokens=128, seconds=0.1, spread=0.01),),
    )
    second = Boot(layers=4, decode=(DecodeStep(batch=1, context=256, seconds=0.012, spread=0.01),))
    both = merge_boots(first, second)
    assert both.decode[0].seconds == pytest.approx(0.011)
    assert both.decode[0].spread == pytest.approx(0.001 / 0.011)
    assert both.prefill == first.prefill


def test_a_budget_is_an_upper_bound(run: Run) -> None:
    """What does not fit into the budget is not measured, and the budget that would be useful is named first."""
    lines: list[str] = []
    with pytest.raises((AnswerIsNo, LaunchFailed)):
        calibrate(acting("good"), run, layers=(4, 8), budget_s=0.2, notify=lines.append)
    assert "about 4 min 20 s are useful" in lines[1]
    assert not marked_processes()


def test_a_disturbed_calibration_does_not_spoil_a_quiet_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calibrations of one recipe the quiet one counts alone, whichever came first."""
    monkeypatch.setenv("MOEBOX_CALIBRATIONS", str(tmp_path / "kept"))
    quiet = Calibration(
        id="c", date="2026-11-17", place=CalibratedBox(), engine="vllm", model="m", shape="", layers=8, quant="fp8"
    )
    busy = dataclasses.replace(quiet, disturbed=("other programs used 2 of 2 cores",))
    for first, second in ((quiet, busy), (busy, quiet)):
        calibrations.store_calibration(first)
        assert merge_with_stored(second) == quiet
