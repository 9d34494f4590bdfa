"""How wide the bands are: the spread of rows within a host and between hosts, by engine and generation.

Nothing here is set by hand: widths are quantiles of the rows' own errors, and a group with few hosts is drawn towards
the spread of all groups together.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import published
from published import Case

from moebox.core import catalogue
from moebox.planner.speed import constants
from moebox.planner.speed.measured import RANGE_SIGMAS

RATES = ("tg", "decode", "output", "tpot")
COVERED = 0.83  # of a group's rows lie in the band of their own hosts: a little more than the four of five it is for
ENOUGH = 10  # rows from which on a group's own quantile stands alone; below, the pooled one counts as a row more
SHRINK = 3  # hosts' worth of the pooled spread that each group's own is mixed with
LEFT_OUT = Path(__file__).parent / "left_out.csv"
Key = tuple[str, str, str, str]  # table, engine, generation, preset


def key_of(case: Case) -> Key:
    """The row of constants behind a case."""
    assert case.speed is not None
    speed = case.speed()
    if speed.gpu_step is None:
        assert speed.hybrid_step is not None
        return "host", speed.hybrid_step.constants.engine, "", ""
    row = speed.gpu_step.constants
    return "engine", row.engine, row.generation, row.preset


def own_rows() -> Iterator[Case]:
    """Every row of a host whose rows had a part in the constants, or that stands for its engine and GPUs."""
    yield from published.decode_cells()
    yield from published.prefill_cells()
    yield from published.single_streams()
    yield from published.hybrid_rows()
    yield from (case for case in published.serving_rows() if not published.left_over(case))
    yield from published.ktransformers_rows()


def within_hosts() -> None:
    """Store each row's decode_spread and prefill_spread: what holds COVERED of the rows of its own hosts."""
    found: dict[tuple[Key, bool], list[float]] = {}
    for case in own_rows():
        if case.group in RATES or _one_prompt(case):
            error = abs(published.log_error(case))
            found.setdefault((key_of(case), case.group in published.PROMPTS), []).append(error)
    pooled = {
        prompts: statistics.median(_quantile(errors) for (_, kind), errors in found.items() if kind == prompts)
        for prompts in (False, True)
    }
    for key, row in stored():
        for prompts, name in ((False, "decode_spread"), (True, "prefill_spread")):
            errors = found.get((key, prompts), [])
            own = _quantile(errors) if errors else pooled[prompts]
            if len(errors) < ENOUGH:
                own = math.sqrt((len(errors) * own**2 + pooled[prompts] ** 2) / (len(errors) + 1))
            row[name] = round(own / RANGE_SIGMAS, 4)
    constants.clear_caches()


def _one_prompt(case: Case) -> bool:
    """Whether a row tells how fast a prompt is read: of several at once it tells how they queue."""
    alone = case.at == "C1" or case.at.startswith("C1 ")
    return case.group in ("prefill", "pp") or (case.group == "ttft" and alone)


def between_hosts(means: dict[str, tuple[Key, float]]) -> None:
    """Store what hosts left out of the fit are off by on average, by group and for all together."""
    pooled = _rms(mean for _, mean in means.values())
    catalogue.load_table("efficiency")["bands"]["between_hosts"] = round(pooled, 4)
    for key, row in stored():
        own = [mean for at, mean in means.values() if at == key]
        variance = (sum(mean**2 for mean in own) + SHRINK * pooled**2) / (len(own) + SHRINK)
        row["host_spread"] = round(math.sqrt(variance), 4)
    constants.clear_caches()


def holds(key: Key, error: float, *, alone: bool) -> bool:
    """Whether an error lies in the band that a forecast prints; `alone`: its constants would be a neighbour's."""
    row = next(row for at, row in stored() if at == key)
    between = catalogue.load_table("efficiency")["bands"]["neighbour"] if alone else row["host_spread"]
    within = row["decode_spread"] * (constants.STEP_AWAY if alone else 1.0)
    return bool(abs(error) <= RANGE_SIGMAS * math.hypot(within, between))


def keep_left_out(found: Iterable[tuple[str, Key, bool, str, float]]) -> None:
    """Write every left-out host's errors beside this file, so that the table of accuracy need not fit again."""
    lines = ["host,table,engine,generation,preset,alone,group,error"]
    lines += [f"{host},{','.join(key)},{alone:d},{group},{error:.4f}" for host, key, alone, group, error in found]
    LEFT_OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def stored() -> Iterator[tuple[Key, dict[str, Any]]]:
    """The rows that carry spreads, with their keys."""
    table = catalogue.load_table("efficiency")
    for name in ("engine", "host"):
        for row in table[name]:
            yield (name, row["engine"], row.get("generation", ""), row.get("preset", "")), row


def _quantile(errors: list[float]) -> float:
    return sorted(errors)[math.ceil(COVERED * len(errors)) - 1]


def _rms(values: Iterable[float]) -> float:
    return math.sqrt(statistics.mean(value**2 for value in values))
