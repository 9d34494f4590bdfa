"""The error if nothing fits: how much is missing, and what would fix it."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from moebox.core import registry
from moebox.core.model import Checkpoint, format_names
from moebox.core.recipe import EngineName
from moebox.errors import BadInput, DoesNotFit, MoeboxError
from moebox.planner.candidates import (
    LEAST_BITS,
    SHORTER_CONTEXTS,
    make_candidates,
    possible_engines,
    reason_to_skip,
    usable_checkpoints,
)
from moebox.planner.constraints import PARALLEL_SIZES, hybrid_engines
from moebox.planner.layouts import wanted_layouts
from moebox.planner.rate import Candidate, PlanInputs, add_needed_settings, complete_settings
from moebox.sizing.constants import kernel_page_bytes
from moebox.sizing.layout import indivisible_layout, unsupported_layout
from moebox.units import format_count, format_gb, format_gib

RAM_STEP = 2**34  # remedies give RAM in steps of 16 GiB
MAX_RAM = 2**42  # more than any host has
MAX_REMEDIES = 3
# Constraints that another format may need to be without.
FREED = {"--engine": "engine", "--kv": "kv", "--memory-utilization": "memory_utilization"}
FREED |= {"--experts-on-gpu": "experts"}
# Constraints that may keep everything from starting.
BLOCKING = {f"--{name}": name for name in ("engine", "kv", "image", "checkpoint", "speculate", *PARALLEL_SIZES)}


def given_flags(inputs: PlanInputs, flags: dict[str, str]) -> dict[str, str]:
    """Return those of `flags` (flag to field) that are constrained."""
    return {flag: field for flag, field in flags.items() if getattr(inputs.constraints, field) is not None}


def viable_candidates(inputs: PlanInputs) -> Iterator[Candidate]:
    """Return candidates of all engines that fit and start, made one at a time."""
    found = make_candidates(inputs, possible_engines(inputs.box, inputs.constraints))
    return (candidate for candidate in map(complete_settings, found) if candidate.is_viable)


def has_viable(inputs: PlanInputs) -> bool:
    return any(True for _ in viable_candidates(inputs))


def no_fit_error(inputs: PlanInputs, tried: list[Candidate]) -> MoeboxError:
    """Return the error for a box on which no candidate is viable."""
    box, model, constraints = inputs.box, inputs.model, inputs.constraints
    if not tried:
        return no_candidate_error(inputs)
    available, least = len(box.gpus) * box.nodes, min(rated.recipe.parallel.gpu_count for rated in tried)
    if least > available and not tried[0].recipe.hybrid:
        groups = f" × dp {constraints.dp}" if constraints.dp else ""
        layout = f"tp {constraints.tp or 1} × pp {constraints.pp or 1}{groups}"
        text = f"{layout} takes {least} GPUs and {box.name} has {available}"
        return BadInput(text, hint="smaller --tp, --pp or --dp, or none to let moebox choose")
    fitting = [rated for rated in tried if rated.memory.fits] or [*map(add_needed_settings, tried)]
    if all(rated.fatal_issue for rated in fitting):  # not memory: it would not start
        given = given_flags(inputs, BLOCKING)
        shown = " ".join(f"{flag} {getattr(constraints, field)}" for flag, field in given.items())
        text = f"{model.title} does not run on {box.name}{f' with {shown}' if shown else ''}: {fitting[0].fatal_issue}"
        enough = [flag for flag, field in given.items() if has_viable(inputs.with_constraints(**{field: None}))]
        ways = [f"it runs without {' or without '.join(enough)}"] * bool(enough)
        if len(given) > 1 and not enough and has_viable(inputs.with_constraints(**dict.fromkeys(given.values()))):
            ways = [f"it runs without {' and '.join(given)}"]
        hints = itertools.islice(itertools.chain(ways, suggest_remedies(inputs, tried)), MAX_REMEDIES)
        return DoesNotFit(text, hint="; ".join(hints) or None)
    return shortfall_error(inputs, tried)


def shortfall_error(inputs: PlanInputs, tried: list[Candidate]) -> DoesNotFit:
    """Return the error that names how much the nearest candidate needs, and where."""
    box, model = inputs.box, inputs.model
    nearest = min(tried, key=lambda rated: (rated.memory.shortfall or 2**62, rated.tier))
    recipe, layout = nearest.recipe, ""
    if recipe.hybrid:
        fullest = min(nearest.memory.devices, key=lambda device: device.free)
        where = "RAM" if fullest.device.startswith("ram") else "on the fullest GPU"
    else:
        layout = f"{recipe.parallel.text}, "
        where = "on the fullest GPU" if recipe.parallel.pp > 1 else "on each GPU"
    place = f"on {box.name}" if box.gpus else "here without a GPU"
    text = (
        f"{model.title} does not fit {place}: the nearest "
        f"({registry.engine_display_name(recipe.engine)}, {nearest.checkpoint.name}, "
        f"{layout}{format_count(recipe.context)} tokens) needs {format_gb(nearest.memory.shortfall)} more {where}"
    )
    hint = "; ".join(itertools.islice(suggest_remedies(inputs, tried), MAX_REMEDIES)) or None
    return DoesNotFit(text, shortfall=nearest.memory.shortfall, hint=hint)


def no_candidate_error(inputs: PlanInputs) -> MoeboxError:
    """Return the error if there is no candidate: no GPU, no readable checkpoint, or no way to divide the model."""
    box, model, constraints = inputs.box, inputs.model, inputs.constraints
    if not box.gpus and not (constraints.engine and registry.engine_traits(constraints.engine).offloads_experts):
        return _no_gpu_error(inputs)
    engines = possible_engines(box, constraints)
    reading = [name for name in engines if usable_checkpoints(inputs.checkpoints, name, constraints)]
    if not reading:
        return _no_reader_error(inputs, engines)
    skipped = [reason_to_skip(name, box, model) for name in reading]
    if all(skipped) and not constraints.engine:
        return DoesNotFit(f"{model.title} does not run on {box.name}: {'; '.join(skipped)}")
    layout = ", ".join(f"{flag} {size}" for flag, size in constraints.parallel_sizes.items())
    problems = (
        unsupported_layout(traits, parallel) or indivisible_layout(parallel, model, checkpoint)
        for traits in map(registry.engine_traits, reading)
        for checkpoint in usable_checkpoints(inputs.checkpoints, traits.name, constraints)
        for parallel in wanted_layouts(inputs, traits)
    )
    problem = next(filter(None, problems), None)
    experts = f", {model.moe.experts} experts by ep, which is 1 or tp × dp" if model.moe else ""
    reason = problem.reason if problem else f"{layout or 'no layout'} over {len(box.gpus)} GPUs"
    hint = f"{model.attention.heads} attention heads must divide by tp{experts}, and tp by dcp"
    how = f"by {layout}" if layout and problem else "that way"
    return BadInput(f"{model.title} cannot be divided {how}: {reason}", hint=hint)


def _no_gpu_error(inputs: PlanInputs) -> DoesNotFit:
    """Return the error for engines that need a GPU, with an engine that does not if the constraints allow one."""
    constraints = inputs.constraints
    name = constraints.engine or "an engine with these settings"
    hint = "--box plans for another box, such as 8x-rtx-pro-6000-server"
    if not constraints.gpu_only_flag and not constraints.image:
        every = registry.all_traits()
        cpu = next(each for each in every if each.runs_without_gpu and not each.unsupported_generations)
        runs = f"{cpu.name} runs on CPUs, from a {format_names(*cpu.formats)} of the model"
        if usable_checkpoints(inputs.checkpoints, cpu.name, replace(constraints, engine=cpu.name)):
            runs = f"--engine {cpu.name} runs on CPUs"
        hint = f"{runs}; {hint}"
    return DoesNotFit(f"{name} needs a GPU, and there is none", hint=hint)


def _no_reader_error(inputs: PlanInputs, engines: tuple[EngineName, ...]) -> BadInput:
    """Return the error for checkpoints that none of these engines reads."""
    constraints, checkpoints = inputs.constraints, inputs.checkpoints
    wanted, do = constraints.checkpoint or "any known checkpoint", "does" if len(engines) == 1 else "do"
    if constraints.checkpoint:
        free = replace(constraints, engine=None)
        readers = [name for name in registry.engine_names() if usable_checkpoints(checkpoints, name, free)]
        hint = f"it is read by {' and '.join(readers)}"
    else:
        uses = [(each, f" for {' and '.join(each.engines)}" * bool(each.engines)) for each in checkpoints]
        known = sorted({f"{each.name} ({format_names(each.format)}{use})" for each, use in uses})
        read = format_names(*(kind for name in engines for kind in registry.engine_traits(name).formats))
        hint = f"it reads {read}; known checkpoints: {', '.join(known)}"
    return BadInput(f"{' and '.join(engines)} {do} not read {wanted} of {inputs.model.name}", hint=hint)


def suggest_remedies(inputs: PlanInputs, tried: list[Candidate]) -> Iterator[str]:
    """Yield what would make it fit, the cheapest first: a smaller request, another format, more RAM."""
    yield from _smaller_requests(inputs)
    given = given_flags(inputs, FREED)
    for freed in ({}, given) if given else ({},):
        checkpoint = _largest_that_fits(inputs.with_constraints(checkpoint=None, **dict.fromkeys(freed.values())))
        if checkpoint and checkpoint not in [rated.checkpoint for rated in tried]:
            unverified = ", a file not verified to exist" if checkpoint.unverified else ""
            without = f" without {' and '.join(freed)}" if freed else ""
            yield f"--checkpoint {checkpoint.name} ({format_gb(checkpoint.total_bytes)}{unverified}) fits{without}"
            break
    if ram := _enough_ram(inputs):
        yield ram
    elif not inputs.box.gpus and not inputs.box.ram:
        yield "give the amount of RAM with --ram"


def _smaller_requests(inputs: PlanInputs) -> Iterator[str]:
    """Yield the longest context, the most requests and the usual utilization that fit, if more was requested."""
    constraints, longest = inputs.constraints, inputs.model.context
    requested = min(constraints.context or 0, longest + 1)
    shorter = [size for size in (longest, *SHORTER_CONTEXTS) if size < requested]
    fewer = [(constraints.concurrency or 1) >> shift for shift in range(1, (constraints.concurrency or 1).bit_length())]
    for name, values in (("context", shorter), ("concurrency", fewer)):
        fitting = (value for value in values if has_viable(inputs.with_constraints(**{name: value})))
        yield from (f"--{name} {value} fits" for value in itertools.islice(fitting, 1))
    if constraints.memory_utilization:
        usual = next(viable_candidates(inputs.with_constraints(memory_utilization=None)), None)
        if usual and usual.recipe.memory_utilization:
            yield f"--memory-utilization {usual.recipe.memory_utilization:g} fits"


def _largest_that_fits(inputs: PlanInputs) -> Checkpoint | None:
    """Return the largest checkpoint that fits; if none does, the largest unverified one that keeps quality and fits."""
    viable = (rated.checkpoint for rated in viable_candidates(inputs))
    if found := max(viable, key=lambda checkpoint: checkpoint.total_bytes, default=None):
        return found
    for checkpoint in sorted(inputs.checkpoints, key=lambda checkpoint: -checkpoint.total_bytes):
        alone = replace(inputs.with_constraints(checkpoint=checkpoint.name), checkpoints=(checkpoint,))
        keeps_quality = checkpoint.bits_per_weight(inputs.model) >= LEAST_BITS
        if checkpoint.unverified and keeps_quality and has_viable(alone):
            return checkpoint
    return None


def _enough_ram(inputs: PlanInputs) -> str:
    """Return how much RAM beside these GPUs would be enough, or "" if RAM is not missing or the engine uses none."""
    box, constraints = inputs.box, inputs.constraints
    offloads = not constraints.engine or registry.engine_traits(constraints.engine).offloads_experts
    if constraints.gpu_only_flag or not offloads or box.has_unified_memory:
        return ""

    def ram_use(rated: Candidate) -> int:
        ram = rated.memory.devices[-1]
        used = ram.total - ram.free - kernel_page_bytes(ram.total)
        return used + kernel_page_bytes(round(used / (1 - kernel_page_bytes(2**40) / 2**40)))

    def size_text(rated: Candidate) -> str:
        return f"{-(-ram_use(rated) // RAM_STEP) * RAM_STEP // 2**30}GiB"

    roomy = replace(inputs, box=replace(box, ram=MAX_RAM, ram_free=None))
    found = make_candidates(roomy, (constraints.engine,) if constraints.engine else hybrid_engines())
    viable = sorted((each for each in found if ram_use(each) > box.ram and each.is_viable), key=ram_use)
    if not viable:
        return ""
    least = viable[0]
    better = next((each for each in viable if each.checkpoint.bits_per_weight(inputs.model) >= LEAST_BITS), least)
    if size_text(better) == size_text(least):
        least = better
    here = ("here", "on this GPU", "on these GPUs")[min(len(box.gpus), 2)]
    present = f"{format_gib(box.ram)} is there" if box.ram else "none was declared"
    title = f"{least.checkpoint.name} under {registry.engine_display_name(least.recipe.engine)}"
    name = f"{size_text(better)} is enough for {better.checkpoint.name}, closer to the original"
    more = f"; {name}" if better != least else ""
    if box.source == "detected":  # a plan with RAM that is not there would not start here
        return f"{size_text(least)} of RAM would be enough for {title} {here} ({present}){more}"
    return f"--ram {size_text(least)}: with that much RAM {title} fits {here} ({present}){more}"
