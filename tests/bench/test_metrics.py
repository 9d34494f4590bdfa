"""Figures from samples, checked against arithmetic done by hand and by the standard library."""

import statistics
from array import array
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.bench import metrics, samples
from moebox.bench.client_check import check_client, lag_percentile_ms, merged_share
from moebox.bench.generator.job import WorkerGauge
from moebox.bench.samples import COMPLETED, FAILED, Samples
from moebox.core.measure import Slo
from moebox.errors import BadInput
from moebox.stream.events import CONTENT, REASONING, SILENT

MS = 1_000_000


def made(*requests: dict[str, object], zero: int = 0) -> Samples:
    """Samples of requests given as sent, times (ms), and optionally tokens, kinds, outcome, output."""
    found = Samples(zero=zero)
    for index, one in enumerate(requests):
        times = [int(t * MS) for t in one["times"]]  # type: ignore[attr-defined]
        tokens = one.get("tokens", [1] * len(times))
        found.add_request(
            array("q", times),
            array("H", tokens),  # type: ignore[arg-type]
            array("B", one.get("kinds", [CONTENT] * len(times))),  # type: ignore[arg-type]
            reason=str(one.get("reason", "")),
            index=index,
            due=int(one["sent"] * MS),  # type: ignore[operator]
            sent=int(one["sent"] * MS),  # type: ignore[operator]
            ended=times[-1] if times else int(one["sent"] * MS),  # type: ignore[operator]
            outcome=int(one.get("outcome", COMPLETED)),  # type: ignore[call-overload]
            status=200,
            prompt=10,
            output=int(one.get("output", sum(tokens))),  # type: ignore[call-overload]
            cached=-1,
            asked=len(times),
            turn=0,
        )
    return found


def test_one_request_by_hand() -> None:
    """Sent at 100, tokens at 300, 320 and 360 ms."""
    result = metrics.summarize_samples(made({"sent": 100, "times": [300, 320, 360]}))

    assert (result.ttft.mean, result.tpot.mean, result.e2el.mean) == (200, 30, 260)
    assert (result.itl.mean, result.itl.p99) == pytest.approx((30, 39.8))
    assert result.duration == pytest.approx(0.26)
    assert result.output_throughput == pytest.approx(3 / 0.26)
    assert result.total_token_throughput == pytest.approx(13 / 0.26)


def test_three_tokens_in_a_chunk_share_its_gap() -> None:
    """Speculative decoding: 20 ms for three tokens is 6.7 ms a token, while the chunks are 20 ms apart."""
    one = {"sent": 0, "times": [200 + 20 * i for i in range(33)], "tokens": [3] * 33, "output": 99}
    result = metrics.summarize_samples(made(one))

    assert result.itl.mean == pytest.approx(20 / 3)
    assert result.chunk_gap.mean == pytest.approx(20)
    assert result.tpot.mean == pytest.approx(640 / 98)
    assert result.max_output_tokens_per_s == 99


def test_thinking_is_a_token_but_not_content() -> None:
    """TTFT is to the first token of any kind, TTFC to the first visible one."""
    result = metrics.summarize_samples(
        made({"sent": 0, "times": [10, 20, 30], "kinds": [REASONING, REASONING, CONTENT]})
    )

    assert (result.ttft.mean, result.ttfc.mean) == (10, 30)


def test_what_failed_is_not_averaged_in() -> None:
    """A fast failure must not flatter the figures."""
    bad = {"sent": 0, "times": [1, 2], "outcome": FAILED, "reason": "HTTP 500"}
    result = metrics.summarize_samples(made({"sent": 0, "times": [100, 200]}, bad))

    assert (result.completed, result.failed, result.ttft.mean) == (1, 1, 100)
    assert result.total_output_tokens == 2


def test_nothing_completed_gives_nulls_not_zeros() -> None:
    """An average of nothing is not 0 ms."""
    result = metrics.summarize_samples(made({"sent": 0, "times": [], "outcome": FAILED}))

    assert result.ttft.mean is None
    assert result.output_throughput == 0
    assert metrics.steady_state(made()) is None
    assert metrics.summarize_samples(made()).duration == 0


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    """One is late to its first token, one stalls once, one is good."""
    found = made(
        {"sent": 0, "times": [900, 910]}, {"sent": 0, "times": [100, 700]}, {"sent": 0, "times": [100, 150, 1000]}
    )
    slo = Slo(ttft_s=0.5, itl_s=0.5)

    assert [metrics.request_meets_slo(one, slo) for one in metrics.request_figures(found)] == [False, False, False]
    assert [metrics.request_meets_slo(one, Slo(ttft_s=0.5)) for one in metrics.request_figures(found)] == [
        False,
        True,
        True,
    ]
    assert metrics.summarize_samples(found, slo=Slo(ttft_s=0.5)).request_goodput == pytest.approx(2.0)


def test_a_request_without_a_first_token_meets_no_limit_of_it() -> None:
    """If five tokens were counted and only their end was seen, no first token is known: a TTFT limit is not met."""
    (figures,) = metrics.request_figures(made({"sent": 0, "times": [100], "kinds": [SILENT], "output": 5}))

    assert not metrics.request_meets_slo(figures, Slo(ttft_s=1000.0))
    assert metrics.request_meets_slo(figures, Slo(e2e_s=1000.0))


