"""Fewer texts than users score: what is done with them matters here."""

from collections.abc import Iterator

import pytest

from moebox.quality import measure
from tests.quality.toy_server import few_texts


@pytest.fixture(scope="module", autouse=True)
def fewer_texts() -> Iterator[None]:
    """Score few texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "standard_texts", few_texts)
        yield
