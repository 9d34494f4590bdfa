"""Setups of threads that were collected without looking at the matrix: what moebox answers now is not lost again."""

from collections import Counter

import pytest

from moebox.core.start_rules import next_release
from moebox.engines.support import BY_CHECKS, BY_LIST

from .unseen import THREADS, judge, predicted_state, starts_as_predicted, starts_without_reports


@pytest.mark.parametrize(
    ("batch", "fewest"),
    [
        ("1", 39),
        ("2", 13),
        ("3", 30),
        ("4", 16),
        ("5", 49),
        ("6", 9),
        ("7", 8),
        ("8", 25),
        ("9", 19),
        ("10", 15),
        ("11", 6),
        ("12", 20),
        ("13", 16),
        ("14", 7),
    ],
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


def test_a_build_without_a_tag_is_not_known() -> None:
    """0.1.dev19253 is not older than every release: what it runs is not known."""
    (thread,) = [thread for thread in THREADS if thread["url"].endswith("/recipes/issues/838")]
    assert predicted_state(thread)[0] == "unknown"


@pytest.mark.parametrize(
    ("engine", "version", "box", "kv", "refused"),
    [
        ("vllm", "0.29.0", "8x-b200", "auto", True),
        ("vllm", "0.30.0", "8x-b200", "auto", False),
        ("vllm", "0.30.0", "8x-b200", "bf16", True),
        ("ktransformers", "0.7.2", "1x-rtx-5090", "auto", False),
        ("ktransformers", "0.7.2", "1x-rtx-3090", "auto", True),
    ],
)
def test_what_deepseek_v4_is_refused_for(engine: str, version: str, box: str, kv: str, refused: bool) -> None:
    """vLLM takes the cache type auto since 0.30; kt-kernel has MXFP4 experts, and attention from Ada on."""
    setup = {"engine": engine, "version": version, "box": box, "kv": kv, "settings": "max_seqs=16"}
    gpus = box.partition("x")[0]
    thread = {**setup, "model": "deepseek-v4-flash", "quant": "fp8-mxfp4", "layout": f"tp={gpus}"}
    assert (predicted_state(thread)[0] == "no-start") == refused, predicted_state(thread)


def test_a_nightly_build_is_answered_by_the_next_release() -> None:
    """0.29.1rc1.dev200 has what 0.30.0 brings; a fork with a version of its own is not known."""
    (thread, *_) = [thread for thread in THREADS if thread["url"].endswith("/recipes/pull/981")]
    assert predicted_state(thread)[0] == "accepted"
    assert predicted_state({**thread, "version": "0.30.0+mine"})[0] == "unknown"


@pytest.mark.parametrize(
    ("engine", "version", "later"),
    [
        ("vllm", "0.22.1rc1.dev400+g01192139b", "0.23.0"),
        ("vllm", "0.16.0rc2.dev123", "0.16.0"),
        ("vllm", "0.30.0", ""),
        ("vllm", "0.30.0+mine", ""),
        ("sglang", "0.5.8.post1", ""),
    ],
)
def test_what_a_build_between_two_releases_leads_to(engine: str, version: str, later: str) -> None:
    """Main leads to the next feature release, a candidate to its own; a post release is a release."""
    assert next_release(engine, version) == later
