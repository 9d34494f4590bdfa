"""After a crash and before a launch: Triton caches, tuned files, and patches that can be taken back."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from moebox.cli import main
from moebox.core.kernel import KernelLaunch, find_arch
from moebox.errors import BadInput, ExternalError, Unsupported
from moebox_kernels import cache, patch, tuned_files
from moebox_kernels.fix import LaunchCandidate, LaunchRemedy

LAUNCH = KernelLaunch(
    case="MLA decode, batch 1, fp8 cache",
    kernel="_fwd_grouped_kernel_stage1",
    file="vllm/ops.py",
    line=3,
    num_warps=4,
    num_stages=2,
    shared_bytes=102_400,
    limit_bytes=101_376,
    verdict="does not fit",
)
BEST = LaunchCandidate(blocks={"BLOCK_N": 32}, num_warps=4, num_stages=1, shared_bytes=83_968)
SOURCE = """import torch


def _decode_grouped_att_m_fwd(q, k_buffer):
    BLOCK = 32
    num_stages = 2
    _fwd_grouped_kernel_stage1[grid](
        q,
    )
"""


def cached(folder: Path, name: str, shared: int, number: int = 120) -> None:
    place = folder / f"hash{shared}"
    place.mkdir(parents=True)
    about = {"name": name, "shared": shared, "num_warps": 8, "num_stages": 1, "target": {"arch": number}}
    (place / f"{name}.json").write_text(json.dumps({**about, "triton_version": "3.5.1"}))
    (place / f"__grp__{name}.json").write_text("{}")


def test_the_guilty_kernel_is_named_from_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Triton writes it before the error is raised; foreign and broken files are passed over."""
    cached(tmp_path, "_fwd_kernel", 106_496)
    cached(tmp_path, "fine", 4_096)
    cached(tmp_path, "hopper", 200_000, number=90)
    (tmp_path / "x.json").write_text("[" * 10_000)
    (tmp_path / "y.json").write_bytes(b"\xff")
    found = cache.read_cache(tmp_path)
    assert [one.kernel for one in found if not one.can_launch] == ["_fwd_kernel"]
    assert [one.kernel for one in cache.read_cache(tmp_path, arch_name="sm_120") if not one.can_launch] == [
        "hopper",
        "_fwd_kernel",
    ]
    assert main(["doctor", "kernels", "--cache", str(tmp_path)]) == 1
    assert "needs 106,496 bytes of shared memory; sm_120 has 101,376" in " ".join(capsys.readouterr().out.split())


def test_a_cache_that_is_not_there_is_one_line(tmp_path: Path):
    """With the place where it usually is."""
    with pytest.raises(BadInput, match="no such folder"):
        cache.read_cache(tmp_path / "none")


def tuned(folder: Path, name: str, **blocks: int) -> None:
    row = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "num_warps": 4, "num_stages": 3, **blocks}
    (folder / name).write_text(json.dumps({"1": row, "64": {**row, "num_stages": 5}, "triton_version": "3.6.0"}))


def test_tuned_files_that_cannot_launch_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """bf16: (stages - 1) x (M + N) x K x 2 bytes, exact against the compiler; another kind needs compiling to know."""
    tuned(tmp_path, "E=384,N=256,device_name=NVIDIA_H100.json")
    tuned(tmp_path, "E=384,N=256,device_name=NVIDIA_H100,dtype=fp8_w8a8,block_shape=[128,128].json", BLOCK_SIZE_K=256)
    tuned(tmp_path, "E=384,N=256,device_name=NVIDIA_H100,dtype=int8_w8a16.json")
    plain, block, packed = sorted(
        tuned_files.check_tuned_files(tmp_path, find_arch("sm_120")), key=lambda one: len(one.file)
    )
    assert plain.bad is not None
    assert [entry.shared_bytes for entry in plain.bad] == [4 * 192 * 128 * 2]
    verdicts = {one.file.split("dtype=")[-1][:4]: one.verdict for one in (plain, block, packed)}
    assert verdicts["int8"] == "needs compiling"
    assert verdicts["fp8_"] == "launches", "BLOCK_SIZE_K is cut to the quantisation block"
    assert main(["doctor", "kernels", "--configs", str(tmp_path)]) == 1
    assert "1 of 2 entries" in capsys.readouterr().out


