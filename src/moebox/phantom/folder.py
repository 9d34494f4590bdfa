"""The phantom as a Hugging Face folder, written from its GGUF: config, tokenizer, template, safetensors.

vLLM and SGLang load it as DeepseekV3ForCausalLM (model type kimi_k2), as they load Kimi K2. The constant parts of
config.json and tokenizer.json are in data/phantom; a value "=key" there is the GGUF's metadata of that name.
"""

import json
import struct
from pathlib import Path
from typing import Any

from moebox.data import FOLDER
from moebox.phantom.gguf import PhantomGguf

# The pattern with which Kimi K2's tokenizer splits text (tokenization_kimi.py in the model's repository).
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
_CONTROL, _USER_DEFINED = 3, 4  # token types in GGUF
_MLP_PARTS = ("gate", "up", "down")
_LAYER_TENSORS = {
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

Weights = dict[str, tuple[str, list[int], bytes]]


def write_hf_folder(gguf: Path, folder: Path) -> None:
    """Write the files into `folder`, which must exist."""
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
    tensors = hf_weights(model)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            file.write(raw)


def hf_config(model: PhantomGguf) -> dict[str, Any]:
    """config.json with the keys of DeepSeek-V3.

    Kimi K2 uses YaRN; so does this, with a factor of one, which changes no angle. Engines then use the same code as for
    Kimi: without it vLLM 0.32's CPU kernel rotates only the first head of the queries.
    """
    meta = {key.removeprefix("deepseek2."): value for key, value in model.meta.items()}
    config: dict[str, Any] = json.loads((FOLDER / "phantom" / "config.json").read_text(encoding="utf-8"))
    for values in (config, config["rope_scaling"]):
        for key, value in values.items():
            if isinstance(value, str) and value.startswith("="):
                values[key] = meta[value[1:]]
    config["qk_nope_head_dim"] -= config["qk_rope_head_dim"]
    config["routed_scaling_factor"] = round(config["routed_scaling_factor"], 4)
    config["rms_norm_eps"] = round(config["rms_norm_eps"], 9)
    return config


def hf_tokenizer(model: PhantomGguf) -> dict[str, Any]:
    """tokenizer.json for the `tokenizers` library."""
    tokens: list[str] = model.meta["tokenizer.ggml.tokens"]
    kinds: list[int] = model.meta["tokenizer.ggml.token_type"]
    tokenizer: dict[str, Any] = json.loads((FOLDER / "phantom" / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [
        {
            "id": place,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            # as in Kimi's own tokenizer, skip_special_tokens keeps think and tool marks
            "special": "tool_call" not in token and "think" not in token,
        }
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = _PATTERN
    tokenizer["model"]["vocab"] = {token: place for place, token in enumerate(tokens)}
    tokenizer["model"]["merges"] = model.meta["tokenizer.ggml.merges"]
    return tokenizer


def hf_weights(model: PhantomGguf) -> Weights:
    """Every tensor under its Hugging Face name: type, shape, bytes."""
    weights: Weights = {}

    def put(name: str, source: str) -> None:
        weights[name] = ("BF16", list(model.tensors[source].shape), model.read_bfloat16(source).tobytes())

    put("model.embed_tokens.weight", "token_embd.weight")
    put("model.norm.weight", "output_norm.weight")
    put("lm_head.weight", "output.weight")
    for i in range(model.meta["deepseek2.block_count"]):
        here, block = f"model.layers.{i}.", f"blk.{i}."
        for ours, theirs in _LAYER_TENSORS.items():
            put(f"{here}{ours}.weight", f"{block}{theirs}.weight")
        if i < model.meta["deepseek2.leading_dense_block_count"]:
            for part in _MLP_PARTS:
                put(f"{here}mlp.{part}_proj.weight", f"{block}ffn_{part}.weight")
            continue
        for part in _MLP_PARTS:
            source = f"{block}ffn_{part}_exps.weight"
            experts, rows, columns = model.tensors[source].shape
            raw, size = model.read_bfloat16(source).tobytes(), 2 * rows * columns
            for expert in range(experts):
                name = f"{here}mlp.experts.{expert}.{part}_proj.weight"
                weights[name] = ("BF16", [rows, columns], raw[expert * size : (expert + 1) * size])
            put(f"{here}mlp.shared_experts.{part}_proj.weight", f"{block}ffn_{part}_shexp.weight")
        put(f"{here}mlp.gate.weight", f"{block}ffn_gate_inp.weight")
        bias = model.read_float32(f"{block}exp_probs_b.bias")
        weights[f"{here}mlp.gate.e_score_correction_bias"] = ("F32", [len(bias)], bias.tobytes())
    return weights
