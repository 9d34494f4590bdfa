"""What to say when nothing fits: how much is missing, and what would mend it."""

from collections.abc import Iterator
from dataclasses import replace

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.errors import BadInput, DoesNotFit, MoeboxError
from moebox.planner.candidates import SHORTER, START_UTILIZATION, Candidate, candidates, engines_for, forms
from moebox.planner.pins import Pins
from moebox.planner.weigh import Weighed, weigh
from moebox.sizing.constants import gibibytes
from moebox.units import count, gb, gib

ROUND = 2**34  # remedies name RAM in steps of 16 GiB


def problem(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, tried: list[Weighed]
) -> MoeboxError:
    """The error for a box that holds no candidate."""
    if not tried:
        return nothing_to_try(box, model, checkpoints, pins)
    have, asked = len(box.gpus) * box.nodes, min(one.recipe.parallel.gpus for one in tried)
    if asked > have and not tried[0].recipe.hybrid:
        text = f"tp {pins.tp or 1} × pp {pins.pp or 1} takes {asked} cards and {box.name} has {have}"
        return DoesNotFit(text, hint="smaller --tp or --pp, or none to let moebox choose")
    hint = "; ".join(list(remedies(box, model, checkpoints, pins, tried))[:3]) or None
    nearest = min(tried, key=lambda one: (one.memory.shortfall or 2**62, one.candidate.tier))
    short, recipe = nearest.memory.shortfall, nearest.recipe
    where = "RAM" if recipe.hybrid and _worst(nearest) == "ram" else "each card"
    if recipe.parallel.pp > 1 or (recipe.hybrid and where != "RAM"):
        where = "the fullest card"
    text = (
        f"{model.title} does not fit on {box.name}: the nearest ({recipe.engine}, {nearest.checkpoint.name}, "
        f"{_shape(nearest)}{count(recipe.context)} tokens) lacks {gb(short)} on {where}"
    )
    return DoesNotFit(text, shortfall=short, hint=hint)


