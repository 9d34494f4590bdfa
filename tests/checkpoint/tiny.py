"""Small real files for the readers: configs of known shape, safetensors shards and GGUF files."""

import json
import struct
from pathlib import Path
from typing import Any

KIMI: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 1,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "topk_method": "noaux_tc",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}


def folder(path: Path, config: dict[str, Any]) -> Path:
    """A folder with config.json."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def shard(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> Path:
    """A safetensors file whose data is a hole: name -> (dtype, shape, bytes)."""
    at, header = 0, {}
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + at)
    return path


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(path: Path, metadata: dict[str, Any], tensors: list[tuple[str, list[int], int]]) -> Path:
    """A GGUF file of version 3: tensors are (name, dimensions, ggml type); the data is left out."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(one) for one in value)
        else:
            out += struct.pack("<II", 4, value)
    at = 0
    for name, dimensions, kind in tensors:
        out += text(name) + struct.pack("<I", len(dimensions)) + b"".join(struct.pack("<Q", d) for d in dimensions)
        out += struct.pack("<IQ", kind, at)
    path.write_bytes(out)
    return path


DEEPSEEK2 = {
    "general.architecture": "deepseek2",
    "general.name": "tiny kimi",
    "deepseek2.block_count": 2,
    "deepseek2.embedding_length": 64,
    "deepseek2.feed_forward_length": 128,
    "deepseek2.leading_dense_block_count": 1,
    "deepseek2.expert_count": 8,
    "deepseek2.expert_used_count": 2,
    "deepseek2.expert_shared_count": 1,
    "deepseek2.expert_feed_forward_length": 32,
    "deepseek2.attention.head_count": 4,
    "deepseek2.attention.q_lora_rank": 32,
    "deepseek2.attention.kv_lora_rank": 512,
    "deepseek2.attention.key_length_mla": 192,
    "deepseek2.attention.value_length_mla": 128,
    "deepseek2.rope.dimension_count": 64,
    "deepseek2.context_length": 4096,
    "deepseek2.vocab_size": 256,
}
TENSORS = [
    ("token_embd.weight", [64, 256], 8),
    ("output.weight", [64, 256], 8),
    ("output_norm.weight", [64], 0),
    ("blk.0.ffn_up.weight", [64, 128], 8),
    ("blk.1.attn_kv_b.weight", [512, 1024], 8),
    ("blk.1.ffn_up_exps.weight", [256, 32, 8], 138),  # IQ3_K: ik_llama.cpp only
    ("blk.1.ffn_gate_inp.weight", [64, 8], 0),
]
