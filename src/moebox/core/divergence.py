"""Published distances of weight formats from the original weights; what is not published is unknown."""

from collections.abc import Iterator
from dataclasses import dataclass

from moebox import codec
from moebox.core.catalogue import load_table
from moebox.core.model import Checkpoint


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
        rest = {name: value for name, value in row.items() if name != "models"}
        for name in {**figures["kl"], **figures["perplexity"]} if model in row["models"] else ():
            document = {**rest, "format": name, **{key: values.get(name) for key, values in figures.items()}}
            yield codec.decode(FormatDivergence, document, where="divergence.toml")


def find_divergence(checkpoint: Checkpoint) -> FormatDivergence | None:
    """What is published about a checkpoint's format, preferably about its own files; None if nothing is."""
    rows = [row for row in known_divergences(checkpoint.model) if row.format.lower() == checkpoint.quant.lower()]
    return max(rows, key=lambda row: (row.repo == checkpoint.repo, row.kl is not None), default=None)
