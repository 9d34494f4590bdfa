"""The real probe: real engines' files compiled by the real Triton, without a GPU. `make test-kernels` runs it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

import moebox
from moebox.cli import main
from moebox.core import catalogue
from moebox.core.kernel import KernelScan, find_arch
from moebox.errors import ExternalError
from moebox_kernels import tuned_files
from moebox_kernels.probe import space
from moebox_kernels.probe.protocol import TunedRow
from moebox_kernels.scan import KernelRequest, scan_engine

pytestmark = pytest.mark.engine


@pytest.fixture
def venv() -> Path:
    """The environment that scripts/kernels-venv.sh makes."""
    folder = os.environ.get("MOEBOX_KERNELS_VENV")
    assert folder, "MOEBOX_KERNELS_VENV is not set; `make test-kernels` sets it"
    return Path(folder)


def look(venv: Path, engine: str, version: str, **settings: str) -> KernelScan:
    return scan_engine(
        KernelRequest(
            engine=engine,
            arch=find_arch("sm_120"),
            model=catalogue.find_model("kimi-k2.6"),
            site_packages=venv / "engines" / f"{engine}-{version}",
            python=venv / "bin" / "python",
            **settings,  # type: ignore[arg-type]
        )
    )


def test_the_figures_known_from_real_gpus(venv: Path):
    """SGLang 0.5.8: 106,496 and 147,456; 0.5.23: clean, 71,680; vLLM 0.32.0 with an fp8 cache: 102,400."""
    old = look(venv, "sglang", "0.5.8")
    assert {one.shared_bytes for one in old.failing_launches} == {106_496, 147_456}
    new = look(venv, "sglang", "0.5.23")
    assert new.failing_launches == ()
    assert 71_680 in {one.shared_bytes for one in new.launches}
    fp8 = look(venv, "vllm", "0.32.0", kv="fp8", only="decode")
    assert {one.shared_bytes for one in fp8.failing_launches} == {102_400}
    assert look(venv, "vllm", "0.32.0", kv="bf16", only="decode").failing_launches == ()


def test_a_fix_compiles_applies_and_reverts(venv: Path, capsys: pytest.CaptureFixture[str]):
    """--fix --apply makes every launch fit; --revert restores the file byte for byte."""
    site = venv / "engines" / "vllm-0.32.0"
    path = site / "vllm/v1/attention/ops/triton_decode_attention.py"
    before = path.read_bytes()
    words = ["doctor", "kernels", "--engine", "vllm", "--site-packages", str(site)]
    words += ["--python", str(venv / "bin/python"), "--kv", "fp8", "--only", "decode"]
    try:
        assert main([*words, "--fix", "--apply"]) == 0
        assert path.read_bytes() != before
    finally:
        main([*words, "--revert"])
    assert path.read_bytes() == before


def test_an_edited_kernel_that_no_longer_compiles_is_named(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the compiler's own words, also over notes that are garbage; a file that is broken is no clean bill."""
    monkeypatch.setenv("MOEBOX_CACHE", str(tmp_path / "cache"))
    name = "vllm/v1/attention/ops/triton_decode_attention.py"
    copy = tmp_path / "site" / name
    copy.parent.mkdir(parents=True)
    whole = (venv / "engines/vllm-0.32.0" / name).read_text()
    start = whole.index("def _fwd_grouped_kernel_stage1")
    body = whole.index("\n):\n", start) + len("\n):\n")
    copy.write_text(whole[:body] + '    tl.static_assert(False, "edited by hand")\n' + whole[body:])
    asked = KernelRequest(
        engine="vllm",
        arch=find_arch("sm_120"),
        model=catalogue.find_model("kimi-k2.6"),
        site_packages=tmp_path / "site",
        python=venv / "bin/python", only="decode, batch 1,",
    )  # fmt: skip
    notes = tmp_path / "cache/kernels"
    notes.mkdir(parents=True)
    for version in ("3.5.1", "3.6.0", "3.7.1", "3.8.0", "3.9.0"):
        (notes / f"costs-{version}.json").write_text("[1, 2]")
    (broken,) = scan_engine(asked).failing_launches
    assert broken.verdict == "does not compile"
    assert "edited by hand" in broken.error
    copy.write_text("def decode_attention_fwd(:\n")
    with pytest.raises(ExternalError, match="SyntaxError"):
        scan_engine(asked)


