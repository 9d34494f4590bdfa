"""What runs are called in a report: as short as tells them apart."""

import re
from collections.abc import Sequence
from dataclasses import replace

from moebox.core import catalogue
from moebox.core.registry import titled
from moebox.errors import UnknownName
from moebox.report.record import RunRecord


def model_title(name: str) -> str:
    """The catalogue's title for a model, or its name."""
    try:
        return catalogue.model(name).title
    except (UnknownName, FileNotFoundError):
        return name.rstrip("/").rpartition("/")[2]


def short_title(title: str) -> str:
    """A card's name without the words that all of its kind share."""
    return title.removeprefix("NVIDIA ").removesuffix(" Edition").replace(" Blackwell", "")


def cpu_title(model: str) -> str:
    """A processor's name without marks and filler."""
    return " ".join(re.sub(r"\((R|TM)\)| Processor\b| CPU\b", "", model).split())


def box_title(record: RunRecord) -> str:
    """The box in words: "8× RTX PRO 6000 Blackwell Server"."""
    box = record.box
    if not box:
        return ""
    if not box.gpus:
        return cpu_title(box.cpu.model) or box.name
    kinds: dict[str, int] = {}
    for gpu in box.gpus:
        kinds[gpu.title or gpu.name] = kinds.get(gpu.title or gpu.name, 0) + 1
    words = " + ".join(f"{count}× {short_title(title)}" for title, count in kinds.items())
    return f"{box.nodes} × ({words})" if box.nodes > 1 else words


def engine_title(record: RunRecord) -> str:
    """The engine with its version."""
    if not record.recipe:
        return ""
    name = titled(record.recipe.engine)
    return f"{name} {record.recipe.engine_version}".strip()


def quant_title(record: RunRecord) -> str:
    """The checkpoint's short form: its quantisation where the catalogue knows it, else the end of its name."""
    recipe = record.recipe
    if not recipe:
        return ""
    try:
        return catalogue.checkpoint(catalogue.model(recipe.model).name, recipe.checkpoint).quant
    except (UnknownName, FileNotFoundError, KeyError, AssertionError):
        return recipe.checkpoint.rstrip("/").rpartition("/")[2]


def spread_title(record: RunRecord) -> str:
    """How the model is spread: "TP8", "TP8 DCP8", "TP8 PP2"."""
    recipe = record.recipe
    if not recipe:
        return ""
    words = [
        f"{name.upper()}{getattr(recipe.parallel, name)}"
        for name in ("tp", "pp", "dp", "dcp")
        if getattr(recipe.parallel, name) > 1
    ]
    return " ".join(words + (["EP"] if recipe.parallel.ep else []))


def features(record: RunRecord) -> list[str]:
    """What tells one run from another, the most telling first."""
    recipe = record.recipe
    if not recipe:
        return [record.id]
    draft = recipe.speculate.method.upper() if recipe.speculate else ""
    return [
        model_title(recipe.model),
        quant_title(record),
        titled(recipe.engine),
        box_title(record),
        spread_title(record),
        f"KV {recipe.kv}" if recipe.kv != "auto" else "",
        draft or "no draft",
        f"{recipe.context // 1024}k",
        recipe.engine_version,
    ]


def labelled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records with labels that tell them apart: given ones kept, others made of what differs."""
    table = [features(record) for record in records]
    width = min((len(row) for row in table), default=0)
    differs = [place for place in range(width) if len({row[place] for row in table}) > 1]
    made = []
    for record, row in zip(records, table, strict=True):
        words = [row[place] for place in differs[:3] if row[place]] if len(records) > 1 else row[:3]
        made.append(record.label or " · ".join(word for word in words if word) or record.id)
    for place, label in enumerate(made):
        if made.count(label) > 1:
            made[place] = f"{label} ({records[place].id[-4:]})"
    return [replace(record, label=label) for record, label in zip(records, made, strict=True)]
