"""Fit the constants in `data/efficiency.toml` to the published rows and write them back with their spread.

    python benchmarks/fit_speed.py [--dry]   then `benchmarks/hosts.py --write` for the spread between hosts

Coordinate descent on the logarithms, group by group, on the mean absolute log error (clipped, so that no broken cell
leads). Each group moves only its own few constants; what was measured directly (bus bandwidth, expert kernels) stays.
"""

import functools
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pairs
import published
import spreads
from pairs import Pair
from published import Case

from moebox.core import catalogue
from moebox.planner.speed import constants

TABLE = Path(constants.__file__).parents[2] / "data" / "efficiency.toml"
CLIP = 0.9
LEAST_FIXED_US = 10.0  # a kernel and its launch
ROUNDS = 9
Knob = tuple[str, dict[str, Any], str]  # table, the row's keys, the constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows that are fitted together, and the constants they decide. A high `power` minds the worst row.

    Ratios of `pairs` count as much as the rows do together: a buyer compares boxes.
    """

    name: str
    rows: Callable[[], Iterable[Case]]
    knobs: tuple[Knob, ...]
    power: int = 1
    pairs: Callable[[], Iterable[Pair]] = tuple


def main(*, dry: bool) -> None:
    """Fit every group in turn."""
    for group in GROUPS:
        fit(group)
    spreads.within_hosts()
    if not dry:
        TABLE.write_text(patched(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {TABLE.name}")


def fit(group: Group, *, quiet: bool = False, rounds: int = ROUNDS) -> None:
    """Move the knobs until the rows fit."""
    cases, knobs, power, compared = list(group.rows()), group.knobs, group.power, list(group.pairs())
    steps = [0.2] * len(knobs)
    best = _loss(cases, power, compared)
    for _ in range(rounds):
        for place, knob in enumerate(knobs):
            row, key = _row(knob), knob[2]
            was = row[key]
            for sign in (1, -1):
                row[key] = _within(key, was * math.exp(sign * steps[place]))
                loss = _loss(cases, power, compared)
                if loss < best * (1 - 1e-5):
                    best, steps[place] = loss, steps[place] * 1.3
                    break
            else:
                row[key], steps[place] = was, steps[place] / 2
    constants.clear_caches()
    published.forget()
    errors = [math.log(case.ratio) for case in cases]
    if quiet:
        return
    sizes = sorted(abs(math.expm1(error)) for error in errors)
    values = ", ".join(f"{knob[2]} {_row(knob)[knob[2]]:.4g}" for knob in knobs)
    middle = statistics.median(sizes)
    print(f"{group.name}: {len(cases)} rows, median {middle:.1%}, worst {sizes[-1]:.0%}; {values}", flush=True)


def _loss(cases: list[Case], power: int, compared: list[Pair]) -> float:
    constants.clear_caches()
    published.forget()
    pairs.forecast_ms.cache_clear()
    errors = (min(abs(math.log(case.ratio)), CLIP) for case in cases)
    loss = sum(error**power for error in errors) / len(cases)
    ratios = [min(abs(pair.predict() - pair.published), CLIP) for pair in compared]
    return loss + (sum(ratios) / len(ratios) if ratios else 0.0)


def _within(key: str, value: float) -> float:
    """Shares stay shares, and nothing leaves the range in which it still means something."""
    shares = (
        "experts",
        "accept",
        "gemm",
        "flops",
        "ram",
        "upload",
        "bus",
        "bandwidth",
        "dense_bw",
        "prefill_attention",
    )
    if key in shares:
        return min(max(value, 0.02), {"upload": 0.88, "gemm": 0.8, "experts": 1.0, "flops": 1.5}.get(key, 0.95))
    return max(value, LEAST_FIXED_US) if key == "fixed_us" else value


def _serving(only: str, *groups: str) -> Callable[[], list[Case]]:
    return lambda: [case for case in published.serving_rows(only=only) if case.group in groups]


def _short_prompts() -> list[Case]:
    """Prompts of 128 token ids, of which what a request takes is a large part; padded rows of experts cost nothing."""
    return [case for case in published.timed_steps("kimi-k2.5", shortest=1) if case.at.endswith(" 128 tokens")]


def _others(*names: str) -> Callable[[], list[Case]]:
    return lambda: [case for case in published.other_rows() if case.run.startswith(names)]


def _hybrid(engine: str, group: str) -> Callable[[], list[Case]]:
    return lambda: [case for case in published.hybrid_rows(engine=engine) if case.group == group]


def _row(knob: Knob) -> dict[str, Any]:
    table, keys, _ = knob
    found = catalogue.load_table("efficiency")[table]
    rows: list[dict[str, Any]] = found if isinstance(found, list) else [found]
    wanted = {"preset": "", **keys} if table != "kernels" else {}
    return next(row for row in rows if all(row.get(key, "") == value for key, value in wanted.items()))


def patched(text: str) -> str:
    """The file's text with the fitted numbers in it; comments and order stay."""
    data = catalogue.load_table("efficiency")
    counts: dict[str, int] = {}
    row: dict[str, Any] = {}
    lines = []
    for line in text.splitlines():
        head = re.fullmatch(r"\[\[(\w+)\]\]", line)
        alone = re.fullmatch(r"\[(\w+)\]", line)
        if alone:
            row = data[alone.group(1)]
        if head:
            table = head.group(1)
            row = data[table][counts.get(table, 0)]
            counts[table] = counts.get(table, 0) + 1
        pair = re.fullmatch(r"(\w+) = ([-\d.e_+]+)( +#.*)?", line)
        if pair and isinstance(row.get(pair.group(1)), float):
            line = f"{pair.group(1)} = {_number(row[pair.group(1)])}{pair.group(3) or ''}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def _engine(engine: str, generation: str, names: str, *, preset: str = "") -> tuple[Knob, ...]:
    keys = {"engine": engine, "generation": generation, "preset": preset}
    return tuple(("engine", keys, name) for name in names.split())


