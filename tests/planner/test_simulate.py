"""Continuous batching in virtual time: nothing is lost, the cache is never exceeded, and queues show."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.recipe import Recipe, Speculate
from moebox.errors import BadInput
from moebox.planner.schedule import Scheduler, SchedulerRules, SimulatedRequest
from moebox.planner.simulate import Histogram, SimulatedWorkload, scheduler_rules, simulate
from moebox.planner.speed import Speed
from tests.planner.deployed import kimi
from tests.planner.rows import published

RECIPE = kimi(kv="fp8", context=262144)


def speed(recipe: Recipe = RECIPE, gpu: str = "b200") -> Speed:
    """Return the speed of the recipe on eight GPUs."""
    box = Box(name="t", gpus=(catalogue.find_gpu(gpu),) * 8)
    return Speed.for_deployment(deploy(recipe, box))


PLAIN = speed()
DRAFTING = speed(replace(RECIPE, speculate=Speculate(tokens=3)))


@given(
    prompt=st.integers(1, 3000),
    answer=st.integers(1, 300),
    requests=st.integers(1, 60),
    concurrency=st.integers(1, 40),
    kv_tokens=st.integers(100, 20_000),
    sglang=st.booleans(),
    drafting=st.booleans(),
    lengths=st.sampled_from(["fixed", "near", "uniform"]),
    hit=st.sampled_from([0.0, 0.7, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_conserves_requests_and_tokens_and_never_exceeds_the_cache(
    prompt: int,
    answer: int,
    requests: int,
    concurrency: int,
    kv_tokens: int,
    sglang: bool,
    drafting: bool,
    lengths: str,
    hit: float,
) -> None:
    """Every request ends or is refused on arrival, every token is counted once, the cache is never exceeded."""
    recipe = replace(RECIPE, engine="sglang" if sglang else "vllm")
    workload = SimulatedWorkload(
        input=prompt,
        output=answer,
        requests=requests,
        concurrency=concurrency,
        lengths=lengths,  # type: ignore[arg-type]
        prefix_hit=hit,
    )
    sizes = [workload.request_lengths(number) for number in range(requests)]
    fitting = [size for size in sizes if sum(size) <= kv_tokens]

    engine = DRAFTING if drafting else PLAIN
    done = simulate(engine, scheduler_rules(recipe, kv_tokens, engine), workload)

    assert done.completed == len(fitting)
    assert done.rejected == requests - len(fitting)
    assert done.input_tokens == sum(size[0] for size in fitting)
    assert done.output_tokens == sum(size[1] for size in fitting)
    assert done.peak_kv_tokens <= kv_tokens + 1e-6
    assert done.ttft.weight == done.completed


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_cancelled_requests_leave_nothing(data: st.DataObject) -> None:
    """Requests cancelled at any moment leave nothing in the cache, and the others still end."""
    rules = SchedulerRules(
        kv_tokens=4000, context=4000, max_seqs=8, step_tokens=512, prompts_first=False, reserves_output=False
    )
    scheduler = Scheduler(speed=PLAIN, rules=rules)
    waiting = [SimulatedRequest(id=number, input=300, output=50) for number in range(12)]
    for request in waiting:
        assert scheduler.submit(request)
    gone = set(data.draw(st.lists(st.integers(0, 11), max_size=8)))
    steps = data.draw(st.integers(0, 40))
    ended = set()
    for _ in range(steps):
        done = scheduler.advance(max_steps=1)
        ended |= {request.id for request in done.finished} if done else set()
    for number in gone - ended:
        scheduler.cancel(waiting[number])
    while (done := scheduler.advance()) is not None:
        ended |= {request.id for request in done.finished}
        assert scheduler.used_tokens <= rules.kv_tokens + 1e-6

    assert ended | gone == set(range(12))
    assert scheduler.used_tokens == pytest.approx(0, abs=1e-6)


def test_a_small_cache_makes_a_queue() -> None:
    """With 4,578 tokens of cache the first token takes longer and longer while throughput stays (SM120 report)."""
    rows = {
        case.at: case.predict() for case in published().serving_rows(only="sm120-report-k2.5") if case.group == "ttft"
    }

    assert rows["C32"] < 2_000
    assert rows["C1000"] > 60_000
    assert sorted(rows.values()) == list(rows.values())


def test_published_serving_tables() -> None:
    """Both tables of the SM120 report: output tok/s within 25% in every row, first tokens within 1.4 above 128
    streams; Lambda's B200 row within 20%."""
    for case in published().serving_rows(only="sm120"):
        if case.group == "output":
            assert abs(case.ratio - 1) <= 0.25, case
        elif case.group == "ttft" and int(case.at[1:]) > 128:
            assert 1 / 1.4 <= case.ratio <= 1.4, case
    for case in published().serving_rows(only="lambda"):
        if case.group == "output":
            assert abs(case.ratio - 1) <= 0.20, case


def test_cost_grows_with_requests_and_not_with_tokens() -> None:
    """A hundred times longer answers take no more slices, and the histograms hold no more than their bins."""
    short = simulate(
        PLAIN,
        scheduler_rules(RECIPE, 10**7, PLAIN),
        SimulatedWorkload(input=512, output=100, requests=512, concurrency=32),
    )
    long = simulate(
        PLAIN,
        scheduler_rules(RECIPE, 10**7, PLAIN),
        SimulatedWorkload(input=512, output=10_000, requests=512, concurrency=32),
    )

    assert long.slices <= short.slices * 1.1
    assert len(long.itl.bins) + len(long.ttft.bins) + len(long.tpot.bins) < 3000


