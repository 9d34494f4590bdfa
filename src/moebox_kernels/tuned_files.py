"""Tunes on the GPU at hand, and writes what engines read: fused-MoE files, a patch of SGLang's prefill attention.

The timing is done by `probe/tune.py` in a process of its own. One folder serves both engines:
VLLM_TUNED_CONFIG_FOLDER=FOLDER and SGLANG_MOE_CONFIG_DIR=FOLDER. Both take the entry whose batch size is nearest, so a
file must have them all: if the engine's own default won, it is written out, and a file that would have gaps is not
written.

Files of others are checked for entries that cannot launch on an architecture. For bf16, fp8 and int4 weights the shared
memory follows from the block sizes (`probe.space.shared_bytes`); other files, and those for kernels that are not
Triton's, need compiling.
"""

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

import moebox
from moebox import codec
from moebox.core import registry
from moebox.core.kernel import Arch, find_arch
from moebox.environment import chosen_environment
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.files import report_write_errors, scratch_folder, write_atomic
from moebox_kernels.patch import PATCH_MARK, FilePatch, patch_extend_blocks, read_engine_file
from moebox_kernels.probe.protocol import TuneAnswer, TunedRow, TuneRequest
from moebox_kernels.probe.space import BATCH_SIZES, KIMI, Choice, RankShape, shared_bytes
from moebox_kernels.scan import KernelRequest, check_triton, engine_root, kernel_cache, rank_shape

TUNING_SECONDS = 1500.0  # for all of an engine's cases
_NAME = re.compile(
    r"E=\d+,N=\d+,device_name=[^,]+?(?:,dtype=(?P<dtype>[a-z0-9_]+?))?"
    r"(?:,block_shape=\[(?P<n>\d+), ?(?P<k>\d+)\])?(?:,.*)?(?:_down)?\.json"
)
_KINDS = {None: "bf16", "bf16": "bf16", "fp8_w8a8": "fp8_w8a8 block", "int8_w8a8": "fp8_w8a8 block"}
_KINDS |= {"int4_w4a16": "int4_w4a16"}
MIN_GAIN = 0.02  # the same configuration timed twice differed by up to 2% on an H200


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    engine: str
    triton: str
    rows: list[TunedRow]
    shape: RankShape = KIMI


def tune_kernels(request: KernelRequest, here: Arch, *, limit: Arch) -> TuningResult:
    """Time every candidate of the engine's kernels on the GPU `here` that fits the limits of `limit`."""
    root = engine_root(request)
    check_triton(request.compiler)
    timing_request = TuneRequest(
        shape=rank_shape(request.model, request.tp),
        engine=request.engine,
        root=str(root),
        capability=here.capability,
        device=here.device,
        sms=here.sms,
        limit=limit.smem,
        limit_capability=limit.capability,
        cache=str(kernel_cache()),
        seconds=TUNING_SECONDS,
        only=request.only,
    )
    with scratch_folder("tuning") as folder:
        question, answer = folder / "request.json", folder / "answer.json"
        question.write_text(codec.to_json(timing_request))
        command = [str(request.compiler), "-m", "moebox_kernels.probe.tune", str(question), str(answer)]
        env = chosen_environment({"PYTHONPATH": str(Path(moebox.__file__).parent.parent)})
        try:
            done = subprocess.run(command, env=env, stdout=sys.stderr, check=False, timeout=TUNING_SECONDS * 1.5)
        except subprocess.TimeoutExpired:
            raise ExternalError(f"the tuner did not finish in {TUNING_SECONDS * 1.5:.0f} s") from None
        if done.returncode:
            raise ExternalError("the tuner failed; its output is above", hint="`--debug` shows more")
        refuse_if(not answer.exists(), f"--only {request.only}: no case that can be tuned has that in its name")
        timed = msgspec.convert(json.loads(answer.read_text()), TuneAnswer)  # msgspec's own reader knows no Infinity
    rows = [*map(prefer_baseline, timed.rows)]
    return TuningResult(engine=request.engine, triton=timed.triton, rows=rows, shape=timing_request.shape)


