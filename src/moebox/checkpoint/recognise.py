"""Recognise weights on disk by architecture and shape.

A folder or file of a known model is treated as that model under any name, with its parsers, drafts, images and
restrictions. An unknown model gets the settings of its architecture, with a note.
"""

import re
from dataclasses import dataclass, replace

from moebox.core import catalogue, registry
from moebox.core.families import architecture_support, find_family
from moebox.core.model import Model
from moebox.core.start_rules import engine_architectures

GGUF_NAMES: dict[str, list[str]] = catalogue.load_table("weights")["gguf_architectures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightHints:
    """Hints beside the shape: names of the weights, chat template, quantisation of the experts."""

    names: tuple[str, ...] = ()
    template: str = ""
    quant: str = ""


def recognise_model(model: Model, hints: WeightHints) -> tuple[Model, str]:
    """Add what the catalogue or the family knows about the model, and return a note if that is not certain."""
    alike = [known for known in catalogue.models().values() if has_same_shape(model, known)]
    if alike:
        named = _named_model(alike, hints.names)
        known = named or _likeliest_model(alike, hints)
        note = ""
        if not named and len(alike) > 1:
            others = [other for other in alike if other is not known]
            titles = ", ".join(other.title for other in others)
            note = (
                f"{model.name} has the shape of {known.title} (and of {titles}) and is treated as {known.title}: "
                f"put a name such as {others[0].repo.rpartition('/')[2]} into its path if it is another"
            )
        return replace(known, context=model.context, counted=model.counted, mtp_layers=model.mtp_layers), note
    family = find_family(model, hints.template)
    if family is None and model.assumed:
        name = model.architecture
        listed = [each.title for each in registry.all_traits() if name in engine_architectures(each.name)]
        by = f"; listed by {', '.join(listed)}" if listed else ""
        runs = f"{name} is an architecture without a reader of its own{by}"
        if not listed and not architecture_support(model):
            runs = f"no engine is known to run {name}, an unknown architecture"
        return model, f"{runs}; no parser is known; {model.assumed.partition('; ')[2]}"
    if family is None:
        return model, f"{model.name}: no parser or template switch is known for {model.architecture}"
    reasons = not family.reasoning_marker or family.reasoning_marker in hints.template
    parser = family.reasoning_parser if reasons else ""
    own = "; its own code is not run unless the recipe sets trust_remote_code" if family.trust_remote_code else ""
    note = model.assumed or f"{model.name} is an unknown model, treated as {family.title}{own}"
    return replace(model, tool_parser=family.tool_parser, reasoning_parser=parser), note


def has_same_shape(model: Model, known: Model) -> bool:
    """True if two models have the same architecture and sizes.

    Some models are in the catalogue without their vision tower (MiniMax M3), and GGUF leaves it out.
    """
    if known.architecture == model.architecture:
        if model.assumed:  # the sizes that need no knowledge of the architecture
            return _sizes(model)[:3] == _sizes(known)[:3] and _sizes(model)[5:] == _sizes(known)[5:]
        return bool(model.vision) >= bool(known.vision) and _sizes(model) == _sizes(known)
    support = architecture_support(model)
    other_names = GGUF_NAMES.get(model.architecture, support.names if support else ())
    return known.architecture in other_names and _sizes(model) == _sizes(known)


def _sizes(model: Model) -> tuple[int, ...]:
    attention, moe = model.attention, model.moe
    experts = (moe.experts, moe.used, moe.intermediate) if moe else ()
    return model.hidden, model.layers, model.vocab, attention.heads, round(attention.entry_width(1)), *experts


def _named_model(alike: list[Model], names: tuple[str, ...]) -> Model | None:
    """The model whose name or repository is part of a name of the weights; the longest such name counts."""

    def letters(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    texts = [letters(name) for name in names]
    found: list[tuple[int, Model]] = []
    for known in alike:
        for word in filter(None, (letters(known.repo.rpartition("/")[2]), letters(known.name))):
            found += [(len(word), known)] if any(word in text for text in texts) else []
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _likeliest_model(alike: list[Model], hints: WeightHints) -> Model:
    """Without a name: prefer models that reason like the template, then with the same quantisation, then the newest."""
    reasons = "<think>" in hints.template

    def preference(known: Model) -> tuple[bool, bool, str]:
        checkpoints = catalogue.published_checkpoints(known.name)
        native = any(checkpoint.native and checkpoint.quant == hints.quant for checkpoint in checkpoints)
        thinks = not hints.template or bool(known.reasoning_parser) == reasons
        return thinks, native, known.released

    return max(alike, key=preference)


def slugify(title: str) -> str:
    """Make a name for recipes, files and command lines from a title such as "Kimi K2.6"."""
    return re.sub(r"[^\w.-]+", "-", title).strip("-.").lower() or "model"
