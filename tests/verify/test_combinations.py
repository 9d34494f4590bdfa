"""Features that work alone and fail together: found, reduced to their cause, and no alarm on healthy servers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckVerdict
from moebox.verify.checks.combinations import FEATURES, cover_combinations, covered_pairs
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from tests.sampling import one_in

from .oracle.app import MODEL
from .oracle.pairs import PAIRS
from .oracle.rates import RIGHT


def check_combinations(oracle: str, server: str) -> CheckVerdict:
    """The verdict of this check; the first one learns whether the model thinks."""
    options = VerifyOptions(thinking="yes", trials=12, seed=3)
    endpoint = endpoint_from_url(f"{oracle}/{server}", MODEL)
    return run_checks(endpoint, options, only=["alive", "thinking", "combinations"]).rungs[-1]


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=2), st.integers(0, 9))
def test_every_pair_is_in_some_row(sizes: dict[str, int], seed: int) -> None:
    """Whatever the features are; and no row is without use."""
    features = {name: tuple(f"{name}{number}" for number in range(size)) for name, size in sizes.items()}
    rows = cover_combinations(features, 2, random.Random(seed))
    seen, total = covered_pairs(features, rows)
    assert seen == total
    assert all(covered_pairs(features, rows[: at + 1]) > covered_pairs(features, rows[:at]) for at in range(len(rows)))


def test_triples_contain_every_pair_too() -> None:
    """Thorough runs try three features at a time."""
    rows = cover_combinations(FEATURES, 3, random.Random(1))
    seen, total = covered_pairs(FEATURES, rows)
    assert seen == total
    assert len(rows) < 160


@pytest.mark.parametrize("fault", one_in(4, PAIRS))
def test_a_fault_of_two_features_is_found(oracle: str, fault: str) -> None:
    """Red, with the features that are needed for it."""
    verdict = check_combinations(oracle, fault)
    assert verdict.verdict == "fail"


def test_the_cause_is_reduced_to_what_is_needed(oracle: str) -> None:
    """A row has nine features; the reason names the two that matter."""
    verdict = check_combinations(oracle, "forced-call-as-text-while-thinking")
    assert verdict.reason.startswith("pairs: forced call + thinking: no tool was called")


@pytest.mark.parametrize("server", one_in(20, sorted(RIGHT)))
def test_servers_that_are_only_unusual_do_not_fail(oracle: str, server: str) -> None:
    """No alarm for anything that the documents allow."""
    assert check_combinations(oracle, server).verdict in ("pass", "skip")