@settings(max_examples=60)
@given(values=st.lists(st.integers(0, 10**6), min_size=2, max_size=60))
def test_percentiles_are_the_standard_librarys(values: list[int]) -> None:
    """Linear interpolation between ranks, ends included, as numpy's default and `inclusive` quantiles."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    found = metrics.percentiles_of_counts(Counter(values), [50, 90, 99])

    assert found == pytest.approx([cuts[49], cuts[89], cuts[98]])


def test_steady_leaves_out_the_start_and_the_end() -> None:
    """The window opens with the first end and closes with the last start."""
    requests = [{"sent": 500 * i, "times": [500 * i + 100 * k for k in range(1, 11)]} for i in range(8)]
    found = metrics.steady_state(made(*requests))

    assert found is not None
    assert (found.start_s, found.end_s, found.requests) == (1.0, 3.5, 6)
    assert found.output_throughput == pytest.approx(20, rel=0.1)
    assert found.mean_concurrency == pytest.approx(2, rel=0.05)


def test_a_sagging_generation_shows_by_position() -> None:
    """The second half runs at half the speed."""
    times = [float(10 * i) for i in range(1, 1001)]
    times += [times[-1] + 20.0 * i for i in range(1, 1001)]
    found = metrics.speed_by_position(made({"sent": 0, "times": times}), bins=4)

    assert [round(row.tok_s) for row in found] == [100, 100, 50, 50]


def test_the_timeline_holds_every_token_and_request() -> None:
    """Whatever the bins, sums are kept."""
    found = metrics.build_timeline(made({"sent": 0, "times": [100, 1500]}, {"sent": 1000, "times": [2500, 2600]}))

    assert sum(found.output_tokens) == 4
    assert sum(found.ended) == 2
    assert found.in_flight == (1.0, 1.5, 0.6)


def test_samples_survive_their_file(tmp_path: Path) -> None:
    """Written and read back alike, and small: 11 bytes for each event with tokens."""
    found = made({"sent": 0, "times": list(range(1, 500)), "reason": "é"}, zero=5)
    (tmp_path / "a.samples").write_bytes(found.to_bytes())
    back = samples.read_samples(tmp_path / "a.samples")

    assert list(back.requests()) == list(found.requests())
    assert (back.time, back.tokens, back.kind, back.zero) == (found.time, found.tokens, found.kind, 5)
    assert samples.BYTES_PER_CHUNK <= 24
    assert (tmp_path / "a.samples").stat().st_size < 500 * 24


@pytest.mark.parametrize("content", [b"", b"{}", b'{"magic": "x"}\n', b"\xff\xfe", b'{"magic": "moebox-samples-1"}\n'])
def test_a_file_that_holds_no_samples_is_refused(tmp_path: Path, content: bytes) -> None:
    """One line, no traceback."""
    (tmp_path / "a").write_bytes(content)

    with pytest.raises(BadInput, match="not a file of samples"):
        samples.read_samples(tmp_path / "a")


def test_workers_samples_come_together() -> None:
    """Reasons keep their meaning when tables are joined."""
    first = made({"sent": 0, "times": [1], "outcome": FAILED, "reason": "a"})
    first.extend(made({"sent": 0, "times": [2], "outcome": FAILED, "reason": "b"}, {"sent": 0, "times": [3]}))

    reasons = [first.reasons[number] for number in first.columns["reason"]]
    assert [first.time[one.first] // MS for one in first.requests()] == [1, 2, 3]
    assert reasons == ["a", "b", ""]


def test_a_client_that_could_not_keep_up_is_reported() -> None:
    """Saturated, late without kernel times, or late and merging: each has its reason."""
    quiet = made({"sent": 0, "times": [10, 30, 50]})
    merging = made({"sent": 0, "times": [10, 24, 24, 24]})
    held_back = made({"sent": 0, "times": [40, 40, 40, 40, 80, 80, 80, 80]})  # by Nagle's algorithm, at the server
    late = [0] * 128
    late[64] = 100  # 65 ms

    def reasons(found: Samples, gauge: WorkerGauge, *, open_loop: bool = False) -> list[str]:
        return list(check_client(found, [gauge], open_loop=open_loop, itl_ms=20.0).reasons)

    assert reasons(quiet, WorkerGauge(cpu_s=0.2, wall_s=1.0)) == []
    assert "95% of a core" in reasons(quiet, WorkerGauge(cpu_s=0.95, wall_s=1.0))[0]
    assert "no receive times" in reasons(quiet, WorkerGauge(wall_s=1.0, clock="user", lag=late))[0]
    assert "read together" in reasons(merging, WorkerGauge(wall_s=1.0, lag=late))[0]
    assert reasons(quiet, WorkerGauge(wall_s=1.0, lag=late)) == []
    assert reasons(held_back, WorkerGauge(wall_s=1.0, lag=late)) == []
    assert "75.0% of tokens" in reasons(held_back, WorkerGauge(wall_s=1.0, lag=late, estimated=6))[0]
    assert merged_share(merging) == 0.5
    assert 65 <= lag_percentile_ms(late, 0.99) <= 80


def test_an_open_loop_that_sends_late_is_reported() -> None:
    """Only where nothing limits what is in flight: there only the client can have held a request back."""
    late, client = Samples(), WorkerGauge(cpu_s=0.1, wall_s=1.0)
    for number in range(100):
        late.add_request(
            array("q", [50 * MS]),
            array("H", [1]),
            array("B", [CONTENT]),
            due=0,
            sent=11 * MS,
            ended=50 * MS,
            index=number,
            outcome=COMPLETED,
            status=200,
            prompt=1,
            output=1,
            cached=0,
            asked=1,
            turn=0,
        )

    assert check_client(late, [client], open_loop=False, itl_ms=20.0).reasons == ()
    assert check_client(late, [client], open_loop=True, itl_ms=20.0).reasons == ("requests were sent 11 ms late (P99)",)
