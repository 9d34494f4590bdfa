"""Names of runs, models, boxes and engines in a report, as short as possible."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from moebox.core import catalogue
from moebox.core.model import Checkpoint
from moebox.core.recipe import Recipe
from moebox.core.registry import engine_display_name
from moebox.errors import MoeboxError
from moebox.runs.record import RunRecord

LABEL_PARTS = 3  # features in a label at most


def find_checkpoint(recipe: Recipe) -> Checkpoint | None:
    """The catalogue's entry of a recipe's checkpoint, or None."""
    try:
        return catalogue.find_checkpoint(catalogue.find_model(recipe.model).name, recipe.checkpoint)
    except (MoeboxError, FileNotFoundError, KeyError, AssertionError):
        return None


def model_title(name: str) -> str:
    """The catalogue's title of a model, or its name."""
    model = catalogue.get_model(name)
    return model.title if model else name.rstrip("/").rpartition("/")[2]


def cpu_title(model: str) -> str:
    """A processor's name without trademarks and filler words."""
    return " ".join(re.sub(r"\((R|TM)\)| Processor\b| CPU\b", "", model).split())


def box_title(record: RunRecord) -> str:
    """ "8× RTX PRO 6000 Blackwell Server"; "" if the box is unknown."""
    box = record.box
    if not box:
        return ""
    kinds = Counter(gpu.short_title or gpu.name for gpu in box.gpus)
    gpus = " + ".join(f"{count}× {title}" for title, count in kinds.items())
    title = gpus or cpu_title(box.cpu.model) or box.name
    return f"{box.nodes} × ({title})" if box.gpus and box.nodes > 1 else title


def engine_title(record: RunRecord) -> str:
    recipe = record.recipe
    return f"{engine_display_name(recipe.engine)} {recipe.engine_version}".strip() if recipe else ""


def quant_title(record: RunRecord) -> str:
    """The checkpoint's quantisation, or the end of its name if the catalogue does not know it."""
    if not record.recipe:
        return ""
    checkpoint = find_checkpoint(record.recipe)
    return checkpoint.quant if checkpoint else record.recipe.checkpoint.rstrip("/").rpartition("/")[2]


def parallelism_title(record: RunRecord) -> str:
    """ "TP8", "TP8 DCP8", "TP8 PP2"; "" for a model on one device."""
    if not record.recipe:
        return ""
    parallel = record.recipe.parallel
    sizes = {name: getattr(parallel, name) for name in ("tp", "pp", "dp", "dcp")}
    parts = [f"{name.upper()}{size}" for name, size in sizes.items() if size > 1]
    return " ".join(parts + (["EP"] if parallel.ep else []))


def placement_title(record: RunRecord, *, single_gpu: str) -> str:
    """Where a model lies that is not split over GPUs; `single_gpu` names a single GPU."""
    hybrid = record.recipe.hybrid if record.recipe else None
    if record.has_no_gpu or (hybrid and hybrid.gpu_layers == 0):
        return "CPU"
    return "CPU + GPU" if hybrid else single_gpu


def label_parts(record: RunRecord) -> list[str]:
    """Features that distinguish runs, the most important first."""
    recipe = record.recipe
    if not recipe:
        return [record.id]
    return [
        model_title(recipe.model),
        quant_title(record),
        engine_display_name(recipe.engine),
        box_title(record),
        parallelism_title(record),
        f"KV {recipe.kv}" if recipe.kv != "auto" else "",
        recipe.speculate.method.upper() if recipe.speculate else "no draft",
        f"{recipe.context // 1024}k" if recipe.context else "the model's context",
        recipe.engine_version,
    ]


def label_runs(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records with distinct labels: given ones, else of the first features that differ ("Kimi K2.6 · int4 · vLLM").

    A page of one run shows no label.
    """
    rows = [*map(label_parts, records)]
    shared = range(min(map(len, rows), default=0))
    places = [place for place in shared if len(rows) == 1 or len({row[place] for row in rows}) > 1][:LABEL_PARTS]
    labels = [
        record.label or " · ".join(row[place] for place in places if row[place]) or record.id
        for record, row in zip(records, rows, strict=True)
    ]
    counts = Counter(labels)
    named = []
    for record, label in zip(records, labels, strict=True):
        text = f"{label} ({record.id[-4:]})" if counts[label] > 1 else label
        named.append(replace(record, label=text, page_label="" if len(records) == 1 else text))
    return named
