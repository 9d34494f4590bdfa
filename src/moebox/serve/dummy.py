"""A GGUF with a model's real layer shapes and no knowledge: for rehearsals and tests.

Weights are zeros in a sparse file, so ten gigabytes of experts take a few megabytes of disk. Every kernel,
buffer and copy of the engine is the real one; the answers mean nothing. Vocabulary: 256 bytes, Kimi's control
tokens, and fillers up to the model's size, so one ASCII character is one token.

Zeros alone send every token to the same experts, which stay in the CPU's cache: ten times too fast. Where steps are
timed (`even`), routers are random, and so are the embeddings of the first `SPOKEN` tokens and the output rows of
printable ASCII; layers of zeros hand the embedding on unchanged, and every token meets other experts in every layer.
"""

import math
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moebox.core import catalogue
from moebox.core.model import Gqa, Mla, Model
from moebox.errors import BadInput
from moebox.gguf_file import ALIGNMENT, F16, F32, MetadataValue, WeightEntry, align_up, header_bytes

PROMPT_TOKENS = 8192  # tokens with an embedding of their own, where routing is even: prompts are made of them
PRINTABLE = range(33, 127)  # tokens that are sampled then: replies stay text that every parser takes
CONTROL_TOKENS = (
    "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "[PAD]", "[UNK]", "<think>", "</think>",
)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_{{ m['role'] }}|>{{ m['role'] }}<|im_middle|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DummyTensor:
    """A weight's place in the file; dimensions innermost first, as ggml counts them."""

    name: str
    shape: tuple[int, ...]
    type: int

    @property
    def bytes(self) -> int:
        """Its size, which quantised types count in blocks."""
        elements, size = block_sizes()[self.type]
        return math.prod(self.shape) // elements * size


def block_sizes() -> dict[int, tuple[int, int]]:
    """Elements and bytes of a block by type."""
    types = catalogue.load_table("ggml")["types"]
    return {row["id"]: (row["weights"], row["bytes"]) for row in types.values()}


def ggml_type(quant: str) -> int | None:
    """The type that experts have in a checkpoint of this name; None where the name is no type of ggml."""
    name = {"Q4_X": "Q4_0"}.get(quant.upper(), quant.upper())  # Q4_X: experts in Q4_0, the rest in Q8_0
    row = catalogue.load_table("ggml")["types"].get(name)
    return int(row["id"]) if row else None


def write_gguf(
    path: Path,
    model: Model,
    *,
    layers: int = 2,
    quant: str = "q4_0",
    dense: str = "f16",
    types: Mapping[str, str] | None = None,
    even_routing: bool = False,
) -> int:
    """Write `model` cut down to its first `layers`, and return the file's apparent size.

    `quant` is the experts' type, `dense` that of other matrices but the embedding and the output; `types` are those of
    a real file, by weight. `even` spreads tokens over experts as a real router does on average.
    """
    experts, others = require_ggml_type(quant), require_ggml_type(dense)
    weights = [in_blocks(tensor, others) for tensor in model_tensors(model, layers, experts)]
    weights = [as_there(tensor, types or {}) for tensor in weights]
    places = [WeightEntry(name=each.name, shape=each.shape, type=each.type, bytes=each.bytes) for each in weights]
    head = header_bytes(gguf_metadata(model, layers), places)
    start = len(head)
    draw = random.Random(layers)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(start + sum(align_up(tensor.bytes) for tensor in weights))
        for tensor in weights:
            content = initial_bytes(tensor, model, draw if even_routing else None)
            if content:
                file.seek(start)
                file.write(content)
            start += align_up(tensor.bytes)
    return start


def in_blocks(tensor: DummyTensor, kind: int) -> DummyTensor:
    """A matrix of a layer in this type, where its rows are whole blocks of it."""
    whole = tensor.shape[0] % block_sizes()[kind][0] == 0
    return replace(tensor, type=kind) if whole and tensor.type == F16 and tensor.name.startswith("blk.") else tensor


