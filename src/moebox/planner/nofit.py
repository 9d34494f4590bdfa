"""What to say when nothing fits: how much is missing, and what would fix it."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from moebox.core import registry
from moebox.core.box import Box, in_nodes
from moebox.core.model import Checkpoint, Model, written
from moebox.core.recipe import EngineName, Recipe
from moebox.core.traits import Traits
from moebox.errors import BadInput, DoesNotFit, MoeboxError
from moebox.planner.candidates import LEAST_BITS, SHORTER, candidates, cannot_run, engines_for, forms
from moebox.planner.pins import SIZES, Pins, serving, sharing
from moebox.planner.weigh import Weighed, claiming_enough, weigh
from moebox.units import count, gb, gib

ROUND = 2**34  # remedies name RAM in steps of 16 GiB
MOST_RAM = 2**42  # no host has more
LEAST_CONTEXT = 8192  # tokens, where a larger box is looked for and nobody asked for more
LARGER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of GPUs that boxes come with
FREED = {
    "--engine": "engine",
    "--kv": "kv",
    "--memory-utilization": "memory_utilization",
    "--experts-on-gpu": "experts",
}
# Settings that may be what keeps everything from starting.
PINNED = {
    "--engine": "engine",
    "--kv": "kv",
    "--image": "image",
    "--checkpoint": "checkpoint",
    "--speculate": "speculate",
    "--tp": "tp",
    "--pp": "pp",
    "--dp": "dp",
    "--ep": "ep",
    "--dcp": "dcp",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: a model in some forms, on a box, within pins."""

    box: Box
    model: Model
    checkpoints: tuple[Checkpoint, ...]
    pins: Pins

    def within(self, **pins: object) -> "Asked":
        """The same with other pins."""
        return replace(self, pins=replace(self.pins, **pins))  # type: ignore[arg-type]

    def weighed(self) -> Iterator[Weighed]:
        """Candidates of all engines, each weighed when it is looked at."""
        engines = engines_for(self.box, self.pins)
        for candidate in candidates(self.box, self.model, self.checkpoints, self.pins, engines):
            yield from map(claiming_enough, weigh(self.box, self.model, [candidate], self.pins))

    def fitting(self) -> Iterator[Weighed]:
        """Those that fit and start."""
        return (weighed for weighed in self.weighed() if weighed.able)

    @property
    def fits(self) -> bool:
        """Whether one does; stops at the first."""
        return next(self.fitting(), None) is not None

    @property
    def offloads(self) -> bool:
        """Whether an engine that keeps experts in RAM may be meant."""
        return not self.pins.engine or registry.traits(self.pins.engine).offloads

    @property
    def gpus(self) -> int:
        """How many there are, in all nodes."""
        return len(self.box.gpus) * self.box.nodes

    @property
    def serves(self) -> bool:
        """Whether an engine that serves from GPUs alone may be meant."""
        return not self.pins.engine or registry.traits(self.pins.engine).serves


def problem(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, tried: list[Weighed]
) -> MoeboxError:
    """The error for a box that holds no candidate."""
    asked = Asked(box, model, checkpoints, pins)
    if not tried:
        return nothing_to_try(asked)
    least = min(one.recipe.parallel.gpus for one in tried)
    if least > asked.gpus and not tried[0].recipe.hybrid:
        return _too_few_gpus(asked, least)
    refused = _refused(tried)
    if refused:
        hint = _first(itertools.chain(_without_pins(asked), remedies(asked, tried)))
        return DoesNotFit(f"{model.title} does not run on {box.name}{_as_pinned(pins)}: {refused}", hint=hint)
    nearest = min(tried, key=lambda one: (one.memory.shortfall or 2**62, one.candidate.tier))
    shortfall = nearest.memory.shortfall
    return DoesNotFit(_lacking(asked, nearest), shortfall=shortfall, hint=_first(remedies(asked, tried)))


def _first(ways: Iterator[str]) -> str | None:
    """As many of them as a person reads."""
    return "; ".join(itertools.islice(ways, 3)) or None