def nothing_to_try(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> MoeboxError:
    """No candidate at all: no GPU, no form the engine reads, or no cut of the model over these cards."""
    serving = pins.engine is None or registry.traits(pins.engine).serves
    if not box.gpus and serving:
        name = pins.engine or "an engine that takes these settings"
        return DoesNotFit(f"{name} needs a GPU and {box.name} has none", hint=f"--engine {without_gpu()} runs on CPUs")
    engines = [name for group in engines_for(box, pins) for name in group]
    if not any(forms(checkpoints, name, pins) for name in engines):
        wanted, named = pins.checkpoint or "any known checkpoint", " and ".join(engines)
        does = "does" if len(engines) == 1 else "do"
        return BadInput(f"{named} {does} not read {wanted} of {model.name}", hint=_readers(checkpoints, pins))
    cut = ", ".join(f"--{name} {getattr(pins, name)}" for name in ("tp", "pp", "ep", "dcp") if getattr(pins, name))
    text = f"{model.title} cannot be cut that way: {cut or 'no layout'} over {len(box.gpus)} cards"
    heads, moe = model.attention.heads, model.moe
    experts = f", {moe.experts} experts by ep, which is 1 or tp" if moe else ""
    return BadInput(text, hint=f"{heads} attention heads must divide by tp{experts}, and tp by dcp")


def remedies(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, tried: list[Weighed]
) -> Iterator[str]:
    """The nearest things that would make it fit, the cheapest first."""
    if pins.context:
        shorter = _longest_that_fits(box, model, checkpoints, pins)
        if shorter:
            yield f"--context {shorter} fits"
    if pins.memory_utilization:
        freed = replace(pins, memory_utilization=None)
        if any(one.memory.fits for one in weigh(box, model, every(box, model, checkpoints, freed), freed)):
            yield f"--memory-utilization {START_UTILIZATION} fits"
    smaller = _smaller_form(box, model, checkpoints, pins)
    if smaller and not any(one.checkpoint == smaller for one in tried):
        yield f"--checkpoint {smaller.name} ({gb(smaller.bytes)}) fits"
    if box.gpus:
        more = _more_cards(box, model, checkpoints, pins)
        if more:
            yield more
    ram = _ram_needed(box, tried)
    if ram:
        have = gib(box.ram) if box.ram else "none declared"
        yield f"{gib(ram)} of RAM for the experts (--ram; {have}) with ik_llama.cpp or llama.cpp"
    elif not box.gpus and not box.ram:
        yield "say how much RAM there is with --ram"


def _longest_that_fits(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> int:
    """The longest of the usual contexts that some candidate holds; 0 when none."""
    for size in (model.context, *SHORTER):
        if size < min(pins.context or 0, model.context + 1):
            found = every(box, model, checkpoints, replace(pins, context=size))
            if any(one.memory.fits for one in weigh(box, model, found, pins)):
                return size
    return 0


def _smaller_form(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> Checkpoint | None:
    """The largest form that fits when the engine and the checkpoint are free."""
    free = replace(pins, checkpoint=None, engine=None, kv=None, memory_utilization=None, experts=None)
    tried = weigh(box, model, every(box, model, checkpoints, free), free)
    fitting = [one.checkpoint for one in tried if one.memory.fits]
    return max(fitting, key=lambda one: one.bytes, default=None)


def _more_cards(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> str:
    """How many such cards would do, when fewer than 65 do."""
    card = box.gpus[0]
    if (pins.engine and registry.traits(pins.engine).offloads) or pins.experts or pins.memory_utilization:
        return ""
    engine = next(traits.name for traits in registry.all_traits() if traits.serves)
    free = replace(pins, tp=None, pp=None, dcp=None, ep=None, context=pins.context or 8192, engine=engine)
    for number in (len(box.gpus) + 1, 2, 4, 8, 16, 32, 64):
        if number <= len(box.gpus):
            continue
        larger = replace(box, gpus=(card,) * number, name=f"{number}x-{card.name}")
        tried = weigh(larger, model, every(larger, model, checkpoints, free), free)
        if any(one.memory.fits for one in tried):
            extra = number - len(box.gpus)
            return f"{extra} more {card.title}: {number} hold it"
    return ""


def _ram_needed(box: Box, tried: list[Weighed]) -> int:
    """RAM with which the smallest hybrid tried would fit; 0 when RAM is not what lacks."""
    needs = [
        one.memory.devices[-1].total - one.memory.devices[-1].free
        for one in tried
        if one.recipe.hybrid and all(device.free >= 0 for device in one.memory.devices[:-1])
    ]
    smallest = min((need for need in needs if need > box.ram), default=0)
    return -(-(smallest + gibibytes("llama", "margin")) // ROUND) * ROUND if smallest else 0


def every(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> Iterator[Candidate]:
    """Candidates of all engines."""
    for engines in engines_for(box, pins):
        yield from candidates(box, model, checkpoints, pins, engines)


def without_gpu() -> str:
    """The first engine that runs on a CPU alone and everywhere."""
    able = [traits.name for traits in registry.all_traits() if traits.without_gpu and not traits.not_on]
    return able[0]


def _worst(one: Weighed) -> str:
    return min(one.memory.devices, key=lambda device: device.free).device


def _shape(one: Weighed) -> str:
    parallel = one.recipe.parallel
    if one.recipe.hybrid:
        return ""
    return f"TP{parallel.tp}" + (f"×PP{parallel.pp}" if parallel.pp > 1 else "") + ", "


def _readers(checkpoints: tuple[Checkpoint, ...], pins: Pins) -> str:
    """Which engines read the checkpoint that was asked for, or which forms the engine would."""
    if pins.checkpoint:
        free = replace(pins, engine=None)
        readers = [name for name in registry.names() if forms(checkpoints, name, free)]
        return f"it is read by {' and '.join(readers)}"
    return f"known forms: {', '.join(sorted({one.name for one in checkpoints}))}"