def as_there(tensor: DummyTensor, types: Mapping[str, str]) -> DummyTensor:
    """A layer's matrix in the type that it has in a real file; routers and norms are generated as they are."""
    kind = ggml_type(types.get(tensor.name, ""))
    if kind is None or tensor.type == F32 or not tensor.name.startswith("blk."):
        return tensor
    return replace(tensor, type=kind) if tensor.shape[0] % block_sizes()[kind][0] == 0 else tensor


def require_ggml_type(name: str) -> int:
    """ggml's number of a type; BadInput where it has none."""
    found = ggml_type(name)
    if found is None:
        raise BadInput(f"{name} is not a type of ggml")
    return found


def initial_bytes(tensor: DummyTensor, model: Model, draw: random.Random | None) -> bytes:
    """What must not be zero: norms, and for even routing the routers and the rows of some tokens."""
    if tensor.name.endswith("norm.weight"):  # a norm of zero would switch its layer off
        return struct.pack("<f", 1.0) * tensor.shape[0]
    if draw is None:
        return b""
    # Scores of normalised states with random weights have a standard deviation of about 2.25 × sqrt(hidden) × 2^-small.
    small = round(math.log2(2.25 * math.sqrt(model.hidden)))
    if tensor.name.endswith("ffn_gate_inp.weight"):
        return random_floats(draw, tensor.shape[0] * tensor.shape[1], wide=True, small=small)
    if tensor.name == "token_embd.weight":
        return random_floats(draw, model.hidden * min(PROMPT_TOKENS, model.vocab), wide=False, small=0)
    if tensor.name == "output.weight":  # above the zeros of all other tokens, so that sampling stays among these
        blank = bytes(2 * model.hidden * PRINTABLE.start)
        return blank + random_floats(draw, model.hidden * len(PRINTABLE), wide=False, small=small - 2)
    return b""


def random_floats(draw: random.Random, number: int, *, wide: bool, small: int) -> bytes:
    """Random signs and mantissas: floats (16 bits, or 32 if `wide`) between 2^-small and twice that, either sign.

    Made from bits by one AND and one OR over the whole tensor, which takes milliseconds where a loop takes minutes.
    """
    free, exponent = (0x807FFFFF, (127 - small) << 23) if wide else (0x83FF, (15 - small) << 10)
    size = 4 if wide else 2
    keep = int.from_bytes(free.to_bytes(size, "little") * number, "little")
    put = int.from_bytes(exponent.to_bytes(size, "little") * number, "little")
    return (draw.getrandbits(8 * size * number) & keep | put).to_bytes(size * number, "little")


def model_tensors(model: Model, layers: int, experts: int) -> Iterator[DummyTensor]:
    """Every weight of the cut model; the experts' type is `experts`, that of other matrices F16."""
    hidden = model.hidden
    yield DummyTensor(name="token_embd.weight", shape=(hidden, model.vocab), type=F16)
    yield DummyTensor(name="output_norm.weight", shape=(hidden,), type=F32)
    yield DummyTensor(name="output.weight", shape=(hidden, model.vocab), type=F16)
    for layer in range(layers):
        at = f"blk.{layer}."
        yield DummyTensor(name=f"{at}attn_norm.weight", shape=(hidden,), type=F32)
        yield from mla_tensors(at, hidden, model.mla) if model.mla else gqa_tensors(at, hidden, model.attention)
        yield from head_norms(at, model)
        yield DummyTensor(name=f"{at}ffn_norm.weight", shape=(hidden,), type=F32)
        if model.moe and layer >= model.dense_layers:
            yield from moe_tensors(at, model, experts)
        else:
            yield from ffn_tensors(at, "", hidden, model.dense_intermediate)