def _too_few_gpus(asked: Asked, least: int) -> BadInput:
    """What is pinned takes more GPUs than there are."""
    pins = asked.pins
    groups = f" × dp {pins.dp}" if pins.dp else ""
    layout = f"tp {pins.tp or 1} × pp {pins.pp or 1}{groups}"
    text = f"{layout} takes {least} GPUs and {asked.box.name} has {asked.gpus}"
    return BadInput(text, hint="smaller --tp, --pp or --dp, or none to let moebox choose")


def _refused(tried: list[Weighed]) -> str:
    """Why what would fit does not start, or why nothing would even if it did fit; "" where memory is what lacks."""
    fitting = [one for one in tried if one.memory.fits] or tried
    return fitting[0].refused if all(one.refused for one in fitting) else ""


def _given(pins: Pins, among: Mapping[str, str]) -> dict[str, str]:
    """Those of these pins that are set, flag to field."""
    return {flag: field for flag, field in among.items() if getattr(pins, field) is not None}


def _as_pinned(pins: Pins) -> str:
    """The pins, as what is said of them begins."""
    shown = " ".join(f"{flag} {getattr(pins, field)}" for flag, field in _given(pins, PINNED).items())
    return f" with {shown}" if shown else ""


def _without_pins(asked: Asked) -> Iterator[str]:
    """The one pin, or all of them, without which something starts."""
    given = _given(asked.pins, PINNED)
    enough = [flag for flag, field in given.items() if asked.within(**{field: None}).fits]
    if enough:
        yield f"it runs without {' or without '.join(enough)}"
    elif len(given) > 1 and asked.within(**dict.fromkeys(given.values())).fits:
        yield f"it runs without {' and '.join(given)}"


def _lacking(asked: Asked, nearest: Weighed) -> str:
    """How much the nearest candidate lacks, and where."""
    recipe = nearest.recipe
    place = f"on {asked.box.name}" if asked.box.gpus else "here without a GPU"
    shape, where = ("", _full_device(nearest)) if recipe.hybrid else (f"{recipe.parallel.text}, ", _full_gpu(recipe))
    return (
        f"{asked.model.title} does not fit {place}: the nearest ({recipe.engine}, {nearest.checkpoint.name}, "
        f"{shape}{count(recipe.context)} tokens) lacks {gb(nearest.memory.shortfall)} {where}"
    )


def _full_device(nearest: Weighed) -> str:
    """What lacks memory where GPUs and RAM share a model."""
    fullest = min(nearest.memory.devices, key=lambda device: device.free)
    return "of RAM" if fullest.device.startswith("ram") else "on the fullest GPU"


def _full_gpu(recipe: Recipe) -> str:
    """The same of GPUs alone: pipeline stages differ."""
    return "on the fullest GPU" if recipe.parallel.pp > 1 else "on each GPU"


def nothing_to_try(asked: Asked) -> MoeboxError:
    """No candidate at all: no GPU, no form the engine reads, or no cut of the model over these GPUs."""
    box, pins = asked.box, asked.pins
    if not box.gpus and asked.serves:
        name = pins.engine or "an engine that takes these settings"
        return DoesNotFit(f"{name} needs a GPU, and there is none", hint=_without_gpu(asked))
    engines = engines_for(box, pins)
    reading = [name for name in engines if forms(asked.checkpoints, name, pins)]
    if not reading:
        return _unread(asked, engines)
    excluded = [cannot_run(name, box, asked.model) for name in reading]
    if all(excluded) and not pins.engine:
        return DoesNotFit(f"{asked.model.title} does not run on {box.name}: {'; '.join(excluded)}")
    return _uncut(asked)


def _without_gpu(asked: Asked) -> str:
    """What to do without a GPU: no engine that runs on CPUs takes the pins that only serving engines have."""
    other = "--box plans for another box, such as 8x-rtx-pro-6000-server"
    if asked.pins.serving or asked.pins.image:
        return other
    able = next(traits for traits in registry.all_traits() if traits.without_gpu and not traits.not_on)
    if forms(asked.checkpoints, able.name, replace(asked.pins, engine=able.name)):
        return f"--engine {able.name} runs on CPUs; {other}"
    return f"{able.name} runs on CPUs, from a {written(*able.formats)} of the model; {other}"


