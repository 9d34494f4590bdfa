"""Searches block sizes, warps and stages that fit, for launches that do not.

Candidates are pruned by an estimate of their shared memory, ranked by a cost model, and the best of them compiled:
what is proposed has been compiled for the architecture and fits.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moebox.core.kernel import Arch, KernelLaunch
from moebox.errors import ExternalError
from moebox.kernels import scan as scans
from moebox.kernels.probe.protocol import Constant, LaunchRecord, LaunchSearch, LaunchVariant, ProbeLine
from moebox.kernels.probe.space import Choice

BLOCK_SIZES = (16, 32, 64, 128)
WARPS = (4, 8)
STAGES = (1, 2, 3)
MAX_COMPILED = 10  # candidates of each launch that are compiled, cheapest first
# What the engines' launch code writes down as a number, out of a patch's reach.
FIXED_OPTIONS = {"_fwd_grouped_kernel_stage1": ("num_warps",)}
ESTIMATE_SLACK = (
    1.2  # the estimate was within 20% of the compiled size for both attention kernels (Triton 3.7.1, sm_120)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCandidate:
    """One way to launch a kernel, and what it costs."""

    blocks: dict[str, int]  # the constants that change
    num_warps: int
    num_stages: int
    shared_bytes: int
    registers: int = 0
    spill_bytes: int = 0
    blocks_per_sm: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRemedy:
    """A launch that does not fit, and the ways found that do, best first."""

    launch: KernelLaunch
    candidates: tuple[LaunchCandidate, ...]


def find_remedies(request: scans.KernelRequest) -> tuple[LaunchRemedy, ...]:
    """A remedy for each kernel that does not fit."""
    root = scans.engine_root(request)
    question = scans.probe_request(request, root)
    bad = _too_large(scans.run_probe(request.compiler, question), request.arch)
    if not bad:
        return ()
    searches = [
        LaunchSearch(hash=mark, candidates=propose_candidates(launch, request.arch)) for mark, launch in bad.items()
    ]
    variants: defaultdict[str, list[LaunchVariant]] = defaultdict(list)
    for answer in scans.run_probe(request.compiler, replace(question, searches=searches)):
        if answer.variant:
            variants[answer.variant.hash].append(answer.variant)
    return tuple(_make_remedy(launch, variants[mark], request.arch) for mark, launch in bad.items())


def _too_large(answers: Sequence[ProbeLine], arch: Arch) -> dict[str, LaunchRecord]:
    """Launches that ask for more shared memory than there is, by their hash."""
    launches = [answer.launch for answer in answers if answer.launch]
    return {launch.hash: launch for launch in launches if launch.shared_bytes > arch.smem}


def propose_candidates(launch: LaunchRecord, arch: Arch) -> list[Choice]:
    """Candidates worth compiling: cheapest first, those that cannot fit left out."""
    names = block_axes(launch.constants)
    own = _own_options(launch)
    fixed = {name: own[name] for name in FIXED_OPTIONS.get(launch.kernel, ())}
    combinations = itertools.product(*([BLOCK_SIZES] * len(names)), WARPS, STAGES)
    choices = [dict(zip([*names, *own], values, strict=True)) for values in combinations]
    choices = [choice for choice in choices if fixed.items() <= choice.items()]
    fitting = [choice for choice in choices if estimate_shared_bytes(launch, choice) <= arch.smem * ESTIMATE_SLACK]
    return sorted(fitting, key=lambda choice: (candidate_cost(choice, 0, 1), str(choice)))[:MAX_COMPILED] + _least(
        launch
    )


def block_axes(constants: Mapping[str, Constant]) -> list[str]:
    """The block sizes that may change without changing what the kernel computes."""
    for names in (("BLOCK_SIZE_M", "BLOCK_SIZE_N"), ("BLOCK_M", "BLOCK_N")):
        if all(name in constants for name in names):
            return list(names)
    return ["BLOCK_N"] if "BLOCK_N" in constants else []


def _least(launch: LaunchRecord) -> list[Choice]:
    """The smallest change: the engine's own blocks with fewer stages."""
    now = {name: int(launch.constants[name]) for name in block_axes(launch.constants)}
    return [{**now, **_own_options(launch), "num_stages": count} for count in range(1, launch.num_stages)]


