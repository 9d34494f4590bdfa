"""A small run folder, made through the store as the real ones are."""

from pathlib import Path
from typing import Any

from moebox import codec
from moebox.core.engine_event import AttemptReady, AttemptStarted
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.core.recipe import Parallel, Recipe
from moebox.detect.declared import parse_box
from moebox.store import Run

RECIPE = Recipe(
    name="k26",
    engine="vllm",
    engine_version="0.32.0",
    model="kimi-k2.6",
    checkpoint="int4",
    served_name="kimi-k2.6",
    kv="bf16",
    max_seqs=64,
    memory_utilization=0.9,
    parallel=Parallel(tp=8),
)


def level(concurrency: int, *, factor: float = 1.0, **more: Any) -> dict[str, Any]:
    """One measurement in the serving benchmark's names."""
    return {
        "concurrency": concurrency,
        "input_len": 256,
        "output_len": 100,
        "num_prompts": concurrency,
        "completed": concurrency,
        "failed": 0,
        "duration": 10.0,
        "output_throughput": (10.0 * concurrency + 0.125 * (concurrency > 1)) * factor,
        "total_token_throughput": 35.6 * concurrency * factor,
        "mean_ttft_ms": 100.0 + 20 * concurrency,
        "p99_ttft_ms": 180.0 + 30 * concurrency,
        "mean_tpot_ms": 40.0 + concurrency,
        "mean_itl_ms": 40.0 + concurrency,
        **more,
    }


def a_run(runs: Path, *, name: str = "k26", factor: float = 1.0, levels: tuple[int, ...] = (1, 8, 64)) -> Run:
    """A whole run: recipe, box, attempts, facts, verdicts, measurements."""
    run = Run.create(name, runs=runs)
    run.release_lock()
    run.write_json("run.json", {**run.read_json("run.json"), "label": name})
    run.write_file("recipe.toml", codec.to_toml(RECIPE))
    run.write_file("box.toml", codec.to_toml(parse_box("8x-rtx-pro-6000-server")))
    argv = ("vllm", "serve", "--api-key", "sk-verysecret99")
    run.add_event(AttemptStarted(id="a", model="int4", engine="vllm", argv=argv))
    devices = tuple(DeviceFacts(device=f"gpu{n}", weights_bytes=72.0 * 2**30, kv_bytes=10.0 * 2**30) for n in range(8))
    run.add_event(AttemptReady(id="a", facts=EngineFacts(kv_tokens=600_000, devices=devices)))
    check = {"name": "arithmetic", "verdict": "pass", "score": {"passed": 10, "trials": 10, "low": 0.72, "high": 1.0}}
    run.write_json("verdicts/02-arithmetic.json", check)
    for number in levels:
        run.write_json(f"measurements/c{number:04d}.json", level(number, factor=factor))
    return run
