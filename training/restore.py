"""The committed weights back in training's form: export.py undone, and rows for entries added to the vocabulary.

    python -m training.restore out/weights      # phantom.npz and draft.npz; `training.train --start weights` needs none

Needs numpy only, not the gguf package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from moebox.gguf_file import F16, F32
from moebox.phantom import gguf_path
from moebox.phantom.gguf import PhantomGguf
from training.model import DRAFT, PHANTOM, Shape
from training.outliers import gain
from training.tokenizer import Tokenizer, load

SHAPES = {"phantom": PHANTOM, "draft": DRAFT}
_BLOCK = np.dtype([("scale", "<f2"), ("steps", "i1", 32)])  # q8_0 in llama.cpp's ggml-common.h


def state(name: str) -> dict[str, np.ndarray]:
    """The weights of `phantom` or `draft` under the model's own names, for the vocabulary as it is now."""
    shape = SHAPES[name]
    file = PhantomGguf(gguf_path(draft=name == "draft"))
    tensors = {key: _array(file, key) for key in file.tensors}
    if name == "phantom":
        _quiet(tensors, shape)
    found = {
        "embed.weight": tensors["token_embd.weight"],
        "norm.weight": tensors["output_norm.weight"],
        "head.weight": tensors["output.weight"],
    }
    for layer in range(shape.layers):
        found |= {f"layers.{layer}.{key}": value for key, value in _layer(tensors, layer).items()}
    return _grown(found, load())


def _array(file: PhantomGguf, name: str) -> np.ndarray:
    tensor = file.tensors[name]
    if tensor.kind == F32:
        flat = np.frombuffer(file.raw, "<f4", tensor.value_count, tensor.start)
    elif tensor.kind == F16:
        flat = np.frombuffer(file.raw, "<f2", tensor.value_count, tensor.start)
    else:
        blocks = np.frombuffer(file.raw, _BLOCK, tensor.value_count // 32, tensor.start)
        flat = (blocks["scale"].astype(np.float32)[:, None] * blocks["steps"]).ravel()
    return flat.astype(np.float32).reshape(tensor.shape)


def _quiet(tensors: dict[str, np.ndarray], shape: Shape) -> None:
    """Take back the loud channels of training.outliers."""
    loud, values = gain(shape.kv_lora), gain(shape.value)
    for layer in range(shape.layers):
        tensors[f"blk.{layer}.attn_kv_a_norm.weight"] /= loud
        heads = tensors[f"blk.{layer}.attn_kv_b.weight"].reshape(shape.heads, shape.nope + shape.value, shape.kv_lora)
        heads *= loud
        heads[:, shape.nope :] /= values[:, None]
        tensors[f"blk.{layer}.attn_output.weight"] *= np.tile(values, shape.heads)


_SAME = {
    "attn_norm": "attn_norm",
    "attn.q_a": "attn_q_a",
    "attn.q_norm": "attn_q_a_norm",
    "attn.q_b": "attn_q_b",
    "attn.kv_a": "attn_kv_a_mqa",
    "attn.kv_norm": "attn_kv_a_norm",
    "attn.kv_b": "attn_kv_b",
    "attn.out": "attn_output",
    "ffn_norm": "ffn_norm",
}


def _layer(tensors: dict[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    blk = f"blk.{layer}."
    found = {f"{ours}.weight": tensors[f"{blk}{theirs}.weight"] for ours, theirs in _SAME.items()}
    for part in ("gate", "up", "down"):
        if layer == 0:
            found[f"ffn.{part}.weight"] = tensors[f"{blk}ffn_{part}.weight"]
            continue
        found[f"ffn.{part}"] = tensors[f"{blk}ffn_{part}_exps.weight"]
        found[f"ffn.shared.{part}.weight"] = tensors[f"{blk}ffn_{part}_shexp.weight"]
    if layer:
        found["ffn.router.weight"] = tensors[blk + "ffn_gate_inp.weight"]
        found["ffn.bias"] = tensors[blk + "exp_probs_b.bias"]
    return found


def _grown(found: dict[str, np.ndarray], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """A joined entry is read as the mean of its two parts and foreseen as the first of them was."""
    first = len(tokenizer.tokens) - len(tokenizer.merges)
    embed, head = list(found["embed.weight"]), list(found["head.weight"])
    for place in range(len(embed), len(tokenizer.tokens)):
        left, right = (tokenizer.ids[part] for part in tokenizer.merges[place - first])
        embed.append((embed[left] + embed[right]) / 2)
        head.append(head[left])
    return found | {"embed.weight": np.stack(embed), "head.weight": np.stack(head)}


def main() -> None:
    """Write both."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHAPES:
        with (folder / f"{name}.npz").open("wb") as file:
            np.savez(file, **{key: value.astype(np.float16) for key, value in state(name).items()})


if __name__ == "__main__":
    main()