@pytest.mark.parametrize("release", ["sglang-0.5.8", "sglang-0.5.23"])
def test_a_tuned_block_table_reaches_the_launch(venv: Path, tmp_path: Path, release: str):
    """The patch made of it, in the engine's own file: what is compiled has the tuned blocks, warps and stages."""
    root = venv / "engines" / release
    tuned = {"576/512": (32, 32, 4, 1), "192/128": (128, 32, 4, 3)}
    rows = []
    for name, sizes in tuned.items():
        choice = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), sizes, strict=True))
        about = {"case": f"extend {name}, 4096 new on 4096", "best": choice, "ms": 1.0, "baselines": {}}
        rows.append(msgspec.convert({**about, "field": [{"config": choice, "ms": 1.0}]}, TunedRow))
    found = tuned_files.TuningResult(engine="sglang", triton="3.7.1", rows=rows)
    (made,) = tuned_files.block_table_patches(found, root, find_arch("sm_120"))
    shutil.copytree(root.resolve() / "sglang", tmp_path / "sglang", copy_function=os.symlink)
    (tmp_path / made.name).unlink()
    (tmp_path / made.name).write_text(made.after)
    asked = KernelRequest(
        engine="sglang", arch=find_arch("sm_120"), model=catalogue.find_model("kimi-k2.6"), site_packages=tmp_path,
        python=venv / "bin/python", only="256 new",
    )  # fmt: skip
    launches = scan_engine(asked).launches
    seen = {(one.blocks["BLOCK_M"], one.blocks["BLOCK_N"], one.num_warps, one.num_stages) for one in launches}
    assert seen == set(tuned.values())
    assert all(one.shared_bytes <= one.limit_bytes for one in launches)


def share_dying_of(venv: Path, tmp_path: Path, death: str) -> subprocess.CompletedProcess[str]:
    """A share of the prefill's candidates, compiled by an engine that dies at tiles of 64 columns."""
    name = "sglang/srt/layers/attention/triton_ops/extend_attention.py"
    copy = tmp_path / name
    copy.parent.mkdir(parents=True)
    launch = "    _fwd_kernel[grid]("
    whole = (venv / "engines/sglang-0.5.8" / name).read_text()
    assert whole.count(launch + "\n") == 1
    copy.write_text(whole.replace(launch, f"    if BLOCK_N == 64: {death}\n" + launch))
    asked = {
        "engine": "sglang", "root": str(tmp_path), "shape": {}, "capability": 90, "limit_capability": 120, "sms": 132,
        "device": "NVIDIA H200", "limit": 101_376, "cache": str(tmp_path / "cache"), "seconds": 60,
        "only": "extend 576/512, 1024 new",
    }  # fmt: skip
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    words = [str(venv / "bin/python"), "-c", SHARE, str(tmp_path / "asked.json")]
    env = {**os.environ, "PYTHONPATH": str(Path(moebox.__file__).parents[1])}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def test_a_compiler_that_dies_costs_one_candidate(venv: Path, tmp_path: Path):
    """Killed by a signal at one kernel, the share goes on behind it: the others' sizes are all there."""
    done = share_dying_of(venv, tmp_path, "__import__('os').abort()")
    sizes = [json.loads(name.partition(" ")[2])["BLOCK_N"] for name in json.loads(done.stdout)]
    assert 64 not in sizes
    assert {16, 32} == set(sizes)
    assert "the compiler died (SIGABRT); going on" in done.stderr


def test_an_interrupted_share_does_not_go_on(venv: Path, tmp_path: Path):
    """Ctrl-C reaches every process at once: none may be started again."""
    done = share_dying_of(venv, tmp_path, "__import__('os').kill(__import__('os').getpid(), 2)")
    assert done.returncode != 0
    assert "CalledProcessError" in done.stderr
    assert "going on" not in done.stderr


SHARE = """
import json, sys
from moebox_kernels.probe.tune import run_share
print(json.dumps(run_share(sys.argv[1], 120, 0, 10)))
"""

