"""Fit the constants in `data/efficiency.toml` to the published rows and write them back with their spread.

    python benchmarks/fit_speed.py [--dry]

Coordinate descent on the logarithms, group by group, on the mean absolute log error (clipped, so that no broken cell
leads). Each group moves only its own few constants; what was measured directly (bus bandwidth, expert kernels) stays.
"""

import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
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

RTX = {"engine": "vllm", "preset": "community", "generation": "blackwell-rtx"}
SGLANG = {"engine": "sglang", "generation": "blackwell-rtx"}
B200 = {"engine": "vllm", "generation": "blackwell"}
B200_SGLANG = {"engine": "sglang", "generation": "blackwell"}
CDNA = {"engine": "vllm", "generation": "cdna"}


def main(*, dry: bool) -> None:
    """Fit every group in turn."""
    tuned, eagle3 = {"name": "pcie-tuned"}, {"method": "eagle3"}
    knobs = _knobs(RTX, "layer_us experts attention_flops attention_fill")
    knobs += [
        ("link", tuned, "hop_us"),
        ("draft", eagle3, "accept"),
        ("draft", eagle3, "pass_us"),
    ]
    fit("decode on the tuned rig", published.decode_cells, knobs, spread=(("engine", RTX, "decode_spread"),))
    fit("prefill on the tuned rig", published.prefill_cells, _knobs(RTX, "gemm prefill_attention"),
        spread=(("engine", RTX, "prefill_spread"),))  # fmt: skip
    fit("SGLang without graphs", _sm120, [*_knobs(SGLANG, "eager_us"), ("link", {"name": "pcie"}, "bus")],
        spread=(("engine", SGLANG, "decode_spread"),), power=4)  # fmt: skip
    fit("B200, vLLM", lambda: _but(published.serving_rows(only="lambda"), "ttft"), _knobs(B200, "experts"))
    fit("B200, SGLang", lambda: published.serving_rows(only="cookbook"), _knobs(B200_SGLANG, "layer_us experts"))
    fit("CDNA, vLLM", lambda: published.serving_rows(only="inferencex"), _knobs(CDNA, "layer_us experts gemm"),
        spread=(("engine", CDNA, "decode_spread"),))  # fmt: skip
    for engine in ("ik_llama.cpp", "llama.cpp"):
        row = {"engine": engine}
        mine = _mine(engine)
        fit(f"{engine}, decoding", lambda mine=mine: mine("tg"), [("host", row, "ram"), ("host", row, "layer_us")],
            spread=(("host", row, "decode_spread"),))  # fmt: skip
        fit(f"{engine}, prompts", lambda mine=mine: mine("pp"), [("host", row, "core_flops"), ("host", row, "upload")])
    if not dry:
        TABLE.write_text(_patched(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {TABLE.name}")


def fit(
    name: str, rows: Callable[[], Iterable[Case]], knobs: list[Knob], *, spread: tuple[Knob, ...] = (), power: int = 1
) -> None:
    """Move the knobs until the rows fit; then store how far off they still are. A high `power` minds the worst row."""
    cases = list(rows())
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
    for knob in spread:
        _row(knob)[knob[2]] = round(max(statistics.pstdev([max(min(e, CLIP), -CLIP) for e in errors]), 0.05), 3)
    sizes = sorted(abs(math.expm1(error)) for error in errors)
    values = ", ".join(f"{knob[2]} {_row(knob)[knob[2]]:.4g}" for knob in knobs)
    print(
        f"{name}: {len(cases)} rows, median {statistics.median(sizes):.1%}, worst {sizes[-1]:.0%}; {values}", flush=True
    )


def _loss(cases: list[Case], power: int) -> float:
    constants.forget()
    errors = (min(abs(math.log(case.ratio)), CLIP) * case.weight for case in cases)
    return sum(error**power for error in errors) / len(cases)


def _within(key: str, value: float) -> float:
    """Shares stay shares, and nothing leaves the range in which it still means something."""
    if key in ("experts", "accept", "gemm", "ram", "upload", "bus"):
        return min(max(value, 0.02), {"experts": 1.1, "accept": 0.95, "upload": 0.88}.get(key, 1.0))
    return value


def _knobs(row: dict[str, Any], names: str) -> list[Knob]:
    return [("engine", row, name) for name in names.split()]


def _sm120() -> list[Case]:
    """Both tables of the SM120 report; times to first token only where queueing makes them (above 128 streams)."""
    rows = [
        replace(case, weight=0.6) if case.group != "output" else case for case in published.serving_rows(only="sm120")
    ]
    return [case for case in rows if case.group != "ttft" or int(case.at.removeprefix("C")) > 128]


def _but(cases: Iterable[Case], group: str) -> Iterable[Case]:
    return (case for case in cases if case.group != group)


def _mine(engine: str) -> Callable[[str], list[Case]]:
    names = {row["name"] for row in published._toml("hybrid.toml") if row["engine"] == engine}
    return lambda group: [case for case in published.hybrid_rows() if case.group == group and case.run in names]


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


if __name__ == "__main__":
    main(dry="--dry" in sys.argv)
