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


def test_prompts_are_slower_from_a_mapped_file() -> None:
    """llama.cpp maps files unless told otherwise; ik_llama.cpp page-locks what stays in RAM."""
    model, gpu = catalogue.find_model("kimi-k2.6"), catalogue.find_gpu("rtx-5090")
    checkpoint = next(each for each in catalogue.published_checkpoints(model.name) if each.format == "gguf")
    box = Box(name="box", gpus=(gpu,), cpu=Cpu(model="EPYC 9355", cores=32), ram_bandwidth=614_000_000_000)

    def speed(engine: str, **changes: object) -> Speed:
        usual = {"name": "x", "model": model.name, "checkpoint": checkpoint.name, "served_name": "x"}
        hybrid = Hybrid(threads=32, ubatch=4096, mla=2 if engine == "ik_llama.cpp" else None)
        recipe = Recipe(engine=engine, hybrid=hybrid, **usual, **changes)  # type: ignore[arg-type]
        return Speed.from_published_rows(Deployment(recipe, model, checkpoint, box))

    mapped, locked = speed("llama.cpp"), speed("llama.cpp", flags={"load-mode": "none"})
    assert 1.7 < mapped.prefill_s(4096) / locked.prefill_s(4096) < 4
    assert mapped.decode_tok_s(1, 4096) == locked.decode_tok_s(1, 4096)
    assert mapped.range_factors("prompt")[0] < locked.range_factors("prompt")[0]
    assert "copies from the mapped file" in mapped.basis_text("prompt")
    assert "copies" not in mapped.basis_text("decode") + locked.basis_text("prompt")
    for mode in ("auto", "mmap", "mmap+mlock"):
        assert speed("llama.cpp", flags={"load-mode": mode}).prefill_s(4096) == mapped.prefill_s(4096)
    assert speed("llama.cpp", flags={"-lm": "none"}).prefill_s(4096) == locked.prefill_s(4096)
    forbidden = speed("ik_llama.cpp", env={"GGML_CUDA_NO_PINNED": "1"})
    assert forbidden.prefill_s(4096) > 1.5 * speed("ik_llama.cpp").prefill_s(4096)
