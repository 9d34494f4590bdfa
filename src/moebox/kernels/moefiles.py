"""Writes tuned fused-MoE blocks as the files that vLLM and SGLang look for.

One folder serves both: VLLM_TUNED_CONFIG_FOLDER=FOLDER and SGLANG_MOE_CONFIG_DIR=FOLDER. Both engines take the entry
whose batch size is nearest, so a file that is there must have them all: where the engine's own default won, it is
written out, and a file that would have gaps is not written.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from moebox import codec
from moebox.core import registry
from moebox.files import report_write_errors, write_atomic
from moebox.kernels.probe.protocol import TunedBaseline, TunedRow
from moebox.kernels.probe.space import BATCH_SIZES, KIMI, Choice, RankShape
from moebox.kernels.tuning import MIN_GAIN, TuningResult

Configs = dict[int, Choice]  # by batch size
# vLLM sends int4 batches to a CUDA kernel up to this many tokens an expert (fused_moe.py, should_moe_wna16_use_cuda).
# That kernel reads the same file, and takes tiles meant for Triton, so its entries must leave them out.
CUDA_TOKENS = 6
_SHAPE = {"fp8_w8a8 block": [128, 128]}


def vllm_name(kind: str, device: str, shape: RankShape = KIMI) -> str:
    """The name vLLM asks for (fused_moe.py, get_config_file_name; 0.24 to 0.32)."""
    named = re.sub(r"[\s/]+", "_", device)
    named = "NVIDIA_H200" if "H200" in named.split("_") else named
    return f"E={shape.experts},N={shape.intermediate},device_name={named}{_name_suffix(kind).replace(' ', '')}.json"


def sglang_name(kind: str, device: str, shape: RankShape = KIMI, *, down: bool = False) -> str:
    """The name SGLang asks for (fused_moe_triton_config.py, get_config_file_name; 0.5.7 to 0.5.23).

    It counts an int4 expert's width in packed bytes, two to a byte, where vLLM counts weights.
    """
    packed = shape.intermediate // 2 if kind == "int4_w4a16" else shape.intermediate
    last = "_down" if down else ""
    return f"E={shape.experts},N={packed},device_name={device.replace(' ', '_')}{_name_suffix(kind)}{last}.json"


def sglang_folder(triton: str) -> str:
    """Where below SGLANG_MOE_CONFIG_DIR it looks, for the Triton that runs."""
    return f"configs/triton_{triton.replace('.', '_')}"


def _name_suffix(kind: str) -> str:
    dtype = "" if kind == "bf16" else f",dtype={kind.split()[0]}"
    return dtype + (f",block_shape={_SHAPE[kind]}" if kind in _SHAPE else "")


def tuned_config_files(tuned: TuningResult, device: str) -> tuple[dict[str, Configs], list[str]]:
    """Every whole file by its name below the folder, and a line on each that would have gaps."""
    whole: dict[str, Configs] = {}
    gaps = []
    pairs = registry.engine_traits(tuned.engine).moe_config_pairs
    for kind, found in (_sglang_configs(tuned.rows) if pairs else _vllm_configs(tuned.rows, tuned.shape)).items():
        missing = [tokens for tokens in BATCH_SIZES if tokens not in found[0]]
        if missing:
            gaps.append(
                f"fused MoE {kind}: {len(missing)} of {len(BATCH_SIZES)} batch sizes were not timed, no file written"
            )
        elif pairs:
            place = sglang_folder(tuned.triton)
            whole[f"{place}/{sglang_name(kind, device, tuned.shape)}"] = found[0]
            whole[f"{place}/{sglang_name(kind, device, tuned.shape, down=True)}"] = found[1]
        else:
            whole[vllm_name(kind, device, tuned.shape)] = found[0]
    return whole, gaps


def _parse_case(row: TunedRow, head: str) -> tuple[str, int] | None:
    """Kind and tokens of a fused MoE row: "fused MoE fp8_w8a8 block, 64 tokens"."""
    found = re.fullmatch(rf"{head} (.+), (\d+) tokens", row.case)
    return (found[1], int(found[2])) if found else None


def _vllm_configs(rows: Sequence[TunedRow], shape: RankShape) -> dict[str, tuple[Configs, ...]]:
    """By kind; each entry serves both products."""
    kinds: dict[str, tuple[Configs, ...]] = {}
    for row in rows:
        case = _parse_case(row, "fused MoE")
        if case and row.best:
            kind, tokens = case
            own = kind == "int4_w4a16" and tokens * shape.used <= CUDA_TOKENS * shape.experts
            kinds.setdefault(kind, ({},))[0][tokens] = default_baseline(row).config if own else row.best
    if "int4_w4a16" in kinds:
        kinds["int4_w4a16"] = (
            _split_at_kernel_change(kinds["int4_w4a16"][0], CUDA_TOKENS * shape.experts // shape.used),
        )
    return kinds


def default_baseline(row: TunedRow) -> TunedBaseline:
    """What the engine takes by itself."""
    return next(iter(row.baselines.values()))


def _split_at_kernel_change(configs: Configs, last: int) -> Configs:
    """With an entry on either side of `last`, after which vLLM changes kernels, so that none takes the other's."""
    below = [tokens for tokens in configs if tokens <= last]
    above = [tokens for tokens in configs if tokens > last]
    if below and above:
        configs = {**configs, last: configs[max(below)], last + 1: configs[min(above)]}
    return dict(sorted(configs.items()))