def _one(table: str, key: str, value: str, names: str) -> tuple[Knob, ...]:
    return tuple((table, {key: value}, name) for name in names.split())


def _experts(
    quant: str, generation: str, names: str, *, kernel: str, before: str = "", engine: str = ""
) -> tuple[Knob, ...]:
    keys = {"quant": quant, "generation": generation, "kernel": kernel, "before": before}
    keys |= {"engine": engine} if engine else {}
    return tuple(("experts", keys, name) for name in names.split())


def _cookbook(*names: str) -> Callable[[], list[Case]]:
    """Rates, and the first token of one request alone: under load it tells how requests queue."""
    return lambda: [
        case
        for name in names
        for case in published.serving_rows(only=name)
        if case.group in ("output", "tpot") or (case.group == "ttft" and case.at.startswith("C1 "))
    ]


def _kernel(quant: str, generation: str, kernel: str, engine: str = "") -> Group:
    """A kernel's fixed cost and shares, from timings of the kernel alone: no host's rows have a part in them."""
    # CUTLASS: timed with six shapes. gpt-oss on RTX: one shape, whose fixed cost is that of one token.
    fixed = {"cutlass": "fixed_us hidden_us expert_us ", "marlin": "fixed_us " * (quant == "int4")}.get(
        kernel, "fixed_us "
    )
    # On RTX few prompts were timed: rows that are moved count as operations there. SGLang's share of bandwidth for fp8
    # on Hopper is vLLM's, which steps with even routing decide.
    read = "bandwidth " * ((quant, engine) != ("fp8", "sglang"))
    moved = "" if generation == "blackwell-rtx" else " row_bytes"
    return Group(
        name=f"{quant} experts, {generation}, {kernel} {engine}".strip(),
        rows=functools.partial(
            published.expert_kernels, quant=quant, generation=generation, kernel=kernel, engine=engine
        ),
        knobs=_experts(
            quant, generation, f"{fixed}{read}flops{moved}", kernel=kernel, engine=engine.replace("vllm", "")
        ),
    )


def _against_hopper(engine: str) -> Callable[[], list[Pair]]:
    """Pairs of Hopper and server Blackwell, without gpt-oss (fp8 activations there) and MiniMax M3 (its first day)."""
    return lambda: [
        pair
        for pair in pairs.load_pairs(use="fit", engine=engine)
        if pair.row["kind"] == "gpu" and pair.row["model"] not in ("gpt-oss-120b", "minimax-m3")
        if {"b", "h"} == {pair.row[f"box_{side}"].partition("-")[2][0] for side in "ab"}
    ]


