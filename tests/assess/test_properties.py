"""Rules that every assessment keeps, over generated records."""

import os
import re
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.assess.figures import count_ranges
from moebox.assess.run import assess_run
from moebox.core.event import ServerMeasured
from moebox.core.quirks import all_quirks
from moebox.core.recipe import Recipe
from moebox.core.result import LatencyStats
from moebox.core.verdict import CheckVerdict
from moebox.runs.record import ForecastRow, LoadResult, RunRecord
from moebox.serve.connect import CLAUDE_MIN_CONTEXT

EXAMPLES = 500 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 150
FLAGS = (
    "disturbed: other programs (make) used 1.2 of 2 cores",
    "not steady: 380 tok/s in the first half, 601 tok/s in the second",
    "other clients used the server: it read 9,000 prompt tokens, ours were 4,000",
    "12.0% of prompt tokens came from the server's prefix cache, though no two prompts share anything",
)
# Recommendations that quote figures of loads; those about failures and repetition may quote doubtful ones.
FROM_FIGURES = {"cache", "concurrency", "slow first tokens", "speculation", "forecast", "choice"}
rates = st.floats(min_value=0.5, max_value=20_000)
times = st.floats(min_value=1, max_value=60_000)


@st.composite
def loads(draw: st.DrawFn, *, is_clean: bool) -> LoadResult:
    """One load of a sweep; a clean one has no reason for doubt."""
    mean = draw(times)
    return LoadResult(
        name="load",
        workload=draw(st.sampled_from(("256 in / 100 out", "4,096 in / 512 out"))),
        concurrency=draw(st.sampled_from((1.0, 2.0, 4.0, 8.0, 16.0, 64.0))),
        input_tokens=256,
        output_tokens=100,
        completed=draw(st.integers(0, 64)),
        failed=0 if is_clean else draw(st.sampled_from((0, 0, 1, 9))),
        output_tok_s=draw(st.one_of(rates, rates, st.none())),
        ttft=LatencyStats(mean=mean, p99=mean * draw(st.floats(1, 20))),
        tpot=LatencyStats(mean=draw(times)),
        itl=LatencyStats(mean=draw(times)),
        flags=() if is_clean else draw(st.sampled_from(((), *((flag,) for flag in FLAGS), FLAGS[:2]))),
        client_limited=not is_clean and draw(st.booleans()),
        partial=not is_clean and draw(st.booleans()),
    )


@st.composite
def checks(draw: st.DrawFn) -> CheckVerdict:
    """One check; a failed or warning one may be a known quirk."""
    verdict = draw(st.sampled_from(("pass", "pass", "pass", "warn", "fail", "skip")))
    quirk = draw(st.sampled_from((None, *all_quirks()))) if verdict in ("warn", "fail") else None
    name = draw(st.sampled_from(("plain", "tools", "anthropic", "limits", "streaming")))
    return CheckVerdict(name=name, verdict=verdict, quirks=(quirk.text,) if quirk else ())


