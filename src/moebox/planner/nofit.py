"""What to say when nothing fits: how much is missing, and what would fix it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.errors import BadInput, DoesNotFit, MoeboxError
from moebox.planner.candidates import SHORTER, START_UTILIZATION, Candidate, candidates, cannot_run, engines_for, forms
from moebox.planner.pins import Pins
from moebox.planner.prefer import LEAST_BITS
from moebox.planner.weigh import Weighed, weigh
from moebox.sizing.constants import gibibytes
from moebox.units import count, gb, gib

ROUND = 2**34  # remedies name RAM in steps of 16 GiB
MOST_RAM = 2**42  # no host has more


def problem(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, tried: list[Weighed]
) -> MoeboxError:
    """The error for a box that holds no candidate."""
    if not tried:
        return nothing_to_try(box, model, checkpoints, pins)
    have, asked = len(box.gpus) * box.nodes, min(one.recipe.parallel.gpus for one in tried)
    if asked > have and not tried[0].recipe.hybrid:
        groups = f" × dp {pins.dp}" if pins.dp else ""
        text = f"tp {pins.tp or 1} × pp {pins.pp or 1}{groups} takes {asked} GPUs and {box.name} has {have}"
        return DoesNotFit(text, hint="smaller --tp, --pp or --dp, or none to let moebox choose")
    hint = "; ".join(list(remedies(box, model, checkpoints, pins, tried))[:3]) or None
    nearest = min(tried, key=lambda one: (one.memory.shortfall or 2**62, one.candidate.tier))
    short, recipe = nearest.memory.shortfall, nearest.recipe
    where = "RAM" if recipe.hybrid and _worst(nearest).startswith("ram") else "each GPU"
    if recipe.parallel.pp > 1 or (recipe.hybrid and where != "RAM"):
        where = "the fullest GPU"
    place = f"on {box.name}" if box.gpus else "here without a GPU"
    text = (
        f"{model.title} does not fit {place}: the nearest ({recipe.engine}, {nearest.checkpoint.name}, "
        f"{_shape(nearest)}{count(recipe.context)} tokens) lacks {gb(short)} {'of' if where == 'RAM' else 'on'} {where}"
    )
    return DoesNotFit(text, shortfall=short, hint=hint)


def _without(pins: Pins) -> str:
    """What to do without a GPU: no engine that runs on CPUs takes the pins that only serving engines have."""
    other = "--box plans for another box, such as 8x-rtx-pro-6000-server"
    return other if pins.serving or pins.image else f"--engine {without_gpu()} runs on CPUs; {other}"


def nothing_to_try(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> MoeboxError:
    """No candidate at all: no GPU, no form the engine reads, or no cut of the model over these GPUs."""
    serving = pins.engine is None or registry.traits(pins.engine).serves
    if not box.gpus and serving:
        name = pins.engine or "an engine that takes these settings"
        return DoesNotFit(f"{name} needs a GPU, and there is none", hint=_without(pins))
    engines = [name for group in engines_for(box, pins) for name in group]
    if not any(forms(checkpoints, name, pins) for name in engines):
        wanted, named = pins.checkpoint or "any known checkpoint", " and ".join(engines)
        does = "does" if len(engines) == 1 else "do"
        return BadInput(f"{named} {does} not read {wanted} of {model.name}", hint=_readers(checkpoints, pins))
    excluded = [cannot_run(name, box, model) for name in engines]
    if all(excluded) and not pins.engine:
        return DoesNotFit(f"{model.title} does not run on {box.name}: {'; '.join(excluded)}")
    cut = ", ".join(
        f"--{name} {getattr(pins, name)}" for name in ("tp", "pp", "dp", "ep", "dcp") if getattr(pins, name)
    )
    text = f"{model.title} cannot be cut that way: {cut or 'no layout'} over {len(box.gpus)} GPUs"
    heads, moe = model.attention.heads, model.moe
    experts = f", {moe.experts} experts by ep, which is 1 or tp × dp" if moe else ""
    return BadInput(text, hint=f"{heads} attention heads must divide by tp{experts}, and tp by dcp")


def remedies(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, tried: list[Weighed]
) -> Iterator[str]:
    """The nearest things that would make it fit, what costs least first: asking for less, another form, RAM, GPUs."""
    fits = partial(_fits, box, model, checkpoints)
    shorter = next((size for size in _shorter(model, pins) if fits(replace(pins, context=size))), 0)
    if shorter:
        yield f"--context {shorter} fits"
    fewer = next((number for number in _fewer(pins) if fits(replace(pins, concurrency=number))), 0)
    if fewer:
        yield f"--concurrency {fewer} fits"
    if pins.memory_utilization and fits(replace(pins, memory_utilization=None)):
        yield f"--memory-utilization {START_UTILIZATION} fits"
    form = _other_form(box, model, checkpoints, pins, tried)
    if form:
        seen = ", a file not verified to exist" if form.unverified else ""
        yield f"--checkpoint {form.name} ({gb(form.bytes)}{seen}) fits"
    ram = _ram_needed(box, model, checkpoints, pins)
    if ram:
        yield ram
    elif not box.gpus and not box.ram:
        yield "say how much RAM there is with --ram"
    if box.gpus:
        more = _more_gpus(box, model, checkpoints, pins)
        if more:
            yield more


def _fits(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> bool:
    """Whether some candidate within `pins` fits; stops at the first."""
    for candidate in every(box, model, checkpoints, pins):
        if weigh(box, model, [candidate], pins)[0].memory.fits:
            return True
    return False


def _shorter(model: Model, pins: Pins) -> Iterator[int]:
    """Usual contexts below the one asked for, longest first."""
    if pins.context:
        yield from (size for size in (model.context, *SHORTER) if size < min(pins.context, model.context + 1))


def _fewer(pins: Pins) -> Iterator[int]:
    """Fewer requests at a time, most first."""
    number = (pins.concurrency or 1) // 2
    while number >= 1:
        yield number
        number //= 2


def _other_form(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, tried: list[Weighed]
) -> Checkpoint | None:
    """The largest form that fits when engine and checkpoint are free; one nobody has seen where no other does."""
    free = replace(pins, checkpoint=None, engine=None, kv=None, memory_utilization=None, experts=None)
    weighed = weigh(box, model, every(box, model, checkpoints, free), free)
    fitting = [one.checkpoint for one in weighed if one.memory.fits]
    found = max(fitting, key=lambda one: one.bytes, default=None)
    if found is not None:
        return None if any(one.checkpoint == found for one in tried) else found
    unseen = sorted((form for form in checkpoints if form.unverified), key=lambda form: -form.bytes)
    enough = (form for form in unseen if form.bits_per_weight(model) >= LEAST_BITS)
    return next(
        (form for form in enough if _fits(box, model, (form,), replace(free, checkpoint=form.name))),
        None,
    )


def _more_gpus(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> str:
    """How many such GPUs would do, when fewer than 65 do."""
    gpu = box.gpus[0]
    if (pins.engine and registry.traits(pins.engine).offloads) or pins.experts or pins.memory_utilization:
        return ""
    engine = next(traits.name for traits in registry.all_traits() if traits.serves)
    free = replace(pins, tp=None, pp=None, dp=None, dcp=None, ep=None, context=pins.context or 8192, engine=engine)
    for number in (len(box.gpus) + 1, 2, 4, 8, 16, 32, 64):
        if number <= len(box.gpus):
            continue
        larger = replace(box, gpus=(gpu,) * number, name=f"{number}x-{gpu.name}")
        if _fits(larger, model, checkpoints, free):
            return f"it fits on {number}x {gpu.title}"
    return ""


def _ram_needed(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> str:
    """How much RAM beside these GPUs would do, with what; "" when RAM is not what lacks or the engine uses none."""
    if pins.serving or (pins.engine and not registry.traits(pins.engine).offloads):
        return ""
    roomy = replace(box, ram=MOST_RAM, ram_free=None)
    sharing = [
        traits.name for traits in registry.all_traits() if traits.offloads and pins.engine in (None, traits.name)
    ]
    found = weigh(roomy, model, candidates(roomy, model, checkpoints, pins, tuple(sharing)), pins)
    able = [one for one in found if one.memory.fits and not one.refused and _ram_of(one) > box.ram]
    good = [one for one in able if one.checkpoint.bits_per_weight(model) >= LEAST_BITS] or able
    if not good:
        return ""
    nearest = min(good, key=_ram_of)
    size = -(-(_ram_of(nearest) + gibibytes("llama", "margin")) // ROUND) * ROUND
    here = "on this GPU" if len(box.gpus) == 1 else "on these GPUs" if box.gpus else "here"
    have = f"{gib(box.ram)} is there" if box.ram else "none was declared"
    form = f"{nearest.checkpoint.name} under {registry.titled(nearest.recipe.engine)}"
    return f"--ram {size // 2**30}GiB: with that much RAM {form} fits {here} ({have})"


def _ram_of(weighed: Weighed) -> int:
    ram = weighed.memory.devices[-1]
    return ram.total - ram.free


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
    return f"{parallel.text}, "


def _readers(checkpoints: tuple[Checkpoint, ...], pins: Pins) -> str:
    """Which engines read the checkpoint that was asked for, or which forms the engine would."""
    if pins.checkpoint:
        free = replace(pins, engine=None)
        readers = [name for name in registry.names() if forms(checkpoints, name, free)]
        return f"it is read by {' and '.join(readers)}"
    return f"known forms: {', '.join(sorted({one.name for one in checkpoints}))}"