# Asks the engine itself, from its unpacked wheel: which file would you read for these weights, and what is in it?
ASK = """
import json, sys
from importlib import import_module
from pathlib import Path
from moebox_kernels.probe import sglang, vllm
from moebox_kernels.probe.protocol import ProbeGpu

engine, root, device, shapes = sys.argv[1], Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
if engine == "sglang":
    sglang.open_files(root, ProbeGpu(120, 188, device, 0, 0))
    module = sglang.import_part(root, "moe_config")
else:
    vllm.open_files(root, ProbeGpu(120, 188, device, 0, 0))
    module = import_module("vllm.model_executor.layers.fused_moe.fused_moe")
import_module(module.__name__.rpartition(".")[0]).get_config = lambda: None
more = {"return_down_config": True} if engine == "sglang" else {}
for kind, first, second, block in shapes:
    dtype = None if kind == "bf16" else kind.split()[0]
    for tokens in (1, 5, 64, 300, 4096, 9000):
        found = module.try_get_optimal_moe_config(first, second, 8, dtype, tokens, block_shape=block, **more)
        print(json.dumps([kind, tokens, found]))
"""


@pytest.mark.parametrize("release", ["sglang-0.5.8", "sglang-0.5.23", "vllm-0.32.0"])
def test_engines_find_the_files_that_are_written(venv: Path, tmp_path: Path, release: str):
    """The engine's own lookup, given its own weights' shapes, reads our entries for both products of each kind."""
    engine, device = release.split("-")[0], "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    triton = subprocess.run(
        [venv / "bin/python", "-c", "import triton; print(triton.__version__)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    rows = [one for number, kind in enumerate(space.MAX_CANDIDATES) for one in marked_rows(engine, kind, number)]
    tuned_files.write_tuned_files(tuned_files.TuningResult(engine=engine, triton=triton, rows=rows), tmp_path, device)
    packed = 2  # int4 weights to a byte
    shapes = [
        ["bf16", [384, 512, 7168], [384, 7168, 256], None],
        ["fp8_w8a8 block", [384, 512, 7168], [384, 7168, 256], [128, 128]],
        ["int4_w4a16", [384, 512, 7168 // packed], [384, 7168, 256 // packed], [0, 32]],
    ]
    source = Path(__file__).parents[2] / "src"
    env = {**os.environ, "PYTHONPATH": str(source), "VLLM_TUNED_CONFIG_FOLDER": str(tmp_path)}
    done = subprocess.run(
        [venv / "bin/python", "-c", ASK, engine, venv / "engines" / release, device, json.dumps(shapes)],
        env={**env, "SGLANG_MOE_CONFIG_DIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == 18
    for kind, tokens, found in answers:
        number = list(space.MAX_CANDIDATES).index(kind)
        if engine == "sglang":
            assert found[0]["mark"] == number
            assert found[1][0]["mark"] == number + 100, "the second product has its own file"
        elif (kind, tokens) not in (("int4_w4a16", 1), ("int4_w4a16", 5), ("int4_w4a16", 64)):
            assert found["mark"] == number


def marked_rows(engine: str, kind: str, number: int) -> list[TunedRow]:
    """A whole tuning of one kind whose entries differ from any other file's."""
    rows = []
    for tokens in space.BATCH_SIZES:
        for product, mark in (("up", number), ("down", number + 100)):
            own = {"choice": {}, "config": {"BLOCK_SIZE_M": 1}, "ms": 9.0, "fits": True, "shared_bytes": 1}
            best = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "mark": mark}
            case = f"SGLang fused MoE {kind} {product}" if engine == "sglang" else f"fused MoE {kind}"
            about = {"case": f"{case}, {tokens} tokens", "best": best, "ms": 1.0, "baselines": {"default": own}}
            rows.append(msgspec.convert({**about, "groups": {"16": {"config": best, "ms": 1.0}}}, TunedRow))
    return rows if engine == "sglang" else rows[::2]


@pytest.mark.parametrize("release", ["sglang-0.5.23", "vllm-0.32.0"])
def test_what_the_tuner_times_computes_what_it_should(venv: Path, release: str):
    """Both products of an expert, bf16, block-wise fp8 and int4, run by Triton's interpreter, against float32."""
    program, source = Path(__file__).parent / "interpreted.py", Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [venv / "bin/python", program, release.split("-")[0], venv / "engines" / release],
        env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == 6
    assert all(error < 1e-2 for _, _, error in found), found
