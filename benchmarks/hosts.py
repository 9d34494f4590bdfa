"""Leave one host out of the fit, then look at its rows: what somebody with another machine may expect.

python benchmarks/hosts.py
"""

import copy
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace

import fit_speed
import published
from published import Case

from moebox.core import catalogue
from moebox.planner.speed import constants

MIND_GROUPS = ("tg", "decode", "output", "tpot")
SETS: tuple[Callable[[], Iterable[Case]], ...] = (
    published.single_streams,
    published.serving_rows,
    published.hybrid_rows,
    published.other_rows,
    lambda: published.decode_cells(tp=16),
)


def table() -> None:
    """Each host: how many rates it has, and how far they are when nothing was fitted to it."""
    kept = copy.deepcopy(catalogue.table("efficiency"))
    means, all_errors = [], []
    print(f"{'host left out':22} {'rates':>5} {'median':>8} {'mean':>8} {'in band':>8}")
    for host in sorted({case.host for rows in SETS for case in rows() if case.group in MIND_GROUPS}):
        _without(host)
        cases = [case for rows in SETS for case in rows() if case.host == host and case.group in MIND_GROUPS]
        errors = [published.log_error(case) for case in cases]
        inside = sum(case.covered(fitted=False) for case in cases)
        middle = statistics.median(abs(math.expm1(error)) for error in errors)
        means.append(statistics.mean(errors))
        all_errors += [abs(math.expm1(error)) for error in errors]
        told = f"{middle:>8.1%} {math.expm1(means[-1]):>+8.1%} {inside:>4} of {len(cases)}"
        print(f"{host:22} {len(cases):>5} {told}", flush=True)
        _restore(kept)
    spread = math.sqrt(statistics.mean(mean**2 for mean in means))
    print(f"{'all':22} {len(all_errors):>5} {statistics.median(all_errors):>8.1%}; between hosts {spread:.3f}")


def _without(host: str) -> None:
    """Fit again what the host's rows had a part in, from the other rows; what only it decides keeps its neighbour's."""
    for group in fit_speed.GROUPS:
        cases = list(group.rows())
        left = [case for case in cases if case.host != host]
        if len(left) == len(cases):
            continue
        if left:
            fit_speed.fit(replace(group, rows=lambda left=left: left, spread=None), quiet=True)
        else:
            _fall_back(group)


def _fall_back(group: fit_speed.Group) -> None:
    """Nobody else measured this: the row is as if it were not there, so that the nearest one is taken."""
    for table, keys, _ in group.knobs:
        rows = catalogue.table("efficiency")[table]
        if table == "engine" and len(rows) > 1:
            rows[:] = [row for row in rows if not _same(row, keys)]
        if table == "experts":
            others = [row for row in rows if row["quant"] == keys["quant"] and row["generation"] != keys["generation"]]
            if others:
                rows[:] = [row for row in rows if not _same(row, keys)]
    constants.forget()
    published.forget()


def _same(row: dict[str, object], keys: dict[str, object]) -> bool:
    return all(row.get(key, "") == value for key, value in {"preset": "", **keys}.items() if key in row or value)


def _restore(kept: dict[str, object]) -> None:
    shown = catalogue.table("efficiency")
    shown.clear()
    shown.update(copy.deepcopy(kept))
    constants.forget()
    published.forget()


if __name__ == "__main__":
    table()
