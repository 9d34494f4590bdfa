"""The accuracy table of `make accuracy`: every line meets its target."""

from typing import Any

import pytest

from tests.planner.rows import accuracy


@pytest.fixture(scope="module")
def figures() -> list[Any]:
    """Every line of the table, computed once because it takes seconds."""
    table = accuracy()
    return [*table.memory(), *table.speed(), *table.coverage()]


def test_every_line_is_met(figures: list[Any]) -> None:
    """Memory, speed, and ranges that hold neither too few rows nor too many."""
    assert len(figures) >= 40
    assert [figure for figure in figures if not figure.good] == []


def test_ranges_have_an_upper_limit_too(figures: list[Any]) -> None:
    """A range that holds every row of a large group is too wide."""
    asked = [figure.bound for figure in figures if figure.what == "in the 80% band"]
    assert set(asked) == {"75% to 90%"}
