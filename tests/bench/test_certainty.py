"""A client that read late reports it whenever its P99 of gaps may be wrong, and not where it cannot be."""

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.bench import metrics
from moebox.bench.client_check import P99_TOLERANCE, is_p99_certain
from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.measure import measure_load
from moebox.bench.probe import probe_endpoint
from moebox.bench.samples import COMPLETED, Samples
from moebox.core.endpoint import endpoint_from_url
from moebox.core.measure import Load, Workload
from tests.bench.server import HEAD, Peer, chunk, event, serving, tail

MS = 1_000_000
TOKEN = chunk(event({"content": " a"}))


def p99(gaps: Sequence[float]) -> float:
    """As `make bench` has it of its server."""
    return metrics.percentiles_of_counts(Counter(gaps), [99])[0]


def read_by(looks: Sequence[int], times: Sequence[int]) -> ReplyRecorder:
    """A reply whose tokens come at `times`, read at `looks` and at its end: each read tells when its last one came."""
    recorder = ReplyRecorder(sent_at=1)
    recorder.record_segment(HEAD, 1)
    before = 0
    for look in [*sorted(looks), times[-1] + 1]:
        ready = [at for at in times if before < at <= look]
        if ready:
            recorder.record_segment(TOKEN * len(ready), ready[-1], max(1, before))
        before = max(before, look)
    recorder.catch_up()
    return recorder


def kept(replies: Sequence[ReplyRecorder]) -> Samples:
    """As the generator keeps them."""
    samples = Samples()
    for recorder in replies:
        if recorder.estimated_count:
            recorder.respace_first_events()
        count = len(recorder.times)
        samples.add_request(
            recorder.times,
            recorder.tokens_by_event(),
            recorder.kinds,
            reason="",
            due=1,
            sent=1,
            ended=recorder.times[-1],
            index=len(samples),
            outcome=COMPLETED,
            status=200,
            prompt=1,
            output=count,
            cached=-1,
            asked=count,
            turn=0,
        )
    return samples


GAPS = st.lists(st.sampled_from([1, 3, 15, 20, 20, 20, 20, 20, 22, 45]), min_size=5, max_size=120)
LOOKS = st.lists(st.integers(1, 150), min_size=0, max_size=60)


@given(st.lists(st.tuples(GAPS, LOOKS), min_size=1, max_size=4))
def test_a_p99_that_is_wrong_is_never_called_sure(replies: list[tuple[list[int], list[int]]]) -> None:
    """Whatever the server's pace and whenever the client looked."""
    recorders, gaps = [], []
    for steps, naps in replies:
        times = [50 * MS + MS * at for at in itertools.accumulate(steps)]
        gaps += [(after - before) / MS for before, after in itertools.pairwise(times)]
        recorders.append(read_by([MS * at for at in itertools.accumulate(naps)], times))
    samples = kept(recorders)
    reported = metrics.summarize_samples(samples).itl.p99
    assert reported is not None
    if abs(reported / p99(gaps) - 1) > P99_TOLERANCE:
        assert not is_p99_certain(samples, reported)


def test_a_few_late_reads_leave_the_p99_sure() -> None:
    """Where fewer tokens than the slowest hundredth were read together, and the rest are alike."""
    times = [50 * MS + 20 * MS * number for number in range(1000)]
    looks = [at + MS for at in times if at not in times[100:104:2]]
    samples = kept([read_by(looks, times)])

    assert metrics.summarize_samples(samples).itl.p99 == pytest.approx(20.0)
    assert sum(kind >= 128 for kind in samples.kind) == 2
    assert is_p99_certain(samples, 20.0)
    assert not is_p99_certain(samples, 25.0), "a P99 that cannot be"


def paces() -> Iterator[float]:
    """Nine tokens in quick succession, and a pause."""
    return itertools.cycle([0.002] * 9 + [0.06])


def test_a_client_that_was_kept_from_reading_is_reported() -> None:
    """A real load whose worker gets no CPU while the tokens come: its P99 is far off, and the result is marked."""
    sent: list[int] = []

    def unheard(peer: Peer, body: dict[str, object]) -> bool:
        tokens = int(str(body["max_tokens"]))
        (worker,) = (
            child for child in psutil.Process().children() if "moebox.bench.generator.worker" in child.cmdline()
        )
        peer.send(HEAD, TOKEN)
        sent.append(time.monotonic_ns())
        time.sleep(0.05)
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            for pace, _ in zip(paces(), range(tokens - 1), strict=False):
                time.sleep(pace)
                sent.append(time.monotonic_ns())
                peer.send(TOKEN)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        peer.send(tail(tokens))
        return True

    with serving(unheard) as server:
        subject = probe_endpoint(endpoint_from_url(server.url, "m"))
        result = measure_load(subject, Workload(output_tokens=61), Load(concurrency=1, requests=1, workers=1)).result

    true = p99([(after - before) / MS for before, after in itertools.pairwise(sent)])
    assert result.completed == 1
    assert result.itl.p99 is not None
    assert abs(result.itl.p99 / true - 1) > P99_TOLERANCE
    assert result.client_limited
