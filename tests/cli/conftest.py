"""Plans for tests of what is shown of them."""

from typing import Any

import pytest

from moebox.cli import forecast_target
from moebox.planner import choose

PLANS: dict[str, Any] = {}


@pytest.fixture
def plans_once(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The planner's own plans, each made once: many tests look at the same one on another page."""
    chosen = choose.choose_plan

    def choose_once(*facts: object) -> Any:
        key = repr(facts)
        if key not in PLANS:
            PLANS[key] = chosen(*facts)  # type: ignore[arg-type]
        return PLANS[key]

    monkeypatch.setattr(choose, "choose_plan", choose_once)
    monkeypatch.setattr(forecast_target, "choose_plan", choose_once)
    return PLANS
