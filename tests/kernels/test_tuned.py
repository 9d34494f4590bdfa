"""What a tuning leaves behind: files under the names engines look for, whole, with blocks that fit."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moebox.core import catalogue
from moebox.core.kernel import find_arch
from moebox.errors import ExternalError, Unsupported
from moebox_kernels import tuned_files
from moebox_kernels.probe import space
from moebox_kernels.probe.protocol import TunedRow
from moebox_kernels.probe.tune import keep_fastest
from moebox_kernels.scan import KernelRequest, rank_shape

DEVICE = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
NAMED = DEVICE.replace(" ", "_")
MEASURED = Path(__file__).parents[2] / "benchmarks/kernels/h200-under-sm120-limit.json"


def blocks(height: int = 16, wide: int = 64) -> dict[str, int]:
    return {"BLOCK_SIZE_M": height, "BLOCK_SIZE_N": wide, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3}


def row(case: str, ms: float, default: float, *, fits: bool = True, **more: Any) -> TunedRow:
    """A case as the timing process answers it."""
    own = {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1}
    beside = {"choice": {"tokens": 1}, "config": own, "ms": default, "fits": fits, "shared_bytes": 1}
    found = {"case": case, "best": blocks(), "ms": ms, "error": 0.001, "shared_bytes": 2}
    return msgspec.convert({**found, "baselines": {"the engine's default": beside}, **more}, TunedRow)


def vllm(kind: str, default: float = 1.2) -> tuned_files.TuningResult:
    rows = [
        tuned_files.prefer_baseline(row(f"fused MoE {kind}, {tokens} tokens", 1.0, default))
        for tokens in space.BATCH_SIZES
    ]
    return tuned_files.TuningResult(engine="vllm", triton="3.7.1", rows=rows)


def sglang(kind: str, up: dict[str, float], down: dict[str, float], default: float = 9.0) -> tuned_files.TuningResult:
    """Times of each product by the height of its tile."""
    rows = []
    for tokens in space.BATCH_SIZES:
        for product, times in (("up", up), ("down", down)):
            groups = {high: {"config": blocks(int(high)), "ms": ms} for high, ms in times.items()}
            rows.append(row(f"SGLang fused MoE {kind} {product}, {tokens} tokens", 1.0, default, groups=groups))
    return tuned_files.TuningResult(engine="sglang", triton="3.7.1", rows=rows)


def nearest(configs: tuned_files.MoeConfigs, tokens: int) -> dict[str, Any]:
    """As both engines look an entry up."""
    return configs[min(configs, key=lambda size: abs(size - tokens))]


def test_names_are_the_engines_own():
    """SGLang has a file for each product, a space in block_shape, and counts int4 in packed bytes."""
    assert tuned_files.vllm_name("bf16", DEVICE) == f"E=384,N=256,device_name={NAMED}.json"
    assert tuned_files.vllm_name("int4_w4a16", "NVIDIA H200 NVL") == (
        "E=384,N=256,device_name=NVIDIA_H200,dtype=int4_w4a16.json"
    )
    block = tuned_files.vllm_name("fp8_w8a8 block", DEVICE)
    assert block == f"E=384,N=256,device_name={NAMED},dtype=fp8_w8a8,block_shape=[128,128].json"
    down = tuned_files.sglang_name("fp8_w8a8 block", DEVICE, down=True)
    assert down == f"E=384,N=256,device_name={NAMED},dtype=fp8_w8a8,block_shape=[128, 128]_down.json"
    assert tuned_files.sglang_name("int4_w4a16", DEVICE) == f"E=384,N=128,device_name={NAMED},dtype=int4_w4a16.json"


def test_another_split_has_other_sizes_and_another_name(tmp_path: Path):
    """TP4 doubles heads and experts' width on a rank; vLLM's CUDA kernel ends where its tokens an expert do."""
    (tmp_path / "vllm").mkdir()
    asked = KernelRequest(engine="vllm", arch=find_arch("sm_120"), model=catalogue.find_model("kimi-k2.6"), tp=4)
    shape = rank_shape(asked.model, asked.tp)
    assert shape == space.RankShape(heads=16, intermediate=512)
    assert tuned_files.vllm_name("bf16", DEVICE, shape) == f"E=384,N=512,device_name={NAMED}.json"
    few = space.RankShape(experts=64)
    whole, _ = tuned_files.tuned_config_files(dataclasses.replace(vllm("int4_w4a16"), shape=few), DEVICE)
    (configs,) = whole.values()
    assert ["BLOCK_SIZE_N" in nearest(configs, tokens) for tokens in (47, 48, 49, 50)] == [False, False, True, True]


def test_a_file_has_every_batch_size_also_where_the_default_won(tmp_path: Path):
    """Engines take the nearest entry: a size left out would get its neighbour's blocks instead of the default."""
    tuned = vllm("bf16")
    tuned.rows[3:5] = [tuned_files.prefer_baseline(row(one.case, 1.0, 1.01)) for one in tuned.rows[3:5]]
    made, gaps = tuned_files.write_tuned_files(tuned, tmp_path / "tuned", DEVICE)
    assert gaps == []
    assert [path.name for path in made] == ["tuned-vllm.json", f"E=384,N=256,device_name={NAMED}.json"]
    found = {int(size): config for size, config in json.loads(made[1].read_text()).items()}
    assert tuple(found) == space.BATCH_SIZES
    assert found[8] == {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1}, "within the noise: the engine's own, written out"
    assert found[64] == blocks()
    assert "1.20x" in tuned_files.markdown_table(tuned.rows)
    assert "the engine's own default" in tuned_files.markdown_table(tuned.rows)


