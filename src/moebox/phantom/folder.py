"""The phantom as a Hugging Face folder, written from its GGUF: config, tokenizer, template, safetensors.

vLLM and SGLang load it as DeepseekV3ForCausalLM (model type kimi_k2), as they load Kimi K2. The constant parts of
its JSON files are in data/phantom, such as the pattern with which Kimi K2's tokenizer splits text (tokenization_kimi.py
in the model's repository); a value "=key" there is the GGUF's metadata of that name.
"""

import json
import struct
from pathlib import Path
from typing import Any

from moebox.data import FOLDER
from moebox.phantom.gguf import PhantomGguf

_CONTROL, _USER_DEFINED = 3, 4  # token types in GGUF
_MLP_PARTS = ("gate", "up", "down")

Weights = dict[str, tuple[str, list[int], bytes]]


def write_hf_folder(gguf: Path, folder: Path) -> None:
    """Write the files into `folder`, which must exist."""
    model = PhantomGguf(gguf)
    files = {name: _read_constants(name, model) for name in ("generation_config.json", "tokenizer_config.json")}
    files |= {"config.json": hf_config(model), "tokenizer.json": hf_tokenizer(model)}
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


def _read_constants(name: str, model: PhantomGguf) -> dict[str, Any]:
    """Read a file of data/phantom, with the values of this GGUF."""
    meta = {f"={key.removeprefix('deepseek2.')}": value for key, value in model.meta.items()}

    def fill_in(row: dict[str, Any]) -> dict[str, Any]:
        return {key: meta[value] if str(value).startswith("=") else value for key, value in row.items()}

    found: dict[str, Any] = json.loads((FOLDER / "phantom" / name).read_text(encoding="utf-8"), object_hook=fill_in)
    return found


def hf_config(model: PhantomGguf) -> dict[str, Any]:
    """config.json with the keys of DeepSeek-V3.

    Kimi K2 uses YaRN; so does this, with a factor of one, which changes no angle. Engines then use the same code as for
    Kimi: without it vLLM 0.32's CPU kernel rotates only the first head of the queries.
    """
    config = _read_constants("config.json", model)
    config["qk_nope_head_dim"] -= config["qk_rope_head_dim"]
    config["routed_scaling_factor"] = round(config["routed_scaling_factor"], 4)
    config["rms_norm_eps"] = round(config["rms_norm_eps"], 9)
    return config


def hf_tokenizer(model: PhantomGguf) -> dict[str, Any]:
    """tokenizer.json for the `tokenizers` library."""
    tokens: list[str] = model.meta["tokenizer.ggml.tokens"]
    kinds: list[int] = model.meta["tokenizer.ggml.token_type"]
    tokenizer = _read_constants("tokenizer.json", model)
    tokenizer["added_tokens"] = [
        {
            "id": place,
            "content": token,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            # as in Kimi's own tokenizer, skip_special_tokens keeps think and tool marks
            "special": "tool_call" not in token and "think" not in token,
        }
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer["model"]["vocab"] = {token: place for place, token in enumerate(tokens)}
    return tokenizer


def hf_weights(model: PhantomGguf) -> Weights:
    """Every tensor under its Hugging Face name: type, shape, bytes."""
    weights: Weights = {}
    names = _read_constants("layer_tensors.json", model)

    def put(name: str, source: str) -> None:
        weights[name] = ("BF16", list(model.tensors[source].shape), model.read_bfloat16(source).tobytes())

    put("model.embed_tokens.weight", "token_embd.weight")
    put("model.norm.weight", "output_norm.weight")
    put("lm_head.weight", "output.weight")
    for i in range(model.meta["deepseek2.block_count"]):
        here, block = f"model.layers.{i}.", f"blk.{i}."
        for ours, theirs in names.items():
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
