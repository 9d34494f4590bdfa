"""How long the headers of a 1 TB checkpoint of 200 shards take, and how much memory.

    python benchmarks/headers.py

Writes sparse files (a few megabytes on disk) with Kimi K2.6's own tensor names, types and shapes in INT4, reads them
through `moebox.checkpoint`, and prints time, peak memory and the bytes found.
"""

import json
import resource
import struct
import tempfile
import time
from pathlib import Path

SHARDS, LAYERS, EXPERTS, HIDDEN, MIDDLE = 200, 61, 384, 7168, 2048
COPIES = 2  # the INT4 checkpoint is 595 GB; experts counted twice make it 1.17 TB
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "first_k_dense_replace": 1,
    "intermediate_size": 18432,
    "moe_intermediate_size": MIDDLE,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "max_position_embeddings": 262144,
}


def expert_tensors(layer: int, expert: int) -> dict[str, tuple[str, list[int], int]]:
    """The nine tensors of one INT4 expert."""
    found = {}
    for name, rows, columns in (("gate", MIDDLE, HIDDEN), ("up", MIDDLE, HIDDEN), ("down", HIDDEN, MIDDLE)):
        stem = f"language_model.model.layers.{layer}.mlp.experts.{expert}.{name}_proj"
        found[f"{stem}.weight_packed"] = ("I32", [rows, columns // 8], rows * columns // 2)
        found[f"{stem}.weight_scale"] = ("BF16", [rows, columns // 32], rows * columns // 16)
        found[f"{stem}.weight_shape"] = ("I32", [2], 8)
    return found


def write(folder: Path) -> int:
    """The sparse checkpoint; returns its apparent bytes."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    jobs = [(layer, expert) for layer in range(1, LAYERS) for expert in range(EXPERTS * COPIES)]
    total = 0
    for shard in range(SHARDS):
        header, at = {}, 0
        for layer, expert in jobs[shard::SHARDS]:
            for name, (dtype, shape, size) in expert_tensors(layer, expert).items():
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
                at += size
        raw = json.dumps(header).encode()
        with open(folder / f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(raw)) + raw)
            file.truncate(8 + len(raw) + at)
        total += at
    return total


def main() -> None:
    """Write, read, print."""
    from moebox.checkpoint import resolve_model

    with tempfile.TemporaryDirectory() as name:
        written = write(Path(name))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        _, (checkpoint,) = resolve_model(name)
        took = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{checkpoint.total_bytes / 1e12:.3f} TB in {checkpoint.shards} shards ({written / 1e12:.3f} written)")
        print(f"{took:.2f} s; peak memory {peak / 1024:.0f} MB (of which {before / 1024:.0f} MB before reading)")


if __name__ == "__main__":
    main()