ON_B200 = ("jasl DeepSeek-V4-Flash, four B200", "jasl DeepSeek-V4-Flash, two B200")
TIMED_KERNELS = (
    ("int4", "blackwell-rtx", "marlin"),
    ("nvfp4", "blackwell-rtx", "cutlass"),
    ("fp8", "blackwell-rtx", "triton"),
    ("mxfp4", "blackwell-rtx", "marlin"),
    ("int4", "hopper", "marlin"),
    ("fp8", "hopper", "triton", "vllm"),
    ("fp8", "hopper", "triton", "sglang"),
    ("bf16", "hopper", "triton"),
    ("mxfp4", "hopper", "triton", "vllm"),
    ("mxfp4", "hopper", "triton", "sglang"),
    ("int4", "blackwell", "marlin"),
    ("int4", "blackwell", "trtllm"),
    ("nvfp4", "blackwell", "trtllm"),
    ("fp8", "blackwell", "trtllm"),
    ("fp8", "blackwell", "triton"),
    ("mxfp4", "blackwell", "trtllm"),
    ("mxfp4", "blackwell", "trtllm-mxfp8"),
    ("bf16", "blackwell", "trtllm"),
)
GROUPS = (
    *(_kernel(*each) for each in TIMED_KERNELS),
    Group(
        name="tuned rig, decoding",
        rows=published.decode_cells,
        knobs=(
            *_engine("vllm", "blackwell-rtx", "layer_us attention_flops attention_fill dcp_us", preset="community"),
            *_one("draft", "method", "eagle3", "accept pass_us"),
        ),
    ),
    Group(
        name="tuned rig, prompts",
        rows=published.prefill_cells,
        knobs=_engine("vllm", "blackwell-rtx", "gemm prefill_attention", preset="community"),
    ),
    Group(
        name="eight RTX PRO 6000, vLLM, one stream",
        rows=functools.partial(published.single_streams, engine="vllm"),
        knobs=(*_engine("vllm", "blackwell-rtx", "layer_us"), *_one("link", "name", "pcie", "sockets_us")),
    ),
    Group(
        name="eight RTX PRO 6000, SGLang, one stream",
        rows=functools.partial(published.single_streams, engine="sglang"),
        knobs=_engine("sglang", "blackwell-rtx", "layer_us"),
    ),
    Group(
        name="H200, vLLM, timed steps and first tokens",
        rows=lambda: [*published.timed_steps("kimi-k2.5"), *_serving("h200", "ttft")()],
        knobs=(
            *_engine("vllm", "hopper", "step_us layer_us token_us"),
            *_experts("int4", "hopper", "bandwidth", kernel="marlin"),
        ),
        power=2,
    ),
    Group(
        name="H200, vLLM, one short prompt alone",
        rows=_short_prompts,
        knobs=(("request", {}, "vllm"),),
    ),
    Group(
        name="H200, vLLM, first tokens of several",
        rows=_serving("h200", "ttft"),
        knobs=(("intake", {}, "vllm"), ("intake", {}, "text_ms")),
        power=8,
    ),
    Group(
        # The kernel's timings are of uneven routing, in which a step reads fewer experts than this one does.
        name="H200, vLLM, timed decode steps of block fp8",
        rows=lambda: [case for case in published.timed_steps("deepseek-v3") if case.group == "decode"],
        knobs=_experts("fp8", "hopper", "bandwidth", kernel="triton"),
    ),
    Group(
        name="H100, vLLM before 0.20, mxfp4",
        rows=_serving("gpustack-h100-tp1", "output", "tpot", "ttft"),
        knobs=_experts("mxfp4", "hopper", "bandwidth flops", kernel="triton", before="0.20"),
    ),
    Group(
        name="B200, vLLM",
        # Of Lambda's figures the time of a step alone: the others hang on how many draft tokens were accepted there.
        rows=lambda: [*_serving("lambda", "itl")(), *_others(*ON_B200)()],
        knobs=_engine("vllm", "blackwell", "layer_us latent"),
        pairs=_against_hopper("vllm"),
    ),
    Group(
        name="DeepSeek V4, two RTX PRO 6000",
        rows=_others("jasl DeepSeek-V4-Flash, two GPUs"),
        knobs=(("kernels", {}, "compressed"),),
    ),
    Group(
        name="B200, SGLang",
        rows=_cookbook("deepseek-r1-b200", "qwen3-235b-b200", "gpt-oss-b200", "minimax-m2.5-b200"),
        knobs=_engine("sglang", "blackwell", "layer_us latent prompt_us step_us"),
        pairs=_against_hopper("sglang"),
    ),
    Group(
        name="H100, SGLang",
        rows=_cookbook("minimax-m2.5-h100"),
        # `prompt_us` is B200's, with three times as many models: the host launches, whatever the GPU. Fitted here it
        # was 393, and first tokens on eight other hosts' H100 and H200 came 1.3 times later than forecast.
        knobs=_engine("sglang", "hopper", "layer_us"),
    ),
    Group(
        name="MI300X, SGLang",
        rows=_cookbook("deepseek-v3.1-mi300x", "minimax-m2-mi300x"),
        knobs=(
            *_engine("sglang", "cdna", "layer_us prompt_us"),
            *_experts("fp8", "cdna", "bandwidth flops", kernel="aiter"),
        ),
    ),
    Group(
        name="CDNA, vLLM",
        rows=functools.partial(published.serving_rows, only="inferencex"),
        knobs=(*_engine("vllm", "cdna", "layer_us gemm"), *_experts("int4", "cdna", "bandwidth", kernel="triton")),
    ),
    *(
        Group(
            name=f"{engine}, {what}",
            rows=_hybrid(engine, group),
            knobs=_one("host", "engine", engine, names),
        )
        for engine in ("ik_llama.cpp", "llama.cpp")
        for what, group, names in (("decoding", "tg", "ram layer_us"), ("prompts", "pp", "upload"))
    ),
)


if __name__ == "__main__":
    main(dry="--dry" in sys.argv)
