"""The accuracy table of `make accuracy`, line by line: what is asked is asked here too."""

import pytest

from tests.planner.rows import accuracy

FIGURES = [*accuracy().memory(), *accuracy().speed(), *accuracy().coverage()]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.what}, {figure.against}")
def test_every_line_is_met(figure: object) -> None:
    """Memory, speed, and bands that hold neither too few rows nor too many."""
    assert figure.good, figure  # type: ignore[attr-defined]


def test_bands_are_asked_from_both_sides() -> None:
    """A band that holds every row of a large group says nothing."""
    asked = [figure.bound for figure in FIGURES if figure.what == "in the 80% band"]
    assert set(asked) == {"75% to 90%"}