@given(
    prompt=st.integers(1, 200_000),
    answer=st.integers(2, 400),
    engine=st.sampled_from(["vllm", "sglang"]),
    hit=st.sampled_from([0.0, 0.9]),
)
@settings(max_examples=40, deadline=None)
def test_one_stream_is_interrupted_by_nothing(prompt: int, answer: int, engine: str, hit: float) -> None:
    """Alone on the engine the gaps between tokens are TPOT: a request's own prompt is not a gap."""
    recipe = replace(RECIPE, engine=engine)
    one = SimulatedWorkload(input=prompt, output=answer, requests=4, concurrency=1, prefix_hit=hit)
    alone = simulate(speed(recipe), scheduler_rules(recipe, 262_144, speed(recipe)), one)

    assert alone.itl.mean == pytest.approx(alone.tpot.mean)
    assert alone.itl.quantile(0.99) == pytest.approx(alone.tpot.mean, rel=0.02)
    for times in (alone.ttft, alone.tpot, alone.itl, alone.e2el):
        assert times.least <= times.quantile(0.5) <= times.quantile(0.99) <= times.greatest
        assert times.least - 1e-9 <= times.mean <= times.greatest + 1e-9


def test_a_prompt_in_steps_of_its_own_delays_only_the_others() -> None:
    """SGLang reads prompts before it decodes: gaps of all requests add up to the time from first to last token."""
    recipe = replace(RECIPE, engine="sglang")
    two = SimulatedWorkload(input=20_000, output=50, requests=8, concurrency=2, lengths="uniform")
    both = simulate(speed(recipe), scheduler_rules(recipe, 262_144, speed(recipe)), two)
    answers = [two.request_lengths(number)[1] for number in range(8)]

    assert both.itl.weight == sum(answers) - len(answers)
    assert both.itl.total == pytest.approx(both.e2el.total - both.ttft.total)


def test_a_rate_below_capacity_is_served_at_once() -> None:
    """Requests that come slowly find the machine free: throughput is the rate, the first token way and prompt."""
    done = simulate(
        PLAIN, scheduler_rules(RECIPE, 10**6, PLAIN), SimulatedWorkload(input=1000, output=50, requests=200, rate=0.2)
    )
    alone = PLAIN.request_s + PLAIN.text_s + 1000 * PLAIN.token_s + PLAIN.prefill_s(1000)

    assert done.completed / done.duration_s == pytest.approx(0.2, rel=0.2)
    assert done.ttft.quantile(0.5) == pytest.approx(alone, rel=0.1)


def test_a_tokenizer_reads_one_prompt_after_another() -> None:
    """Its time is that of the tokens, and prompts that come together wait for each other's, cached or not."""
    slow = replace(PLAIN, token_s=1e-3, text_s=0.5)
    work = SimulatedWorkload(input=1000, output=2, requests=4, concurrency=4, prefix_hit=1.0)
    first, last = simulate(slow, scheduler_rules(RECIPE, 10**6, slow), work).ttft.least, 1.0 + 0.5

    assert first == pytest.approx(last + PLAIN.request_s, abs=0.1)
    assert simulate(slow, scheduler_rules(RECIPE, 10**6, slow), work).ttft.greatest == pytest.approx(first + 3, abs=0.2)


def test_a_scheduler_that_seldom_looks_lets_requests_wait() -> None:
    """SGLang with --scheduler-recv-interval 30 takes in requests every 30 decode steps: 15 steps more in the mean."""
    recipe = replace(RECIPE, engine="sglang")
    seldom = replace(recipe, flags={"scheduler-recv-interval": 30})
    work = SimulatedWorkload(input=100, output=500, requests=80, concurrency=4, lengths="near")
    runs = [simulate(speed(each), scheduler_rules(each, 262_144, speed(each)), work) for each in (recipe, seldom)]

    assert runs[1].ttft.mean - runs[0].ttft.mean == pytest.approx(15 * runs[0].tpot.mean, rel=0.3)


def test_prefixes_in_the_cache_shorten_the_wait() -> None:
    """A prompt that is in the prefix cache is not read again."""
    cold = SimulatedWorkload(input=8192, output=64, requests=64, concurrency=16)

    first = simulate(PLAIN, scheduler_rules(RECIPE, 10**6, PLAIN), cold)
    second = simulate(PLAIN, scheduler_rules(RECIPE, 10**6, PLAIN), replace(cold, prefix_hit=0.9))

    assert second.ttft.mean < 0.5 * first.ttft.mean


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": 0},
        {"output": 0},
        {"requests": 0},
        {"concurrency": 0},
        {"rate": 1.0},
        {"prefix_hit": 1.5},
    ],
)
def test_invalid_workloads_are_refused(wrong: dict[str, float]) -> None:
    """Zero lengths, no load, two kinds of load and shares above one are refused."""
    workload = replace(SimulatedWorkload(input=10, output=10, requests=10, concurrency=1), **wrong)  # type: ignore[arg-type]

    with pytest.raises(BadInput):
        simulate(PLAIN, scheduler_rules(RECIPE, 1000, PLAIN), workload)


@given(times=st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=200))
@settings(max_examples=50, deadline=None)
def test_histograms_are_within_a_bin(times: list[float]) -> None:
    """The mean is exact and quantiles are within one per cent of a counted time."""
    histogram = Histogram()
    for seconds in times:
        histogram.add(seconds)
    ordered = sorted(times)

    assert histogram.mean == pytest.approx(sum(times) / len(times))
    assert histogram.quantile(1.0) == pytest.approx(ordered[-1], rel=0.011)
    assert histogram.quantile(0.5) == pytest.approx(ordered[(len(ordered) - 1) // 2], rel=0.011)
