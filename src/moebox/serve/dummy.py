"""Write a GGUF with a model's real layer shapes and dummy weights, for rehearsals and tests.

Weights are zeros in a sparse file, so ten gigabytes of experts take a few megabytes of disk. The engine uses its real
kernels, buffers and copies; the replies mean nothing. Vocabulary: 256 bytes, Kimi's control tokens, and fillers up to
the model's size, so one ASCII character is one token.

With zeros alone every token goes to the same experts, which stay in the CPU's cache: ten times too fast. To time steps
(`even_routing`), routers are random, and so are the embeddings of the first `PROMPT_TOKENS` tokens and the output rows
of printable ASCII; layers of zeros pass the embedding on unchanged, and every token uses other experts in every layer.
"""

import hashlib
import json
import math
import random
import struct
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from moebox import codec, files
from moebox.checkpoint.gguf import ggml_types
from moebox.core import catalogue
from moebox.core.deployment import Deployment
from moebox.core.model import Gqa, Mla, Model
from moebox.errors import BadInput
from moebox.gguf_file import ALIGNMENT, F16, F32, MetadataValue, WeightEntry, align_up, header_bytes

PROMPT_TOKENS = 8192  # tokens with their own embedding if routing is even; prompts consist of them
PRINTABLE = range(33, 127)  # tokens that are sampled then, so that replies are text for every parser
CONTROL_TOKENS = (
    "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "[PAD]", "[UNK]", "<think>", "</think>",
)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_{{ m['role'] }}|>{{ m['role'] }}<|im_middle|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
OTHER_PARTS = ("quantization_config", "vision_config")  # of a config.json; their lists do not count text layers
MOST_KINDS = 8  # of layers in a config's list; drafts' layers, as many at most, may follow the others
SMALL_FILE = 64 * 2**20  # tokenizers and code; weights are larger


def layer_entries(config: MutableMapping[str, Any], layers: int) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    """Where a config.json counts its layers or has one entry for each: layer_types, patterns such as "MEM*"."""
    for key, value in config.items():
        if isinstance(value, dict) and key not in OTHER_PARTS:
            yield from layer_entries(value, layers)
        listed = value if isinstance(value, list) or (isinstance(value, str) and key.endswith("pattern")) else ()
        by_layer = 0 <= len(listed) - layers <= MOST_KINDS < layers and len({*map(str, listed)}) <= MOST_KINDS
        if by_layer or (key == "num_hidden_layers" and value == layers):
            yield config, key


def layers_of_each_kind(deployment: Deployment) -> int:
    """How many layers there are until each kind that the config lists has occurred; 0 if it lists none."""
    total, config = deployment.model.layers, Path(deployment.weights_path).expanduser() / "config.json"
    found = layer_entries(json.loads(codec.read_text(config)), total) if config.is_file() else ()
    lists = [holder[key][:total] for holder, key in found if not isinstance(holder[key], int)]
    return max((values.index(kind) + 1 for values in lists for kind in values), default=0)


def cut_model(deployment: Deployment, layers: int) -> str:
    """A folder in the cache with the model's small files and a config of few layers; "" if the model is not here.

    Engines take a number of layers as a flag, but not every model class reads it if the config also lists kinds.
    """
    folder, total = Path(deployment.weights_path).expanduser(), deployment.model.layers
    if not (folder / "config.json").is_file():
        return ""
    config = json.loads(codec.read_text(folder / "config.json"))
    for holder, key in [*layer_entries(config, total)]:
        value = holder[key]
        holder[key] = layers if isinstance(value, int) else value[:layers] + value[total:]
    text = json.dumps(config)
    made = files.xdg_home("cache") / "moebox" / f"cut-{hashlib.sha256(f'{folder}{text}'.encode()).hexdigest()[:12]}"
    made.mkdir(parents=True, exist_ok=True)
    for path in filter(Path.is_file, folder.iterdir()):
        if path.stat().st_size < SMALL_FILE and ".safetensors" not in path.name:
            files.write_atomic(made / path.name, path.read_bytes())
    files.write_atomic(made / "config.json", text)
    return str(made)