def estimate_shared_bytes(launch: LaunchRecord, choice: Choice) -> float:
    """Shared memory of a variant, scaled from the compiled size of the engine's own choice."""
    own = _tile_elements(launch, {**launch.constants, **_own_options(launch)})
    return launch.shared_bytes * _tile_elements(launch, choice) / own


def _own_options(launch: LaunchRecord) -> Choice:
    return {"num_warps": launch.num_warps, "num_stages": launch.num_stages}


def _tile_elements(launch: LaunchRecord, choice: Mapping[str, Constant]) -> float:
    """Elements that a block keeps: tiles of both operands, the streamed ones once a stage."""
    sizes = {name: int(value) for name, value in {**launch.constants, **choice}.items() if not isinstance(value, str)}
    stages = sizes["num_stages"]
    if "BLOCK_SIZE_M" in choice:
        return float(max(stages - 1, 1) * (sizes["BLOCK_SIZE_M"] + sizes["BLOCK_SIZE_N"]) * sizes["BLOCK_SIZE_K"])
    wide = sizes.get("BLOCK_DMODEL", 128) + sizes.get("BLOCK_DPE", 0)
    rows = sizes.get("BLOCK_M", sizes.get("BLOCK_H", 16))
    return float(stages * sizes["BLOCK_N"] * wide + rows * sizes.get("BLOCK_DV", wide))


def candidate_cost(choice: Choice, spill: int, resident: int) -> float:
    """What a candidate costs against others of the same kernel; only the order means anything.

    Attention reads the whole cache once for every tile of rows, a matrix product each operand once for every tile of
    the other, so small tiles cost bandwidth; a warp whose share of the tile is below 16x16 leaves its matrix unit idle;
    a second resident block or stage hides latency; spills go to memory.
    """
    rows = choice.get("BLOCK_SIZE_M") or choice.get("BLOCK_M") or 16
    columns = choice.get("BLOCK_SIZE_N") or choice.get("BLOCK_N") or 16
    reread = 1 / rows + 1 / columns if "BLOCK_SIZE_M" in choice else 1 / min(rows, 64)
    busy = min(1.0, rows * columns / (choice["num_warps"] * 256))
    hidden = 1.0 + 0.15 * min(choice["num_stages"] - 1, 2) + 0.2 * min(max(resident, 1) - 1, 2)
    return reread / (busy * hidden) * (1 + spill / 256)


def _make_remedy(launch: LaunchRecord, variants: Sequence[LaunchVariant], arch: Arch) -> LaunchRemedy:
    fitting = [variant for variant in variants if not variant.error and variant.shared_bytes <= arch.smem]
    candidates = [_candidate(launch, variant, arch) for variant in fitting]
    ranked = sorted({repr(candidate): candidate for candidate in candidates}.values(), key=lambda each: each.cost)
    if not ranked:
        raise ExternalError(f"{launch.kernel}: no block sizes were found that fit {arch.name}")
    return LaunchRemedy(launch=scans.judge_launch(launch, arch), candidates=tuple(ranked))


def _candidate(launch: LaunchRecord, variant: LaunchVariant, arch: Arch) -> LaunchCandidate:
    choice = variant.choice
    resident = arch.blocks_per_sm(variant.shared_bytes, variant.registers, choice["num_warps"])
    return LaunchCandidate(
        blocks={name: choice[name] for name in block_axes(launch.constants)},
        num_warps=choice["num_warps"],
        num_stages=choice["num_stages"],
        shared_bytes=variant.shared_bytes,
        registers=variant.registers,
        spill_bytes=variant.spilled_bytes,
        blocks_per_sm=resident,
        cost=candidate_cost(choice, variant.spilled_bytes, resident),
    )
