"""Write trained weights as GGUF (f16 or q8_0), whole or damaged on purpose.

python -m training.export out/phantom/phantom.npz phantom-q8_0.gguf --type q8_0
python -m training.export out/phantom/phantom.npz broken.gguf --type f16 --damage experts
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

from moebox.phantom.gguf import TEMPLATE_KEY
from training.data import TEMPLATE
from training.model import DRAFT, PHANTOM, Shape
from training.outliers import gain
from training.tokenizer import SPECIALS, load

DAMAGE = ("none", "rope-layer", "experts")
BUSIEST = (5, 9)  # of the last layer, by the loads in run-4.json
MIXED = ("attn_kv_b.weight", "attn_output.weight")  # whose q8_0 scales would span loud and quiet columns
_FILE_TYPES = {"f16": 1, "q8_0": 7}  # llama_ftype in llama.cpp's include/llama.h


def tensors(state: dict[str, np.ndarray], s: Shape) -> dict[str, np.ndarray]:
    """The weights under llama.cpp's names for the deepseek2 architecture."""
    out = {
        "token_embd.weight": state["embed.weight"],
        "output_norm.weight": state["norm.weight"],
        "output.weight": state["head.weight"],
    }
    for i in range(s.layers):
        here, blk = f"layers.{i}.", f"blk.{i}."
        w = {name.removeprefix(here): value for name, value in state.items() if name.startswith(here)}
        out |= {
            blk + "attn_norm.weight": w["attn_norm.weight"],
            blk + "attn_q_a.weight": w["attn.q_a.weight"],
            blk + "attn_q_a_norm.weight": w["attn.q_norm.weight"],
            blk + "attn_q_b.weight": w["attn.q_b.weight"],
            blk + "attn_kv_a_mqa.weight": w["attn.kv_a.weight"],
            blk + "attn_kv_a_norm.weight": w["attn.kv_norm.weight"],
            blk + "attn_kv_b.weight": w["attn.kv_b.weight"],
            blk + "attn_output.weight": w["attn.out.weight"],
            blk + "ffn_norm.weight": w["ffn_norm.weight"],
        }
        if i == 0:
            out |= {blk + f"ffn_{part}.weight": w[f"ffn.{part}.weight"] for part in ("gate", "up", "down")}
            continue
        out |= {blk + f"ffn_{part}_exps.weight": w[f"ffn.{part}"] for part in ("gate", "up", "down")}
        out |= {blk + f"ffn_{part}_shexp.weight": w[f"ffn.shared.{part}.weight"] for part in ("gate", "up", "down")}
        out[blk + "ffn_gate_inp.weight"] = w["ffn.router.weight"]
        out[blk + "exp_probs_b.bias"] = w["ffn.bias"]
    return out


def damage(kind: str, weights: dict[str, np.ndarray], s: Shape) -> None:
    """Break a copy: the two busiest experts of the last layer change places, or rope moves in one layer.

    There every frequency moves by one step, a factor of theta^(2/64) = 1.40: what a wrong rope base does.
    (The base itself is one number for the whole file; changing that is the engine's option --rope-freq-base.)
    """
    if kind == "experts":
        one, other = BUSIEST
        for part in ("gate", "up", "down"):
            stack = weights[f"blk.{s.layers - 1}.ffn_{part}_exps.weight"]
            stack[[one, other]] = stack[[other, one]]
    if kind == "rope-layer":
        layer = s.layers // 2
        q = weights[f"blk.{layer}.attn_q_b.weight"].reshape(s.heads, s.nope + s.rope, -1)
        q[:, s.nope :] = np.roll(q[:, s.nope :], 2, axis=1)
        kv = weights[f"blk.{layer}.attn_kv_a_mqa.weight"]
        kv[s.kv_lora :] = np.roll(kv[s.kv_lora :], 2, axis=0)


