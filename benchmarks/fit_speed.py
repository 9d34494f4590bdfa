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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import published
from published import Case

from moebox.core import catalogue
from moebox.planner.speed import constants

TABLE = Path(constants.__file__).parents[2] / "data" / "efficiency.toml"
CLIP = 0.6
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


def fit(group: Group) -> None:
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
    errors = [math.log(case.ratio) for case in cases]
    if group.spread:
        # Few rows of one run say little about the next box: the band stays wide for them.
        least = 0.05 if len(cases) > 30 else 0.15
        wide = statistics.pstdev([max(min(error, CLIP), -CLIP) for error in errors])
        _row(group.spread)[group.spread[2]] = round(max(wide, least), 3)
    sizes = sorted(abs(math.expm1(error)) for error in errors)
    values = ", ".join(f"{knob[2]} {_row(knob)[knob[2]]:.4g}" for knob in knobs)
    middle = statistics.median(sizes)
    print(f"{group.name}: {len(cases)} rows, median {middle:.1%}, worst {sizes[-1]:.0%}; {values}", flush=True)


def _loss(cases: list[Case], power: int) -> float:
    constants.forget()
    errors = (min(abs(math.log(case.ratio)), CLIP) * case.weight for case in cases)
    return sum(error**power for error in errors) / len(cases)


def _within(key: str, value: float) -> float:
    """Shares stay shares, and nothing leaves the range in which it still means something."""
    if key in ("experts", "accept", "gemm", "flops", "ram", "upload", "bus", "bandwidth"):
        return min(max(value, 0.02), {"experts": 1.1, "accept": 0.95, "upload": 0.88, "gemm": 0.8}.get(key, 1.0))
    return value


def _sm120() -> list[Case]:
    """Both tables of the SM120 report; times to first token only where queueing makes them (above 128 streams)."""
    rows = [
        replace(case, weight=0.6) if case.group != "output" else case for case in published.serving_rows(only="sm120")
    ]
    return [case for case in rows if case.group != "ttft" or int(case.at.removeprefix("C")) > 128]


def _lambda() -> list[Case]:
    """Without the time to first token: its 99th percentile of 32 s says that it holds the engine's warming up."""
    return [case for case in published.serving_rows(only="lambda") if case.group != "ttft"]


def _hybrid(engine: str, group: str) -> Callable[[], list[Case]]:
    return lambda: [case for case in published.hybrid_rows(engine=engine) if case.group == group]


def _row(knob: Knob) -> dict[str, Any]:
    table, keys, _ = knob
    rows: list[dict[str, Any]] = catalogue.table("efficiency")[table]
    return next(row for row in rows if all(row.get(key, "") == value for key, value in {"preset": "", **keys}.items()))


def _patched(text: str) -> str:
    """The file's text with the fitted numbers in it; comments and order stay."""
    data = catalogue.table("efficiency")
    counts: dict[str, int] = {}
    row: dict[str, Any] = {}
    lines = []
    for line in text.splitlines():
        head = re.fullmatch(r"\[\[(\w+)\]\]", line)
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


def _kernel(quant: str) -> Group:
    """A kernel's shares; its fixed cost is what one token takes, with the weights in the second-level cache."""
    keys = {"quant": quant, "generation": "blackwell-rtx"}
    knobs: tuple[Knob, ...] = tuple(("experts", keys, name) for name in ("bandwidth", "flops"))
    return Group(name=f"{quant} experts", rows=functools.partial(published.expert_kernels, quant=quant), knobs=knobs)


GROUPS = (
    *(_kernel(quant) for quant in ("int4", "nvfp4", "fp8")),
    Group(
        name="tuned rig, decoding",
        rows=published.decode_cells,
        knobs=(
            *_engine("vllm", "blackwell-rtx", "layer_us experts attention_flops attention_fill", preset="community"),
            *_one("link", "name", "pcie-tuned", "hop_us"),
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
        name="eight RTX PRO 6000, one stream",
        rows=published.single_streams,
        knobs=_one("link", "name", "pcie", "hop_us"),
        spread=_engine("vllm", "blackwell-rtx", "decode_spread")[0],
    ),
    Group(
        name="SGLang without graphs",
        rows=_sm120,
        knobs=(*_engine("sglang", "blackwell-rtx", "eager_us"), *_one("link", "name", "pcie", "bus")),
        spread=_engine("sglang", "blackwell-rtx", "decode_spread")[0],
        power=4,
    ),
    Group(name="B200, vLLM", rows=_lambda, knobs=(_int4("blackwell"),)),
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
