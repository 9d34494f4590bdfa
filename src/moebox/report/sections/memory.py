"""Where every byte of every device went: planned beside measured."""

from collections.abc import Sequence

from moebox import units
from moebox.core.recipe import Recipe
from moebox.errors import MoeboxError
from moebox.report.bars import PLACES, collapse
from moebox.report.bars import memory as draw
from moebox.report.block import Block, Cell, Chart, Charts, Key, Section, Table, cell, columns, words
from moebox.report.palette import colour
from moebox.report.sections.models import model_of
from moebox.report.story import Device, Story
from moebox.report.words import DASH, change, gib

WEIGHTS = ("weights", "experts", "attention", "other weights", "vision", "draft")


def section(stories: Sequence[Story]) -> Section | None:
    """Cards in one drawing, host memory in another (their scales differ), and one table of the sums."""
    rows = [row for story in stories for row in bars(story, alone=len(stories) == 1)]
    if not rows:
        return None
    gpus = any(story.box and story.box.gpus for story in stories)
    groups = (("Memory per GPU" if gpus else "As the engine reports it", False), ("Host memory", True))
    charts = []
    for title, host in groups:
        some = [row for row in rows if (row[2].name == "ram") == host]
        svg = draw(some, label=f"{title} by part")
        if svg:
            charts.append(Chart(title=title, svg=svg, legend=legend(some), wide=True))
    blocks: tuple[Block, ...] = (Charts(charts=tuple(charts)), table(stories))
    return Section(id="memory", title="Memory", lead=lead(stories), blocks=blocks)


def legend(rows: Sequence[tuple[str, str, Device]]) -> tuple[Key, ...]:
    """Keys for the parts that are drawn."""
    parts = {name for _, _, device in rows for name in device.parts}
    return tuple(Key(name=name, colour=PLACES.get(name, 7), family="m") for name in PLACES if name in parts)


def bars(story: Story, *, alone: bool) -> list[tuple[str, str, Device]]:
    """A run's bars: each group of devices planned, then as the engine reported it."""
    planned = collapse(story.planned.devices) if story.planned else []
    real = collapse(story.real)
    heading = "" if alone else f"{story.label}: "
    if len(real) == len(planned) == 1:
        name = heading + planned[0][0]
        return [(name, "planned", planned[0][1]), (name, "measured", real[0][1])]
    rows = [(heading + name, "planned", device) for name, device in planned]
    return rows + [(heading + name, "measured", device) for name, device in real]


def table(stories: Sequence[Story]) -> Table:
    """Weights, KV and room of the fullest device, and the cache in tokens, planned against measured."""
    rows = []
    for index, story in enumerate(stories):
        planned = story.planned.devices if story.planned else ()
        for kind, devices, tokens in (
            ("planned", planned, story.planned.kv_tokens if story.planned else None),
            ("measured", story.real, story.kv_tokens),
        ):
            if devices or tokens:
                rows.append(line(story, index, kind, devices, tokens))
    notes = list(dict.fromkeys(story.real_note for story in stories if story.real_note))
    heads = ("Run", "Source", "Weights", "KV cache", "Room left", "KV capacity, tokens", "Requests at full context")
    return Table(
        caption=fullest_title(stories), columns=columns(*heads, text=(0, 1)), rows=tuple(rows), note=" ".join(notes)
    )


def fullest_title(stories: Sequence[Story]) -> str:
    """What the table's rows are of."""
    return "The fullest GPU" if any(story.box and story.box.gpus for story in stories) else "Host memory"


def line(story: Story, index: int, kind: str, devices: Sequence[Device], tokens: float | None) -> tuple[Cell, ...]:
    """One row: the fullest GPU counts; host memory stands only where there is no GPU at all."""
    gpus = [device for device in devices if device.name != "ram"]
    if not gpus and not (story.box and story.box.gpus):
        gpus = list(devices)
    fullest = max(gpus, key=used, default=None)
    kv = fullest.parts.get("KV cache") if fullest else None
    free = room(fullest) if fullest else None
    context = story.recipe.context if story.recipe else 0
    return (
        words(story.label, colour=colour(index)),
        words(kind),
        size(weights(fullest) if fullest else None),
        size(kv),
        size(free),
        cell(tokens, digits=0),
        cell(tokens / context if tokens and context else None, digits=1),
    )


def weights(device: Device) -> float:
    """Bytes of all weights on a device."""
    return sum(device.parts.get(name, 0.0) for name in WEIGHTS)


def used(device: Device) -> float:
    """Bytes that something holds."""
    return sum(size for name, size in device.parts.items() if name not in ("free", "unused"))


def room(device: Device) -> float:
    """Bytes that nothing uses."""
    return device.parts.get("free", 0.0) + device.parts.get("unused", 0.0)


def size(value: float | None) -> Cell:
    """Bytes as GiB."""
    return Cell(text=gib(value) if value else DASH, value=value)


def bytes_per_token(recipe: Recipe | None) -> float | None:
    """What one cached token costs on each card, where model and type are known."""
    known = model_of(recipe.model) if recipe else None
    if not recipe or not known:
        return None
    kv = "bf16" if recipe.kv == "auto" else recipe.kv
    try:
        return known.kv_bytes_per_token(kv) / recipe.parallel.dcp
    except (KeyError, MoeboxError, AssertionError):
        return None


def lead(stories: Sequence[Story]) -> str:
    """How far plan and engine agree."""
    said = []
    for story in stories:
        expected, seen = story.planned.kv_tokens if story.planned else None, story.kv_tokens
        if expected and seen:
            name = "" if len(stories) == 1 else f"{story.label}: "
            said.append(
                f"{name}the plan promised {units.count(expected)} tokens of KV cache, the engine has "
                f"{units.count(seen)} ({change(seen / expected - 1)})."
            )
    text = " ".join(said)
    return f"{text[:1].upper()}{text[1:]}" if len(stories) == 1 else text
