"""Accepted draft lengths as data: by model, method and draft length, with their spread."""

from dataclasses import replace

import pytest

from moebox.core import catalogue
from moebox.core.recipe import Speculate
from moebox.planner.speed import Speed
from moebox.planner.speed.acceptance import AcceptanceRow, draft_with_acceptance
from moebox.planner.speed.step import tokens_per_step
from tests.planner.boxes import EIGHT
from tests.planner.deployed import kimi, on


@pytest.mark.parametrize(
    ("model", "method", "tokens", "length", "low", "high"),
    [
        ("glm-5.2", "mtp", 3, 2.99, 2.99, 2.99),  # InferenceX's table, thinking on
        ("kimi-k2.5", "eagle3", 3, 2.81, 2.75, 2.88),  # thinking off and on
        ("qwen3.5-397b", "mtp", 1, 1.92, 1.92, 1.93),
        ("kimi-k2.6", "eagle3", 3, 2.41, 1.83, 2.63),  # the mean is fitted with the speeds, owners' rows are its spread
        ("deepseek-v4.1-flash", "dspark", 5, 3.44, 2.33, 4.55),  # thinking decides: 2.33 without, 4.55 with it
    ],
)
def test_published_lengths_are_used_with_their_spread(
    model: str, method: str, tokens: int, length: float, low: float, high: float
) -> None:
    """A forecast takes the mean of a model's rows at the draft length, and its range from the lowest and highest."""
    draft = draft_with_acceptance(catalogue.find_model(model), Speculate(method=method, tokens=tokens))

    assert tokens_per_step(draft.accept, tokens) == pytest.approx(length, rel=0.03)
    assert tokens_per_step(draft.low, tokens) == pytest.approx(low, rel=0.01)
    assert tokens_per_step(draft.high, tokens) == pytest.approx(high, rel=0.01)
    assert draft.source


def test_a_model_without_rows_gets_the_spread_of_its_method() -> None:
    """Nothing is published of Hy3's prediction layer: the method's usual acceptance, between all models' rows."""
    draft = draft_with_acceptance(catalogue.find_model("hy3"), Speculate(method="mtp", tokens=2))

    assert draft.low < draft.accept < draft.high
    assert "all models" in draft.source


def test_the_spread_of_acceptance_widens_the_range_until_it_is_known() -> None:
    """A forecast with a draft has a wider range than the same without; an acceptance that the user gives has none."""
    model, checkpoint = catalogue.find_model("kimi-k2.6"), catalogue.find_checkpoint("kimi-k2.6", "int4")
    plain = kimi()
    drafting = replace(plain, speculate=Speculate(draft="x"))
    without, with_draft = (Speed.for_deployment(on(EIGHT, model, checkpoint, one)) for one in (plain, drafting))

    assert with_draft.decode_range[0] < without.decode_range[0]
    assert with_draft.decode_range[1] > without.decode_range[1]
    assert with_draft.with_acceptance(0.5).decode_range == without.decode_range


def test_every_row_has_a_source_and_bounds_around_its_lengths() -> None:
    """Rows are figures of others: each names where it is from, and no length is beyond its draft."""
    for row in catalogue.table_rows(AcceptanceRow, "acceptance", "acceptance"):
        assert row.source
        assert all(1 <= length <= row.tokens + place + 1 for place, length in enumerate(row.lengths))
        assert not row.low or row.low <= row.high
