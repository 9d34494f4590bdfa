"""What to say when nothing fits: how much is missing, and what would fix it."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from moebox.core import registry
from moebox.core.box import Box, split_into_nodes
from moebox.core.model import Checkpoint, Model, format_names
from moebox.core.recipe import EngineName, Recipe
from moebox.core.traits import Traits
from moebox.errors import BadInput, DoesNotFit, MoeboxError
from moebox.planner.candidates import (
    LEAST_BITS,
    SHORTER_CONTEXTS,
    make_candidates,
    possible_engines,
    reason_to_skip,
    usable_checkpoints,
)
from moebox.planner.constraints import PARALLEL_SIZES, Constraints, gpu_only_engines, hybrid_engines
from moebox.planner.rate import RatedCandidate, raise_utilization, rate_candidates
from moebox.units import format_count, format_gb, format_gib

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
class FitQuery:
    """What was asked for: a model in some forms, on a box, within pins."""

    box: Box
    model: Model
    checkpoints: tuple[Checkpoint, ...]
    constraints: Constraints

    def with_constraints(self, **pins: object) -> "FitQuery":
        """The same with other pins."""
        return replace(self, constraints=replace(self.constraints, **pins))  # type: ignore[arg-type]

    def rated_candidates(self) -> Iterator[RatedCandidate]:
        """Candidates of all engines, each weighed when it is looked at."""
        engines = possible_engines(self.box, self.constraints)
        for candidate in make_candidates(self.box, self.model, self.checkpoints, self.constraints, engines):
            yield from map(raise_utilization, rate_candidates(self.box, self.model, [candidate], self.constraints))

    def viable_candidates(self) -> Iterator[RatedCandidate]:
        """Those that fit and start."""
        return (weighed for weighed in self.rated_candidates() if weighed.is_viable)

    @property
    def has_viable(self) -> bool:
        """Whether one does; stops at the first."""
        return next(self.viable_candidates(), None) is not None

    @property
    def allows_hybrid(self) -> bool:
        """Whether an engine that keeps experts in RAM may be meant."""
        return not self.constraints.engine or registry.engine_traits(self.constraints.engine).offloads_experts

    @property
    def gpu_count(self) -> int:
        """How many there are, in all nodes."""
        return len(self.box.gpus) * self.box.nodes

    @property
    def allows_gpu_only(self) -> bool:
        """Whether an engine that serves from GPUs alone may be meant."""
        return not self.constraints.engine or registry.engine_traits(self.constraints.engine).is_gpu_only


def no_fit_error(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Constraints, tried: list[RatedCandidate]
) -> MoeboxError:
    """The error for a box that holds no candidate."""
    asked = FitQuery(box, model, checkpoints, pins)
    if not tried:
        return no_candidate_error(asked)
    least = min(one.recipe.parallel.gpu_count for one in tried)
    if least > asked.gpu_count and not tried[0].recipe.hybrid:
        return _too_few_gpus(asked, least)
    refused = _refused(tried)
    if refused:
        hint = _first(itertools.chain(_without_pins(asked), suggest_remedies(asked, tried)))
        return DoesNotFit(f"{model.title} does not run on {box.name}{_as_pinned(pins)}: {refused}", hint=hint)
    nearest = min(tried, key=lambda one: (one.memory.shortfall or 2**62, one.candidate.tier))
    shortfall = nearest.memory.shortfall
    return DoesNotFit(_lacking(asked, nearest), shortfall=shortfall, hint=_first(suggest_remedies(asked, tried)))


def _first(ways: Iterator[str]) -> str | None:
    """As many of them as a person reads."""
    return "; ".join(itertools.islice(ways, 3)) or None


def _too_few_gpus(asked: FitQuery, least: int) -> BadInput:
    """What is pinned takes more GPUs than there are."""
    pins = asked.constraints
    groups = f" × dp {pins.dp}" if pins.dp else ""
    layout = f"tp {pins.tp or 1} × pp {pins.pp or 1}{groups}"
    text = f"{layout} takes {least} GPUs and {asked.box.name} has {asked.gpu_count}"
    return BadInput(text, hint="smaller --tp, --pp or --dp, or none to let moebox choose")


def _refused(tried: list[RatedCandidate]) -> str:
    """Why what would fit does not start, or why nothing would even if it did fit; "" where memory is what lacks."""
    fitting = [one for one in tried if one.memory.fits] or tried
    return fitting[0].fatal_issue if all(one.fatal_issue for one in fitting) else ""


def _given(pins: Constraints, among: Mapping[str, str]) -> dict[str, str]:
    """Those of these pins that are set, flag to field."""
    return {flag: field for flag, field in among.items() if getattr(pins, field) is not None}


def _as_pinned(pins: Constraints) -> str:
    """The pins, as what is said of them begins."""
    shown = " ".join(f"{flag} {getattr(pins, field)}" for flag, field in _given(pins, PINNED).items())
    return f" with {shown}" if shown else ""


def _without_pins(asked: FitQuery) -> Iterator[str]:
    """The one pin, or all of them, without which something starts."""
    given = _given(asked.constraints, PINNED)
    enough = [flag for flag, field in given.items() if asked.with_constraints(**{field: None}).has_viable]
    if enough:
        yield f"it runs without {' or without '.join(enough)}"
    elif len(given) > 1 and asked.with_constraints(**dict.fromkeys(given.values())).has_viable:
        yield f"it runs without {' and '.join(given)}"


def _lacking(asked: FitQuery, nearest: RatedCandidate) -> str:
    """How much the nearest candidate lacks, and where."""
    recipe = nearest.recipe
    place = f"on {asked.box.name}" if asked.box.gpus else "here without a GPU"
    shape, where = ("", _full_device(nearest)) if recipe.hybrid else (f"{recipe.parallel.text}, ", _full_gpu(recipe))
    return (
        f"{asked.model.title} does not fit {place}: the nearest ({recipe.engine}, {nearest.checkpoint.name}, "
        f"{shape}{format_count(recipe.context)} tokens) lacks {format_gb(nearest.memory.shortfall)} {where}"
    )


def _full_device(nearest: RatedCandidate) -> str:
    """What lacks memory where GPUs and RAM share a model."""
    fullest = min(nearest.memory.devices, key=lambda device: device.free)
    return "of RAM" if fullest.device.startswith("ram") else "on the fullest GPU"


def _full_gpu(recipe: Recipe) -> str:
    """The same of GPUs alone: pipeline stages differ."""
    return "on the fullest GPU" if recipe.parallel.pp > 1 else "on each GPU"


def no_candidate_error(asked: FitQuery) -> MoeboxError:
    """No candidate at all: no GPU, no form the engine reads, or no cut of the model over these GPUs."""
    box, pins = asked.box, asked.constraints
    if not box.gpus and asked.allows_gpu_only:
        name = pins.engine or "an engine that takes these settings"
        return DoesNotFit(f"{name} needs a GPU, and there is none", hint=_without_gpu(asked))
    engines = possible_engines(box, pins)
    reading = [name for name in engines if usable_checkpoints(asked.checkpoints, name, pins)]
    if not reading:
        return _unread(asked, engines)
    excluded = [reason_to_skip(name, box, asked.model) for name in reading]
    if all(excluded) and not pins.engine:
        return DoesNotFit(f"{asked.model.title} does not run on {box.name}: {'; '.join(excluded)}")
    return _uncut(asked)


def _without_gpu(asked: FitQuery) -> str:
    """What to do without a GPU: no engine that runs on CPUs takes the pins that only serving engines have."""
    other = "--box plans for another box, such as 8x-rtx-pro-6000-server"
    if asked.constraints.gpu_only_flag or asked.constraints.image:
        return other
    able = next(
        traits for traits in registry.all_traits() if traits.runs_without_gpu and not traits.unsupported_generations
    )
    if usable_checkpoints(asked.checkpoints, able.name, replace(asked.constraints, engine=able.name)):
        return f"--engine {able.name} runs on CPUs; {other}"
    return f"{able.name} runs on CPUs, from a {format_names(*able.formats)} of the model; {other}"


def _unread(asked: FitQuery, engines: tuple[EngineName, ...]) -> MoeboxError:
    """No engine that may be meant reads a form that may be meant."""
    wanted, does = asked.constraints.checkpoint or "any known checkpoint", "does" if len(engines) == 1 else "do"
    text = f"{' and '.join(engines)} {does} not read {wanted} of {asked.model.name}"
    return BadInput(text, hint=_readers(asked) if asked.constraints.checkpoint else _readable(asked, engines))


def _readable(asked: FitQuery, engines: tuple[EngineName, ...]) -> str:
    """What engines read, and in what the model is there."""
    known = sorted({f"{form.name} ({format_names(form.format)})" for form in asked.checkpoints})
    read = format_names(*(kind for name in engines for kind in registry.engine_traits(name).formats))
    return f"it reads {read}; known forms: {', '.join(known)}"


def _readers(asked: FitQuery) -> str:
    """The engines that read the form which is pinned."""
    free = replace(asked.constraints, engine=None)
    readers = [name for name in registry.engine_names() if usable_checkpoints(asked.checkpoints, name, free)]
    return f"it is read by {' and '.join(readers)}"


def _uncut(asked: FitQuery) -> MoeboxError:
    """Heads, experts or layers do not divide by what was pinned."""
    model = asked.model
    cut = ", ".join(f"{flag} {size}" for flag, size in asked.constraints.parallel_sizes.items())
    experts = f", {model.moe.experts} experts by ep, which is 1 or tp × dp" if model.moe else ""
    return BadInput(
        f"{model.title} cannot be cut that way: {cut or 'no layout'} over {len(asked.box.gpus)} GPUs",
        hint=f"{model.attention.heads} attention heads must divide by tp{experts}, and tp by dcp",
    )


def suggest_remedies(asked: FitQuery, tried: list[RatedCandidate]) -> Iterator[str]:
    """The nearest things that would make it fit, what costs least first: asking for less, another form, RAM, GPUs."""
    yield from _asking_less(asked)
    yield from _other_form(asked, tried)
    ram = _ram_needed(asked)
    if ram:
        yield ram
    elif not asked.box.gpus and not asked.box.ram:
        yield "say how much RAM there is with --ram"
    yield from _more_gpus(asked)


def _asking_less(asked: FitQuery) -> Iterator[str]:
    """The longest context, the most requests or the usual claim that fit, where more was asked for."""
    yield from _smaller(asked, "context", _shorter(asked))
    yield from _smaller(asked, "concurrency", _fewer(asked.constraints))
    if asked.constraints.memory_utilization:
        usual = (
            one.recipe.memory_utilization for one in asked.with_constraints(memory_utilization=None).viable_candidates()
        )
        yield from (f"--memory-utilization {share:g} fits" for share in itertools.islice(usual, 1) if share)


def _smaller(asked: FitQuery, pin: str, values: Iterator[int]) -> Iterator[str]:
    """The first value of a pin that fits."""
    fitting = (value for value in values if asked.with_constraints(**{pin: value}).has_viable)
    yield from (f"--{pin} {value} fits" for value in itertools.islice(fitting, 1))


def _shorter(asked: FitQuery) -> Iterator[int]:
    """Usual contexts below the one asked for, longest first."""
    longest = asked.model.context
    below = min(asked.constraints.context or 0, longest + 1)
    return (size for size in (longest, *SHORTER_CONTEXTS) if size < below)


def _fewer(pins: Constraints) -> Iterator[int]:
    """Fewer requests at a time, most first."""
    number = (pins.concurrency or 1) // 2
    while number >= 1:
        yield number
        number //= 2


def _other_form(asked: FitQuery, tried: list[RatedCandidate]) -> Iterator[str]:
    """The largest form that fits, if need be without other pins; one nobody has seen where no other does."""
    given = _given(asked.constraints, FREED)
    for freed in [{}, given] if given else [{}]:
        form = _largest_form(asked.with_constraints(checkpoint=None, **dict.fromkeys(freed.values())))
        if form and form not in [one.checkpoint for one in tried]:
            seen = ", a file not verified to exist" if form.unverified else ""
            without = f" without {' and '.join(freed)}" if freed else ""
            yield f"--checkpoint {form.name} ({format_gb(form.total_bytes)}{seen}) fits{without}"
            return


def _largest_form(asked: FitQuery) -> Checkpoint | None:
    """The largest form that fits, or one nobody has seen where no other does."""
    found = max((one.checkpoint for one in asked.viable_candidates()), key=lambda form: form.total_bytes, default=None)
    return found or next((form for form in _unseen(asked) if _fits_as(asked, form)), None)


def _unseen(asked: FitQuery) -> Iterator[Checkpoint]:
    """Forms that nobody has verified to exist, the largest first, as far as they keep quality."""
    largest_first = sorted(asked.checkpoints, key=lambda form: -form.total_bytes)
    unseen = (form for form in largest_first if form.unverified)
    return (form for form in unseen if form.bits_per_weight(asked.model) >= LEAST_BITS)


def _fits_as(asked: FitQuery, form: Checkpoint) -> bool:
    return replace(asked.with_constraints(checkpoint=form.name), checkpoints=(form,)).has_viable


def _more_gpus(asked: FitQuery) -> Iterator[str]:
    """How many such GPUs would do, when fewer than 65 do."""
    box, pins = asked.box, asked.constraints
    if not box.gpus or not asked.allows_gpu_only or pins.experts or pins.memory_utilization:
        return
    for number in LARGER[bisect_right(LARGER, asked.gpu_count) :]:
        engine = _serving_on(asked, number)
        if engine:
            yield f"it fits on {number}x {box.gpus[0].title} under {engine.title}"
            return


def _serving_on(asked: FitQuery, number: int) -> Traits | None:
    """The engine that serves from so many of these GPUs, however they are laid out."""
    free = asked.with_constraints(**dict.fromkeys(PARALLEL_SIZES), context=asked.constraints.context or LEAST_CONTEXT)
    larger = replace(free, box=_with_gpus(asked.box, number))
    engines = (asked.constraints.engine,) if asked.constraints.engine else gpu_only_engines()
    return next(
        (registry.engine_traits(name) for name in engines if larger.with_constraints(engine=name).has_viable), None
    )


def _with_gpus(box: Box, number: int) -> Box:
    """As many of its first GPU, in as many nodes as such GPUs come in."""
    gpu = box.gpus[0]
    return split_into_nodes(replace(box, gpus=(gpu,) * number, nodes=1, name=f"{number}x-{gpu.name}"))


def _ram_needed(asked: FitQuery) -> str:
    """How much RAM beside these GPUs would do, with what; "" when RAM is not what lacks or the engine uses none."""
    able = sorted(_with_ram(asked), key=_ram_of)
    if not able:
        return ""
    box, nearest = asked.box, able[0]
    better = next((one for one in able if one.checkpoint.bits_per_weight(one.model) >= LEAST_BITS), nearest)
    if _ram_size(better) == _ram_size(nearest):
        nearest = better
    here = ("here", "on this GPU", "on these GPUs")[min(len(box.gpus), 2)]
    have = f"{format_gib(box.ram)} is there" if box.ram else "none was declared"
    form = f"{nearest.checkpoint.name} under {registry.engine_display_name(nearest.recipe.engine)}"
    more = f", with {_ram_size(better)} {better.checkpoint.name}, which loses less" if better != nearest else ""
    return f"--ram {_ram_size(nearest)}: with that much RAM {form} fits {here} ({have}){more}"


def _ram_size(weighed: RatedCandidate) -> str:
    """RAM that would do, as --ram takes it, in round steps."""
    size = -(-_ram_of(weighed) // ROUND) * ROUND
    return f"{size // 2**30}GiB"


def _with_ram(asked: FitQuery) -> list[RatedCandidate]:
    """All that fits with more RAM."""
    box, pins = asked.box, asked.constraints
    if pins.gpu_only_flag or not asked.allows_hybrid or box.has_unified_memory:
        return []
    roomy = replace(box, ram=MOST_RAM, ram_free=None)
    engines = (pins.engine,) if pins.engine else hybrid_engines()
    found = rate_candidates(
        roomy, asked.model, make_candidates(roomy, asked.model, asked.checkpoints, pins, engines), pins
    )
    return [one for one in found if _ram_of(one) > box.ram and one.is_viable]


def _ram_of(weighed: RatedCandidate) -> int:
    ram = weighed.memory.devices[-1]
    return ram.total - ram.free
