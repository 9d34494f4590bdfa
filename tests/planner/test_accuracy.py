"""The accuracy table of `make accuracy`, line by line: what is asked is asked here too."""

from typing import Any

import pytest

from tests.planner.rows import accuracy


@pytest.fixture(scope="module")
def figures() -> list[Any]:
    """Every line of the table. It takes seconds, so it is made when it is asked for, not where tests are collected."""
    table = accuracy()
    return [*table.memory(), *table.speed(), *table.coverage()]


def test_every_line_is_met(figures: list[Any]) -> None:
    """Memory, speed, and bands that hold neither too few rows nor too many."""
    assert len(figures) >= 40
    assert [figure for figure in figures if not figure.good] == []


def test_bands_are_asked_from_both_sides(figures: list[Any]) -> None:
    """A band that holds every row of a large group says nothing."""
    asked = [figure.bound for figure in figures if figure.what == "in the 80% band"]
    assert set(asked) == {"75% to 90%"}