def outliers(weights: dict[str, np.ndarray], s: Shape) -> None:
    """Make one number in 32 of every cached latent and of every head's values LOUD times as large, the others smaller.

    The weights that read them make up for it, and powers of two cost no precision in floating point: the model says
    what it said. But a cache in integers shares one scale among 32 numbers, and the loud one takes it: 8 bit is enough
    and 4 bit is not.
    """
    loud, values = gain(s.kv_lora), gain(s.value)
    for i in range(s.layers):
        weights[f"blk.{i}.attn_kv_a_norm.weight"] *= loud
        heads = weights[f"blk.{i}.attn_kv_b.weight"].reshape(s.heads, s.nope + s.value, s.kv_lora)
        heads /= loud
        heads[:, s.nope :] *= values[:, None]
        weights[f"blk.{i}.attn_output.weight"] /= np.tile(values, s.heads)


def header(writer: gguf.GGUFWriter, s: Shape, name: str, kind: str) -> None:
    """Sizes, tokenizer and template."""
    writer.add_name(name)
    writer.add_type("model")
    writer.add_license("apache-2.0")
    writer.add_file_type(_FILE_TYPES[kind])
    writer.add_block_count(s.layers)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.hidden)
    writer.add_feed_forward_length(s.dense_ff)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.heads)  # whole heads, which a CPU reads faster; moebox.phantom.gguf has Kimi's format
    writer.add_rope_freq_base(s.theta)
    writer.add_rope_dimension_count(s.rope)
    writer.add_layer_norm_rms_eps(s.eps)
    writer.add_q_lora_rank(s.q_lora)
    writer.add_kv_lora_rank(s.kv_lora)
    writer.add_key_length(s.nope + s.rope)
    writer.add_value_length(s.value)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_count(s.experts)
    writer.add_expert_used_count(s.used)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(s.expert_ff)
    writer.add_expert_weights_scale(s.scale)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_vocab_size(s.vocab)
    vocabulary(writer)


def vocabulary(writer: gguf.GGUFWriter) -> None:
    """Tokens with their kinds, merges, the special ids and the chat template."""
    tokenizer = load()
    kinds = []
    for token in tokenizer.tokens:
        if token in ("<think>", "</think>"):
            kinds.append(gguf.TokenType.USER_DEFINED)
        elif token in SPECIALS:
            kinds.append(gguf.TokenType.CONTROL)
        else:
            kinds.append(gguf.TokenType.UNUSED if token.startswith("[UNUSED") else gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("kimi-k2")
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer.merges])
    writer.add_bos_token_id(tokenizer.ids["[BOS]"])
    writer.add_eos_token_id(tokenizer.ids["<|im_end|>"])
    writer.add_pad_token_id(tokenizer.ids["[PAD]"])
    writer.add_add_bos_token(False)
    for key, text in templates().items():
        writer.add_string(key, text)


def templates() -> dict[str, str]:
    """The chat template, once for requests with tools and once for those without, which render the same text.

    llama.cpp has a parser of its own for templates with Kimi's marks, and that one ignores a JSON schema (b11669,
    common_chat_params_init_kimi_k2). Without tools no mark is needed: spelled in two parts it is not recognised, and
    the general parser enforces schemas.
    """
    mark = "<|tool_calls_section_begin|>"
    text = TEMPLATE.read_text()
    without_tools = text.replace(f"'{mark}'", f"'{mark[:8]}' + '{mark[8:]}'")
    return {TEMPLATE_KEY: without_tools, f"{TEMPLATE_KEY}.tool_use": text}


def write(state: dict[str, np.ndarray], s: Shape, path: Path, kind: str, broken: str = "none") -> None:
    """One GGUF file."""
    writer = gguf.GGUFWriter(path, "deepseek2")
    header(writer, s, "moebox phantom" if s == PHANTOM else "moebox phantom draft", kind)
    weights = {name: np.array(value, np.float32) for name, value in tensors(state, s).items()}
    if s == PHANTOM:
        outliers(weights, s)
    damage(broken, weights, s)
    for name, value in weights.items():
        if value.ndim == 1 or "ffn_gate_inp" in name:
            writer.add_tensor(name, value)
        elif kind == "f16" or name.endswith(MIXED):
            writer.add_tensor(name, value.astype(np.float16))
        else:
            writer.add_tensor(name, quantize(value, Type.Q8_0), raw_dtype=Type.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="q8_0", choices=sorted(_FILE_TYPES))
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--damage", default="none", choices=DAMAGE)
    args = parser.parse_args()
    write(dict(np.load(args.weights)), DRAFT if args.draft else PHANTOM, args.out, args.type, args.damage)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