def local_gpu() -> Arch:
    """Return the first GPU of this machine. Raise ExternalError without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError:
        raise ExternalError("tuning times kernels on a GPU, and this machine has none") from None
    return replace(find_arch(f"{major}.{minor}"), device=name if isinstance(name, str) else name.decode())


def prefer_baseline(row: TunedRow) -> TunedRow:
    """Return the row with a baseline as its best choice, if one fits and the winner gains no more than the noise."""
    if row.ms is None:
        return row
    for name, base in row.baselines.items():
        if base.fits and base.ms <= row.ms * (1 + MIN_GAIN):
            return replace(row, best=base.config, ms=base.ms, shared_bytes=base.shared_bytes, kept=name)
    return row


def markdown_table(rows: Sequence[TunedRow]) -> str:
    """Return the best choices as Markdown, beside each baseline and how much faster they are."""
    lines = ["| case | best found | ms | error | beside |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        if row.best is None or row.ms is None:
            lines.append(f"| {row.case} | none that fits is right | | | |")
            continue
        blocks = " ".join(f"{name.removeprefix('BLOCK_').lower()}={value}" for name, value in row.best.items())
        if "tokens" in row.best or row.kept.endswith("default"):
            blocks = "the engine's own default"
        beside = "; ".join(
            f"{name} {base.ms:.3f} ms ({base.ms / row.ms:.2f}x{'' if base.fits else ', does not fit'})"
            for name, base in row.baselines.items()
        )
        lines.append(f"| {row.case} | {blocks} | {row.ms:.3f} | {row.error or 0.0:.4f} | {beside} |")
    return "\n".join(lines) + "\n"


MoeConfigs = dict[int, Choice]  # by batch size
# vLLM sends int4 batches to a CUDA kernel up to this many tokens an expert (fused_moe.py, should_moe_wna16_use_cuda).
# That kernel reads the same file, and takes tiles meant for Triton, so its entries must leave them out.
CUDA_TOKENS = 6
_ATTENTION_CASE = re.compile(r"(extend \d+/\d+|MLA decode).*?(bf16|fp8)?$")


def write_tuned_files(
    tuned: TuningResult, folder: Path, device: str, extra_files: Mapping[str, str] | None = None
) -> tuple[list[Path], list[str]]:
    """Write the files that the engine reads, the whole table and `extra_files`; return the paths, and the gaps."""
    configs, gaps = tuned_config_files(tuned, device)
    table = json.dumps(codec.to_plain(tuned.rows), indent=1) + "\n"
    texts = {f"tuned-{tuned.engine}.json": table, **(extra_files or {})}
    texts |= {name: json.dumps(entries, indent=4) + "\n" for name, entries in configs.items()}
    with report_write_errors(folder):
        for name, text in texts.items():
            write_atomic(folder / name, text)
    return [folder / name for name in texts], gaps


def tuned_config_files(tuned: TuningResult, device: str) -> tuple[dict[str, MoeConfigs], list[str]]:
    """Return every complete file by its name below the folder, and a line on each that would have gaps."""
    complete: dict[str, MoeConfigs] = {}
    gaps = []
    pairs = registry.engine_traits(tuned.engine).moe_config_pairs
    for kind, found in (_sglang_configs(tuned.rows) if pairs else _vllm_configs(tuned.rows, tuned.shape)).items():
        missing = [tokens for tokens in BATCH_SIZES if tokens not in found[0]]
        if missing:
            of_all = f"{len(missing)} of {len(BATCH_SIZES)}"
            gaps.append(f"fused MoE {kind}: {of_all} batch sizes were not timed, no file written")
        elif pairs:
            place = f"configs/triton_{tuned.triton.replace('.', '_')}"  # where SGLang looks, for this Triton
            complete[f"{place}/{sglang_name(kind, device, tuned.shape)}"] = found[0]
            complete[f"{place}/{sglang_name(kind, device, tuned.shape, down=True)}"] = found[1]
        else:
            complete[vllm_name(kind, device, tuned.shape)] = found[0]
    return complete, gaps


def vllm_name(kind: str, device: str, shape: RankShape = KIMI) -> str:
    """Return the file name that vLLM asks for (fused_moe.py, get_config_file_name; 0.24 to 0.32)."""
    named = re.sub(r"[\s/]+", "_", device)
    named = "NVIDIA_H200" if "H200" in named.split("_") else named
    return f"E={shape.experts},N={shape.intermediate},device_name={named}{_name_suffix(kind).replace(' ', '')}.json"


def sglang_name(kind: str, device: str, shape: RankShape = KIMI, *, down: bool = False) -> str:
    """Return the file name that SGLang asks for (fused_moe_triton_config.py, get_config_file_name; 0.5.7 to 0.5.23).

    It counts an int4 expert's width in packed bytes, two to a byte, while vLLM counts weights.
    """
    packed = shape.intermediate // 2 if kind == "int4_w4a16" else shape.intermediate
    last = "_down" if down else ""
    return f"E={shape.experts},N={packed},device_name={device.replace(' ', '_')}{_name_suffix(kind)}{last}.json"


def _name_suffix(kind: str) -> str:
    dtype = "" if kind == "bf16" else f",dtype={kind.split()[0]}"
    return dtype + (",block_shape=[128, 128]" if kind == "fp8_w8a8 block" else "")


def _parse_case(row: TunedRow, head: str) -> tuple[str, int] | None:
    """Return kind and tokens of a fused MoE row with a choice: "fused MoE fp8_w8a8 block, 64 tokens"."""
    found = re.fullmatch(rf"{head} (.+), (\d+) tokens", row.case)
    return (found[1], int(found[2])) if found and row.best else None


def _vllm_configs(rows: Sequence[TunedRow], shape: RankShape) -> dict[str, tuple[MoeConfigs, ...]]:
    """Return entries by kind; each serves both products."""
    last = CUDA_TOKENS * shape.experts // shape.used  # the largest int4 batch of the CUDA kernel
    kinds: dict[str, tuple[MoeConfigs, ...]] = {}
    for row in rows:
        if row.best and (case := _parse_case(row, "fused MoE")):
            kind, tokens = case
            is_cuda = kind == "int4_w4a16" and tokens * shape.used <= CUDA_TOKENS * shape.experts
            default = next(iter(row.baselines.values()))  # the engine's own
            kinds.setdefault(kind, ({},))[0][tokens] = default.config if is_cuda else row.best
    if "int4_w4a16" in kinds:
        # An entry on either side of the change of kernels, so that neither takes the other's.
        configs = kinds["int4_w4a16"][0]
        below, above = [size for size in configs if size <= last], [size for size in configs if size > last]
        if below and above:
            configs |= {last: configs[max(below)], last + 1: configs[min(above)]}
        kinds["int4_w4a16"] = (dict(sorted(configs.items())),)
    return kinds


def _sglang_configs(rows: Sequence[TunedRow]) -> dict[str, tuple[MoeConfigs, ...]]:
    """Return entries by kind for each product, of one tile height: SGLang sorts tokens once for both."""
    products: dict[tuple[str, int], dict[str, TunedRow]] = {}
    for row in rows:
        if case := _parse_case(row, "SGLang fused MoE"):
            kind, product = case[0].rsplit(" ", 1)
            products.setdefault((kind, case[1]), {})[product] = row
    kinds: dict[str, tuple[MoeConfigs, ...]] = {}
    for (kind, tokens), both in products.items():
        chosen = choose_pair(both["up"], both["down"]) if len(both) == 2 else None
        if chosen:
            up, down = kinds.setdefault(kind, ({}, {}))
            up[tokens], down[tokens] = chosen
    return kinds


def choose_pair(up: TunedRow, down: TunedRow) -> tuple[Choice, Choice] | None:
    """Return the fastest two of one tile height, or the engine's default if they gain nothing, or None."""
    default = [next(iter(row.baselines.values())) for row in (up, down)]
    whole = sum(base.ms for base in default) if all(base.fits for base in default) else math.inf
    sums = {height: up.groups[height].ms + down.groups[height].ms for height in up.groups.keys() & down.groups.keys()}
    best = min(sums, key=lambda height: (sums[height], height), default=None)
    if best is not None and sums[best] * (1 + MIN_GAIN) < whole:
        return up.groups[best].config, down.groups[best].config
    return (default[0].config, default[1].config) if whole < math.inf else None