@st.composite
def records(draw: st.DrawFn) -> RunRecord:
    """A run with checks, loads and forecasts of some of them, near and far."""
    kinds = draw(st.sampled_from((loads(is_clean=True), loads(is_clean=True) | loads(is_clean=False))))
    measured = tuple(draw(st.lists(kinds, max_size=7, unique_by=lambda load: (load.workload, load.concurrency))))
    is_near = draw(st.booleans())
    forecast = []
    for load in measured:
        error = 1.05 if is_near else draw(st.sampled_from((None, 1.0, 1.6, 40.0)))
        if error and load.output_tok_s:
            rate = load.output_tok_s * error
            ttft = (load.ttft.mean or 1.0) * (1.0 if is_near else draw(st.sampled_from((1.0, 3.0))))
            forecast.append(
                ForecastRow(
                    concurrency=load.concurrency,
                    workload=load.workload,
                    output_tok_s=rate,
                    low_tok_s=rate * 0.9,
                    high_tok_s=rate * 1.1,
                    ttft_ms=ttft,
                )
            )
    made = tuple(draw(st.lists(checks(), max_size=5, unique_by=lambda check: check.name)))
    contexts = st.sampled_from((0, 2_048, CLAUDE_MIN_CONTEXT - 1, CLAUDE_MIN_CONTEXT, 65_536))
    recipe = Recipe(
        name="r", engine="vllm", model="kimi-k2.6", checkpoint="int4", served_name="m", context=draw(contexts)
    )
    return RunRecord(
        id="r-1",
        path=Path("/runs/r-1"),
        recipe=draw(st.sampled_from((recipe, recipe, recipe, None))),
        server=ServerMeasured(url="http://127.0.0.1:8000"),
        loads=measured,
        checks=made,
        check_total=draw(st.sampled_from((0, 0, 0, 5))),
        unfinished_checks=draw(st.sampled_from((None, None, None, ("plain",)))),
        open_step=draw(st.sampled_from(("", "", "", "verify", "bench"))),
        locked=draw(st.sampled_from((False, False, False, True))),
        simulation=draw(st.sampled_from((False, False, False, True))),
        kv_tokens=draw(st.sampled_from((None, 1_000.0, 600_000.0))),
        forecast=tuple(forecast),
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(records(), st.booleans())
def test_the_tone_is_good_only_without_any_reason_for_doubt(record: RunRecord, serving: bool):
    """Failed requests or checks, flags, client limits, interruptions and loads out of range are never green."""
    assessment = assess_run(record, serving=serving)
    count = count_ranges(record)

    if assessment.tone == "good":
        assert not any(load.failed or load.flags or load.client_limited or load.partial for load in record.loads)
        assert not record.failed_checks
        assert not record.unfinished_step
        assert not record.simulation
        assert count.loads_in_range == count.loads
    fast = assessment.cell("fast")
    if fast and count.loads and "simulated" not in fast.text and "no load" not in fast.text:
        assert f"in range at {count.loads_in_range} of {count.loads} load" in fast.text


@settings(max_examples=EXAMPLES, deadline=None)
@given(records())
def test_recommendations_neither_contradict_each_other_nor_use_doubtful_figures(record: RunRecord):
    """A subject has one recommendation, and removing doubtful loads changes nothing that is drawn from figures."""
    found = assess_run(record).recommendations
    assert max(Counter(row.subject for row in found).values(), default=0) <= 1
    reliable = [load for load in record.loads if not load.doubts]
    only_reliable = RunRecord(
        id=record.id,
        path=record.path,
        recipe=record.recipe,
        loads=tuple(reliable),
        checks=record.checks,
        kv_tokens=record.kv_tokens,
        forecast=record.forecast,
        simulation=record.simulation,
    )
    expected = [row for row in assess_run(only_reliable).recommendations if row.subject in FROM_FIGURES]
    assert [row for row in found if row.subject in FROM_FIGURES] == expected
    assert ("measurement" in {row.subject for row in found}) == (
        not record.simulation and any(load.flags or load.client_limited for load in record.loads)
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(records(), st.booleans())
def test_the_next_step_can_work_on_this_endpoint(record: RunRecord, serving: bool):
    """Claude Code is offered only to a server that is right, measured, fast enough and long enough for it."""
    following = assess_run(record, serving=serving).cell("next")
    assert following is not None
    assert following.text
    text = f"{following.text} {following.detail}"
    failed = any(load.failed for load in record.loads)
    flagged = any(load.flags for load in record.loads)
    if "connect claude-code" in text:
        assert not failed
        assert not flagged
        assert not record.failed_checks
        assert record.recipe is not None
        assert record.recipe.context == 0 or record.recipe.context >= CLAUDE_MIN_CONTEXT
        figures = [(load.output_tok_s, row) for load in record.loads for row in record.forecast]
        assert not any(
            rate and row.low_tok_s and rate < row.low_tok_s / 2
            for (rate, row), load in zip(figures, [load for load in record.loads for _ in record.forecast], strict=True)
            if (row.concurrency, row.workload) == (load.concurrency, load.workload)
        )
    is_over = not (record.live or record.interrupted_step or record.simulation or record.unfinished_checks)
    quirks = [text for check in record.failed_checks for text in check.quirks]
    if is_over and record.recipe and not [check for check in record.failed_checks if not check.quirks]:
        if failed:
            assert following.text.startswith("moebox doctor logs ")
        elif quirks:
            assert following.text in {quirk.client for quirk in all_quirks()}
        elif any(flag.startswith("disturbed") for load in record.loads for flag in load.flags):
            assert re.match(r"measure again on a quiet machine", following.detail)
