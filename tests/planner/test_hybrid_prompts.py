"""Prompts with experts in RAM: the -ub loop, copies over PCIe, and the CPU's vectors, against owners' rows."""

import statistics
from dataclasses import replace

from moebox.core import catalogue
from moebox.core.box import Box, Cpu
from moebox.core.deployment import Deployment
from moebox.core.recipe import Hybrid, Recipe
from moebox.planner.speed import Speed
from tests.planner.rows import published


def test_prompt_speeds_of_owners_are_met() -> None:
    """139 rows of ik_llama.cpp on 11 boxes: half of them within 15 %, nine of ten within 40 %."""
    rows = list(published().hybrid_prompt_rows())
    errors = sorted(abs(row.predict() / row.published - 1) for row in rows)

    assert len(rows) == 139
    assert statistics.median(errors) < 0.15
    assert errors[int(0.9 * len(errors))] < 0.40


def test_cores_with_avx512_read_prompts_faster() -> None:
    """Below the batch that copies experts, a core of Zen 5 does 1.64 times the work of one of Zen 2."""
    model, gpu = catalogue.find_model("deepseek-r1"), catalogue.find_gpu("rtx-4090")
    checkpoint = next(each for each in catalogue.published_checkpoints(model.name) if each.format == "gguf")
    recipe = Recipe(
        name="x",
        engine="ik_llama.cpp",
        model=model.name,
        checkpoint=checkpoint.name,
        served_name="x",
        hybrid=Hybrid(threads=32, ubatch=512, mla=2),
    )
    box = Box(name="box", gpus=(gpu,), cpu=Cpu(model="EPYC 9355", cores=32), ram_bandwidth=400_000_000_000)
    old = replace(box, cpu=replace(box.cpu, model="Threadripper PRO 3995WX"))
    seconds = []
    for each in (box, old):
        step = Speed.from_published_rows(Deployment(recipe, model, checkpoint, each)).hybrid_step
        assert step is not None
        seconds.append(step.prefill_parts(512, 0)["experts on the CPU"])

    assert 1.3 < seconds[1] / seconds[0] < 1.7
