"""Searches block sizes, warps and stages that fit, for launches that do not.

Candidates are pruned by an estimate of their shared memory, ranked by a cost model, and the best of them compiled:
what is proposed has been compiled for the architecture and fits.
"""

import itertools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moebox.core.kernel import Arch, KernelLaunch
from moebox.errors import Outside
from moebox.kernels import scan as scans

SIDES = (16, 32, 64, 128)
WARPS = (4, 8)
STAGES = (1, 2, 3)
COMPILED = 10  # candidates of each launch that are compiled, cheapest first
# What the engines' launch code writes down as a number, out of a patch's reach.
FIXED = {"_fwd_grouped_kernel_stage1": "num_warps"}
SLACK = 1.2  # the estimate was within 20% of the compiled size for both attention kernels (Triton 3.7.1, sm_120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
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
class Remedy:
    """A launch that does not fit, and the ways found that do, best first."""

    launch: KernelLaunch
    found: tuple[Candidate, ...]


def search(request: scans.Request) -> tuple[Remedy, ...]:
    """A remedy for each kernel that does not fit."""
    root = scans.engine_root(request)
    python = request.python or Path(sys.executable)
    question = scans.ask(request, root)
    first = [answer["launch"] for answer in scans.run(python, question) if "launch" in answer]
    bad: dict[str, dict[str, Any]] = {one["hash"]: one for one in first if one["shared_bytes"] > request.arch.smem}
    if not bad:
        return ()
    searches = [{"hash": mark, "candidates": proposals(one, request.arch)} for mark, one in bad.items()]
    answers = scans.run(python, {**question, "searches": searches})
    variants = [answer["variant"] for answer in answers if "variant" in answer]
    return tuple(_remedy(one, [v for v in variants if v["hash"] == mark], request.arch) for mark, one in bad.items())


def proposals(launch: dict[str, Any], arch: Arch) -> list[dict[str, int]]:
    """Candidates worth compiling: cheapest first, those that cannot fit left out."""
    names = axes(launch["constants"])
    combinations = itertools.product(*([SIDES] * len(names)), WARPS, STAGES)
    choices = [dict(zip([*names, "num_warps", "num_stages"], values, strict=True)) for values in combinations]
    settled = FIXED.get(launch["kernel"], "")
    choices = [one for one in choices if not settled or one[settled] == launch[settled]]
    fitting = [one for one in choices if estimate(launch, one) <= arch.smem * SLACK]
    return sorted(fitting, key=lambda one: (cost(one, 0, 1), str(one)))[:COMPILED] + _least(launch)


def axes(constants: dict[str, Any]) -> list[str]:
    """The block sizes that may change without changing what the kernel computes."""
    for names in (("BLOCK_SIZE_M", "BLOCK_SIZE_N"), ("BLOCK_M", "BLOCK_N")):
        if all(name in constants for name in names):
            return list(names)
    return ["BLOCK_N"] if "BLOCK_N" in constants else []


def _least(launch: dict[str, Any]) -> list[dict[str, int]]:
    """The smallest change: the engine's own blocks with fewer stages."""
    now = {name: int(launch["constants"][name]) for name in axes(launch["constants"])}
    stages = range(1, int(launch["num_stages"]))
    return [{**now, "num_warps": launch["num_warps"], "num_stages": count} for count in stages]


def estimate(launch: dict[str, Any], choice: dict[str, int]) -> float:
    """Shared memory of a variant, scaled from the compiled size of the engine's own choice."""
    own = _tiles(launch, launch["constants"] | _own(launch))
    return float(launch["shared_bytes"]) * _tiles(launch, choice) / own


def _own(launch: dict[str, Any]) -> dict[str, int]:
    return {"num_warps": launch["num_warps"], "num_stages": launch["num_stages"]}


def _tiles(launch: dict[str, Any], choice: dict[str, Any]) -> float:
    """Elements that a block keeps: tiles of both operands, the streamed ones once a stage."""
    constants = launch["constants"]
    stages = max(int(choice["num_stages"]) - 1, 1)
    if "BLOCK_SIZE_M" in choice:
        depth = int(constants["BLOCK_SIZE_K"])
        return float(stages * (choice["BLOCK_SIZE_M"] + choice["BLOCK_SIZE_N"]) * depth)
    wide = int(constants.get("BLOCK_DMODEL", 128)) + int(constants.get("BLOCK_DPE", 0))
    rows = int(choice.get("BLOCK_M", constants.get("BLOCK_H", 16)))
    return float(
        int(choice["num_stages"]) * int(choice["BLOCK_N"]) * wide + rows * int(constants.get("BLOCK_DV", wide))
    )


def cost(choice: dict[str, int], spill: int, resident: int) -> float:
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


def _remedy(launch: dict[str, Any], variants: list[dict[str, Any]], arch: Arch) -> Remedy:
    names = axes(launch["constants"])
    found = []
    for one in variants:
        if "error" in one or one["shared_bytes"] > arch.smem:
            continue
        choice, spill = one["choice"], one.get("spill_bytes", one.get("stack_bytes", 0))
        resident = arch.blocks_per_sm(one["shared_bytes"], one.get("registers", 0), choice["num_warps"])
        found.append(
            Candidate(
                blocks={name: choice[name] for name in names},
                num_warps=choice["num_warps"],
                num_stages=choice["num_stages"],
                shared_bytes=one["shared_bytes"],
                registers=one.get("registers", 0),
                spill_bytes=spill,
                blocks_per_sm=resident,
                cost=cost(choice, spill, resident),
            )
        )
    ranked = sorted({repr(one): one for one in found}.values(), key=lambda one: one.cost)
    if not ranked:
        raise Outside(f"{launch['kernel']}: no block sizes were found that fit {arch.name}")
    return Remedy(launch=replace(scans.judge(launch, arch)), found=tuple(ranked))
