"""Whether the weights are those that config.json tells of: a few tensors whose shapes say so."""

from dataclasses import dataclass, field
from pathlib import Path

from moebox.core.layers import Gqa, Mla
from moebox.core.model import Model
from moebox.errors import BadInput

EMBEDDING = "embed_tokens.weight"
ROUTERS = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight")
OUTPUT = "self_attn.o_proj.weight"
UNPACKED_TYPES = ("BF16", "F16", "F32", "F8_E4M3")  # types whose shape is the matrix's; packed ones have another
MAX_PADDING = 1024  # rows an embedding may have beyond the vocabulary, so that it divides over GPUs
SAMPLED = (EMBEDDING, *ROUTERS, OUTPUT)


@dataclass(slots=True)
class SampleShapes:
    """The first tensor of each telling kind."""

    by_kind: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, name: str, dtype: str, shape: list[int]) -> None:
        """Look at one tensor."""
        if not name.endswith(SAMPLED) or ".experts." in name:
            return
        kind = next(filter(name.endswith, SAMPLED))
        if dtype in UNPACKED_TYPES and len(shape) == 2:
            self.by_kind.setdefault("router" if kind in ROUTERS else kind, tuple(shape))


def check_agreement(folder: Path, model: Model, by_layer: list[int], shapes: SampleShapes) -> None:
    """Raise BadInput naming what config.json and the weights disagree on."""
    empty = [number for number, size in enumerate(by_layer) if not size]
    found = _disagreements(model, shapes)
    if empty:
        have = len(by_layer) - len(empty)
        found.insert(0, f"{model.layers} layers, the weights hold {have} (none of layer {empty[0]})")
    if found:
        raise BadInput(
            f"{folder}: config.json tells of {'; of '.join(found)}",
            hint="config.json and the .safetensors files must come from one repository",
        )


def _disagreements(model: Model, shapes: SampleShapes) -> list[str]:
    """Each as "256 experts, the weights hold 384"."""
    rows, hidden = shapes.by_kind.get(EMBEDDING, (model.vocab, model.hidden))
    experts, _ = shapes.by_kind.get("router", (model.experts, 0))
    heads = _heads(model, shapes)
    same = {
        f"a hidden size of {model.hidden:,}, the weights hold {hidden:,}": hidden == model.hidden,
        f"a vocabulary of {model.vocab:,}, the weights hold {rows:,}": model.vocab <= rows < model.vocab + MAX_PADDING,
        f"{model.experts} experts, the weights hold {experts}": experts == model.experts,
        f"{model.attention.heads} attention heads, the weights hold {heads:g}": heads == model.attention.heads,
    }
    return [told for told, holds in same.items() if not holds]


def _heads(model: Model, shapes: SampleShapes) -> float:
    """Attention heads by the width of the output projection; the config's own where the stack is mixed."""
    width = shapes.by_kind.get(OUTPUT, (0, 0))[1]
    kind = model.stack[0].kind
    if not width or len(model.stack) > 1:
        return model.attention.heads
    if isinstance(kind, Mla):
        return width / kind.v
    return width / kind.value_dim if isinstance(kind, Gqa) else model.attention.heads