def dummy_weight(name: str, shape: tuple[int, ...], kind: int) -> WeightEntry:
    _, elements, size, _ = ggml_types()[kind]
    return WeightEntry(name=name, shape=shape, type=kind, bytes=math.prod(shape) // elements * size)


def ggml_type(quant: str) -> int | None:
    """The ggml type of the experts in a checkpoint with this quantisation, or None if it is not a ggml type."""
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
    """Write the first `layers` of `model`, and return the file's apparent size.

    `quant` is the experts' type, `dense` that of other matrices except the embedding and the output; `types` are those
    of a real file, by weight. `even_routing` spreads tokens over experts as a real router does on average.
    """
    experts, others = ggml_type(quant), ggml_type(dense)
    if experts is None or others is None:
        raise BadInput(f"{quant if experts is None else dense} is not a type of ggml")
    weights = []
    for tensor in model_tensors(model, layers, experts):
        if tensor.name.startswith("blk.") and tensor.type != F32:  # routers and norms keep their type
            real = ggml_type((types or {}).get(tensor.name, ""))
            for kind in (others if tensor.type == F16 else None, real):
                if kind is not None and tensor.shape[0] % ggml_types()[kind][1] == 0:  # rows of whole blocks
                    tensor = dummy_weight(tensor.name, tensor.shape, kind)
        weights.append(tensor)
    head = header_bytes(gguf_metadata(model, layers), weights)
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


def initial_bytes(tensor: WeightEntry, model: Model, draw: random.Random | None) -> bytes:
    """The nonzero bytes: norms, and for even routing the routers and the rows of some tokens."""
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

    One AND and one OR over the whole tensor take milliseconds; a loop would take minutes.
    """
    free, exponent = (0x807FFFFF, (127 - small) << 23) if wide else (0x83FF, (15 - small) << 10)
    size = 4 if wide else 2
    keep = int.from_bytes(free.to_bytes(size, "little") * number, "little")
    put = int.from_bytes(exponent.to_bytes(size, "little") * number, "little")
    return (draw.getrandbits(8 * size * number) & keep | put).to_bytes(size * number, "little")


def model_tensors(model: Model, layers: int, experts: int) -> Iterator[WeightEntry]:
    """Every weight of the first layers; experts have the type `experts`, norms and routers F32, other matrices F16."""
    hidden, moe = model.hidden, model.moe
    yield dummy_weight("token_embd.weight", (hidden, model.vocab), F16)
    yield dummy_weight("output_norm.weight", (hidden,), F32)
    yield dummy_weight("output.weight", (hidden, model.vocab), F16)
    attention = mla_shapes(hidden, model.mla) if model.mla else gqa_shapes(model)
    for layer in range(layers):
        shapes = {"attn_norm": (hidden,), **attention, "ffn_norm": (hidden,)}
        if moe and layer >= model.dense_layers:
            shapes["ffn_gate_inp"] = (hidden, moe.experts)
            if model.mla:
                shapes["exp_probs_b"] = (moe.experts,)
            shapes |= {f"ffn_{name}_exps": (hidden, moe.intermediate, moe.experts) for name in ("gate", "up")}
            shapes["ffn_down_exps"] = (moe.intermediate, hidden, moe.experts)
            if model.mla and moe.shared:
                shapes |= ffn_shapes("_shexp", hidden, moe.shared_width)
        else:
            shapes |= ffn_shapes("", hidden, model.dense_intermediate)
        for name, shape in shapes.items():
            matrix = experts if name.endswith("_exps") else F16
            kind = F32 if len(shape) == 1 or name == "ffn_gate_inp" else matrix
            yield dummy_weight(f"blk.{layer}.{name}.{'bias' if name == 'exp_probs_b' else 'weight'}", shape, kind)


def mla_shapes(hidden: int, mla: Mla) -> dict[str, tuple[int, ...]]:
    """Latent attention as llama.cpp's deepseek2 names it."""
    query = mla.heads * (mla.nope + mla.rope)
    shapes: dict[str, tuple[int, ...]] = {"attn_kv_a_norm": (mla.kv_lora,)}
    if mla.q_lora:
        shapes |= {"attn_q_a_norm": (mla.q_lora,), "attn_q_a": (hidden, mla.q_lora), "attn_q_b": (mla.q_lora, query)}
    else:
        shapes["attn_q"] = (hidden, query)
    shapes["attn_kv_a_mqa"] = (hidden, mla.kv_width)
    if mla.whole_heads:
        shapes["attn_kv_b"] = (mla.kv_lora, mla.heads * (mla.nope + mla.v))
    else:
        shapes |= {"attn_k_b": (mla.nope, mla.kv_lora, mla.heads), "attn_v_b": (mla.kv_lora, mla.v, mla.heads)}
    return shapes | {"attn_output": (mla.heads * mla.v, hidden)}


def gqa_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Grouped-query attention as llama.cpp's qwen3moe and llama name it; biases are left out."""
    kind, hidden = model.attention, model.hidden
    assert isinstance(kind, Gqa)
    heads = {"q": kind.heads, "k": kind.kv_heads, "v": kind.kv_heads}
    shapes: dict[str, tuple[int, ...]] = {f"attn_{name}": (hidden, n * kind.head_dim) for name, n in heads.items()}
    shapes["attn_output"] = (kind.heads * kind.head_dim, hidden)
    norms = ("attn_q_norm", "attn_k_norm") if architecture_name(model) == "qwen3moe" else ()
    return shapes | dict.fromkeys(norms, (kind.head_dim,))


def ffn_shapes(kind: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    """Gate, up and down of one dense or shared block."""
    return {f"ffn_gate{kind}": (hidden, width), f"ffn_up{kind}": (hidden, width), f"ffn_down{kind}": (width, hidden)}


def architecture_name(model: Model) -> str:
    """The nearest architecture of llama.cpp: latent attention, grouped-query with experts, or plain."""
    if model.mla:
        return "deepseek2"
    return "qwen3moe" if model.moe else "llama"


def gguf_metadata(model: Model, layers: int) -> dict[str, MetadataValue]:
    """The keys that llama.cpp requires."""
    arch, moe = architecture_name(model), model.moe
    keys: dict[str, MetadataValue] = {
        "context_length": model.context, "embedding_length": model.hidden, "block_count": layers,
        "feed_forward_length": max(model.dense_intermediate, 1), "attention.head_count": model.attention.heads,
        "vocab_size": model.vocab, "rope.freq_base": 50000.0, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    if mla := model.mla:  # the cache has one head of latent and rope together, or all heads
        key, value = mla.nope + mla.rope, mla.v
        keys |= {"attention.kv_lora_rank": mla.kv_lora, "rope.dimension_count": mla.rope}
        keys |= {"attention.q_lora_rank": mla.q_lora} if mla.q_lora else {}
        keys["attention.head_count_kv"] = mla.heads if mla.whole_heads else 1
        if not mla.whole_heads:
            keys |= {"attention.key_length_mla": key, "attention.value_length_mla": value}
            key, value = mla.kv_width, mla.kv_lora
        keys |= {"attention.key_length": key, "attention.value_length": value}
    else:
        kind = model.attention
        assert isinstance(kind, Gqa), f"{model.name}: {type(kind).__name__} is not rehearsed as a GGUF"
        keys |= {"attention.head_count_kv": kind.kv_heads, "rope.dimension_count": kind.head_dim}
        keys |= {"attention.key_length": kind.head_dim, "attention.value_length": kind.head_dim}
    if moe:
        keys |= {"expert_count": moe.experts, "expert_used_count": moe.used}
        keys |= {"expert_feed_forward_length": moe.intermediate, "leading_dense_block_count": model.dense_layers}
        keys |= {"expert_shared_count": moe.shared, "expert_weights_scale": 2.827, "expert_weights_norm": True}
        keys |= {"expert_gating_func": 2}  # sigmoid
    names, kinds = build_vocabulary(model.vocab)
    return {
        "general.architecture": arch, "general.name": f"{model.title} rehearsal", "general.alignment": ALIGNMENT,
        **{f"{arch}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "kimi-k2" if model.mla else "default",
        "tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": kinds,
        **({} if model.mla else {"tokenizer.ggml.merges": ["! !"]}),  # llama.cpp requires some
        "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 258, "tokenizer.ggml.padding_token_id": 268,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip


def build_vocabulary(size: int) -> tuple[list[str], list[int]]:
    """Tokens and their kinds (1 normal, 3 control): bytes in GPT-2's printable spelling, then fillers.

    Fillers are normal tokens with their own text: ik_llama.cpp compares prompts with its cache by text, and unused
    tokens have none, so that all prompts of them would be equal.
    """
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    names = [chr(byte) if byte in shown else chr(next(spare)) for byte in range(256)]
    names += CONTROL_TOKENS
    names += [f"[FILL{number}]" for number in range(len(names), size)]
    kinds = [1] * 256 + [3] * len(CONTROL_TOKENS)
    return names[:size], (kinds + [1] * (len(names) - len(kinds)))[:size]