def test_a_file_with_gaps_is_not_written(tmp_path: Path):
    """Out of time, or asked for less: the table is written, and a line says what is not."""
    tuned = vllm("bf16")
    del tuned.rows[4:]
    made, gaps = tuned_files.write_tuned_files(tuned, tmp_path, DEVICE)
    assert [path.name for path in made] == ["tuned-vllm.json"]
    assert gaps == ["fused MoE bf16: 14 of 18 batch sizes were not timed, no file written"]


def test_vllms_cuda_kernel_keeps_its_own_tiles():
    """Up to 288 tokens int4 goes to a CUDA kernel that reads the same file: Triton's tiles never reach it."""
    whole, _ = tuned_files.tuned_config_files(vllm("int4_w4a16"), DEVICE)
    (configs,) = whole.values()
    for tokens in range(1, 5000):
        assert ("BLOCK_SIZE_N" in nearest(configs, tokens)) == (tokens > 288), tokens
    assert set(space.BATCH_SIZES) <= set(configs)


def test_sglangs_two_files_agree_on_the_height_of_a_tile():
    """It sorts tokens once for both products, and 0.5.8 asserts that they agree: the pair with the least sum wins."""
    tuned = sglang("int4_w4a16", {"16": 1.0, "32": 1.1}, {"16": 2.0, "32": 1.5, "64": 0.1})
    whole, gaps = tuned_files.tuned_config_files(tuned, DEVICE)
    assert gaps == []
    up, down = whole.values()
    assert list(whole)[1] == f"configs/triton_3_7_1/E=384,N=128,device_name={NAMED},dtype=int4_w4a16_down.json"
    assert tuple(up) == tuple(down) == space.BATCH_SIZES
    assert {nearest(up, n)["BLOCK_SIZE_M"] for n in range(1, 5000)} == {32}
    assert {nearest(down, n)["BLOCK_SIZE_M"] for n in range(1, 5000)} == {32}
    assert not any("SPLIT_K" in config for config in [*up.values(), *down.values()]), "SGLang's kernels do not take it"


def test_sglangs_default_stays_where_a_pair_gains_nothing():
    """Its default, of both products, within the noise of the best pair; or when no two heights agree."""
    for times in ({"16": 1.0}, {"16": 1.0, "32": 1.2}):
        whole, _ = tuned_files.tuned_config_files(sglang("bf16", times, {"16": 1.0}, default=1.01), DEVICE)
        assert all(
            config == {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1} for one in whole.values() for config in one.values()
        )
    whole, _ = tuned_files.tuned_config_files(sglang("bf16", {"16": 1.0}, {"32": 1.0}), DEVICE)
    assert all(config["BLOCK_SIZE_M"] == 16 for one in whole.values() for config in one.values())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path):
    """Not a traceback at the end of minutes of timing."""
    (tmp_path / "file").touch()
    with pytest.raises(ExternalError, match="cannot be written"):
        tuned_files.write_tuned_files(vllm("bf16"), tmp_path / "file", DEVICE)


SGLANG = """def _get_block_sizes_for_extend_attention(Lq, Lv):
    BLOCK_M, BLOCK_N, num_warps = 32, 64, 8
    return BLOCK_DMODEL, BLOCK_DPE, BLOCK_DV, BLOCK_M, BLOCK_N, num_warps


def extend_attention_fwd(q):
    num_stages = 1
    _fwd_kernel[grid](
        num_stages=num_stages,
    )
"""


