"""Ranges of forecasts: from results on hosts that had no part in the fit, and stated as such."""

from types import ModuleType

import pytest

from moebox.core import catalogue
from moebox.planner.speed.ranges import NOTHING_ALIKE, RANGE_KINDS, find_range
from tests.planner import rows


@pytest.fixture(scope="module", name="unseen")
def load_unseen() -> ModuleType:
    """Import the script."""
    return rows.unseen()


def test_stored_ranges_are_those_of_the_rows(unseen: ModuleType) -> None:
    """Factors, rows and sources in ranges.toml are what the script computes from unseen.csv."""
    stored = {
        tuple(row.get(name, "") for name in ("kind", "generation", "engine", "models")): row
        for row in catalogue.load_table("ranges")["range"]
    }
    computed = unseen.group_factors(unseen.load_results())
    assert stored.keys() == computed.keys()
    for group, (factor, count, sources) in computed.items():
        assert (stored[group]["rows"], stored[group]["sources"]) == (count, sources), group
        assert stored[group]["factor"] == pytest.approx(factor, abs=0.001), group


@pytest.mark.parametrize("kind", RANGE_KINDS)
def test_a_case_without_rows_is_wide_and_stated(kind: str) -> None:
    """An engine and a generation of which nothing is published: the widest pool, and the words for it."""
    alone = find_range(kind, "no-such-generation", "no-such-engine", "NoSuchModel")  # type: ignore[arg-type]
    assert alone.text == NOTHING_ALIKE
    assert alone.factor > 1.5


def test_small_groups_take_a_wider_one() -> None:
    """No range stands on fewer than ten rows or on a single source."""
    stored = catalogue.load_table("ranges")["range"]
    assert min(row["rows"] for row in stored) >= 10
    assert min(row["sources"] for row in stored) >= 2


def test_all_sources_left_out_in_turn_cover_four_of_five(unseen: ModuleType) -> None:
    """Of each kind 75 to 95% of all results lie in a range that their own source had no part in."""
    totals = {name: share for name, _, share, _ in unseen.coverage() if name.endswith(", all")}
    assert len(totals) == len(RANGE_KINDS)
    assert all(0.75 <= share <= 0.95 for share in totals.values()), totals
