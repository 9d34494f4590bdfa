"""The kernel doctor on recordings of the real probe (Triton 3.7.1 compiling each engine's own files for sm_120).

`make test-kernels` runs the probe itself.
"""

import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from moebox.cli import main
from moebox.core import catalogue
from moebox.core.kernel import find_arch
from moebox.errors import BadInput, ExternalError, MoeboxError, UnknownName, Unsupported
from moebox.report.files import make_page, render_markdown
from moebox.store import Run
from moebox_kernels import fix
from moebox_kernels.probe.protocol import LaunchRecord
from moebox_kernels.scan import KernelRequest, engine_version, scan_engine

HERE = Path(__file__).parent


def python_that_answers(folder: Path, recording: str, versions: str = "3.7.1 2.13.0") -> Path:
    """A stand-in for a Python with Triton: says its versions, then plays a recording of the real probe."""
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    play = f"cat > /dev/null; cat {HERE / recording}" if recording else "echo boom >&2; exit 3"
    program.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo {versions}; exit 0; fi\n{play}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def engine(folder: Path, name: str, version: str) -> Path:
    """A folder that looks like an unpacked wheel."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    return folder


def request(folder: Path, name: str, version: str, recording: str, **settings: object) -> KernelRequest:
    values: dict[str, object] = {"tp": 8, "kv": "bf16", **settings}
    return KernelRequest(
        engine=name,
        arch=find_arch("sm_120"),
        model=catalogue.find_model("kimi-k2.6"),
        site_packages=engine(folder / "site", name, version),
        python=python_that_answers(folder, recording),
        **values,  # type: ignore[arg-type]
    )


def test_the_january_2026_crash_is_found(tmp_path: Path):
    """SGLang 0.5.8's extend attention asks 106,496 bytes of SM120's 101,376: the SM120 report's error, to the byte."""
    found = scan_engine(request(tmp_path, "sglang", "0.5.8", "sglang-0.5.8-sm_120-bf16.jsonl"))
    assert found.version == "0.5.8"
    bad = {(one.kernel, one.shared_bytes) for one in found.failing_launches}
    assert bad == {("_fwd_kernel", 106_496), ("fused_moe_kernel", 147_456)}
    worst = next(one for one in found.failing_launches if one.kernel == "_fwd_kernel")
    assert worst.limit_bytes == 101_376
    assert worst.file.endswith("extend_attention.py")
    assert worst.blocks["BLOCK_N"] == 64
    assert worst.blocks_per_sm == 0


def test_the_fp8_cache_crash_of_the_newest_vllm_is_found(tmp_path: Path):
    """vLLM 0.32.0's MLA decode asks 102,400 bytes with an fp8 cache (vllm-project/vllm#53748)."""
    found = scan_engine(request(tmp_path, "vllm", "0.32.0", "vllm-0.32.0-sm_120-fp8.jsonl", kv="fp8"))
    assert {one.shared_bytes for one in found.failing_launches} == {102_400}
    assert any("CUDA" in one.why for one in found.not_covered), "what goes to another kernel is said"
    assert found.judged, "what Triton does not compile is judged by version"


