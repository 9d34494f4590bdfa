"""Leave one host out of the fit, then look at its rows: what somebody with another machine may expect.

    python benchmarks/hosts.py [--write]

`--write` stores the spread between hosts, by engine and generation, in data/efficiency.toml. Minutes of CPU.
"""

import copy
import functools
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import cast

import fit_speed
import published
import spreads
from published import Case

from moebox.core import catalogue
from moebox.planner.speed import constants

SETS: tuple[Callable[[], Iterable[Case]], ...] = (
    published.single_streams,
    published.serving_rows,
    published.hybrid_rows,
    published.other_rows,
    published.ktransformers_rows,
    lambda: published.decode_cells(tp=16),
)
ROUNDS = 4  # of a fit that begins at the constants with the host


@dataclass(slots=True, kw_only=True)
class Left:
    """A host that was left out: its rows' errors by the constants they would have had."""

    host: str
    errors: dict[spreads.Key, list[float]] = field(default_factory=dict)
    groups: dict[spreads.Key, list[str]] = field(default_factory=dict)  # of the errors: decode, output, tpot, tg
    prompts: list[tuple[spreads.Key, float]] = field(default_factory=list)  # errors of first tokens
    alone: set[spreads.Key] = field(default_factory=set)  # rows of constants that nobody else decides

    @property
    def flat(self) -> list[float]:
        """All errors."""
        return [error for errors in self.errors.values() for error in errors]


def table(*, write: bool = False) -> bool:
    """Each host: how many rates it has, and how far they are when nothing was fitted to it; True where bands hold."""
    kept = copy.deepcopy(dict(catalogue.load_table("efficiency")))
    left = [_left_out(host, kept) for host in _hosts()]
    _store(left)
    print(f"{'host left out':24} {'rates':>5} {'median':>8} {'mean':>8} {'in band':>9}")
    inside = 0
    for one in left:
        held = sum(
            spreads.holds(key, error, alone=key in one.alone) for key, errors in one.errors.items() for error in errors
        )
        inside += held
        middle = statistics.median(abs(math.expm1(error)) for error in one.flat)
        mean = math.expm1(statistics.mean(one.flat))
        print(f"{one.host:24} {len(one.flat):>5} {middle:>8.1%} {mean:>+8.1%} {held:>4} of {len(one.flat)}")
    errors = [abs(math.expm1(error)) for one in left for error in one.flat]
    middles = [statistics.median(abs(math.expm1(error)) for error in one.flat) for one in left]
    share = inside / len(errors)
    print(f"{'all rows':24} {len(errors):>5} {statistics.median(errors):>8.1%}; in the 80% band {share:.0%}")
    print(f"{'all hosts':24} {len(left):>5} {statistics.median(middles):>8.1%} in the middle of their medians")
    if write:
        spreads.keep_left_out(
            (one.host, key, key in one.alone, group, error)
            for one in left
            for key in one.errors
            for group, error in [
                *zip(one.groups[key], one.errors[key], strict=True),
                *(("ttft", error) for prompt_key, error in one.prompts if prompt_key == key),
            ]
        )
        fit_speed.TABLE.write_text(fit_speed.patched(fit_speed.TABLE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0.75 <= share <= 0.90


def _hosts() -> list[str]:
    return sorted({case.host for rows in SETS for case in rows() if case.group in spreads.RATES})


def _left_out(host: str, kept: dict[str, object]) -> Left:
    cases = [case for rows in SETS for case in rows() if case.host == host and case.group in spreads.RATES]
    keys = [spreads.key_of(case) for case in cases]
    prompts = [case for case in published.serving_rows() if case.host == host and _is_first_token(case)]
    prompt_keys = [spreads.key_of(case) for case in prompts]
    left = Left(host=host, alone=_without(host))
    left.prompts = [(key, published.log_error(case)) for key, case in zip(prompt_keys, prompts, strict=True)]
    for key, case in zip(keys, cases, strict=True):
        left.errors.setdefault(key, []).append(published.log_error(case))
        left.groups.setdefault(key, []).append(case.group)
    _restore(kept)
    return left


def _is_first_token(case: Case) -> bool:
    """Medians of SGLang's runs, whose means hold a wait for compiled kernels; means of others.

    Left out: hosts whose client was read off their own rows, and one that sent more requests than its server ran.
    """
    medians = case.host.startswith("cookbook")
    return case.group == ("median ttft" if medians else "ttft") and case.host not in ("lambda", "magik6k", "gpustack")


def _store(left: list[Left]) -> None:
    """The spread between hosts, from each host's mean error in each group."""
    means = {
        f"{one.host} {key}": (key, statistics.mean(errors), key in one.alone)
        for one in left
        for key, errors in one.errors.items()
    }
    spreads.between_hosts({name: (key, mean) for name, (key, mean, alone) in means.items() if not alone})
    strange = [mean for _, mean, alone in means.values() if alone]
    bands = catalogue.load_table("efficiency")["bands"]
    bands["neighbour"] = round(math.sqrt(statistics.mean(mean**2 for mean in strange)), 4)
    constants.clear_caches()


def _without(host: str) -> set[spreads.Key]:
    """Fit again what the host's rows had a part in; what only it decides is taken away, and returned."""
    alone: set[spreads.Key] = set()
    for group in fit_speed.GROUPS:
        cases = list(group.rows())
        left = [case for case in cases if case.host != host]
        if len(left) == len(cases):
            continue
        if left:
            fit_speed.fit(replace(group, rows=functools.partial(list, left)), quiet=True, rounds=ROUNDS)
        else:
            alone |= _fall_back(group)
    return alone


def _fall_back(group: fit_speed.Group) -> set[spreads.Key]:
    """Nobody else measured this: the rows are as if they were not there, so that the nearest ones are taken."""
    gone: set[spreads.Key] = set()
    for table_name, keys, _ in group.knobs:
        rows = catalogue.load_table("efficiency").get(table_name)
        if not isinstance(rows, list):
            continue
        others = [row for row in rows if not _same(row, keys)]
        if table_name == "engine" and others:
            gone |= {key for key, row in spreads.stored() if key[0] == table_name and _same(row, keys)}
            rows[:] = others
        if table_name == "experts" and not _timed_alone(keys) and any(row["quant"] == keys["quant"] for row in others):
            rows[:] = others
    constants.clear_caches()
    published.forget()
    return gone


def _timed_alone(keys: dict[str, object]) -> bool:
    """Fit a kernel again to its own timings, where there are any: a host's steps had only the last word on it."""
    names: list[tuple[object, ...]] = [each[:3] for each in fit_speed.TIMED_KERNELS]
    if (keys["quant"], keys["generation"], keys["kernel"]) not in names or keys["before"]:
        return False
    place = names.index((keys["quant"], keys["generation"], keys["kernel"]))
    fit_speed.fit(fit_speed.GROUPS[place], quiet=True)
    return True


def _same(row: dict[str, object], keys: dict[str, object]) -> bool:
    return all(row.get(key, "") == value for key, value in {"preset": "", **keys}.items() if key in row or value)


def _restore(kept: dict[str, object]) -> None:
    shown = cast("dict[str, object]", catalogue.load_table("efficiency"))  # the table itself, which everything reads
    shown.clear()
    shown.update(copy.deepcopy(kept))
    constants.clear_caches()
    published.forget()


if __name__ == "__main__":
    table(write="--write" in sys.argv)