def extended(case: str, **times: float) -> dict[str, Any]:
    """A row of prefill attention: m32n64s3=0.2 is 32 x 64 in three stages, in ms."""
    field = []
    for name, ms in sorted(times.items(), key=lambda item: item[1]):
        rows, columns, stages = (int(part) for part in re.findall(r"\d+", name))
        choice = {"BLOCK_M": rows, "BLOCK_N": columns, "num_warps": 4, "num_stages": stages}
        field.append({"config": choice, "ms": ms})
    best = {"best": field[0]["config"], "ms": field[0]["ms"]}
    return msgspec.convert({"case": case, **best, "baselines": {}, "field": field}, TunedRow)


def test_one_choice_serves_every_length_and_becomes_a_patch(tmp_path: Path):
    """Of those timed at every length the one that loses least; a branch for the capability, stages included."""
    rows = [
        extended("extend 192/128, 1024 new on 4096", m32n64s3=0.2, m128n32s3=0.25),
        extended("extend 192/128, 4096 new on 32768", m128n32s3=3.0, m32n64s3=6.0, m16n16s1=9.0),
        extended("extend 576/512, 1024 new on 4096", m32n32s1=1.0),
    ]
    table = tuned_files.block_table(rows)
    assert table["extend 192/128"] == {"BLOCK_M": 128, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}
    path = tmp_path / "sglang/srt/extend_attention.py"
    path.parent.mkdir(parents=True)
    path.write_text(SGLANG)
    tuned = tuned_files.TuningResult(engine="sglang", triton="3.7.1", rows=rows)
    (made,) = tuned_files.block_table_patches(tuned, tmp_path, find_arch("sm_120"))
    compile(made.after, "extend_attention.py", "exec")
    assert "+    if _is_cuda and CUDA_CAPABILITY[0] == 12 and Lq == 192:" in made.diff
    assert "+        num_stages = 3" in made.diff
    assert made.after.count("Lq == 576") == 1, "one stage is what the engine has"
    path.write_text("def _get_block_sizes_for_extend_attention(: changed\n")
    with pytest.raises(Unsupported, match="no known place"):
        tuned_files.block_table_patches(tuned, tmp_path, find_arch("sm_120"))


def test_the_cost_model_keeps_what_was_measured_fastest():
    """The tile of each bf16 winner on the H200 is among the candidates that would be compiled and timed."""
    checked = 0
    for one in json.loads(MEASURED.read_text()):
        kind, _, tokens = one["case"].removeprefix("fused MoE ").partition(", ")
        if kind == "bf16" and "tokens" not in one["best"]:
            size = int(tokens.split()[0])
            tried = space.moe_choices(kind, size, (0, 1), smem=101_376, sms=132)
            assert space.tile_sizes(one["best"]) in {space.tile_sizes(choice) for choice in tried}, one["case"]
            checked += 1
    assert checked == 18


@pytest.mark.parametrize("kind", space.MAX_CANDIDATES)
def test_candidates_fit_are_few_and_reach_every_height(kind: str):
    """Each case stays within minutes; both products find a height in common; int4 tries shallow and deep tiles."""
    limit = find_arch("sm_120").smem
    depths = set()
    for tokens in space.BATCH_SIZES:
        both = [space.moe_choices(kind, tokens, (product,), smem=limit, sms=188) for product in (0, 1)]
        for tried in both:
            assert all(space.shared_bytes(kind, one) <= limit for one in tried)
            assert 12 <= len(tried) <= space.MAX_CANDIDATES[kind] + 3
            depths |= {one["BLOCK_SIZE_K"] for one in tried}
        heights = [{one["BLOCK_SIZE_M"] for one in tried} for tried in both]
        assert heights[0] == heights[1]
    assert depths == ({32, 64, 128, 256} if kind == "int4_w4a16" else {64, 128})


def test_extend_attention_tries_all_that_can_fit():
    """576-wide: 16 to 64 rows and columns, 4 and 8 warps, 1 to 3 stages, less what streams too much."""
    wide, full = space.extend_choices(576), space.extend_choices(192)
    assert {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1} in wide
    assert {one["num_stages"] for one in wide if one["BLOCK_N"] == 32} == {1, 2, 3}
    assert {one["BLOCK_M"] for one in wide} == {16, 32, 64}
    assert {"BLOCK_M": 128, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3} in full


def test_halving_keeps_the_fastest_of_each_height():
    """A slow height may still win together with the other product's."""
    field = [{"BLOCK_SIZE_M": 16, "n": n} for n in range(12)] + [{"BLOCK_SIZE_M": 64, "n": 0}, {"tokens": 4}]
    kept = keep_fastest(field, 0.34, "BLOCK_SIZE_M")
    assert kept[:5] == field[:5]
    assert {"BLOCK_SIZE_M": 64, "n": 0} in kept
    assert keep_fastest(field, 0.34, "") == field[:5]
