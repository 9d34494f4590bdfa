"""Read the headers of safetensors files: names, shapes, types and sizes, never the weights.

A header is `length (8 bytes, little endian) + JSON`; every size in it is checked against the file's size.
"""

import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from moebox.core import catalogue
from moebox.core.layers import Gqa, Mla
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.traits import WeightsFormat
from moebox.errors import BadInput, refuse_if
from moebox.hub.names import weight_files

MAX_HEADER_BYTES = 100 * 10**6  # the format's own limit (safetensors/src/tensor.rs, MAX_HEADER_SIZE)
_BITS = dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
_BITS |= dict.fromkeys(("I16", "U16", "F16", "BF16"), 16) | dict.fromkeys(("I32", "U32", "F32"), 32)
_BITS |= dict.fromkeys(("I64", "U64", "F64"), 64) | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

# Tensors whose shapes are compared with config.json.
EMBEDDING = "embed_tokens.weight"
ROUTERS = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight")
OUTPUT = "self_attn.o_proj.weight"
SAMPLED = (EMBEDDING, *ROUTERS, OUTPUT)
AGAIN = "the file is cut or damaged: download it again"
UNPACKED_TYPES = ("BF16", "F16", "F32", "F8_E4M3")  # the shape is that of the matrix; packed types have another
_RULES: dict[str, list[tuple[re.Pattern[str], Component]]] = {
    kind: [(re.compile(pattern), component) for pattern, component in catalogue.load_table("weights")[kind]]
    for kind in ("safetensors", "gguf")
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d{1,6})\.")
MAX_PADDING = 1024  # rows of an embedding beyond the vocabulary, so that it divides over GPUs


def find_component(name: str, kind: WeightsFormat) -> Component:
    if ".mlp.experts." in name:  # nearly all of the 200,000 tensors of a large checkpoint
        return "routed_experts"
    # Tensors that no rule names are small: biases, scales, rope tables.
    return next((component for pattern, component in _RULES[kind] if pattern.search(name)), "norms")


class SafetensorsEntry(msgspec.Struct):
    dtype: str = ""
    shape: list[int] = []
    data_offsets: tuple[int, int] = (0, 0)


_HEADER = msgspec.json.Decoder(dict[str, SafetensorsEntry])


class WeightSizes:
    """Bytes by component and by layer, summed over files, and the shapes of a few tensors."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.by_component: Counter[Component] = Counter()
        self.by_layer = [0] * layers
        self.shapes: dict[str, tuple[int, ...]] = {}  # the first tensor of each sampled kind
        self.unknown_type = ""

    def add(self, name: str, size: int, kind: WeightsFormat) -> Component:
        """Count a tensor, and return its component."""
        layer, component = _LAYER.search(name), find_component(name, kind)
        if layer and component != "vision":
            if int(layer[1]) >= self.layers:
                component = "mtp"
            else:
                self.by_layer[int(layer[1])] += size
        self.by_component[component] += size
        return component

    def complete_checkpoint(self, checkpoint: Checkpoint, model: Model, *, shards: int, source: Path) -> Checkpoint:
        """Return the checkpoint with these sizes, which were read from its files."""
        return replace(
            checkpoint,
            bytes_by_component=dict(self.by_component),
            layer_bytes=tuple(self.by_layer),
            expert_layer_bytes=self.by_component["routed_experts"] // max(model.moe_layers, 1),
            shards=shards,
            how="read",
            source=str(source),
        )


def read_sizes(files: list[Path], layers: int) -> WeightSizes:
    """Sum up the tensors of all shards; one that several files have is loaded into one place, so it counts once."""
    sizes, counted = WeightSizes(layers), set[str]()
    for name, tensor in (entry for path in files for entry in read_header(path)):
        if name in counted:
            continue
        counted.add(name)
        sizes.unknown_type = sizes.unknown_type if tensor.dtype in _BITS else f"{tensor.dtype[:20]} (unknown)"
        component = sizes.add(name, tensor.data_offsets[1] - tensor.data_offsets[0], "safetensors")
        kind = next(filter(name.endswith, SAMPLED), "") if component != "vision" and ".experts." not in name else ""
        if kind and tensor.dtype in UNPACKED_TYPES and len(tensor.shape) == 2:
            sizes.shapes.setdefault("router" if kind in ROUTERS else kind, tuple(tensor.shape))
    return sizes


def read_header(path: Path) -> Iterator[tuple[str, SafetensorsEntry]]:
    """Yield the tensors of one file. Raise BadInput if the file cannot contain what the header describes."""
    header, data_bytes = decode_header(path)
    for name, tensor in header.items():
        start, end = tensor.data_offsets
        if not 0 <= start <= end <= data_bytes:
            text = f"{path}: {name[:80]} lies at {start}..{end}, outside the file's {data_bytes:,} bytes of data"
            raise BadInput(text, hint=AGAIN)
        if len(tensor.shape) > 16 or any(side < 0 for side in tensor.shape):
            raise BadInput(f"{path}: {name[:80]} has an impossible shape")
        if tensor.dtype in _BITS and prod(tensor.shape) * _BITS[tensor.dtype] != (end - start) * 8:
            raise BadInput(f"{path}: {name[:80]} has {end - start:,} bytes, but its shape and type need another number")
        yield name, tensor


def decode_header(path: Path) -> tuple[dict[str, SafetensorsEntry], int]:
    """Return the tensors that a file's header lists, and the bytes after the header."""
    try:
        with open(path, "rb") as file:
            total = path.stat().st_size
            head = file.read(8)
            refuse_if(len(head) < 8, f"{path}: {total} bytes is too short for a safetensors file", hint=AGAIN)
            refuse_if(
                head == b"version ", f"{path}: is a pointer of Git LFS, not the weights", hint="run `git lfs pull`"
            )
            (length,) = struct.unpack("<Q", head)
            text = f"{path}: the header's size is given as {length:,} bytes; the file has {total:,}"
            refuse_if(length > min(MAX_HEADER_BYTES, total - 8), text, hint=AGAIN)
            raw, data_bytes = file.read(length), total - 8 - length
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None
    try:
        header = _HEADER.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path}: header is not a table of tensors: {str(problem)[:120]}") from None
    header.pop("__metadata__", None)
    return header, data_bytes


