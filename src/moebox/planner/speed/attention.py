"""Decoding attention by backend and GPU generation: which one an engine takes, and what it reaches.

The rows are in `data/attention.toml`, from timings of the kernels alone.
"""

from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import geometric_mean
from typing import Literal

from moebox.core.catalogue import table_rows
from moebox.core.layers import Gqa, LayerKind, Linear, Mamba, Mla
from moebox.core.recipe import Recipe
from moebox.core.versions import version_in_range
from moebox.sizing.kv import kv_type

AttentionKind = Literal["gqa", "mla", "dsa", "linear"]
HEAD_DIM = 128  # elements of a head that `stream_ns` is for


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackend:
    """A row of [[backend]], or of [[default]], which has no figures: the backend that an engine takes if none is named.

    Shares of 0 are unknown: those of the engine's own row apply.
    """

    name: str
    kind: AttentionKind
    generations: tuple[str, ...]
    engine: str = ""  # "": any
    kv: str = ""  # "": any type of cache
    before: str = ""  # only in versions before this one; "": in all
    architectures: tuple[str, ...] = ()  # only for these; (): all
    bandwidth: float = 0.0
    stream_ns: float = 0.0
    prompt: float = 0.0
    whole_chunks: bool = False  # walks all of a prompt's new tokens on layers with a window
    padded_heads: int = 0
    latent_prompt: float = 0.0
    latent_decode: float = 0.0
    index_us: float = 0.0
    index_ns: float = 0.0
    source: str = ""


UNKNOWN = AttentionBackend(name="", kind="gqa", generations=())


def attention_kind(kind: LayerKind) -> AttentionKind | None:
    """Return the kind of attention that backends differ in; None for layers without rows."""
    if isinstance(kind, Gqa):
        return "gqa"
    if isinstance(kind, Mla):
        return "dsa" if kind.indexer else "mla"
    return "linear" if isinstance(kind, Linear | Mamba) else None


def find_backends(recipe: Recipe, generation: str, architecture: str) -> dict[AttentionKind, AttentionBackend]:
    """Return the backend of each kind of attention: the one that the recipe names, or the engine's default."""
    named, kv = str(recipe.flags.get("attention-backend", "")).lower(), kv_type(recipe)

    def applies(row: AttentionBackend) -> bool:
        old = not row.before or version_in_range(recipe.engine_version, f"<{row.before}")
        fits = generation in row.generations and row.engine in ("", recipe.engine) and row.kv in ("", kv)
        return old and fits and architecture in (row.architectures or (architecture,))

    every = table_rows(AttentionBackend, "attention", "backend")
    usable = sorted(filter(applies, every), key=lambda row: not row.before)
    found = {row.kind: row for row in reversed(usable) if row.name == named}
    others = [row for row in every if (row.name, row.kind, row.engine, row.kv) == (named, "gqa", recipe.engine, kv)]
    if others and "gqa" not in found:  # no figures on this GPU: between those on others
        figures = zip(*map(attrgetter("bandwidth", "stream_ns", "prompt"), others), strict=True)
        bandwidth, stream, prompt = map(geometric_mean, figures)
        found["gqa"] = replace(others[0], bandwidth=bandwidth, stream_ns=stream, prompt=prompt)
    for default in filter(applies, table_rows(AttentionBackend, "attention", "default")):
        match = next((row for row in usable if (row.name, row.kind) == (default.name, default.kind)), UNKNOWN)
        found.setdefault(default.kind, match)
    return found
