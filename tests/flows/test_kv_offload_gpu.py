"""`benchmarks/kv_offload_gpu.py` against a stand-in for vLLM: what it reports is what the server did."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536, "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(("mode", "says"), [("good", "6 of 6 returning"), ("mixes", "0 of 6"), ("blind", "blind: 1")])
def test_the_result_shows_what_came_back(mode: str, says: str, tmp_path: Path) -> None:
    """Right answers from RAM, answers of another conversation, and answers that cannot tell."""
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    entry = shlex.join([sys.executable, str(ROOT / "tests/flows/offloading.py"), mode])
    words = ["--conversations", "6", "--tokens", "64", "--blocks", "12", "--budget", "60", "--box", "1x-h200"]
    command = [sys.executable, str(ROOT / "benchmarks/kv_offload_gpu.py"), str(model), "--out", str(out), *words]
    done = subprocess.run([*command, "--entry", entry], capture_output=True, text=True, timeout=120, check=False)

    assert says in done.stdout, done.stdout + done.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["by_turn"]["without return"]["cached_median"] == 0
    assert result["by_turn"]["with return"]["cached_least"] == 64
    assert result["from RAM, answer of another conversation"] == (6 if mode == "mixes" else 0)
    assert result["forecast"]["calibrated"]["with"]["hit_share"] == pytest.approx(64 / 79)
    assert result["forecast"]["calibrated"]["without"]["hit_share"] == 0
    assert "--kv-offloading-size" in (out / "with-offload.log").read_text()
    assert result["layers"] == 16
    shutil.rmtree(out)
