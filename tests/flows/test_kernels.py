"""The doctor's step of a run looks the engine's kernels up, tells what will not launch, and writes it down."""

import dataclasses
from pathlib import Path

from moebox import codec, detect
from moebox.core.pipeline import PipelineStep, RunRequest
from moebox.flows.pipeline import begin_pipeline
from moebox.flows.recipes import load_recipe
from moebox.flows.run import Runner
from moebox.runs.reader import read_run
from moebox.store import Run
from moebox.stream.awake import AwakeClock


def test_the_doctors_step_leaves_kernel_findings(tmp_path: Path) -> None:
    """An fp8 cache on SM120: one line of news that names the fix, and an entry the report reads."""
    run = Run.create("k26", runs=tmp_path)
    run.write_file("box.toml", codec.to_toml(detect.load_box("8x-rtx-pro-6000")))
    recipe = dataclasses.replace(load_recipe("kimi-k26-vllm"), kv="fp8", engine_version="0.32.0")
    run.write_file("recipe.toml", codec.to_toml(recipe))
    pipeline = begin_pipeline(RunRequest(model="kimi-k2.6", until="doctor"), run).with_step(
        PipelineStep(name="plan", state="done")
    )
    news: list[str] = []
    teller = Runner(
        run,
        pipeline,
        awake=AwakeClock(),
        notify=lambda kind, what: news.append(what) if kind == "news" else None,
        confirm=lambda question: True,
    )
    reported = teller.run_steps()
    assert reported.step("doctor").figures["kernels_failing"] == 1
    assert any("moebox doctor kernels --engine vllm --kv fp8 --fix" in line for line in news)
    (seen,) = read_run(run).kernels
    assert (seen.by, seen.bad[0].shared_bytes) == ("table", 102_400)
