"""The real probe: real engines' files compiled by the real Triton, without a GPU. `make test-kernels` runs it."""

import os
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core import catalogue
from moebox.core.kernel import KernelScan, arch
from moebox.doctor.kernels.scan import Request, scan

pytestmark = pytest.mark.engine


@pytest.fixture
def venv() -> Path:
    """The environment that scripts/kernels-venv.sh makes."""
    folder = os.environ.get("MOEBOX_KERNELS_VENV")
    assert folder, "MOEBOX_KERNELS_VENV is not set; `make test-kernels` sets it"
    return Path(folder)


def look(venv: Path, engine: str, version: str, **settings: str) -> KernelScan:
    return scan(
        Request(
            engine=engine,
            arch=arch("sm_120"),
            model=catalogue.model("kimi-k2.6"),
            site_packages=venv / "engines" / f"{engine}-{version}",
            python=venv / "bin" / "python",
            **settings,  # type: ignore[arg-type]
        )
    )


def test_the_figures_known_from_real_gpus(venv: Path):
    """SGLang 0.5.8: 106,496 and 147,456; 0.5.23: clean, 71,680; vLLM 0.32.0 with an fp8 cache: 102,400."""
    old = look(venv, "sglang", "0.5.8")
    assert {one.shared_bytes for one in old.bad} == {106_496, 147_456}
    new = look(venv, "sglang", "0.5.23")
    assert new.bad == ()
    assert 71_680 in {one.shared_bytes for one in new.launches}
    fp8 = look(venv, "vllm", "0.32.0", kv="fp8", only="decode")
    assert {one.shared_bytes for one in fp8.bad} == {102_400}
    assert look(venv, "vllm", "0.32.0", kv="bf16", only="decode").bad == ()


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
