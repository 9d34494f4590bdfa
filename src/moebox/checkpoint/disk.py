"""Read weights on disk, of which only headers are read, and recognise the model by architecture and shape.

A folder or file of a known model is treated as that model under any name, with its parsers, drafts, images and
restrictions. An unknown model gets the settings of its architecture, with a note.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

from moebox import codec
from moebox.checkpoint import ResolvedModel, safetensors
from moebox.checkpoint.config import checkpoint_from_config, model_from_config
from moebox.checkpoint.gguf import read_gguf_model, slugify
from moebox.core import catalogue, registry
from moebox.core.families import architecture_support, find_family
from moebox.core.model import Checkpoint, Model
from moebox.core.start_rules import engine_architectures
from moebox.errors import BadInput

GGUF_NAMES: dict[str, list[str]] = catalogue.load_table("weights")["gguf_architectures"]


def model_from_file(path: Path) -> ResolvedModel:
    """Read a GGUF file, or a config.json by itself."""
    if path.suffix == ".json":
        model, computed = _read_config(path, path.parent.name if path.name == "config.json" else path.stem)
        return _recognise(model, computed, path.parent, _chat_template(path.parent))
    model, checkpoint, template, missing = read_gguf_model(path)
    found = _recognise(model, checkpoint, path, template, model.name)
    return replace(found, notes=(*missing, *found.notes))


def model_from_folder(folder: Path) -> ResolvedModel:
    """Read a Hugging Face folder, or a folder of GGUF files."""
    config = folder / "config.json"
    if not config.is_file():
        if files := sorted(folder.glob("*.gguf")):
            return model_from_file(files[0])
        hint = "name the folder that contains the weights, or a model of `moebox models`"
        raise BadInput(f"{folder}: has neither config.json nor a .gguf file", hint=hint)
    files = safetensors.shard_files(folder)
    model, checkpoint = _read_config(config, folder.name)
    checkpoint = replace(checkpoint, path=os.path.abspath(folder))
    if not files:
        index = safetensors.read_index(folder)
        total = index.metadata.get("total_size") if index else None
        if isinstance(total, int) and 0 < total < 2**50 and checkpoint.total_bytes:
            factor = total / checkpoint.total_bytes
            sizes = {name: round(size * factor) for name, size in checkpoint.bytes_by_component.items()}
            layer = round(checkpoint.expert_layer_bytes * factor)
            checkpoint = replace(checkpoint, bytes_by_component=sizes, expert_layer_bytes=layer, how="published")
        found = _recognise(model, checkpoint, folder, _chat_template(folder))
        basis = "the index's total" if checkpoint.how == "published" else "config.json"
        note = f"{folder} holds no weights: bytes are computed from {basis}; `moebox up` needs them downloaded"
        return replace(found, notes=(*found.notes, note))
    read = safetensors.read_sizes(files, model.layers)
    if not model.assumed:
        safetensors.check_agreement(folder, model, read)
    checkpoint = replace(checkpoint, quant=read.unknown_type or checkpoint.quant)
    checkpoint = read.complete_checkpoint(checkpoint, model, shards=len(files), source=folder)
    return _recognise(model, checkpoint, folder, _chat_template(folder))


def _read_config(path: Path, name: str) -> tuple[Model, Checkpoint]:
    # transformers writes Infinity, which JSON does not have (Nemotron 3's time_step_limit).
    config = codec.parse_json(codec.read_text(path).replace("Infinity", "1e308"), where=str(path))
    model = replace(model_from_config(config, name=name, where=str(path)), name=slugify(name))
    return model, checkpoint_from_config(model, config, name, path.parent)


def _chat_template(folder: Path) -> str:
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        file = folder / name
        if file.is_file():
            return codec.read_text(file)
    return ""


def _recognise(model: Model, checkpoint: Checkpoint, path: Path, template: str, *names: str) -> ResolvedModel:
    """Recognise the model. Parts of the path count as names, in a Hub cache the repository's too; links are kept."""
    parts = tuple(part for part in Path(os.path.abspath(path)).parts[-5:] if len(part) > 1)
    found, note = recognise_model(model, names=(*names, *parts), template=template, quant=checkpoint.quant)
    checkpoints = (replace(checkpoint, model=found.name),)
    notes = [note] if note else []
    if checkpoint.quant.endswith(" (unknown)"):
        bits = f"as {checkpoint.bits_per_weight(model):.1f} bits a weight"
        read = "from the files" if checkpoint.how == "read" else bits
        text = f"quantisation {checkpoint.quant.split()[0]} is unknown: sizes are {read}, no engine is known to load it"
        notes.append(text)
    return ResolvedModel(model=found, checkpoints=checkpoints, notes=tuple(notes))


def recognise_model(model: Model, *, names: tuple[str, ...], template: str, quant: str) -> tuple[Model, str]:
    """Add what the catalogue or the family knows about the model, and return a note if that is not certain.

    Hints beside the shape are names of the weights, their chat template, and the quantisation of the experts.
    """
    alike = [known for known in catalogue.models().values() if has_same_shape(model, known)]
    if alike:
        named = _named_model(alike, names)
        known = named or _likeliest_model(alike, template, quant)
        note = ""
        if not named and len(alike) > 1:
            others = [other for other in alike if other is not known]
            titles = ", ".join(other.title for other in others)
            note = (
                f"{model.name} has the shape of {known.title} (and of {titles}) and is treated as {known.title}: "
                f"put a name such as {others[0].repo.rpartition('/')[2]} into its path if it is another"
            )
        return replace(known, context=model.context, counted=model.counted, mtp_layers=model.mtp_layers), note
    family = find_family(model, template)
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
    reasons = not family.reasoning_marker or family.reasoning_marker in template
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

    texts = [*map(letters, names)]
    words = [(letters(word), known) for known in alike for word in (known.repo.rpartition("/")[2], known.name)]
    found = [(len(word), known) for word, known in words if word and any(word in text for text in texts)]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _likeliest_model(alike: list[Model], template: str, quant: str) -> Model:
    """Without a name: prefer models that reason like the template, then with the same quantisation, then the newest."""
    reasons = "<think>" in template

    def preference(known: Model) -> tuple[bool, bool, str]:
        checkpoints = catalogue.published_checkpoints(known.name)
        native = any(checkpoint.native and checkpoint.quant == quant for checkpoint in checkpoints)
        thinks = not template or bool(known.reasoning_parser) == reasons
        return thinks, native, known.released

    return max(alike, key=preference)
