"""What runs are called in a report: as short as tells them apart."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from moebox.core import catalogue
from moebox.core.box import Gpu
from moebox.core.registry import engine_display_name
from moebox.errors import UnknownName
from moebox.report.record import RunRecord

LABEL = 3  # features that a label is made of at most


def model_title(name: str) -> str:
    """The catalogue's title for a model, or its name."""
    try:
        return catalogue.find_model(name).title
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
    words = gpus_title(box.gpus) or cpu_title(box.cpu.model) or box.name
    return f"{box.nodes} × ({words})" if box.gpus and box.nodes > 1 else words


def gpus_title(gpus: Sequence[Gpu]) -> str:
    """How many of each kind."""
    kinds = Counter(gpu.title or gpu.name for gpu in gpus)
    return " + ".join(f"{count}× {short_title(title)}" for title, count in kinds.items())


def engine_title(record: RunRecord) -> str:
    """The engine with its version."""
    if not record.recipe:
        return ""
    name = engine_display_name(record.recipe.engine)
    return f"{name} {record.recipe.engine_version}".strip()


def quant_title(record: RunRecord) -> str:
    """The checkpoint's short form: its quantisation where the catalogue knows it, else the end of its name."""
    recipe = record.recipe
    if not recipe:
        return ""
    try:
        return catalogue.find_checkpoint(catalogue.find_model(recipe.model).name, recipe.checkpoint).quant
    except (UnknownName, FileNotFoundError, KeyError, AssertionError):
        return recipe.checkpoint.rstrip("/").rpartition("/")[2]


def parallelism_title(record: RunRecord) -> str:
    """How the model is spread: "TP8", "TP8 DCP8", "TP8 PP2"."""
    recipe = record.recipe
    if not recipe:
        return ""
    sizes = {name: getattr(recipe.parallel, name) for name in ("tp", "pp", "dp", "dcp")}
    parts = [f"{name.upper()}{size}" for name, size in sizes.items() if size > 1]
    return " ".join(parts + (["EP"] if recipe.parallel.ep else []))


def label_parts(record: RunRecord) -> list[str]:
    """What tells one run from another, the most telling first."""
    recipe = record.recipe
    if not recipe:
        return [record.id]
    draft = recipe.speculate.method.upper() if recipe.speculate else ""
    return [
        model_title(recipe.model),
        quant_title(record),
        engine_display_name(recipe.engine),
        box_title(record),
        parallelism_title(record),
        f"KV {recipe.kv}" if recipe.kv != "auto" else "",
        draft or "no draft",
        f"{recipe.context // 1024}k" if recipe.context else "the model's context",
        recipe.engine_version,
    ]


def label_runs(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records with labels that tell them apart: given ones kept, others made of what differs."""
    rows = [label_parts(record) for record in records]
    places = telling(rows)
    labels = [record.label or label(row, places) or record.id for record, row in zip(records, rows, strict=True)]
    several = Counter(labels)
    return [
        told_apart(record, text, twice=several[text] > 1, alone=len(records) == 1)
        for record, text in zip(records, labels, strict=True)
    ]


def told_apart(record: RunRecord, label: str, *, twice: bool, alone: bool) -> RunRecord:
    """The record with its label, which a page shows where there are several runs."""
    text = f"{label} ({record.id[-4:]})" if twice else label
    return replace(record, label=text, page_label="" if alone else text)


def telling(rows: Sequence[Sequence[str]]) -> list[int]:
    """The features that go into a label: the first three, of several runs the first three that differ."""
    width = min(map(len, rows), default=0)
    if len(rows) == 1:
        return list(range(min(width, LABEL)))
    differing = [place for place in range(width) if len({row[place] for row in rows}) > 1]
    return differing[:LABEL]


def label(row: Sequence[str], places: Sequence[int]) -> str:
    """ "Kimi K2.6 · int4 · vLLM"."""
    return " · ".join(row[place] for place in places if row[place])


def placement_title(record: RunRecord, *, single_gpu: str) -> str:
    """Where a model that is not split over GPUs lies; `alone` is what the one GPU is called."""
    hybrid = record.recipe.hybrid if record.recipe else None
    if record.has_no_gpu:
        return "CPU"
    if hybrid is None:
        return single_gpu
    return "CPU" if hybrid.gpu_layers == 0 else "CPU + GPU"
