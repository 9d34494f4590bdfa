"""Read the header of a GGUF file (metadata and the table of tensors, never the weights) as a Model and a Checkpoint.

The `gguf` package is not used: it rejects ik_llama.cpp's types and needs numpy. Every count is checked against the
file's size, so that a hostile file costs no more than its own size.
"""

import functools
import mmap
import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from moebox.checkpoint.safetensors import WeightSizes, find_component
from moebox.core import catalogue
from moebox.core.layers import Mamba
from moebox.core.model import Checkpoint, Component, Gqa, Layers, Licence, Mla, Model, Moe
from moebox.errors import BadInput, refuse_if
from moebox.gguf_file import HeaderCursor, HeaderCutShort
from moebox.hub.names import gguf_part_names

MAGIC = b"GGUF"
MAX_TENSORS = 1_000_000
MAX_KEYS = 100_000
KNOWN = ("deepseek2", "qwen3moe", "glm4moe", "minimax-m2", "gpt-oss")


@dataclass(frozen=True, slots=True)
class HeaderTensor:
    name: str
    elements: int
    bytes: int
    type: str
    offset: int


@dataclass(slots=True)
class GgufHeader:
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[HeaderTensor] = field(default_factory=list)


@functools.cache
def ggml_types() -> dict[int, tuple[str, int, int, str]]:
    """ggml types by id: name, weights in a block, bytes of a block, engine."""
    rows = catalogue.load_table("ggml")["types"]
    return {row["id"]: (name, row["weights"], row["bytes"], row["engine"]) for name, row in rows.items()}


