"""A GGUF file, or its split parts, as a Model and a Checkpoint."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from moebox.checkpoint import gguf
from moebox.checkpoint.names import component_in_gguf, layer_number
from moebox.checkpoint.recognise import slugify
from moebox.core.model import Checkpoint, Component, Gqa, Layers, Licence, Mla, Model, Moe
from moebox.errors import BadInput, Unsupported

_GQA = ("qwen3moe", "glm4moe", "minimax-m2", "gpt-oss")
SUPPORTED = ("deepseek2", *_GQA)


class GgufMetadata:
    """GGUF metadata under one architecture's prefix, checked as it is read."""

    def __init__(self, values: dict[str, Any], where: Path) -> None:
        self.values, self.where = values, where
        self.architecture = str(values.get("general.architecture", ""))

    def integer(self, name: str, *, default: int | None = None, least: int = 0) -> int:
        """`ARCH.name` as a whole number; the largest where it is given per layer."""
        key = f"{self.architecture}.{name}"
        given = self.values.get(key, default)
        if given is None:
            raise BadInput(f"{self.where}: {key} is missing")
        values = given if isinstance(given, list) and given else [given]
        if {type(value) for value in values} != {int} or not least <= max(values) < 2**40:
            raise BadInput(f"{self.where}: {key} is {str(given)[:40]!r}, not a sensible number")
        return int(max(values))


def read_gguf_model(path: Path) -> tuple[Model, Checkpoint, str]:
    """The model in a GGUF file, the bytes it takes, and its chat template."""
    files = gguf.split_files(path)
    headers = [gguf.read_header(file) for file in files]
    meta = GgufMetadata(headers[0].metadata, path)
    if meta.architecture not in SUPPORTED:
        raise Unsupported(
            f"{path}: GGUF architecture {meta.architecture or '(none)'} is not supported",
            hint=f"supported: {', '.join(SUPPORTED)}",
        )
    tensors = [tensor for header in headers for tensor in header.tensors]
    name = str(meta.values.get("general.name") or path.stem)
    model = _model(meta, name, tensors)
    template = str(meta.values.get("tokenizer.chat_template") or "")
    return model, _checkpoint(files[0], model, tensors, shards=len(files)), template


def _model(meta: GgufMetadata, name: str, tensors: list[gguf.HeaderTensor]) -> Model:
    layers = meta.integer("block_count", least=1)
    counted: Counter[Component] = Counter()
    for tensor in tensors:
        counted[component_in_gguf(tensor.name)] += tensor.elements
    latent = meta.architecture == "deepseek2"
    return Model(
        name=slugify(name),
        title=name,
        architecture=meta.architecture,
        hidden=meta.integer("embedding_length", least=1),
        layers=layers,
        dense_layers=meta.integer("leading_dense_block_count", default=0),
        dense_intermediate=meta.integer("feed_forward_length", default=0),
        vocab=meta.integer("vocab_size", default=_tokens(meta), least=1),
        tied=not counted.get("lm_head"),
        context=meta.integer("context_length", least=1),
        mla=_mla(meta) if latent else None,
        gqa=None if latent else _gqa(meta),
        others=() if latent else _windowed(meta, layers),
        moe=_moe(meta),
        licence=Licence(name=str(meta.values.get("general.license", "see the model's own files"))),
        source=str(meta.where),
        counted=dict(counted),
    )


def _tokens(meta: GgufMetadata) -> int:
    tokens = meta.values.get("tokenizer.ggml.tokens")
    return tokens.items if isinstance(tokens, gguf.SkippedArray) else len(tokens or [])


def _moe(meta: GgufMetadata) -> Moe | None:
    experts = meta.integer("expert_count", default=0)
    if not experts:
        return None
    return Moe(
        experts=experts,
        used=meta.integer("expert_used_count", least=1),
        intermediate=meta.integer("expert_feed_forward_length", least=1),
        shared=meta.integer("expert_shared_count", default=0),
    )


def _mla(meta: GgufMetadata) -> Mla:
    """Files from before llama.cpp knew latent attention have no lengths of their own for it."""
    rope = meta.integer("rope.dimension_count", least=1)
    key, value = (
        meta.integer("attention.key_length_mla", default=0),
        meta.integer("attention.value_length_mla", default=0),
    )
    whole = not (key and value)
    if whole:
        key, value = (
            meta.integer("attention.key_length", default=192),
            meta.integer("attention.value_length", default=128),
        )
    return Mla(
        heads=meta.integer("attention.head_count", least=1),
        q_lora=meta.integer("attention.q_lora_rank", default=0),
        kv_lora=meta.integer("attention.kv_lora_rank", least=1),
        nope=max(key - rope, 0),
        rope=rope,
        v=value,
        whole_heads=whole,
    )


def _gqa(meta: GgufMetadata) -> Gqa:
    heads = meta.integer("attention.head_count", least=1)
    return Gqa(
        heads=heads,
        kv_heads=meta.integer("attention.head_count_kv", default=heads, least=1),
        head_dim=meta.integer("attention.key_length", default=meta.integer("embedding_length") // heads, least=1),
    )


def _windowed(meta: GgufMetadata, layers: int) -> tuple[Layers, ...]:
    """Sliding-window layers: by the file's pattern; every second one in gpt-oss (llama.cpp's set_swa_pattern(2))."""
    window = meta.integer("attention.sliding_window", default=0)
    pattern = meta.values.get(f"{meta.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        count = sum(map(bool, pattern[:layers]))
    else:
        count = layers // 2 if meta.architecture == "gpt-oss" else 0
    return (Layers(count=count, gqa=replace(_gqa(meta), window=window)),) if window and count else ()


def _checkpoint(path: Path, model: Model, tensors: list[gguf.HeaderTensor], *, shards: int) -> Checkpoint:
    sizes: Counter[Component] = Counter()
    by_layer = [0] * model.layers
    for tensor in tensors:
        sizes[component_in_gguf(tensor.name)] += tensor.bytes
        layer = layer_number(tensor.name)
        if layer is not None and layer < model.layers:
            by_layer[layer] += tensor.bytes
    engines = _engines(tensors)
    return Checkpoint(
        name=path.stem,
        model=model.name,
        path=os.path.abspath(path),
        format="gguf",
        quant=_quant(model, tensors),
        bytes_by_component=dict(sizes),
        layer_bytes=tuple(by_layer),
        expert_layer_bytes=sizes["routed_experts"] // max(model.moe_layers, 1),
        shards=shards,
        engines=engines,
        how="read",
        source=str(path),
    )


def _quant(model: Model, tensors: list[gguf.HeaderTensor]) -> str:
    """The type that most bytes of the experts have, or of everything where there are none."""
    telling = [tensor for tensor in tensors if component_in_gguf(tensor.name) == "routed_experts" or not model.moe]
    sizes: Counter[str] = Counter()
    for tensor in telling:
        sizes[tensor.type] += tensor.bytes
    return next((kind for kind, _ in sizes.most_common(1)), "unknown")


def _engines(tensors: list[gguf.HeaderTensor]) -> tuple[str, ...]:
    """The engines that read every type in the file; none where all that read GGUF do."""
    readers = {name: engine for name, _, _, engine in gguf.ggml_types().values()}
    needed = sorted({readers[tensor.type] for tensor in tensors} - {"both"})
    return tuple(needed) if len(needed) < 2 else ("none",)