def shard_damage(path: Path, named: Collection[str] = ()) -> str:
    """Compare a file's size with its header, and the header with the tensors that the index names; "" if all agree."""
    try:
        header, data_bytes = decode_header(path)
    except BadInput as problem:
        return problem.message.removeprefix(f"{path}: ")
    described = max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    if described != data_bytes:
        size = path.stat().st_size
        return f"has {size:,} bytes, its header describes {size - data_bytes + described:,}"
    missing = sorted(set(named) - header.keys())
    return f"lacks {missing[0][:80]}, which the index names" if missing else ""


class SafetensorsIndex(msgspec.Struct):
    """The file that names the shard of each tensor; `metadata.total_size` is the bytes of all of them."""

    weight_map: dict[str, str] = {}
    metadata: dict[str, Any] = {}


def read_index(folder: Path) -> SafetensorsIndex | None:
    """Return the index of a folder, None if it has none."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return None
    try:
        found = msgspec.json.decode(index.read_bytes(), type=SafetensorsIndex)
        refuse_if(not found.weight_map, f"{index}: has no weight_map")
        return found
    except (msgspec.DecodeError, RecursionError, OSError) as problem:
        raise BadInput(f"{index}: not a safetensors index: {problem}") from None


def shard_files(folder: Path) -> list[Path]:
    """Return the weight files of a checkpoint, [] if none is there. Raise BadInput if some are missing."""
    index = read_index(folder)
    there = sorted(folder.glob("*.safetensors"))
    names = sorted(set(index.weight_map.values())) if index else []
    for name in names:
        text = f"{folder}: shard name {name!r} of the index points outside the folder"
        refuse_if("/" in name or name in ("", "..", "."), text)
    if index is None or not there:
        return [folder / name for name in weight_files((path.name for path in there), str(folder))]
    missing = [name for name in names if not is_nonempty_file(folder / name)]
    if missing:
        text = f"{folder}: {len(missing)} of {len(names)} shards are missing or empty, the first is {missing[0]}"
        raise BadInput(text, hint="the download is incomplete; run it again")
    return [folder / name for name in names]


def check_agreement(folder: Path, model: Model, sizes: WeightSizes) -> None:
    """Raise BadInput if config.json and the weights disagree on layers or sizes."""
    found: list[str] = []
    empty = [number for number, size in enumerate(sizes.by_layer) if not size]
    if empty:
        have = len(sizes.by_layer) - len(empty)
        found.append(f"{model.layers} layers, the weights hold {have} (layer {empty[0]} is missing)")
    rows, hidden = sizes.shapes.get(EMBEDDING, (model.vocab, model.hidden))
    if hidden != model.hidden:
        found.append(f"a hidden size of {model.hidden:,}, the weights hold {hidden:,}")
    if not model.vocab <= rows < model.vocab + MAX_PADDING:
        found.append(f"a vocabulary of {model.vocab:,}, the weights hold {rows:,}")
    experts, _ = sizes.shapes.get("router", (model.experts, 0))
    if experts != model.experts:
        found.append(f"{model.experts} experts, the weights hold {experts}")
    width = sizes.shapes.get(OUTPUT, (0, 0))[1]
    kind = model.stack[0].kind
    heads: float = model.attention.heads
    if width and len(model.stack) == 1 and isinstance(kind, Mla | Gqa):
        heads = width / (kind.v if isinstance(kind, Mla) else kind.value_dim)
    if heads != model.attention.heads:
        found.append(f"{model.attention.heads} attention heads, the weights hold {heads:g}")
    text = f"{folder}: config.json has {'; '.join(found)}"
    refuse_if(found, text, hint="config.json and the .safetensors files must come from one repository")


def is_nonempty_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
