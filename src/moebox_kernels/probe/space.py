"""Candidates of a tuner for each kernel, and a cost model that ranks them before they are compiled.

Pure arithmetic on the standard library: nothing here needs Triton, PyTorch or a GPU.
"""

import functools
import itertools
import math
from collections import Counter
from dataclasses import dataclass

Choice = dict[str, int]

# Batch sizes that 309 of SGLang 0.5.23's tuned files and 288 of vLLM 0.32.0's list.
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
# Candidates of a fused MoE case that are compiled and timed, and how many of them may share one tile: with these, the
# tile of each of the 18 bf16 winners of the first tuning (H200, 2026-11-15) is among the candidates. int4 has the wider
# space, and the model knows it less well.
MAX_CANDIDATES = {"bf16": 28, "fp8_w8a8 block": 28, "int4_w4a16": 32}
MAX_PER_TILE = 3
_WEIGHT_BYTES = {"bf16": 2.0, "fp8_w8a8 block": 1.0, "int4_w4a16": 0.5}  # bytes of a weight


@dataclass(frozen=True)
class RankShape:
    """One rank's share of a model; without more, Kimi K2 at TP8."""

    heads: int = 8  # query heads on this rank
    kv_lora: int = 512
    rope: int = 64
    nope: int = 128
    v: int = 128
    hidden: int = 7168
    experts: int = 384
    used: int = 8
    intermediate: int = 256  # expert width on this rank

    @property
    def latent(self) -> int:
        """Width of the cached latent."""
        return self.kv_lora + self.rope

    @property
    def products(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both products of an expert, up and down: columns and depth."""
        return (2 * self.intermediate, self.hidden), (self.hidden, self.intermediate)


KIMI = RankShape()


def all_combinations(**axes: list[int]) -> list[Choice]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def extend_choices(width: int) -> list[Choice]:
    """Prefill attention: rows and columns of a tile, warps, stages.

    576-wide heads leave room for 30 of their combinations on SM120, 192-wide ones for 78.
    """
    sides, warps = ([16, 32, 64], [2, 4, 8]) if width > 256 else ([16, 32, 64, 128], [4, 8])
    everything = all_combinations(BLOCK_M=sides, BLOCK_N=sides, num_warps=warps, num_stages=[1, 2, 3])
    # If the streamed tiles alone exceed SM120's memory by far, it is not worth compiling.
    return [choice for choice in everything if choice["num_stages"] * choice["BLOCK_N"] * width * 2 <= 130_000]


# Heights of a fused-MoE tile by the most tokens of a batch.
TILE_HEIGHTS = ((64, [16]), (1024, [16, 32, 64]), (math.inf, [32, 64, 128]))


def moe_choices(
    kind: str, tokens: int, products: tuple[int, ...], *, smem: int, sms: int, shape: RankShape = KIMI
) -> list[Choice]:
    """Return candidates of fused MoE at one batch size, for one product or both: the cheapest that fit."""
    heights = next(heights for most, heights in TILE_HEIGHTS if tokens <= most)
    fitting = [choice for choice in moe_tiles(kind, tokens, heights) if shared_bytes(kind, choice) <= smem]

    def cost(choice: Choice) -> float:
        return sum(moe_cost(kind, choice, tokens, product, shape=shape, sms=sms) for product in products)

    ranked = few_of_each_tile(sorted(fitting, key=lambda choice: (cost(choice), str(choice))))
    # The best of each height too: both products of an expert must agree on it.
    firsts = [next(choice for choice in ranked if choice["BLOCK_SIZE_M"] == height) for height in heights]
    return list({str(choice): choice for choice in [*ranked[: MAX_CANDIDATES[kind]], *firsts]}.values())


def moe_tiles(kind: str, tokens: int, heights: list[int]) -> list[Choice]:
    """Return the tiles of a fused MoE kernel that are considered."""
    return all_combinations(
        BLOCK_SIZE_M=heights,
        BLOCK_SIZE_N=[32, 64, 128, 256],
        # A block-wise scale covers 128 of the depth, and SGLang does not cut a deeper tile to it.
        BLOCK_SIZE_K=[32, 64, 128, 256] if kind == "int4_w4a16" else [64, 128],
        GROUP_SIZE_M=[1 if tokens <= 64 else 8],
        num_warps=[4, 8],
        num_stages=[2, 3, 4, 5],
    )


def few_of_each_tile(choices: list[Choice]) -> list[Choice]:
    """Keep the first few of the choices with the same blocks, in their order."""
    seen: Counter[tuple[int, int, int]] = Counter()
    kept = []
    for choice in choices:
        seen[tile_sizes(choice)] += 1
        if seen[tile_sizes(choice)] <= MAX_PER_TILE:
            kept.append(choice)
    return kept


def tile_sizes(choice: Choice) -> tuple[int, int, int]:
    return choice["BLOCK_SIZE_M"], choice["BLOCK_SIZE_N"], choice["BLOCK_SIZE_K"]


def shared_bytes(kind: str, choice: Choice) -> int:
    """Return the shared memory of the fused MoE kernel, computed from its blocks.

    bf16 and fp8: all stages but one of both tiles; block-wise scales may add 4 bytes a column. int4: all stages but one
    of the activations, and one tile of weights as bf16. Exact for every bf16 block compiled for sm_120, and for 480 of
    480 int4 ones (Triton 3.7.1).
    """
    rows, columns, depth = tile_sizes(choice)
    ahead = max(int(choice.get("num_stages", 3)) - 1, 1)
    if kind == "int4_w4a16":
        return ahead * rows * depth * 2 + columns * depth * 2
    return int(ahead * (rows + columns) * depth * _WEIGHT_BYTES[kind])


@functools.lru_cache(maxsize=256)
def expected_blocks(tokens: int, rows: int, experts: int, used: int) -> float:
    """Return the mean number of row tiles if each of `tokens` goes to `used` of the experts at random."""
    share = used / experts
    mean, chance, found = tokens * share, (1 - share) ** tokens, 0.0
    for count in range(1, min(tokens, int(mean + 10 * math.sqrt(mean) + 20)) + 1):
        chance *= (tokens - count + 1) / count * share / (1 - share)  # of an expert that `count` tokens go to
        found += chance * math.ceil(count / rows)
    return experts * found


def moe_cost(kind: str, choice: Choice, tokens: int, product: int, *, shape: RankShape, sms: int) -> float:
    """Return a cost that orders the candidates of one case; its value has no meaning.

    Multiprocessors take tiles in waves; each step of a tile moves its operands and multiplies them, and the moving is
    hidden behind the multiplying as far as stages and resident blocks allow.
    """
    high, wide, deep = tile_sizes(choice)
    columns, depth = shape.products[product]
    warps, ahead = choice["num_warps"], choice["num_stages"] - 1
    threads, packed = warps * 32, kind == "int4_w4a16"
    tiles = expected_blocks(tokens, high, shape.experts, shape.used) * math.ceil(columns / wide)
    registers = 40 + high * wide / threads + (1.5 * wide * deep / threads if packed else 0)
    resident = max(1, min(101_376 // (shared_bytes(kind, choice) + 1_024), int(65_536 / (registers * threads)), 8))
    moved = deep * (high * (1.0 if kind == "fp8_w8a8 block" else 2.0) + wide * _WEIGHT_BYTES[kind])
    flying = min(1.0, moved * ahead * resident / 32_768)  # bytes in flight that keep a multiprocessor's memory busy
    busy = min(1.0, high * wide / (warps * 512))  # a warp's share of the tile below 16x32 leaves its matrix unit idle
    step = max(moved / (24 * flying), high * wide * deep / (2_048 * busy)) + 60 / resident
    if packed:  # unpacking is arithmetic that needs warps to hide it: int4 took longer than bf16 on an H200
        step += wide * deep / 24 / min(1.0, resident * warps / 24)
    spilled = max(0.0, registers - 168) / 84
    waves = max(tiles / (sms * resident), math.ceil(tiles / (sms * resident)) * 0.5 + 0.5)
    return waves * resident * math.ceil(depth / deep) * step * (1 + spilled)
