"""What the support matrix knows reaches the commands: plan, forecast, up --dry-run and doctor logs."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebox.cli import main
from tests.driving import recipe_text

PRO = "8x-rtx-pro-6000-server"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON that a command prints; it must succeed."""
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def written(tmp_path: Path, *words: str) -> Path:
    """The recipe file of a plan."""
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_text(*words))
    return path


def set_version(recipe: Path, version: str) -> None:
    """Name the engine's version in a recipe file."""
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace('engine_version = ""', f'engine_version = "{version}"'), encoding="utf-8")


def test_up_dry_run_warns_of_a_version_without_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V4-Flash with vLLM 0.20.0 on SM120: no path existed before 0.25. The command is still printed."""
    path = written(tmp_path, "deepseek-v4-flash", "--box", PRO, "--engine", "vllm")
    set_version(path, "0.20.0")
    assert main(["up", str(path), "--dry-run"]) == 0
    output = capsys.readouterr()
    assert "vllm serve" in output.out
    assert "warning: " in output.err
    assert "SM120" in output.err
    warnings = document(capsys, "up", str(path), "--dry-run")["warnings"]
    assert any(warning["severity"] == "fatal" and "0.25" in warning["remedy"] for warning in warnings)


def test_a_measured_slowdown_enters_the_forecast_of_its_versions(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang's fp8 cache of latent attention gave 16 tok/s on SM120 where bf16 gave 90; from 0.5.12 on both give 59."""
    words = ("forecast", "kimi-k2.6", "--box", PRO, "--engine", "sglang", "--decode", "--context", "8192")
    slow, plain, newer = (
        document(capsys, *words, "--kv", kv, "--set", f"engine_version={version}")
        for kv, version in (("fp8", "0.5.10"), ("bf16", "0.5.10"), ("fp8", "0.5.12"))
    )
    assert slow["rows"][0]["decode_tok_s"] < 0.3 * plain["rows"][0]["decode_tok_s"]
    assert newer["rows"][0]["decode_tok_s"] > 0.9 * plain["rows"][0]["decode_tok_s"]
    assert any("16 tok/s" in warning["text"] for warning in slow["warnings"])
    assert not any("16 tok/s" in warning["text"] for warning in newer["warnings"])


def test_a_share_of_memory_that_ran_out_is_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang ran out of memory with 0.90 of eight RTX PRO 6000 under load: 0.85 is planned, 0.90 warned of."""
    words = ("plan", "kimi-k2.6", "--box", PRO, "--engine", "sglang")
    plan = document(capsys, *words)
    assert plan["recipe"]["memory_utilization"] == 0.85
    assert any(reason.startswith("memory_utilization = 0.85: ") for reason in plan["reasons"])
    asked = document(capsys, *words, "--memory-utilization", "0.9")
    assert asked["recipe"]["memory_utilization"] == 0.9
    assert any("0.85 held" in warning["text"] for warning in asked["warnings"])


def test_an_fp8_cache_is_not_planned_below_sm89(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM refuses an fp8 cache of latent attention on an A100; asked for by name it is honoured with a warning."""
    plan = document(capsys, "plan", "kimi-k2.6", "--box", "8x-a100-80gb", "--context", "8192")
    assert (plan["recipe"]["engine"], plan["recipe"].get("kv")) != ("vllm", "fp8")
    words = ("kimi-k2.6", "--box", "8x-a100-80gb", "--engine", "vllm", "--kv", "fp8")
    assert main(["plan", *words]) == 1
    assert "requires SM89" in capsys.readouterr().err.replace("\n", " ")
    asked = document(capsys, "forecast", *words, "--checkpoint", "int4", "--tp", "8")
    assert any("requires SM89" in warning["text"] for warning in asked["warnings"])


def test_sglang_on_amd_keeps_kimi_within_aiter(capsys: pytest.CaptureFixture[str]) -> None:
    """AITER's MLA kernel takes Kimi's heads at TP 4 at most."""
    plan = document(capsys, "plan", "kimi-k2.6", "--box", "8x-mi300x", "--engine", "sglang")
    assert plan["recipe"]["parallel"]["tp"] <= 4


