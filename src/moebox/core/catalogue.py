"""The tables that ship with moebox, as core types.

To add a GPU, a model or a checkpoint, change a TOML file in `moebox/data`, never code. Distances of weight formats from
the original weights are published ones; what is not published is unknown.
"""

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from moebox import codec
from moebox.core.box import Gpu
from moebox.core.model import COMPONENTS, Checkpoint, Model
from moebox.data import FOLDER
from moebox.data import load_table as load_table
from moebox.errors import UnknownName, require_known, suggest_names
from moebox.loose import drop_empty, drop_keys

T = TypeVar("T")
ROW_ONLY = ("models", "other", "per_expert", "bytes")  # of a checkpoint's row, beside bits of components


@functools.lru_cache(maxsize=1024)  # words may come from users
def decode_rows(kind: Any, table: str, key: str, word: str) -> tuple[Any, ...]:
    if word:  # the other rows of a long table are not parsed
        parts = re.split(rf"^(?=\[\[{key}]])", (FOLDER / f"{table}.toml").read_text(encoding="utf-8"), flags=re.M)[1:]
        rows = tomllib.loads("\n".join(part for part in parts if word in part.lower())).get(key, [])
    else:
        rows = load_table(table)[key]
    return tuple(codec.decode(kind, row, where=f"{table}.toml [{next(iter(row.values()), '')}]") for row in rows)


def table_rows(kind: type[T], table: str, key: str, word: str = "") -> tuple[T, ...]:
    """Return the rows [[key]] of `moebox/data/TABLE.toml`, decoded once; with `word` those that mention it anywhere."""
    return cast("tuple[T, ...]", decode_rows(cast(Any, kind), table, key, word.lower()))


def package_table(kind: type[T], package: str, name: str) -> T:
    """Read NAME.toml of an engine's package; the defaults of `kind` if it has none."""
    from importlib import resources  # slow to import

    file = resources.files(package).joinpath(f"{name}.toml")
    document = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return codec.decode(kind, document, where=f"{package}/{name}.toml")


@functools.cache
def gpus() -> dict[str, Gpu]:
    return {gpu.name: gpu for gpu in table_rows(Gpu, "gpus", "gpu")}


@functools.cache
def models() -> dict[str, Model]:
    return {model.name: model for model in table_rows(Model, "models", "model")}


def find_gpu(name: str) -> Gpu:
    require_known("GPU", name, gpus())
    return gpus()[name]


def get_model(name: str) -> Model | None:
    """Return a model by its name, an alias or its repository in any case, with spaces for hyphens too, or None."""
    wanted = re.sub(r"\s+", "-", name.strip().lower())
    rows = table_rows(Model, "models", "model", wanted)
    return next((row for row in rows if wanted in (row.name, *row.aliases, row.repo.lower())), None)


def find_model(name: str) -> Model:
    """Return a model like `get_model`. Raise UnknownName if there is none."""
    if found := get_model(name):
        return found
    near = suggest_names(name, models())
    hint = near if "?" in near else f"`moebox models` lists the {len(models())} that are known"
    raise UnknownName("model", name, models(), hint=hint)


@functools.cache
def published_checkpoints(model_name: str) -> tuple[Checkpoint, ...]:
    rows = table_rows(dict, "checkpoints", "checkpoint", model_name)
    return tuple(checkpoint_from_row(find_model(model_name), row) for row in rows if model_name in row["models"])


def find_checkpoint(model_name: str, name: str) -> Checkpoint:
    """Find a published checkpoint of a model by its name or repository."""
    known = published_checkpoints(model_name)
    for checkpoint in known:
        if name.lower() in (checkpoint.name.lower(), checkpoint.repo.lower()):
            return checkpoint
    raise UnknownName(f"checkpoint of {model_name}", name, [checkpoint.name for checkpoint in known])


def checkpoint_from_row(model: Model, row: Mapping[str, Any]) -> Checkpoint:
    """Compute the bytes of each component of `model` by a row of data/checkpoints.toml.

    The row has the bits per weight of components, `other` for those not given, `per_expert` for the bytes of an expert
    beside its weights, `bytes` for the published total, and fields of the checkpoint.
    """
    sizes = {
        name: round(number * row.get(name, row["other"]) / 8) for name, number in model.parameters_by_component.items()
    }
    if model.moe and "routed_experts" in sizes:
        sizes["routed_experts"] += row.get("per_expert", 0) * model.moe_layers * model.moe.experts
    sizes = drop_empty(sizes)
    if "bytes" in row:  # with a published total, the experts are the rest of it
        sizes["routed_experts"] = row["bytes"] - sum(size for name, size in sizes.items() if name != "routed_experts")
    computed = {
        "model": model.name,
        "bytes_by_component": sizes,
        "expert_layer_bytes": sizes.get("routed_experts", 0) // max(model.moe_layers, 1),
        "how": "published" if "bytes" in row else "computed",
    }
    facts = drop_keys(row, *COMPONENTS, *ROW_ONLY)
    return codec.decode(Checkpoint, facts | computed, where=f"checkpoints.toml [{row['name']}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatDivergence:
    """One format of one model: mean KL divergence in nats, the ratio of perplexities, and who measured them how."""

    format: str
    kl: float | None
    perplexity: float | None
    against: str
    repo: str = ""  # whose files were measured
    text: str
    source: str
    date: str

    def summary(self, checkpoint: Checkpoint) -> str:
        """ "0.037 nats from bf16, perplexity x1.012"; of another repository's files it is only a hint."""
        parts = [f"{self.kl:.3f} nats from {self.against}"] if self.kl is not None else []
        parts += [f"perplexity x{self.perplexity:.3f}"] if self.perplexity is not None else []
        parts += [f"measured with {self.repo or 'other files'}"] if checkpoint.repo != self.repo else []
        return ", ".join(parts)


def known_divergences(model: str) -> Iterator[FormatDivergence]:
    """What is published about a model's formats."""
    for row in load_table("divergence")["divergence"]:
        figures = {name: row.get(name, {}) for name in ("kl", "perplexity")}
        rest = drop_keys(row, "models")
        for name in {**figures["kl"], **figures["perplexity"]} if model in row["models"] else ():
            document = {**rest, "format": name, **{key: values.get(name) for key, values in figures.items()}}
            yield codec.decode(FormatDivergence, document, where="divergence.toml")


def find_divergence(checkpoint: Checkpoint) -> FormatDivergence | None:
    """What is published about a checkpoint's format, preferably about its own files; None if nothing is."""
    rows = [row for row in known_divergences(checkpoint.model) if row.format.lower() == checkpoint.quant.lower()]
    return max(rows, key=lambda row: (row.repo == checkpoint.repo, row.kl is not None), default=None)
