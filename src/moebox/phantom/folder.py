"""The phantom as a Hugging Face folder, written from its GGUF: config, tokenizer, template, safetensors.

vLLM and SGLang load it as DeepseekV3ForCausalLM (model type kimi_k2), as they load Kimi K2.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from moebox.phantom.gguf import PhantomGguf

# The pattern Kimi K2's tokenizer cuts text with (tokenization_kimi.py in the model's repository).
_TAIL = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_TAIL}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_TAIL}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_CONTROL, _USER_DEFINED = 3, 4  # token kinds in GGUF


def write_hf_folder(gguf: Path, folder: Path) -> None:
    """Fill `folder`, which must exist."""
    model = PhantomGguf(gguf)
    files: dict[str, Any] = {
        "config.json": hf_config(model),
        "generation_config.json": {"eos_token_id": model.meta["tokenizer.ggml.eos_token_id"], "do_sample": False},
        "tokenizer.json": hf_tokenizer(model),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "[BOS]",
            "eos_token": "<|im_end|>",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "model_max_length": model.meta["deepseek2.context_length"],
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (folder / "chat_template.jinja").write_text(model.meta["tokenizer.chat_template"])
    _safetensors(hf_weights(model), folder / "model.safetensors")


def hf_config(model: PhantomGguf) -> dict[str, Any]:
    """config.json in the words of DeepSeek-V3."""
    m = {key.removeprefix("deepseek2."): value for key, value in model.meta.items()}
    rope = m["rope.dimension_count"]
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "torch_dtype": "bfloat16",
        "vocab_size": m["vocab_size"],
        "hidden_size": m["embedding_length"],
        "intermediate_size": m["feed_forward_length"],
        "moe_intermediate_size": m["expert_feed_forward_length"],
        "num_hidden_layers": m["block_count"],
        "num_attention_heads": m["attention.head_count"],
        "num_key_value_heads": m["attention.head_count"],
        "n_shared_experts": m["expert_shared_count"],
        "n_routed_experts": m["expert_count"],
        "num_experts_per_tok": m["expert_used_count"],
        "routed_scaling_factor": round(m["expert_weights_scale"], 4),
        "kv_lora_rank": m["attention.kv_lora_rank"],
        "q_lora_rank": m["attention.q_lora_rank"],
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": m["attention.key_length"] - rope,
        "v_head_dim": m["attention.value_length"],
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "first_k_dense_replace": m["leading_dense_block_count"],
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "hidden_act": "silu",
        "max_position_embeddings": m["context_length"],
        "rms_norm_eps": round(m["attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": m["rope.freq_base"],
        # Kimi K2 stretches its rope by YaRN; so does this, by a factor of one, which changes no angle. It takes engines
        # down Kimi's road: on the plain one vLLM 0.32's CPU kernel turns only the first head of the queries.
        "rope_scaling": {
            "type": "yarn",
            "factor": 1.0,
            "original_max_position_embeddings": m["context_length"],
            "beta_fast": 1.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "use_cache": True,
        "bos_token_id": m["tokenizer.ggml.bos_token_id"],
        "eos_token_id": m["tokenizer.ggml.eos_token_id"],
        "pad_token_id": m["tokenizer.ggml.padding_token_id"],
    }


def hf_tokenizer(model: PhantomGguf) -> dict[str, Any]:
    """tokenizer.json for the `tokenizers` library."""
    tokens: list[str] = model.meta["tokenizer.ggml.tokens"]
    kinds: list[int] = model.meta["tokenizer.ggml.token_type"]
    added = [
        {
            "id": place,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            # as in Kimi's own tokenizer, think and tool marks survive skip_special_tokens
            "special": "tool_call" not in token and "think" not in token,
        }
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": model.meta["tokenizer.ggml.merges"],
        },
    }


Weights = dict[str, tuple[str, list[int], bytes]]


def hf_weights(model: PhantomGguf) -> Weights:
    """Every tensor under its Hugging Face name: kind, shape, bytes."""
    out: Weights = {}

    def put(name: str, source: str) -> None:
        out[name] = ("BF16", list(model.tensors[source].shape), model.read_bfloat16(source).tobytes())

    put("model.embed_tokens.weight", "token_embd.weight")
    put("model.norm.weight", "output_norm.weight")
    put("lm_head.weight", "output.weight")
    for i in range(model.meta["deepseek2.block_count"]):
        here, blk = f"model.layers.{i}.", f"blk.{i}."
        for ours, theirs in _PLAIN.items():
            put(f"{here}{ours}.weight", f"{blk}{theirs}.weight")
        if i < model.meta["deepseek2.leading_dense_block_count"]:
            for part in _PARTS:
                put(f"{here}mlp.{part}_proj.weight", f"{blk}ffn_{part}.weight")
        else:
            _experts(model, here + "mlp.", blk, out)
            for part in _PARTS:
                put(f"{here}mlp.shared_experts.{part}_proj.weight", f"{blk}ffn_{part}_shexp.weight")
            put(here + "mlp.gate.weight", blk + "ffn_gate_inp.weight")
            bias = model.read_float32(blk + "exp_probs_b.bias")
            out[here + "mlp.gate.e_score_correction_bias"] = ("F32", [len(bias)], bias.tobytes())
    return out


_PARTS = ("gate", "up", "down")
_PLAIN = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
}


def _experts(model: PhantomGguf, here: str, blk: str, out: Weights) -> None:
    for part in _PARTS:
        source = f"{blk}ffn_{part}_exps.weight"
        experts, rows, columns = model.tensors[source].shape
        raw = model.read_bfloat16(source).tobytes()
        size = 2 * rows * columns
        for expert in range(experts):
            name = f"{here}experts.{expert}.{part}_proj.weight"
            out[name] = ("BF16", [rows, columns], raw[expert * size : (expert + 1) * size])


def _safetensors(tensors: Weights, path: Path) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            file.write(raw)