def _unread(asked: Asked, engines: tuple[EngineName, ...]) -> MoeboxError:
    """No engine that may be meant reads a form that may be meant."""
    wanted, does = asked.pins.checkpoint or "any known checkpoint", "does" if len(engines) == 1 else "do"
    text = f"{' and '.join(engines)} {does} not read {wanted} of {asked.model.name}"
    return BadInput(text, hint=_readers(asked) if asked.pins.checkpoint else _readable(asked, engines))


def _readable(asked: Asked, engines: tuple[EngineName, ...]) -> str:
    """What engines read, and in what the model is there."""
    known = sorted({f"{form.name} ({written(form.format)})" for form in asked.checkpoints})
    read = written(*(kind for name in engines for kind in registry.traits(name).formats))
    return f"it reads {read}; known forms: {', '.join(known)}"


def _readers(asked: Asked) -> str:
    """The engines that read the form which is pinned."""
    free = replace(asked.pins, engine=None)
    readers = [name for name in registry.names() if forms(asked.checkpoints, name, free)]
    return f"it is read by {' and '.join(readers)}"


def _uncut(asked: Asked) -> MoeboxError:
    """Heads, experts or layers do not divide by what was pinned."""
    model = asked.model
    cut = ", ".join(f"{flag} {size}" for flag, size in asked.pins.sizes.items())
    experts = f", {model.moe.experts} experts by ep, which is 1 or tp × dp" if model.moe else ""
    return BadInput(
        f"{model.title} cannot be cut that way: {cut or 'no layout'} over {len(asked.box.gpus)} GPUs",
        hint=f"{model.attention.heads} attention heads must divide by tp{experts}, and tp by dcp",
    )


def remedies(asked: Asked, tried: list[Weighed]) -> Iterator[str]:
    """The nearest things that would make it fit, what costs least first: asking for less, another form, RAM, GPUs."""
    yield from _asking_less(asked)
    yield from _other_form(asked, tried)
    ram = _ram_needed(asked)
    if ram:
        yield ram
    elif not asked.box.gpus and not asked.box.ram:
        yield "say how much RAM there is with --ram"
    yield from _more_gpus(asked)


def _asking_less(asked: Asked) -> Iterator[str]:
    """The longest context, the most requests or the usual claim that fit, where more was asked for."""
    yield from _smaller(asked, "context", _shorter(asked))
    yield from _smaller(asked, "concurrency", _fewer(asked.pins))
    if asked.pins.memory_utilization:
        usual = (one.recipe.memory_utilization for one in asked.within(memory_utilization=None).fitting())
        yield from (f"--memory-utilization {share:g} fits" for share in itertools.islice(usual, 1) if share)


def _smaller(asked: Asked, pin: str, values: Iterator[int]) -> Iterator[str]:
    """The first value of a pin that fits."""
    fitting = (value for value in values if asked.within(**{pin: value}).fits)
    yield from (f"--{pin} {value} fits" for value in itertools.islice(fitting, 1))


def _shorter(asked: Asked) -> Iterator[int]:
    """Usual contexts below the one asked for, longest first."""
    longest = asked.model.context
    below = min(asked.pins.context or 0, longest + 1)
    return (size for size in (longest, *SHORTER) if size < below)


def _fewer(pins: Pins) -> Iterator[int]:
    """Fewer requests at a time, most first."""
    number = (pins.concurrency or 1) // 2
    while number >= 1:
        yield number
        number //= 2


def _other_form(asked: Asked, tried: list[Weighed]) -> Iterator[str]:
    """The largest form that fits, if need be without other pins; one nobody has seen where no other does."""
    given = _given(asked.pins, FREED)
    for freed in [{}, given] if given else [{}]:
        form = _largest_form(asked.within(checkpoint=None, **dict.fromkeys(freed.values())))
        if form and form not in [one.checkpoint for one in tried]:
            seen = ", a file not verified to exist" if form.unverified else ""
            without = f" without {' and '.join(freed)}" if freed else ""
            yield f"--checkpoint {form.name} ({gb(form.bytes)}{seen}) fits{without}"
            return


