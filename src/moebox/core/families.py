"""What hangs on a model's architecture rather than on its name: parsers, template switches, its own code, images.

A family is told by architecture and vocabulary; where several share both, by what the chat template holds.
"""

import functools
from dataclasses import dataclass, field

from moebox import codec
from moebox.core.catalogue import load_table
from moebox.core.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """One kind of models and what every one of them needs."""

    name: str
    title: str
    architectures: tuple[str, ...]  # as config.json and GGUF name them
    vocab: int = 0  # 0: any
    marker: str = ""  # a text that its chat templates hold
    tool_parser: str = ""  # vLLM's names
    reasoning_parser: str = ""
    reasoning_marker: str = ""  # only templates that hold this text reason
    thinking_off: dict[str, bool | str] = field(default_factory=dict)  # template arguments
    trust_remote_code: bool = False
    presets: tuple[str, ...] = ()  # patched images made for it
    source: str = ""

    def has_marker(self, template: str) -> bool:
        """Whether a chat template holds the family's mark."""
        return self.marker != "" and self.marker in template


@functools.cache
def model_families() -> tuple[ModelFamily, ...]:
    """Every family in the table."""
    rows = load_table("families")["family"]
    return tuple(codec.decode(ModelFamily, row, where=f"families.toml [{row['name']}]") for row in rows)


def find_family(model: Model | None, template: str = "") -> ModelFamily | None:
    """The family of a model; the chat template decides where the vocabulary is none that is known."""
    if model is None:
        return None
    alike = [family for family in model_families() if model.architecture in family.architectures]
    exact = [family for family in alike if family.vocab == model.vocab]
    marked = [family for family in alike if family.has_marker(template)]
    free = [family for family in alike if not family.vocab]
    return next(iter([*exact, *marked, *free]), None)


def thinking_off_arguments(model: Model | None) -> dict[str, bool | str]:
    """The template arguments that turn thinking off; Kimi's where nothing better is known."""
    family = find_family(model)
    return family.thinking_off if family and family.thinking_off else {"thinking": False}


@functools.cache
def thinking_off_variants() -> tuple[dict[str, bool | str], ...]:
    """Every family's way to turn thinking off."""
    return ({"thinking": False}, *(family.thinking_off for family in model_families() if family.thinking_off))


def has_preset(model: Model, preset: str) -> bool:
    """Whether a patched image was made for models like this one."""
    family = find_family(model)
    return family is not None and preset in family.presets
