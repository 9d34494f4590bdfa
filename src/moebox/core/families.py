"""Settings that depend on a model's architecture, not on its name.

A family (parsers, template switches, images) is recognised by architecture and vocabulary, and by the chat template if
several families share both. data/architectures.toml lists the first release of each engine that runs an architecture.
"""

from dataclasses import dataclass, field

from moebox.core.catalogue import table_rows
from moebox.core.model import Model
from moebox.core.start_rules import next_release
from moebox.core.versions import version_in_range

NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """Models that need the same settings."""

    name: str
    title: str
    architectures: tuple[str, ...]  # as config.json and GGUF name them
    vocab: int = 0  # 0: any
    marker: str = ""  # a text in its chat templates
    tool_parser: str = ""  # vLLM's names
    reasoning_parser: str = ""
    reasoning_marker: str = ""  # a text in the templates of those that reason; "": all do
    thinking_off: dict[str, bool | str] = field(default_factory=dict)  # template arguments
    trust_remote_code: bool = False
    presets: tuple[str, ...] = ()  # patched images made for it
    source: str = ""


def find_family(model: Model | None, template: str = "") -> ModelFamily | None:
    """Return the family of a model; the chat template decides if no family has the model's vocabulary."""
    if model is None:
        return None
    families = table_rows(ModelFamily, "families", "family")
    alike = [family for family in families if model.architecture in family.architectures]
    exact = [family for family in alike if family.vocab == model.vocab]
    marked = [family for family in alike if family.marker and family.marker in template]
    free = [family for family in alike if not family.vocab]
    return next(iter([*exact, *marked, *free]), None)


def has_preset(model: Model, preset: str) -> bool:
    """True if a patched image was made for the model's family."""
    family = find_family(model)
    return family is not None and preset in family.presets


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureSupport:
    """A row of data/architectures.toml."""

    names: tuple[str, ...]
    title: str
    first: dict[str, str] = field(default_factory=dict)  # engine -> first release that runs it, or "never"
    source: str = ""


def architecture_support(model: Model | None) -> ArchitectureSupport | None:
    """Return the row of a model's architecture, None if every release runs it."""
    return next((row for row in architecture_rows() if model and model.architecture in row.names), None)


def architecture_rows() -> tuple[ArchitectureSupport, ...]:
    """Return the architectures that not every release of every engine runs."""
    return tuple(table_rows(ArchitectureSupport, "architectures", "architecture"))


def unsupported_reason(engine: str, title: str, model: Model | None, version: str = "") -> tuple[str, str]:
    """Return why `version` of an engine does not run the model's architecture, and the source; "" if it does.

    Without a version the newest is meant, which runs everything that any release does.
    """
    row = architecture_support(model)
    first = row.first.get(engine, "") if row else ""
    if not first or row is None:
        return "", ""
    if first == NEVER:
        return f"{title} does not run {row.title} yet", row.source
    before = f"<{first.replace('-', '.')}"  # a release may be a month such as 2026-02
    later = next_release(engine, version) or version  # a build between two releases may have what the later one has
    if version and version_in_range(later.replace("-", "."), before):
        return f"{title} {version} does not run {row.title}: {first} is the first that does", row.source
    return "", ""
