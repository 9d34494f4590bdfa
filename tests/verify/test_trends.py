"""A fault that grows with length, turns, company or heat is found as a trend, and healthy servers raise no alarm."""

import asyncio
import functools
import itertools
import random
from types import SimpleNamespace

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckVerdict
from moebox.verify.checks.trends import ALARM_RATE, MAX_ROUNDS, DoseSeries, trend_probability
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from moebox.verify.session import ProbeSkipped

from .oracle.app import MODEL
from .oracle.doses import DOSES


def check_trends(oracle: str, server: str, **more: int) -> CheckVerdict:
    options = VerifyOptions(thinking="yes", seed=1, **more)  # type: ignore[arg-type]
    return run_checks(endpoint_from_url(f"{oracle}/{server}", MODEL), options, only=["alive", "trends"]).rungs[-1]


@pytest.mark.parametrize("server", DOSES)
def test_a_fault_that_grows_with_the_dose_is_found(oracle: str, server: str):
    """Each dose may pass alone; the trend does not."""
    check = check_trends(oracle, server)

    assert check.verdict in ("fail", "warn"), check.reason
    assert any("accuracy falls" in probe.reason for probe in check.probes) or server != "wrong-in-a-crowd"


def test_a_rate_that_is_the_same_at_every_dose_is_no_trend(oracle: str):
    """One answer in fifteen is empty, whatever is asked: counted, and not called a trend."""
    check = check_trends(oracle, "empty-at-times@15")

    assert check.verdict in ("warn", "fail")
    assert not any("accuracy falls" in probe.reason for probe in check.probes)
    assert check_trends(oracle, "correct").verdict == "pass"


def test_one_dose_shows_no_trend_and_does_not_pass(oracle: str):
    """One request at a time, a short context, no log-probabilities: skipped, with the reason."""
    probes = {probe.name: probe for probe in check_trends(oracle, "takes-1k-no-logprobs", parallel=1).probes}

    assert {name for name, probe in probes.items() if probe.verdict == "pass"} == {"turns"}
    assert probes["length"].reason == "one dose shows no trend: right 2 of 2 at 10 words"
    assert probes["streams"].reason == "one dose shows no trend: right 1 of 1 at 1 at once"
    assert probes["temperature"].reason == "no code was found that the model is certain of, by its log-probabilities"


def test_the_lowest_dose_is_the_models_only_if_no_failure_was_the_servers():
    """A server that is wrong at once, in another way each time, is not called a weak model."""
    for side, words in (("model", "model, not server: wrong"), ("server", "wrong")):
        series = DoseSeries(SimpleNamespace(seconds_left=1), ["1 at once", "2 at once"])  # type: ignore[arg-type]

        async def ask_dose(dose: int, series: DoseSeries = series, side: str = side) -> None:
            series.of[dose] += 1
            series.wrong[side][dose] += 1  # type: ignore[index]
            series.examples.setdefault(dose, f"{series.doses[dose]}: no code")

        with pytest.raises(ProbeSkipped) as caught:
            asyncio.run(series.run(ask_dose, falling=True))
        assert str(caught.value) == f"{words} at the lowest dose already (1 at once: no code)"


def test_the_probability_is_exact():
    """Compared with all ways to put two wrong answers among six."""
    assert trend_probability([(0, 3), (0, 3)]) == 1
    ways = list(itertools.combinations([0, 0, 1, 1, 2, 2], 2))
    for first, second in ((2, 2), (1, 2), (0, 1)):
        counts = [[0, 2], [0, 2], [0, 2]]
        for dose in (first, second):
            counts[dose][0] += 1
        expected = sum(sum(way) >= first + second for way in ways) / len(ways)
        assert trend_probability([(wrong, of) for wrong, of in counts]) == pytest.approx(expected)


def test_false_alarms_are_as_rare_as_stated():
    """A server that is wrong once in eight at every dose, looked at after each round."""
    rng = random.Random(5)
    alarms = 0
    known = functools.cache(trend_probability)  # most counts come up many times
    for _ in range(2000):
        counts = ((0, 0),) * 4
        for _ in range(MAX_ROUNDS):
            counts = tuple((wrong + sum(rng.random() < 1 / 8 for _ in range(2)), of + 2) for wrong, of in counts)
            if known(counts) <= ALARM_RATE / MAX_ROUNDS:
                alarms += 1
                break
    assert alarms <= 2000 * ALARM_RATE + 4
