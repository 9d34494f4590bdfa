"""The oracle, started once for all tests of the checks."""

from collections.abc import Iterator

import pytest

from moebox.verify import session
from moebox.verify.checks import long_context, streaming

from .oracle import rates
from .oracle.app import serving
from .oracle.doses import DOSES, Dose


@pytest.fixture(scope="session")
def oracle() -> Iterator[str]:
    """Its address; a fault's name follows."""
    with serving() as url:
        yield url


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict on the oracle depends on how busy this machine is, or on what earlier tests asked it."""
    if "oracle" not in request.fixturenames:
        return
    rates._asked.clear()
    for fault in DOSES.values():
        if isinstance(fault.reply, Dose):
            fault.reply.asked.clear()
    monkeypatch.setattr(session, "LATER_S", 3600.0)
    monkeypatch.setattr(streaming, "SLOW_S", 3600.0)
    monkeypatch.setattr(long_context, "UNASKED_S", 3600.0)
    monkeypatch.setattr(long_context, "ANNOUNCED_S", 3600.0)
