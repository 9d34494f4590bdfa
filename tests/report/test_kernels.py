"""Kernel findings travel: from the doctor into the run folder, from there into the report."""

import dataclasses
import json
from pathlib import Path

from moebox import detect
from moebox.checkpoint import deploy
from moebox.core.event import KernelsChecked
from moebox.core.kernel import KernelLaunch, KernelScan, NotCovered
from moebox.core.recipe import Recipe
from moebox.flows.kernels import lookup_findings, save_findings, summarize_scan
from moebox.flows.recipes import load_recipe
from moebox.report.files import make_page, render_markdown
from moebox.report.page import render_html
from moebox.runs.reader import read_run
from moebox.store import Run
from tests.report.making import a_run

BAD = KernelLaunch(
    case="MLA decode, batch 1, fp8 cache",
    kernel="_fwd_grouped_kernel_stage1",
    file="vllm/v1/attention/ops/triton_decode_attention.py",
    line=200,
    launched_from="vllm/v1/attention/ops/triton_decode_attention.py:537",
    blocks={"BLOCK_N": 32, "BLOCK_DMODEL": 512, "BLOCK_H": 8},
    num_warps=4,
    num_stages=2,
    shared_bytes=102_400,
    limit_bytes=101_376,
    verdict="does not fit",
)
FITS = dataclasses.replace(BAD, kernel="fused_moe_kernel", shared_bytes=49_152, verdict="launches")
SCAN = KernelScan(
    engine="vllm",
    version="0.32.0",
    arch="sm_120",
    model="kimi-k2.6",
    tp=8,
    kv="fp8",
    triton="3.7.1",
    launches=(BAD, FITS),
    not_covered=(NotCovered(what="fused MoE <b>int</b>, 1 tokens", why="goes to a CUDA kernel"),),
    judged=(NotCovered(what="marlin-x: something", why="do this"),),
)


def recipe(**changes: object) -> Recipe:
    return dataclasses.replace(load_recipe("kimi-k26-vllm"), engine_version="0.32.0", **changes)  # type: ignore[arg-type]


def test_a_scan_reaches_the_report(tmp_path: Path) -> None:
    """What was judged and how, what will not launch and why, what was not covered; escaped; the event is there."""
    run = a_run(tmp_path)
    save_findings(run, summarize_scan(SCAN))
    (event,) = [event for event in run.read_events() if isinstance(event, KernelsChecked)]
    assert (event.by, event.bad) == ("compiling", 1)
    page = make_page([run])
    text = render_markdown(page)
    assert "by compiling (Triton 3.7.1)" in text
    assert "2 launches compiled; 1 will not launch" in text
    assert "102,400" in text
    assert "N=32, H=8, 4 warps, 2 stages" in text
    assert "goes to a CUDA kernel" in text
    assert "marlin-x: something → do this" in text
    assert "<b>int</b>" not in render_html(page)


def test_a_second_look_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """After a fix and a new scan the old verdict is gone; another cache type stands beside it."""
    run = a_run(tmp_path)
    save_findings(run, summarize_scan(SCAN))
    save_findings(run, summarize_scan(dataclasses.replace(SCAN, kv="bf16", launches=(FITS,))))
    save_findings(run, summarize_scan(dataclasses.replace(SCAN, launches=(FITS,))))
    seen = read_run(run).kernels
    assert [(one.kv, len(one.bad)) for one in seen] == [("bf16", 0), ("fp8", 0)]
    assert "all of them fit" in render_markdown(make_page([run]))


def test_without_triton_the_table_answers(tmp_path: Path) -> None:
    """A scanned release is looked up and marked so; an unknown one is not passed over in silence."""
    box = detect.load_box("8x-rtx-pro-6000")
    run = a_run(tmp_path)
    found = lookup_findings(deploy(recipe(kv="fp8"), box))
    assert found
    assert {(bad.shared_bytes, bad.limit_bytes) for bad in found.bad} == {(102_400, 101_376)}
    save_findings(run, found)
    assert "by table" in render_markdown(make_page([run]))
    unknown = lookup_findings(deploy(dataclasses.replace(recipe(), engine_version="0.99.0"), box))
    assert unknown
    assert "moebox doctor kernels --engine vllm" in unknown.not_covered[0].why
    sparse = lookup_findings(deploy(recipe(kv="fp8", model="deepseek-v3.2"), box))
    assert sparse
    assert (sparse.bad, sparse.launches) == ((), 0)
    assert lookup_findings(deploy(dataclasses.replace(recipe(), engine="llama.cpp"), box)) is None
    assert lookup_findings(deploy(dataclasses.replace(recipe(), model="x", checkpoint="x"), box)) is None


def test_findings_that_cannot_be_read_cost_only_themselves(tmp_path: Path) -> None:
    """Incomplete or foreign findings are reported, and a new scan replaces them."""
    run = a_run(tmp_path)
    for text in ("{", "[]", '{"scans": 3}', json.dumps({"scans": [3, {"bad": [{}, 4], "launches": "x"}]})):
        (run.path / "kernels.json").write_text(text)
        assert render_html(make_page([run]))
    (run.path / "kernels.json").write_text("{")
    assert any("kernels.json" in gap for gap in read_run(run).gaps)
    save_findings(run, summarize_scan(SCAN))
    assert len(read_run(Run(run.path)).kernels) == 1