def _sglang_configs(rows: Sequence[TunedRow]) -> dict[str, tuple[Configs, ...]]:
    """By kind; an entry for each product, of one tile height: SGLang sorts tokens once for both."""
    kinds: dict[str, tuple[Configs, ...]] = {}
    for (kind, tokens), both in _products(rows).items():
        chosen = choose_pair(both["up"], both["down"]) if len(both) == 2 else None
        if chosen:
            up, down = kinds.setdefault(kind, ({}, {}))
            up[tokens], down[tokens] = chosen
    return kinds


def _products(rows: Sequence[TunedRow]) -> dict[tuple[str, int], dict[str, TunedRow]]:
    """The rows of both products, up and down, by kind and tokens; those without a choice are left out."""
    products: dict[tuple[str, int], dict[str, TunedRow]] = {}
    for row in rows:
        case = _parse_case(row, "SGLang fused MoE")
        if case and row.best:
            kind, product = case[0].rsplit(" ", 1)
            products.setdefault((kind, case[1]), {})[product] = row
    return products


def choose_pair(up: TunedRow, down: TunedRow) -> tuple[Choice, Choice] | None:
    """The fastest two of one tile height; the engine's default where they gain nothing on it; None where none agree."""
    default = (default_baseline(up), default_baseline(down))
    whole = sum(base.ms for base in default) if all(base.fits for base in default) else math.inf
    sums = {height: up.groups[height].ms + down.groups[height].ms for height in up.groups.keys() & down.groups.keys()}
    best = min(sums, key=lambda height: (sums[height], height), default=None)
    if best is not None and sums[best] * (1 + MIN_GAIN) < whole:
        return up.groups[best].config, down.groups[best].config
    return (default[0].config, default[1].config) if whole < math.inf else None


def write_tuned_files(
    tuned: TuningResult, folder: Path, device: str, extra_files: Mapping[str, str] | None = None
) -> tuple[list[Path], list[str]]:
    """The files that the engine reads, the whole table and what goes beside it; and what was left out."""
    whole, gaps = tuned_config_files(tuned, device)
    texts = {
        f"tuned-{tuned.engine}.json": json.dumps(codec.to_plain(tuned.rows), indent=1) + "\n",
        **(extra_files or {}),
    }
    texts |= {name: json.dumps(configs, indent=4) + "\n" for name, configs in whole.items()}
    made = [folder / name for name in texts]
    with report_write_errors(folder):
        for path, text in zip(made, texts.values(), strict=True):
            write_atomic(path, text)
    return made, gaps
