"""Searches block sizes, warps and stages that fit, for launches that do not.

Candidates are pruned by an estimate of their shared memory, ranked by a cost model, and the best of them compiled: each
proposal was compiled for the architecture and fits.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from moebox.core.kernel import Arch, KernelLaunch
from moebox.errors import ExternalError
from moebox_kernels import scan as scans
from moebox_kernels.probe.protocol import Constant, LaunchRecord, LaunchSearch, LaunchVariant
from moebox_kernels.probe.space import Choice

BLOCK_SIZES = (16, 32, 64, 128)
WARPS = (4, 8)
STAGES = (1, 2, 3)
MAX_COMPILED = 10  # candidates of each launch that are compiled, cheapest first
# Options that the engines' launch code has as literals, so that a patch cannot change them.
FIXED_OPTIONS = {"_fwd_grouped_kernel_stage1": ("num_warps",)}
ESTIMATE_SLACK = 1.2  # the estimate was within 20% for both attention kernels (Triton 3.7.1, sm_120)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCandidate:
    """One way to launch a kernel, and its cost."""

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
    """A launch that does not fit, and candidates that do, best first."""

    launch: KernelLaunch
    candidates: tuple[LaunchCandidate, ...]


def find_remedies(request: scans.KernelRequest) -> tuple[LaunchRemedy, ...]:
    """Return a remedy for each kernel that does not fit."""
    arch = request.arch
    question = scans.probe_request(request, scans.engine_root(request))
    launches = [line.launch for line in scans.run_probe(request.compiler, question) if line.launch]
    bad = {launch.hash: launch for launch in launches if launch.shared_bytes > arch.smem}
    if not bad:
        return ()
    searches = [LaunchSearch(hash=mark, candidates=propose_candidates(launch, arch)) for mark, launch in bad.items()]
    variants: defaultdict[str, list[LaunchVariant]] = defaultdict(list)
    for line in scans.run_probe(request.compiler, replace(question, searches=searches)):
        if line.variant:
            variants[line.variant.hash].append(line.variant)
    remedies = []
    for mark, launch in bad.items():
        candidates = {}
        for variant in variants[mark]:
            if variant.error or variant.shared_bytes > arch.smem:
                continue
            choice, spilled = variant.choice, variant.spilled_bytes
            resident = arch.blocks_per_sm(variant.shared_bytes, variant.registers, choice["num_warps"])
            candidate = LaunchCandidate(
                blocks={name: choice[name] for name in block_axes(launch.constants)},
                num_warps=choice["num_warps"],
                num_stages=choice["num_stages"],
                shared_bytes=variant.shared_bytes,
                registers=variant.registers,
                spill_bytes=spilled,
                blocks_per_sm=resident,
                cost=candidate_cost(choice, spilled, resident),
            )
            candidates[repr(candidate)] = candidate
        if not candidates:
            raise ExternalError(f"{launch.kernel}: no block sizes were found that fit {arch.name}")
        ranked = sorted(candidates.values(), key=lambda candidate: candidate.cost)
        remedies.append(LaunchRemedy(launch=scans.judge_launch(launch, arch), candidates=tuple(ranked)))
    return tuple(remedies)


def propose_candidates(launch: LaunchRecord, arch: Arch) -> list[Choice]:
    """Return candidates worth compiling: the cheapest that may fit, and the engine's own blocks with fewer stages."""
    names = block_axes(launch.constants)
    own = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    fixed = {name: own[name] for name in FIXED_OPTIONS.get(launch.kernel, ())}
    combinations = itertools.product(*([BLOCK_SIZES] * len(names)), WARPS, STAGES)
    choices = [dict(zip([*names, *own], values, strict=True)) for values in combinations]
    limit = arch.smem * ESTIMATE_SLACK
    fitting = [
        choice
        for choice in choices
        if fixed.items() <= choice.items() and estimate_shared_bytes(launch, choice) <= limit
    ]
    cheapest = sorted(fitting, key=lambda choice: (candidate_cost(choice, 0, 1), str(choice)))[:MAX_COMPILED]
    blocks = {name: int(launch.constants[name]) for name in names}
    return cheapest + [{**blocks, **own, "num_stages": count} for count in range(1, launch.num_stages)]


def block_axes(constants: Mapping[str, Constant]) -> list[str]:
    """Return the block sizes that may change without changing what the kernel computes."""
    for names in (("BLOCK_SIZE_M", "BLOCK_SIZE_N"), ("BLOCK_M", "BLOCK_N")):
        if all(name in constants for name in names):
            return list(names)
    return ["BLOCK_N"] if "BLOCK_N" in constants else []


def estimate_shared_bytes(launch: LaunchRecord, choice: Choice) -> float:
    """Estimate the shared memory of a variant, scaled from the compiled size of the engine's own choice."""

    def tile_elements(changes: Mapping[str, Constant]) -> float:
        """Elements that a block keeps: tiles of both operands, the streamed ones once a stage."""
        constants = {**launch.constants, **changes}
        sizes = {name: int(value) for name, value in constants.items() if not isinstance(value, str)}
        stages = sizes["num_stages"]
        if "BLOCK_SIZE_M" in constants:
            return float(max(stages - 1, 1) * (sizes["BLOCK_SIZE_M"] + sizes["BLOCK_SIZE_N"]) * sizes["BLOCK_SIZE_K"])
        wide = sizes.get("BLOCK_DMODEL", 128) + sizes.get("BLOCK_DPE", 0)
        rows = sizes.get("BLOCK_M", sizes.get("BLOCK_H", 16))
        return float(stages * sizes["BLOCK_N"] * wide + rows * sizes.get("BLOCK_DV", wide))

    own = tile_elements({"num_warps": launch.num_warps, "num_stages": launch.num_stages})
    return launch.shared_bytes * tile_elements(choice) / own


def candidate_cost(choice: Choice, spill: int, resident: int) -> float:
    """Return a cost that orders candidates of the same kernel; its value has no meaning.

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
