"""The oracle, started once for all tests of the ladder."""

from collections.abc import Iterator

import pytest

from .oracle.app import serving


@pytest.fixture(scope="session")
def oracle() -> Iterator[str]:
    """Its address; a fault's name follows."""
    with serving() as url:
        yield url
