"""Fit the constants in `data/efficiency.toml` to the published rows and write them back with their spread.

    python benchmarks/fit_speed.py [--dry]

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

import published
from published import Case

from moebox.core import catalogue
from moebox.planner.speed import BAND_SIGMAS, constants

TABLE = Path(constants.__file__).parents[2] / "data" / "efficiency.toml"
CLIP = 0.6
COVERED = 0.83  # of the fitted rows lie in their own host's band
LEAST_SPREAD = 0.03
LEAST_FIXED_US = 10.0  # a kernel and its launch
ROUNDS = 14
Knob = tuple[str, dict[str, Any], str]  # table, the row's keys, the constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows that are fitted together, and the constants they decide. A high `power` minds the worst row."""

    name: str
    rows: Callable[[], Iterable[Case]]
    knobs: tuple[Knob, ...]
    spread: Knob | None = None
    power: int = 1


def main(*, dry: bool) -> None:
    """Fit every group in turn."""
    for group in GROUPS:
        fit(group)
    if not dry:
        TABLE.write_text(_patched(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {TABLE.name}")


def fit(group: Group, *, quiet: bool = False) -> None:
    """Move the knobs until the rows fit; then store how far off they still are."""
    cases, knobs, power = list(group.rows()), group.knobs, group.power
    steps = [0.2] * len(knobs)
    best = _loss(cases, power)
    for _ in range(ROUNDS):
        for place, knob in enumerate(knobs):
            row, key = _row(knob), knob[2]
            was = row[key]
            for sign in (1, -1):
                row[key] = _within(key, was * math.exp(sign * steps[place]))
                loss = _loss(cases, power)
                if loss < best * (1 - 1e-5):
                    best, steps[place] = loss, steps[place] * 1.3
                    break
            else:
                row[key], steps[place] = was, steps[place] / 2
    constants.forget()
    published.forget()
    errors = [math.log(case.ratio) for case in cases]
    if group.spread:
        # The band of the rows' own hosts holds a little more than four of five; that of other hosts is wider.
        far = sorted(abs(error) for error in errors)[math.ceil(COVERED * len(errors)) - 1]
        _row(group.spread)[group.spread[2]] = round(max(far / BAND_SIGMAS, LEAST_SPREAD), 3)
    if quiet:
        return
    sizes = sorted(abs(math.expm1(error)) for error in errors)
    values = ", ".join(f"{knob[2]} {_row(knob)[knob[2]]:.4g}" for knob in knobs)
    middle = statistics.median(sizes)
    print(f"{group.name}: {len(cases)} rows, median {middle:.1%}, worst {sizes[-1]:.0%}; {values}", flush=True)


def _loss(cases: list[Case], power: int) -> float:
    constants.forget()
    published.forget()
    errors = (min(abs(math.log(case.ratio)), CLIP) for case in cases)
    return sum(error**power for error in errors) / len(cases)


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
        return min(max(value, 0.02), {"upload": 0.88, "gemm": 0.8, "experts": 1.0}.get(key, 0.95))
    return max(value, LEAST_FIXED_US) if key == "fixed_us" else value


def _sm120() -> list[Case]:
    """Both tables of the SM120 report; times to first token only where queueing makes them (above 128 streams)."""
    rows = published.serving_rows(only="sm120")
    return [case for case in rows if case.group != "ttft" or int(case.at.removeprefix("C")) > 128]


def _serving(only: str, *groups: str) -> Callable[[], list[Case]]:
    return lambda: [case for case in published.serving_rows(only=only) if case.group in groups]


def _others(*names: str) -> Callable[[], list[Case]]:
    return lambda: [case for case in published.other_rows() if case.run.startswith(names)]


def _hybrid(engine: str, group: str) -> Callable[[], list[Case]]:
    return lambda: [case for case in published.hybrid_rows(engine=engine) if case.group == group]


def _row(knob: Knob) -> dict[str, Any]:
    table, keys, _ = knob
    found = catalogue.table("efficiency")[table]
    rows: list[dict[str, Any]] = found if isinstance(found, list) else [found]
    return next(row for row in rows if all(row.get(key, "") == value for key, value in {"preset": "", **keys}.items()))


def _patched(text: str) -> str:
    """The file's text with the fitted numbers in it; comments and order stay."""
    data = catalogue.table("efficiency")
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
        pair = re.fullmatch(r"(\w+) = ([-\d.e_]+)", line)
        if pair and isinstance(row.get(pair.group(1)), float):
            line = f"{pair.group(1)} = {_number(row[pair.group(1)])}"
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


def _int4(generation: str) -> Knob:
    return "experts", {"quant": "int4", "generation": generation}, "bandwidth"


def _mxfp4(generation: str) -> Knob:
    return "experts", {"quant": "mxfp4", "generation": generation}, "bandwidth"


def _kernel(quant: str) -> Group:
    """A kernel's fixed cost and shares."""
    keys = {"quant": quant, "generation": "blackwell-rtx"}
    knobs: tuple[Knob, ...] = tuple(("experts", keys, name) for name in ("fixed_us", "bandwidth", "flops"))
    return Group(name=f"{quant} experts", rows=functools.partial(published.expert_kernels, quant=quant), knobs=knobs)


GROUPS = (
    *(_kernel(quant) for quant in ("int4", "nvfp4", "fp8")),
    Group(
        name="tuned rig, decoding",
        rows=published.decode_cells,
        knobs=(
            *_engine("vllm", "blackwell-rtx", "layer_us attention_flops attention_fill dcp_us", preset="community"),
            *_one("draft", "method", "eagle3", "accept pass_us"),
        ),
        spread=_engine("vllm", "blackwell-rtx", "decode_spread", preset="community")[0],
    ),
    Group(
        name="tuned rig, prompts",
        rows=published.prefill_cells,
        knobs=_engine("vllm", "blackwell-rtx", "gemm prefill_attention", preset="community"),
        spread=_engine("vllm", "blackwell-rtx", "prefill_spread", preset="community")[0],
    ),
    Group(
        name="eight RTX PRO 6000, vLLM, one stream",
        rows=functools.partial(published.single_streams, engine="vllm"),
        knobs=(*_engine("vllm", "blackwell-rtx", "layer_us"), *_one("link", "name", "pcie", "sockets_us")),
        spread=_engine("vllm", "blackwell-rtx", "decode_spread")[0],
    ),
    Group(
        name="eight RTX PRO 6000, SGLang, one stream",
        rows=functools.partial(published.single_streams, engine="sglang"),
        knobs=_engine("sglang", "blackwell-rtx", "layer_us"),
    ),
    Group(
        name="SGLang without graphs",
        rows=_sm120,
        knobs=_engine("sglang", "blackwell-rtx", "eager_us"),
        spread=_engine("sglang", "blackwell-rtx", "decode_spread")[0],
        power=4,
    ),
    Group(
        name="H200, vLLM",
        rows=_serving("h200", "output", "tpot", "ttft"),
        knobs=(
            *_engine("vllm", "hopper", "step_us gemm prefill_attention request_ms"),
            *(("experts", {"quant": "int4", "generation": "hopper"}, name) for name in ("bandwidth", "flops")),
        ),
        spread=_engine("vllm", "hopper", "decode_spread")[0],
        power=2,
    ),
    Group(
        name="B200, vLLM",
        rows=_serving("lambda", "output", "tpot", "itl", "ttft"),
        knobs=(*_engine("vllm", "blackwell", "gemm"), _int4("blackwell")),
    ),
    Group(name="B200, vLLM, mxfp4", rows=_others("jasl"), knobs=(_mxfp4("blackwell"),)),
    Group(
        name="B200, SGLang",
        rows=functools.partial(published.serving_rows, only="cookbook"),
        knobs=_engine("sglang", "blackwell", "layer_us experts"),
    ),
    Group(
        name="CDNA, vLLM",
        rows=functools.partial(published.serving_rows, only="inferencex"),
        knobs=(*_engine("vllm", "cdna", "layer_us gemm"), _int4("cdna")),
        spread=_engine("vllm", "cdna", "decode_spread")[0],
    ),
    *(
        Group(
            name=f"{engine}, {what}",
            rows=_hybrid(engine, group),
            knobs=_one("host", "engine", engine, names),
            spread=_one("host", "engine", engine, spread)[0],
        )
        for engine in ("ik_llama.cpp", "llama.cpp")
        for what, group, names, spread in (
            ("decoding", "tg", "ram layer_us", "decode_spread"),
            ("prompts", "pp", "upload", "prefill_spread"),
        )
    ),
)


if __name__ == "__main__":
    main(dry="--dry" in sys.argv)
