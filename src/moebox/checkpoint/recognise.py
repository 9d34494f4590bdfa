"""Weights on disk as the model they are: matched by architecture and shape to what the catalogue knows.

A folder or file of a known model is that model, whatever it is called, and gets its parsers, drafts, images and
refusals. One that only resembles a known one gets what its architecture needs, and a line says so.
"""

import re
from dataclasses import dataclass, replace

from moebox.core import catalogue, support
from moebox.core.families import ModelFamily, find_family
from moebox.core.model import Model

# GGUF files name an architecture by llama.cpp's word for it.
GGUF_NAMES = {
    "deepseek2": (
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "KimiK2ForCausalLM",
        "KimiK25ForConditionalGeneration",
    ),
    "qwen3moe": ("Qwen3MoeForCausalLM",),
    "glm4moe": ("Glm4MoeForCausalLM",),
    "glm-dsa": ("GlmMoeDsaForCausalLM",),
    "minimax-m2": ("MiniMaxM2ForCausalLM",),
    "gpt-oss": ("GptOssForCausalLM",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightHints:
    """What lies beside the shape: names it goes by, its chat template, how its experts are quantised."""

    names: tuple[str, ...] = ()
    template: str = ""
    quant: str = ""


def recognise_model(model: Model, hints: WeightHints) -> tuple[Model, str]:
    """The model with what the catalogue or its family knows of it, and the line that says how, or ""."""
    alike = [known for known in catalogue.models().values() if has_same_shape(model, known)]
    if alike:
        return _in_catalogue(model, alike, hints)
    family = find_family(model, hints.template)
    if family is None:
        return model, f"{model.name}: no parser or template switch of {model.architecture} is known"
    return _as_family(model, family, hints), _resembles(model, family)


def _in_catalogue(model: Model, alike: list[Model], hints: WeightHints) -> tuple[Model, str]:
    """The one of several models of the same shape that its names tell, or the likeliest, which is said."""
    named = _named(alike, hints.names)
    known = named or _likeliest(alike, hints)
    note = "" if named or len(alike) == 1 else _several(model, known, alike)
    return _as_known(model, known), note


def has_same_shape(model: Model, known: Model) -> bool:
    """Whether two models have the same architecture and sizes.

    Under another name of the architecture the vision tower may be missing: GGUF leaves it out, and some publish a model
    with it and without (MiniMax M3).
    """
    if known.architecture == model.architecture:
        return bool(model.vision) == bool(known.vision) and _sizes(model) == _sizes(known)
    return known.architecture in _other_names(model) and _sizes(model) == _sizes(known)


def _other_names(model: Model) -> tuple[str, ...]:
    """Names that the model's architecture goes by elsewhere."""
    row = support.architecture_support(model)
    return GGUF_NAMES.get(model.architecture, row.names if row else ())


def _sizes(model: Model) -> tuple[int, ...]:
    attention, moe = model.attention, model.moe
    experts = (moe.experts, moe.used, moe.intermediate) if moe else ()
    return model.hidden, model.layers, model.vocab, attention.heads, round(attention.entry_width(1)), *experts


def _named(alike: list[Model], names: tuple[str, ...]) -> Model | None:
    """The one whose repository's name stands in a name of the weights; the longest such name wins."""
    texts = [_letters(name) for name in names]
    found = [(len(word), known) for known in alike for word in _words(known) if any(word in text for text in texts)]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _words(known: Model) -> tuple[str, ...]:
    repository = known.repo.rpartition("/")[2]
    return tuple(filter(None, (_letters(repository), _letters(known.name))))


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _likeliest(alike: list[Model], hints: WeightHints) -> Model:
    """Without a name: the same context and a form quantised alike, and of those the newest."""
    reasons = "<think>" in hints.template

    def fitness(known: Model) -> tuple[bool, bool, str]:
        forms = catalogue.published_checkpoints(known.name)
        native = any(form.native and form.quant == hints.quant for form in forms)
        thinks = not hints.template or bool(known.reasoning_parser) == reasons
        return thinks, native, known.released

    return max(alike, key=fitness)


def _as_known(model: Model, known: Model) -> Model:
    """The catalogue's model with the sizes that were read."""
    return replace(known, context=model.context, counted=model.counted, mtp_layers=model.mtp_layers)


def _as_family(model: Model, family: ModelFamily, hints: WeightHints) -> Model:
    reasons = not family.reasoning_marker or family.reasoning_marker in hints.template
    return replace(
        model,
        tool_parser=family.tool_parser,
        reasoning_parser=family.reasoning_parser if reasons else "",
    )


def _several(model: Model, known: Model, alike: list[Model]) -> str:
    others = [other for other in alike if other is not known]
    titles = ", ".join(other.title for other in others)
    shape = f"{model.name} has the shape of {known.title} (and of {titles}); it is taken for {known.title}"
    return f"{shape}: put a name such as {others[0].repo.rpartition('/')[2]} into its path if it is another"


def _resembles(model: Model, family: ModelFamily) -> str:
    own = "; its own code is not run unless the recipe says trust_remote_code" if family.trust_remote_code else ""
    return f"{model.name} resembles {family.title} and gets its parsers; no known model has its shape{own}"


def slugify(title: str) -> str:
    """A name that recipes, files and command lines take, from a title such as "Kimi K2.6"."""
    return re.sub(r"[^\w.-]+", "-", title).strip("-.").lower() or "model"