def head_norms(at: str, model: Model) -> Iterator[DummyTensor]:
    """Norms of each head's query and key, which Qwen3 has."""
    if model.gqa and architecture_name(model) == "qwen3moe":
        yield DummyTensor(name=f"{at}attn_q_norm.weight", shape=(model.gqa.head_dim,), type=F32)
        yield DummyTensor(name=f"{at}attn_k_norm.weight", shape=(model.gqa.head_dim,), type=F32)


def mla_tensors(at: str, hidden: int, kind: Mla) -> Iterator[DummyTensor]:
    """Latent attention as llama.cpp's deepseek2 names it."""
    width = kind.nope + kind.rope
    yield DummyTensor(name=f"{at}attn_kv_a_norm.weight", shape=(kind.kv_lora,), type=F32)
    if kind.q_lora:
        yield DummyTensor(name=f"{at}attn_q_a_norm.weight", shape=(kind.q_lora,), type=F32)
        yield DummyTensor(name=f"{at}attn_q_a.weight", shape=(hidden, kind.q_lora), type=F16)
        yield DummyTensor(name=f"{at}attn_q_b.weight", shape=(kind.q_lora, kind.heads * width), type=F16)
    else:
        yield DummyTensor(name=f"{at}attn_q.weight", shape=(hidden, kind.heads * width), type=F16)
    yield DummyTensor(name=f"{at}attn_kv_a_mqa.weight", shape=(hidden, kind.kv_width), type=F16)
    if kind.whole_heads:
        both = kind.heads * (kind.nope + kind.v)
        yield DummyTensor(name=f"{at}attn_kv_b.weight", shape=(kind.kv_lora, both), type=F16)
    else:
        yield DummyTensor(name=f"{at}attn_k_b.weight", shape=(kind.nope, kind.kv_lora, kind.heads), type=F16)
        yield DummyTensor(name=f"{at}attn_v_b.weight", shape=(kind.kv_lora, kind.v, kind.heads), type=F16)
    yield DummyTensor(name=f"{at}attn_output.weight", shape=(kind.heads * kind.v, hidden), type=F16)


def gqa_tensors(at: str, hidden: int, kind: Any) -> Iterator[DummyTensor]:
    """Grouped-query attention as llama.cpp's qwen3moe and llama name it; biases are left out."""
    assert isinstance(kind, Gqa)
    for name, heads in (("q", kind.heads), ("k", kind.kv_heads), ("v", kind.kv_heads)):
        yield DummyTensor(name=f"{at}attn_{name}.weight", shape=(hidden, heads * kind.head_dim), type=F16)
    yield DummyTensor(name=f"{at}attn_output.weight", shape=(kind.heads * kind.head_dim, hidden), type=F16)


def ffn_tensors(at: str, kind: str, hidden: int, width: int) -> Iterator[DummyTensor]:
    """Gate, up and down of one dense or shared block."""
    for name in ("gate", "up"):
        yield DummyTensor(name=f"{at}ffn_{name}{kind}.weight", shape=(hidden, width), type=F16)
    yield DummyTensor(name=f"{at}ffn_down{kind}.weight", shape=(width, hidden), type=F16)


def moe_tensors(at: str, model: Model, experts: int) -> Iterator[DummyTensor]:
    """Router, routed and shared experts of one layer."""
    assert model.moe
    hidden, width, number = model.hidden, model.moe.intermediate, model.moe.experts
    yield DummyTensor(name=f"{at}ffn_gate_inp.weight", shape=(hidden, number), type=F32)
    if model.mla:
        yield DummyTensor(name=f"{at}exp_probs_b.bias", shape=(number,), type=F32)
    for name in ("gate", "up"):
        yield DummyTensor(name=f"{at}ffn_{name}_exps.weight", shape=(hidden, width, number), type=experts)
    yield DummyTensor(name=f"{at}ffn_down_exps.weight", shape=(width, hidden, number), type=experts)
    if model.mla and model.moe.shared:
        yield from ffn_tensors(at, "_shexp", hidden, model.moe.shared_width)