def _largest_form(asked: Asked) -> Checkpoint | None:
    """The largest form that fits, or one nobody has seen where no other does."""
    found = max((one.checkpoint for one in asked.fitting()), key=lambda form: form.bytes, default=None)
    return found or next((form for form in _unseen(asked) if _fits_as(asked, form)), None)


def _unseen(asked: Asked) -> Iterator[Checkpoint]:
    """Forms that nobody has verified to exist, the largest first, as far as they keep quality."""
    largest_first = sorted(asked.checkpoints, key=lambda form: -form.bytes)
    unseen = (form for form in largest_first if form.unverified)
    return (form for form in unseen if form.bits_per_weight(asked.model) >= LEAST_BITS)


def _fits_as(asked: Asked, form: Checkpoint) -> bool:
    return replace(asked.within(checkpoint=form.name), checkpoints=(form,)).fits


def _more_gpus(asked: Asked) -> Iterator[str]:
    """How many such GPUs would do, when fewer than 65 do."""
    box, pins = asked.box, asked.pins
    if not box.gpus or not asked.serves or pins.experts or pins.memory_utilization:
        return
    for number in LARGER[bisect_right(LARGER, asked.gpus) :]:
        engine = _serving_on(asked, number)
        if engine:
            yield f"it fits on {number}x {box.gpus[0].title} under {engine.title}"
            return


def _serving_on(asked: Asked, number: int) -> Traits | None:
    """The engine that serves from so many of these GPUs, however they are laid out."""
    free = asked.within(**dict.fromkeys(SIZES), context=asked.pins.context or LEAST_CONTEXT)
    larger = replace(free, box=_with_gpus(asked.box, number))
    engines = (asked.pins.engine,) if asked.pins.engine else serving()
    return next((registry.traits(name) for name in engines if larger.within(engine=name).fits), None)


def _with_gpus(box: Box, number: int) -> Box:
    """As many of its first GPU, in as many nodes as such GPUs come in."""
    gpu = box.gpus[0]
    return in_nodes(replace(box, gpus=(gpu,) * number, nodes=1, name=f"{number}x-{gpu.name}"))


def _ram_needed(asked: Asked) -> str:
    """How much RAM beside these GPUs would do, with what; "" when RAM is not what lacks or the engine uses none."""
    able = sorted(_with_ram(asked), key=_ram_of)
    if not able:
        return ""
    box, nearest = asked.box, able[0]
    better = next((one for one in able if one.checkpoint.bits_per_weight(one.model) >= LEAST_BITS), nearest)
    if _ram_size(better) == _ram_size(nearest):
        nearest = better
    here = ("here", "on this GPU", "on these GPUs")[min(len(box.gpus), 2)]
    have = f"{gib(box.ram)} is there" if box.ram else "none was declared"
    form = f"{nearest.checkpoint.name} under {registry.titled(nearest.recipe.engine)}"
    more = f", with {_ram_size(better)} {better.checkpoint.name}, which loses less" if better != nearest else ""
    return f"--ram {_ram_size(nearest)}: with that much RAM {form} fits {here} ({have}){more}"


def _ram_size(weighed: Weighed) -> str:
    """RAM that would do, as --ram takes it, in round steps."""
    size = -(-_ram_of(weighed) // ROUND) * ROUND
    return f"{size // 2**30}GiB"


def _with_ram(asked: Asked) -> list[Weighed]:
    """All that fits with more RAM."""
    box, pins = asked.box, asked.pins
    if pins.serving or not asked.offloads or box.unified:
        return []
    roomy = replace(box, ram=MOST_RAM, ram_free=None)
    engines = (pins.engine,) if pins.engine else sharing()
    found = weigh(roomy, asked.model, candidates(roomy, asked.model, asked.checkpoints, pins, engines), pins)
    return [one for one in found if _ram_of(one) > box.ram and one.able]


def _ram_of(weighed: Weighed) -> int:
    ram = weighed.memory.devices[-1]
    return ram.total - ram.free