def block_table(rows: Sequence[TunedRow]) -> dict[str, Choice]:
    """Return the best choice of each attention kernel: {"extend 576/512": {"BLOCK_M": 32, …}, "MLA decode, fp8": …}.

    An engine has one entry for each width, whatever the length: the choice with the least product of times relative to
    the best of each length, or the longest length's own if none was timed at all of them.
    """
    kinds: dict[str, list[TunedRow]] = {}
    for row in rows:
        case = _ATTENTION_CASE.match(row.case)
        if case and row.best:
            kinds.setdefault(f"{case[1]}, {case[2]}" if case[2] else case[1], []).append(row)
    table = {}
    for name, cases in kinds.items():
        times = [{json.dumps(timed.config, sort_keys=True): timed.ms for timed in case.field} for case in cases]
        shared = sorted(set.intersection(*map(set, times)))
        costs = {
            choice: math.fsum(math.log(timed[choice] / min(timed.values())) for timed in times) for choice in shared
        }
        longest = max(cases, key=lambda case: case.ms or 0.0)
        table[name] = dict(json.loads(min(shared, key=lambda choice: costs[choice])) if shared else longest.best or {})
    return table


def block_table_patches(tuned: TuningResult, root: Path, limit: Arch) -> tuple[FilePatch, ...]:
    """Return the block table as a patch of SGLang's extend attention; nothing for other engines."""
    chosen = {name: choice for name, choice in block_table(tuned.rows).items() if name.startswith("extend ")}
    places = sorted(root.glob("sglang/**/extend_attention.py"))  # their folder differs between releases
    files = [path for path in places if "def _get_block_sizes_for_extend_attention(" in read_engine_file(path)]
    if not registry.engine_traits(tuned.engine).moe_config_pairs or not chosen or not files:
        return ()
    before = after = read_engine_file(files[0])
    for name, choice in chosen.items():
        width = int(name.split()[1].split("/")[0])
        comment = f"{PATCH_MARK} the fastest of those that were timed and fit {limit.smem:,} bytes"
        after = patch_extend_blocks(after, capability=limit.capability, width=width, choice=choice, comment=comment)
    return (FilePatch(path=files[0], name=str(files[0].relative_to(root)), before=before, after=after),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One batch size of a file."""

    tokens: int
    blocks: str
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFile:
    """A file and its entries that cannot launch, or None if they need compiling."""

    file: str
    entries: int
    bad: tuple[ConfigEntry, ...] | None

    @property
    def verdict(self) -> str:
        return "needs compiling" if self.bad is None else "does not fit" if self.bad else "launches"


def check_tuned_files(folder: Path, arch: Arch) -> tuple[TunedFile, ...]:
    refuse_if(not folder.is_dir(), f"{folder}: no such folder")
    checked = []
    for path in sorted(folder.rglob("E=*.json")):
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        kind = _KINDS.get(name["dtype"])
        # vLLM cuts BLOCK_SIZE_K to the quantisation block.
        deepest = min(int(name["n"]), int(name["k"])) if name["n"] else 1 << 30
        entries = []
        try:
            document: Any = json.loads(path.read_text())
            rows = {int(tokens): row for tokens, row in document.items() if tokens.isdigit()}
            for tokens, row in sorted(rows.items()):
                if kind is None or "BLOCK_SIZE_N" not in row:  # unknown, or not for a Triton kernel
                    continue
                cut = {**row, "BLOCK_SIZE_K": min(int(row["BLOCK_SIZE_K"]), deepest)}
                blocks = "x".join(str(row[f"BLOCK_SIZE_{side}"]) for side in "MNK")
                entries.append(ConfigEntry(tokens=tokens, blocks=blocks, shared_bytes=shared_bytes(kind, cut)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{path}: not a fused-MoE configuration") from None
        bad = tuple(entry for entry in entries if entry.shared_bytes > arch.smem) if entries else None
        checked.append(TunedFile(file=path.name, entries=len(rows), bad=bad))
    return tuple(checked)