def architecture_name(model: Model) -> str:
    """The nearest architecture of llama.cpp: latent attention, grouped-query with experts, or plain."""
    if model.mla:
        return "deepseek2"
    return "qwen3moe" if model.moe else "llama"


def gguf_metadata(model: Model, layers: int) -> dict[str, MetadataValue]:
    """The keys llama.cpp asks for, in its own names."""
    arch, moe = architecture_name(model), model.moe
    words: dict[str, MetadataValue] = {
        "context_length": model.context, "embedding_length": model.hidden, "block_count": layers,
        "feed_forward_length": max(model.dense_intermediate, 1), "head_count": model.attention.heads,
        "vocab_size": model.vocab, "rope.freq_base": 50000.0, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    words["attention.head_count"] = words.pop("head_count")
    words |= mla_keys(model.mla) if model.mla else gqa_keys(_grouped(model))
    if moe:
        words |= {"expert_count": moe.experts, "expert_used_count": moe.used}
        words |= {"expert_feed_forward_length": moe.intermediate, "leading_dense_block_count": model.dense_layers}
        words |= {"expert_shared_count": moe.shared, "expert_weights_scale": 2.827, "expert_weights_norm": True}
        words |= {"expert_gating_func": 2}  # sigmoid
    names, kinds = build_vocabulary(model.vocab)
    return {
        "general.architecture": arch, "general.name": f"{model.title} rehearsal", "general.alignment": ALIGNMENT,
        **{f"{arch}.{key}": value for key, value in words.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "kimi-k2" if model.mla else "default",
        "tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": kinds,
        **({} if model.mla else {"tokenizer.ggml.merges": ["! !"]}),  # without any the file is refused
        "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 258, "tokenizer.ggml.padding_token_id": 268,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip


def mla_keys(kind: Mla) -> dict[str, int]:
    """Widths of latent attention; the cache is one head of latent and rope together, or all heads of a file."""
    keys = {"attention.kv_lora_rank": kind.kv_lora, "rope.dimension_count": kind.rope}
    keys |= {"attention.q_lora_rank": kind.q_lora} if kind.q_lora else {}
    key, value = kind.nope + kind.rope, kind.v
    if kind.whole_heads:
        heads = {"attention.head_count_kv": kind.heads}
        return keys | heads | {"attention.key_length": key, "attention.value_length": value}
    keys |= {
        "attention.head_count_kv": 1,
        "attention.key_length": kind.kv_width,
        "attention.value_length": kind.kv_lora,
    }
    return keys | {"attention.key_length_mla": key, "attention.value_length_mla": value}


def _grouped(model: Model) -> Gqa:
    kind = model.attention
    assert isinstance(kind, Gqa), f"{model.name}: {type(kind).__name__} is not rehearsed as a GGUF"
    return kind


def gqa_keys(kind: Gqa) -> dict[str, int]:
    """Widths of grouped-query attention."""
    keys = {"attention.head_count_kv": kind.kv_heads, "rope.dimension_count": kind.head_dim}
    return keys | {"attention.key_length": kind.head_dim, "attention.value_length": kind.head_dim}


def build_vocabulary(size: int) -> tuple[list[str], list[int]]:
    """Tokens and their kinds (1 normal, 3 control): bytes in GPT-2's printable spelling, then fillers.

    Fillers are normal tokens with a text each: ik_llama.cpp compares prompts with its cache by their text, and unused
    tokens have none, so every prompt made of them was the same prompt.
    """
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    names = [chr(byte) if byte in shown else chr(next(spare)) for byte in range(256)]
    names += CONTROL_TOKENS
    names += [f"[FILL{number}]" for number in range(len(names), size)]
    kinds = [1] * 256 + [3] * len(CONTROL_TOKENS)
    return names[:size], (kinds + [1] * (len(names) - len(kinds)))[:size]
