"""Ranges of forecasts: from results on hosts that had no part in the fit, and stated as such."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from moebox.core import catalogue
from moebox.planner.speed.ranges import NOTHING_ALIKE, RANGE_KINDS, find_range

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "unseen.py"


@pytest.fixture(scope="module")
def unseen() -> ModuleType:
    """Import the script."""
    spec = importlib.util.spec_from_file_location("unseen", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["unseen"] = module
    spec.loader.exec_module(module)
    return module


def test_stored_ranges_are_those_of_the_rows(unseen: ModuleType) -> None:
    """Factors, rows and sources in ranges.toml are what the script computes from unseen.csv."""
    stored = {
        tuple(row.get(name, "") for name in ("kind", "generation", "engine", "models")): row
        for row in catalogue.load_table("ranges")["range"]
    }
    computed = unseen.group_factors(unseen.load_results())
    assert stored.keys() == computed.keys()
    for group, (factor, rows, sources) in computed.items():
        assert (stored[group]["rows"], stored[group]["sources"]) == (rows, sources), group
        assert stored[group]["factor"] == pytest.approx(factor, abs=0.001), group


@pytest.mark.parametrize("kind", RANGE_KINDS)
def test_a_case_without_rows_is_wide_and_stated(kind: str) -> None:
    """An engine and a generation of which nothing is published: the widest pool, and the words for it."""
    alone = find_range(kind, "no-such-generation", "no-such-engine", "NoSuchModel")  # type: ignore[arg-type]
    assert alone.text == NOTHING_ALIKE
    assert alone.factor > 1.5


def test_small_groups_take_a_wider_one() -> None:
    """No range stands on fewer than ten rows or on a single source."""
    rows = catalogue.load_table("ranges")["range"]
    assert min(row["rows"] for row in rows) >= 10
    assert min(row["sources"] for row in rows) >= 2


def test_all_sources_left_out_in_turn_cover_four_of_five(unseen: ModuleType) -> None:
    """Of each kind 75 to 95% of all results lie in a range that their own source had no part in."""
    totals = {name: share for name, _, share, _ in unseen.coverage() if name.endswith(", all")}
    assert len(totals) == len(RANGE_KINDS)
    assert all(0.75 <= share <= 0.95 for share in totals.values()), totals
