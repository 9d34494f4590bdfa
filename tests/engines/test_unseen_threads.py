"""Setups of threads that were collected without looking at the matrix: what moebox answers now is not lost again."""

from collections import Counter

import pytest

from moebox.engines.support import BY_CHECKS, BY_LIST

from .unseen import THREADS, judge, predicted_state, starts_as_predicted, starts_without_reports


@pytest.mark.parametrize(
    ("batch", "fewest"), [("1", 39), ("2", 13), ("3", 29), ("4", 14), ("5", 50), ("6", 9), ("7", 6), ("8", 24)]
)
def test_answers_to_threads_are_not_lost(batch: str, fewest: int) -> None:
    """At least as many setups of a batch are judged rightly as when the batch was last scored."""
    threads = [thread for thread in THREADS if thread["batch"] == batch]
    verdicts = Counter(judge(thread["outcome"], predicted_state(thread)[0]) for thread in threads)
    assert verdicts["right"] >= fewest, verdicts


def test_whether_a_setup_starts_is_right_for_three_of_four_unseen_threads() -> None:
    """The second batch was collected after the last change of a rule: 12 of 16."""
    threads = [thread for thread in THREADS if thread["batch"] == "2"]
    assert sum(starts_as_predicted(thread) for thread in threads) >= 12


def test_how_often_a_setup_that_should_start_does_is_what_plans_show() -> None:
    """The share in a plan's reason is that of the threads, scored by the engines' sources alone."""
    assert starts_without_reports("its own checks accept it") == BY_CHECKS
    assert starts_without_reports("it has the architecture") == BY_LIST


def test_a_backend_that_does_not_take_the_model_is_refused() -> None:
    """CUTLASS_MLA takes no sparse attention in vLLM 0.12."""
    (thread,) = [thread for thread in THREADS if thread["url"].endswith("/issues/30214")]
    state, reason = predicted_state(thread)
    assert state == "no-start"
    assert "CUTLASS_MLA does not take this model" in reason


def test_a_nightly_build_is_answered_by_the_next_release() -> None:
    """0.29.1rc1.dev200 has what 0.30.0 brings; a fork with a version of its own is not known."""
    (thread, *_) = [thread for thread in THREADS if thread["url"].endswith("/recipes/pull/981")]
    assert predicted_state(thread)[0] == "accepted"
    assert predicted_state({**thread, "version": "0.30.0+mine"})[0] == "unknown"