def test_int4_files_are_judged_and_those_of_other_kernels_are_not(tmp_path: Path):
    """int4: (stages - 1) x M x K x 2 + N x K x 2 bytes; files without Triton's blocks need another judge."""
    tuned(tmp_path, "E=384,N=128,device_name=X,dtype=int4_w4a16_down.json", BLOCK_SIZE_N=256)
    (tmp_path / "E=384,N=256,device_name=X,dtype=int4_w4a16,backend=flydsl.json").write_text('{"1": {"tile_m": 16}}')
    other, ours = sorted(
        tuned_files.check_tuned_files(tmp_path, find_arch("sm_120")), key=lambda one: one.bad is not None
    )
    assert other.verdict == "needs compiling"
    assert ours.bad is not None
    assert [entry.shared_bytes for entry in ours.bad] == [4 * 64 * 128 * 2 + 256 * 128 * 2]


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path):
    """Not a traceback out of JSON."""
    (tmp_path / "E=1,N=1,device_name=X.json").write_text("[]")
    with pytest.raises(BadInput, match="not a fused-MoE configuration"):
        tuned_files.check_tuned_files(tmp_path, find_arch("sm_120"))


def site(tmp_path: Path) -> Path:
    (tmp_path / "vllm").mkdir(parents=True)
    (tmp_path / "vllm" / "ops.py").write_text(SOURCE)
    return tmp_path


def test_a_patch_applies_with_patch_and_is_a_capability_branch(tmp_path: Path):
    """The diff is what `patch -p1` takes; other GPUs keep what they had."""
    (made,) = patch.remedy_patches((LaunchRemedy(launch=LAUNCH, candidates=(BEST,)),), site(tmp_path), 120)
    assert "get_device_capability()[0] == 12" in made.diff
    assert "BLOCK, num_stages = 32, 1" in made.diff
    compile(made.after, "ops.py", "exec")
    if shutil.which("patch"):
        done = subprocess.run(
            ["patch", "-p1"], input=made.diff, text=True, cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout
        assert (tmp_path / "vllm/ops.py").read_text() == made.after


def test_a_file_that_is_not_the_releases_own_is_not_touched_without_asking(tmp_path: Path):
    """Edited by hand: refused, unless the person says so; then reverted byte for byte."""
    (made,) = patch.remedy_patches((LaunchRemedy(launch=LAUNCH, candidates=(BEST,)),), site(tmp_path), 120)
    with pytest.raises(BadInput, match="not a file of a release"):
        patch.apply_patch(made)
    assert (tmp_path / "vllm/ops.py").read_text() == SOURCE
    patch.apply_patch(made, force=True)
    assert patch.PATCH_MARK in (tmp_path / "vllm/ops.py").read_text()
    (again,) = patch.remedy_patches((LaunchRemedy(launch=LAUNCH, candidates=(BEST,)),), tmp_path, 120)
    with pytest.raises(BadInput, match="patched already"):
        patch.apply_patch(again, force=True)
    assert patch.revert_patches(tmp_path, "vllm") == [tmp_path / "vllm/ops.py"]
    assert (tmp_path / "vllm/ops.py").read_bytes() == SOURCE.encode()
    with pytest.raises(BadInput, match="nothing was patched"):
        patch.revert_patches(tmp_path, "vllm")


def test_a_file_that_changed_meanwhile_or_has_no_place_is_left_alone(tmp_path: Path):
    """A patch applies whole or not at all."""
    (made,) = patch.remedy_patches((LaunchRemedy(launch=LAUNCH, candidates=(BEST,)),), site(tmp_path), 120)
    (tmp_path / "vllm/ops.py").write_text("print()\n")
    with pytest.raises(ExternalError, match="changed"):
        patch.apply_patch(made, force=True)
    with pytest.raises(Unsupported, match="no known place"):
        patch.remedy_patches((LaunchRemedy(launch=LAUNCH, candidates=(BEST,)),), tmp_path, 120)
    with pytest.raises(Unsupported, match="no place for a patch"):
        patch.remedy_patches((LaunchRemedy(launch=replace(LAUNCH, kernel="other"), candidates=(BEST,)),), tmp_path, 120)


def test_the_table_knows_every_scanned_release():
    """Plans warn from it without Triton: vLLM's fp8 cache on SM120 up to the newest release."""
    from moebox.core import catalogue

    rows = catalogue.load_table("kernels")["scan"]
    stuck = [row["version"] for row in rows if row["engine"] == "vllm" and row["arch"] == "sm_120" and row["bad"]]
    assert "0.32.0" in stuck
    clean = [
        row for row in rows if row["engine"] == "sglang" and row["version"] == "0.5.23" and row["arch"] == "sm_120"
    ]
    assert clean
    assert all(not row["bad"] for row in clean)


def test_tuning_without_a_gpu_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Exit code 3: something outside is missing."""

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)  # this machine may have one
    (tmp_path / "vllm").mkdir()
    assert main(["doctor", "kernels", "--engine", "vllm", "--site-packages", str(tmp_path), "--tune"]) == 3
    assert "this machine has none" in capsys.readouterr().err