def test_the_command_says_no_and_names_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Exit code 1, the kernel, the bytes, and where it is launched; JSON has the same."""
    site = engine(tmp_path / "site", "sglang", "0.5.8")
    python = python_that_answers(tmp_path, "sglang-0.5.8-sm_120-bf16.jsonl")
    words = ["doctor", "kernels", "--engine", "sglang", "--site-packages", str(site), "--python", str(python)]
    assert main(words) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "_fwd_kernel needs 106,496 bytes of shared memory; sm_120 has 101,376" in shown
    assert main([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {"kernel", "file", "line", "blocks", "num_warps", "num_stages", "shared_bytes", "limit_bytes"} <= set(
        document["launches"][0]
    )
    assert document["bad"] >= 2


def test_the_command_keeps_its_findings_in_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The run's folder has them, its report shows them; a missing run is an error before anything compiles."""
    site = engine(tmp_path / "site", "sglang", "0.5.8")
    python = python_that_answers(tmp_path, "sglang-0.5.8-sm_120-bf16.jsonl")
    words = ["doctor", "kernels", "--engine", "sglang", "--site-packages", str(site), "--python", str(python)]
    run = Run.create("k26", runs=tmp_path / "runs")
    run.release_lock()
    assert main([*words, "--run", str(run.path)]) == 1
    assert "106,496" in render_markdown(make_page([run]))
    assert [event.kind for event in run.read_events()] == ["kernels.judged"]
    assert main([*words, "--run", str(tmp_path / "none")]) == 2
    (run.path / "patches").symlink_to(tmp_path)
    assert main([*words, "--run", str(run.path)]) == 2, "a link in it leads elsewhere"
    assert main(["doctor", "kernels", "--cache", str(tmp_path), "--run", str(run.path)]) == 2
    assert "--run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("versions", "kind"),
    [("2.3.1 2.3.0", Unsupported), ("9.9.9 2.13.0", Unsupported)],
)
def test_an_untried_triton_is_refused(tmp_path: Path, versions: str, kind: type[MoeboxError]):
    """Too old and too new each get a line that names the versions."""
    asked = request(tmp_path, "vllm", "0.32.0", "vllm-0.32.0-sm_120-fp8.jsonl")
    (tmp_path / "bin" / "python").unlink()
    os.rmdir(tmp_path / "bin")
    python_that_answers(tmp_path, "vllm-0.32.0-sm_120-fp8.jsonl", versions)
    with pytest.raises(kind, match="Triton"):
        scan_engine(asked)


def test_what_is_missing_is_named(tmp_path: Path):
    """No engine, no such folder, a probe that breaks, a tensor-parallel size that does not divide."""
    model = catalogue.find_model("kimi-k2.6")
    with pytest.raises(ExternalError, match="sglang is not installed"):
        scan_engine(KernelRequest(engine="sglang", arch=find_arch("sm_120"), model=model))
    with pytest.raises(BadInput, match="holds no vllm"):
        scan_engine(KernelRequest(engine="vllm", arch=find_arch("sm_120"), model=model, site_packages=tmp_path))
    with pytest.raises(BadInput, match="--tp 7"):
        scan_engine(request(tmp_path / "a", "vllm", "1", "vllm-0.32.0-sm_120-fp8.jsonl", tp=7))
    with pytest.raises(ExternalError, match="boom"):
        scan_engine(request(tmp_path / "b", "vllm", "1", ""))
    with pytest.raises(UnknownName, match="sm_999"):
        find_arch("sm_999")


def test_a_version_is_read_from_the_wheel(tmp_path: Path):
    """Also when several packages share the folder."""
    engine(tmp_path, "sglang", "0.5.8")
    assert engine_version(tmp_path, "sglang") == "0.5.8"
    assert engine_version(tmp_path, "vllm") == ""


def test_candidates_that_cannot_fit_are_not_compiled():
    """The estimate prunes; the engine's own blocks with fewer stages are always among them."""
    lines = (HERE / "vllm-0.32.0-sm_120-fp8.jsonl").read_text().splitlines()
    launch = msgspec.convert(next(json.loads(line)["launch"] for line in lines if "stage1" in line), LaunchRecord)
    tried = fix.propose_candidates(launch, find_arch("sm_120"))
    assert {"BLOCK_N": 32, "num_warps": 4, "num_stages": 1} in tried
    assert all(fix.estimate_shared_bytes(launch, one) <= 101_376 * fix.ESTIMATE_SLACK for one in tried)
    assert len(tried) <= fix.MAX_COMPILED + 4


def test_the_cost_model_prefers_what_was_measured_faster():
    """Extend attention at 576/512 on an H200 capped at SM120's limit: 4 warps took 1.00 ms, 8 warps 1.70 ms."""
    four, eight = ({"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": warps, "num_stages": 1} for warps in (4, 8))
    assert fix.candidate_cost(four, 0, 1) < fix.candidate_cost(eight, 0, 1)


def test_occupancy_is_bounded_by_every_resource():
    """Shared memory, registers and threads each limit the blocks of a multiprocessor."""
    here = find_arch("12.0")
    assert here.blocks_per_sm(106_496, 64, 4) == 0
    assert here.blocks_per_sm(49_152, 64, 4) == 2
    assert here.blocks_per_sm(0, 255, 8) == 1
    assert here.blocks_per_sm(0, 16, 4) == 12