def read_tensor(cursor: HeaderCursor) -> HeaderTensor:
    name, dimensions = cursor.read_text(), cursor.read_scalar("I")
    refuse_if(dimensions > 8, f"{cursor.path}: tensor {name[:80]!r} has {dimensions} dimensions")
    elements = prod(cursor.read_scalar("Q") for _ in range(dimensions))
    number, offset = cursor.read_scalar("I"), cursor.read_scalar("Q")
    if elements >= 2**50:
        raise BadInput(f"{cursor.path}: tensor {name[:80]!r} has {elements:,} elements, which is not plausible")
    title, weights, size, _ = ggml_types().get(number, (f"ggml-type-{number}", 1, 0, ""))  # 0: not known yet
    return HeaderTensor(name, elements, -(-elements // weights) * size, title, offset)


def read_header(path: Path) -> GgufHeader:
    try:
        with open(path, "rb") as file:
            refuse_if(path.stat().st_size < 24, f"{path}: too short for a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                refuse_if(data[:4] != MAGIC, f"{path}: not a GGUF file")
                cursor = HeaderCursor(data, path)
                cursor.at = 4
                version, tensors, keys = cursor.read_scalar("I"), cursor.read_scalar("Q"), cursor.read_scalar("Q")
                refuse_if(version not in (2, 3), f"{path}: GGUF version {version} is not supported")
                # A tensor's entry takes at least 24 bytes and a key 13, so that larger counts cannot be true.
                most_tensors, most_keys = min(MAX_TENSORS, len(data) // 24), min(MAX_KEYS, len(data) // 13)
                text = f"{path}: {tensors:,} tensors and {keys:,} keys, which the file cannot hold"
                refuse_if(tensors > most_tensors or keys > most_keys, text)
                header = GgufHeader()
                for _ in range(keys):
                    name = cursor.read_text()
                    header.metadata[name] = cursor.read_value(cursor.read_scalar("I"))
                header.tensors = [read_tensor(cursor) for _ in range(tensors)]
                starts = sorted({len(data) - cursor.at, *(tensor.offset for tensor in header.tensors)})
                gaps = {start: end - start for start, end in pairwise(starts)}  # sizes of a newer ggml's types
                header.tensors = [
                    replace(each, bytes=each.bytes or gaps.get(each.offset, 0)) for each in header.tensors
                ]
                return header
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None


def gguf_damage(path: Path) -> str:
    """Compare a file's size with its table of tensors; "" if they fit, or if the table has an unknown format."""
    try:
        return _missing_bytes(path, read_header(path))
    except HeaderCutShort:
        return "ends inside its header"
    except BadInput:
        return ""


def _missing_bytes(path: Path, header: GgufHeader) -> str:
    need, size = sum(tensor.bytes for tensor in header.tensors), path.stat().st_size
    return f"has {size:,} bytes, its header describes {need:,} of weights" if need > size else ""


def split_files(path: Path) -> list[Path]:
    """Return all files of a split model, or `path` alone. Raise BadInput if files are missing."""
    files = [*map(path.with_name, gguf_part_names(path.name))]
    refuse_if(len(files) > 10_000, f"{path}: {len(files)} parts is not plausible")
    missing = [file for file in files if not file.is_file()]
    if missing:
        text = f"{path}: {len(missing)} of {len(files)} parts are missing, the first is {missing[0].name}"
        raise BadInput(text, hint="the download is incomplete; run it again")
    return files


class GgufMetadata:
    """GGUF metadata under one architecture's prefix, checked when it is read."""

    def __init__(self, values: dict[str, Any], where: Path) -> None:
        self.values, self.where = values, where
        self.architecture = str(values.get("general.architecture", ""))

    def integer(self, name: str, *, default: int | None = None, least: int = 0) -> int:
        """`ARCH.name` as an integer; the largest if it is given per layer."""
        key = f"{self.architecture}.{name}"
        given = self.values.get(key, default)
        if given is None:
            raise BadInput(f"{self.where}: {key} is missing")
        values = given if isinstance(given, list) and given else [given]
        if {type(value) for value in values} != {int} or not least <= max(values) < 2**40:
            raise BadInput(f"{self.where}: {key} is {str(given)[:40]!r}, not a valid number")
        return int(max(values))


def read_gguf_model(path: Path) -> tuple[Model, Checkpoint, str, tuple[str, ...]]:
    """Return the model in a GGUF file, its checkpoint, its chat template, and what is missing of its files."""
    files = split_files(path)
    headers = [*map(read_header, files)]
    meta = GgufMetadata(headers[0].metadata, path)
    refuse_if(not meta.architecture, f"{path}: general.architecture is missing")
    projector = f"{path}: is a vision projector (mmproj), which is loaded beside a model"
    refuse_if(meta.architecture == "clip", projector, hint="name the .gguf file of the model itself")
    tensors = [tensor for header in headers for tensor in header.tensors]
    model = _read_model(meta, " ".join(str(meta.values.get("general.name") or path.stem).split()), tensors)
    template = str(meta.values.get("tokenizer.chat_template") or "")
    damaged = {file.name: _missing_bytes(file, header) for file, header in zip(files, headers, strict=True)}
    missing = [f"{name} is not downloaded completely: it {text}" for name, text in damaged.items() if text]
    parts = meta.values.get("split.count")
    if isinstance(parts, int) and parts > len(files):
        missing.append(f"{path.name} is one of {parts} parts by its header; by its name it is alone")
    return model, _read_checkpoint(files[0], model, tensors, shards=len(files)), template, tuple(missing)


def _read_model(meta: GgufMetadata, name: str, tensors: list[HeaderTensor]) -> Model:
    layers = meta.integer("block_count", least=1)
    counted: Counter[Component] = Counter()
    for tensor in tensors:
        counted[find_component(tensor.name, "gguf")] += tensor.elements
    vocab = len(meta.values.get("tokenizer.ggml.tokens") or [])
    experts = meta.integer("expert_count", default=0)
    moe = None
    if experts:
        moe = Moe(
            experts=experts,
            used=meta.integer("expert_used_count", least=1),
            intermediate=meta.integer("expert_feed_forward_length", least=1),
            shared=meta.integer("expert_shared_count", default=0),
        )
    mla = gqa = None
    others: tuple[Layers, ...] = ()
    if meta.architecture == "deepseek2" or f"{meta.architecture}.attention.kv_lora_rank" in meta.values:
        mla = _read_mla(meta)
    else:
        gqa, others = _read_gqa(meta, layers)
    assumed = f"{meta.architecture} is an unknown architecture; assumed from the header: every layer caches all tokens"
    if others:
        assumed = assumed.replace("every layer caches", f"all but {sum(each.count for each in others)} layers cache")
    return Model(
        name=slugify(name),
        title=name,
        architecture=meta.architecture,
        hidden=meta.integer("embedding_length", least=1),
        layers=layers,
        dense_layers=meta.integer("leading_dense_block_count", default=0),
        dense_intermediate=meta.integer("feed_forward_length", default=0),
        vocab=meta.integer("vocab_size", default=vocab, least=1),
        tied=not counted.get("lm_head"),
        context=meta.integer("context_length", least=1),
        mla=mla,
        gqa=gqa,
        others=others,
        moe=moe,
        licence=Licence(name=str(meta.values.get("general.license", "see the model's own files"))),
        source=str(meta.where),
        assumed="" if meta.architecture in KNOWN else assumed,
        counted=dict(counted),
    )


def _read_mla(meta: GgufMetadata) -> Mla:
    rope = meta.integer("rope.dimension_count", least=1)
    key = meta.integer("attention.key_length_mla", default=0)
    value = meta.integer("attention.value_length_mla", default=0)
    whole = not (key and value)  # written before llama.cpp supported latent attention
    if whole:
        key = meta.integer("attention.key_length", default=192)
        value = meta.integer("attention.value_length", default=128)
    return Mla(
        heads=meta.integer("attention.head_count", least=1),
        q_lora=meta.integer("attention.q_lora_rank", default=0),
        kv_lora=meta.integer("attention.kv_lora_rank", least=1),
        nope=max(key - rope, 0),
        rope=rope,
        v=value,
        whole_heads=whole,
    )


def _read_gqa(meta: GgufMetadata, layers: int) -> tuple[Gqa, tuple[Layers, ...]]:
    """The full attention, and the layers with a window."""
    heads = meta.integer("attention.head_count", least=1)
    full = Gqa(
        heads=heads,
        kv_heads=meta.integer("attention.head_count_kv", default=heads, least=1),
        head_dim=meta.integer("attention.key_length", default=meta.integer("embedding_length") // heads, least=1),
    )
    # Layers without KV heads keep a state: Mamba 2 or a gated delta net, of the same size.
    given = meta.values.get(f"{meta.architecture}.attention.head_count_kv")
    every = meta.integer("full_attention_interval", default=0)
    without = given.count(0) if isinstance(given, list) else layers - layers // every if every > 1 else 0
    state, inner = meta.integer("ssm.state_size", default=0), meta.integer("ssm.inner_size", default=0)
    if without and state and inner and without < layers:
        ranks = meta.integer("ssm.time_step_rank", default=1, least=1)
        groups = meta.integer("ssm.group_count", default=1, least=1)
        mamba = Mamba(heads=ranks, head_dim=max(inner // ranks, 1), groups=groups, state=state)
        return full, (Layers(count=without, mamba=mamba),)
    window = meta.integer("attention.sliding_window", default=0)
    pattern = meta.values.get(f"{meta.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        count = sum(map(bool, pattern[:layers]))
    else:  # every second layer in gpt-oss (llama.cpp's set_swa_pattern(2))
        count = layers // 2 if meta.architecture == "gpt-oss" else 0
    return full, (Layers(count=count, gqa=replace(full, window=window)),) if window and count else ()


def _read_checkpoint(path: Path, model: Model, tensors: list[HeaderTensor], *, shards: int) -> Checkpoint:
    sizes = WeightSizes(model.layers)
    expert_types: Counter[str] = Counter()  # bytes of each type in the experts, in everything if there are none
    for tensor in tensors:
        if sizes.add(tensor.name, tensor.bytes, "gguf") == "routed_experts" or not model.moe:
            expert_types[tensor.type] += tensor.bytes
    readers = {name: engine for name, _, _, engine in ggml_types().values()}
    engines = sorted({readers.get(tensor.type, "both") for tensor in tensors} - {"both"})
    unknown = next((f"{tensor.type} (unknown)" for tensor in tensors if tensor.type not in readers), "")
    checkpoint = Checkpoint(
        name=path.stem,
        model=model.name,
        path=os.path.abspath(path),
        format="gguf",
        quant=unknown or max(expert_types, key=lambda kind: expert_types[kind], default="unknown"),
        bytes_by_component={},
        engines=tuple(engines) if len(engines) < 2 else ("none",),
    )
    return sizes.complete_checkpoint(checkpoint, model, shards=shards, source=path)


def slugify(title: str) -> str:
    """Make a name for recipes, files and command lines from a title such as "Kimi K2.6"."""
    return re.sub(r"[^\w.-]+", "-", title).strip("-.").lower() or "model"