@pytest.mark.parametrize(("box", "backend"), [("8x-b200", "trtllm_mha"), ("8x-h200", "fa3"), (PRO, "triton")])
def test_sglang_drafts_with_a_backend_for_plain_heads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], box: str, backend: str
) -> None:
    """An EAGLE3 draft of a model with latent attention names its attention backend."""
    path = written(tmp_path, "kimi-k2.6", "--box", box, "--engine", "sglang", "--speculate", "eagle3")
    assert main(["render", str(path)]) == 0
    words = capsys.readouterr().out.split()
    assert words[words.index("--speculative-draft-attention-backend") + 1].strip("'\"") == backend


def test_no_pcie_advice_between_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """Four networked machines with a GPU each have no PCIe between their ranks."""
    plan = document(capsys, "plan", "minimax-m2.5", "--box", "4x1x-dgx-spark@25GB/s", "--engine", "vllm", "--tp", "4")
    assert not [warning for warning in plan["warnings"] if "PCIe" in warning["text"]]


def test_a_plan_states_what_is_known_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A report with its date, what the engine's own checks accept, or that nothing is known."""
    known = document(capsys, "plan", "deepseek-v4-flash", "--box", PRO, "--engine", "vllm")
    assert any(reason.startswith("support: ") for reason in known["reasons"])
    for engine, state in (("vllm", "should start (no report"), ("llama.cpp", "not known")):
        plan = document(capsys, "plan", "gpt-oss-120b", "--box", "8x-h200", "--engine", engine)
        (line,) = [reason for reason in plan["reasons"] if reason.startswith("support: ")]
        assert state in line


def test_doctor_logs_knows_the_harmony_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM's gpt-oss loads a vocabulary from the network at the first chat."""
    log = tmp_path / "engine.log"
    log.write_text("openai_harmony.HarmonyError: error downloading or loading vocab file\n", encoding="utf-8")
    assert main(["doctor", "logs", str(log), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cause"]["symptom"] == "harmony-vocab"


def test_a_version_that_is_none_is_named_in_the_plan_of_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fork or nightly build is not the release: its rows are possible, not certain, and nothing fails."""
    path = written(tmp_path, "deepseek-v4-flash", "--box", PRO, "--engine", "vllm")
    set_version(path, "0.20.0+sm120")
    warnings = document(capsys, "up", str(path), "--dry-run")["warnings"]
    assert not [warning for warning in warnings if warning["severity"] == "fatal"]


def test_doctor_logs_reads_the_matrix_for_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a run's recipe and box, what is known of that setup is named, even if its log shows no known line."""
    path = written(tmp_path, "deepseek-v4-flash", "--box", PRO, "--engine", "vllm")
    set_version(path, "0.20.0")
    (tmp_path / "engine.log").write_text("INFO nothing known in it\n")
    (tmp_path / "box.toml").write_text(f'name = "here"\ngpus = ["{PRO}"]\n')
    found = document(capsys, "doctor", "logs", str(tmp_path))
    assert any("SM120" in warning["text"] for warning in found["known_of_setup"])


def test_doctor_logs_does_not_advise_what_the_recipe_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line whose remedy is `trust_remote_code = true` in a run that had it gives the next best advice."""
    path = written(tmp_path, "kimi-k2.6", "--box", PRO, "--engine", "vllm")
    (tmp_path / "engine.log").write_text("ValueError: please pass the argument `trust_remote_code=True` to allow it\n")
    assert "trust_remote_code = true" in path.read_text()
    assert main(["doctor", "logs", str(tmp_path), "--json"]) == 1
    cause = json.loads(capsys.readouterr().out)["cause"]
    assert "already" in cause["remedy"]
    assert cause["change"] == {}


def test_climb_asks_the_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step that the matrix knows not to start is skipped with its reason."""
    from moebox import detect
    from moebox.checkpoint import deploy
    from moebox.core.validation import read_recipe
    from moebox.flows.walk import startup_problem

    path = written(tmp_path, "deepseek-v4-flash", "--box", PRO, "--engine", "vllm")
    set_version(path, "0.20.0")
    assert "on sm120" in startup_problem(deploy(read_recipe(path)).on_box(detect.load_box(PRO)))
