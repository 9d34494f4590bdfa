"""Failures are counted, and a failure leads to more trials."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckResults, CheckVerdict, worst_mark
from moebox.escape import one_line
from moebox.verify.client import ExchangeClient
from moebox.verify.options import VerifyOptions
from moebox.verify.session import ProbeFailed, ReplyTime, late_reply
from moebox.verify.statistics import (
    FAILURE_KINDS,
    FailureCounts,
    ModelFailure,
    build_failure,
    describe_failure,
    failure_mark,
)
from moebox.verify.trials import CheckSession


def run(outcomes: Iterator[str], options: VerifyOptions) -> CheckSession:
    """Run a series of trials with these outcomes; return the session with its counts."""

    async def series() -> CheckSession:
        session = CheckSession(ExchangeClient(endpoint_from_url("http://127.0.0.1:9", "m")), options)

        async def attempt(stream: bool) -> str:
            return next(outcomes)

        with contextlib.suppress(ProbeFailed):
            await session.run_trials("tool-call", attempt)
        return session

    return asyncio.run(series())


def outcomes(bad: Callable[[int], bool], side: type[str] = str) -> Iterator[str]:
    return (side("wrong" if bad(number) else "") for number in range(10_000))


def test_without_a_failure_the_planned_trials_are_enough():
    """The interval shows how sure that is."""
    found = run(outcomes(lambda number: False), VerifyOptions(trials=12)).failures.summarize()[0]

    assert (found.seen, found.of, found.verdict) == (0, 12, "pass")
    assert found.high == pytest.approx(0.24, abs=0.01)


def test_one_failure_leads_to_more_trials_and_a_warning():
    """Seen once in 36 trials it is still reported."""
    found = run(outcomes(lambda number: number == 3), VerifyOptions(trials=12)).failures.summarize()[0]

    assert (found.seen, found.of, found.verdict) == (1, 36, "warn")
    assert found.example == "wrong"


def test_a_constant_failure_ends_the_series_at_once():
    """No more requests than are needed."""
    assert run(outcomes(lambda number: True), VerifyOptions(trials=36)).failures.summarize()[0].of == 2


def test_one_failure_in_five_fails_before_the_budget_is_spent():
    """The limit is passed with confidence."""
    found = run(outcomes(lambda number: number % 5 == 0), VerifyOptions(trials=12)).failures.summarize()[0]

    assert found.verdict == "fail"
    assert found.of < 36


def test_rare_model_failures_do_not_count_for_the_server():
    """They are kept with their own attribution."""
    models, mine = run(
        outcomes(lambda number: number == 3, ModelFailure), VerifyOptions(trials=12)
    ).failures.summarize()

    assert (models.whose, models.seen, models.verdict) == ("model", 1, "pass")
    assert (mine.whose, mine.seen) == ("server", 0)


def test_a_model_that_is_wrong_every_time_fails():
    """Damaged weights look like that, and so does a constant fault."""
    found = run(outcomes(lambda number: True, ModelFailure), VerifyOptions(trials=12)).failures.summarize()[0]

    assert (found.whose, found.verdict) == ("model", "fail")
    assert found.of <= 8


@given(st.sampled_from(sorted(FAILURE_KINDS)), st.integers(0, 60), st.integers(0, 60))
def test_more_failures_are_never_better(kind: str, seen: int, clean: int):
    """The verdict follows the rate, and no failure is a pass."""
    order = ["pass", "warn", "fail"]
    less, more = (order.index(failure_mark(kind, count, seen + clean + 1)) for count in (seen, seen + 1))

    assert less <= more
    assert (less == 0) == (seen == 0)


def test_counts_are_summed_over_a_run_and_split_by_check():
    """A snapshot separates later counts from earlier ones."""
    counts = FailureCounts()
    for why in ("", "cut", ""):
        counts.add("json", why)
    before = counts.snapshot()
    counts.add("json", "cut again")

    (all_of_it,), (since,) = counts.summarize(), counts.summarize(before)
    assert (all_of_it.seen, all_of_it.of) == (2, 4)
    assert (since.seen, since.of) == (1, 1)


def test_a_failure_is_described_for_an_agent():
    """Rate, interval, and a hundred calls."""
    text = describe_failure(build_failure("transport", 4, 40))

    assert text == "4 of 40 (10%, between 4% and 23%): about 10 of 100 calls would get no complete reply"
    assert describe_failure(build_failure("transport", 1, 2)) == "seen 1 of 2 times"
    assert "1 of 299 (0.3%, between 0.1% and 2%)" in describe_failure(build_failure("usage", 1, 299))  # never 0%


def test_results_are_as_good_as_the_worst_failure():
    """Failures that no single check shows clearly count in sum; a run cut short is never a pass."""
    passed = CheckVerdict(name="plain", verdict="pass")
    results = CheckResults(url="", model="m", rungs=(passed,))

    assert results.verdict == "pass"
    assert (
        CheckResults(url="", model="m", rungs=(passed,), slips=(build_failure("transport", 9, 90),)).verdict == "fail"
    )
    assert CheckResults(url="", model="m", rungs=(passed,), stopped="out of time").verdict == "warn"
    assert worst_mark([]) == "skip"


def test_a_reply_eight_seconds_late_among_fifty_is_found():
    """Whole replies are compared with whole ones, longer ones by their length."""
    times = [*[ReplyTime(0.2, 500, False)] * 49, ReplyTime(8.2, 500, False), ReplyTime(9.0, 25_000, False)]

    assert [bool(why) for why in (late_reply(reply, times) for reply in times)] == [False] * 49 + [True, False]


@given(st.text())
def test_text_of_a_server_cannot_control_a_terminal(text: str):
    """Escapes, control characters, line ends and half characters are spelled out."""
    shown = one_line(text + "\x1b[2J\x00\r\n\ud83d\u202e")

    assert shown.isprintable() or "\u200d" in shown or "\ufe0f" in shown
    shown.encode()


def test_a_probe_shows_its_own_failures_not_earlier_ones() -> None:
    """ "finish_reason 'stop'" had the example of a probe before it: another fault of the same kind."""
    counts = FailureCounts()
    counts.add("limits", "HTTP 500 when the context is full")
    before = counts.snapshot()
    for why in ("finish_reason 'stop' at the limit", "finish_reason 'stop' at the limit", "no reply", ""):
        counts.add("limits", why)
    (mine,) = counts.summarize(before)
    assert (mine.seen, mine.of, mine.example, mine.also) == (3, 4, "finish_reason 'stop' at the limit", ("no reply",))
    assert counts.summarize()[0].example == "HTTP 500 when the context is full"
