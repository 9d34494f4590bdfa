"""Arrivals, limits, the search, words of known length, /metrics, presets and traces."""

import itertools
from pathlib import Path

import pytest

from moebox.bench.generator.job import PromptWords
from moebox.bench.generator.schedule import arrival_times
from moebox.bench.measure import MeasuredLoad
from moebox.bench.probe import calibrate_words
from moebox.bench.prompts import load_prompts, load_trace
from moebox.bench.samples import Samples
from moebox.bench.scrape import pick_metrics, summarize_scrapes
from moebox.bench.search import find_highest_load, load_meets_slo, parse_slo
from moebox.bench.workloads import open_source
from moebox.core.measure import Load, Workload
from moebox.core.metrics import parse_prometheus
from moebox.core.workload_file import find_workload_file, shipped_workloads
from moebox.errors import BadInput, UnknownName
from tests.bench.example import measurement


def gaps(load: Load, seed: int = 1) -> list[float]:
    """The first gaps between arrivals."""
    times = list(itertools.islice(arrival_times(load, seed), 4000))
    return [b - a for a, b in itertools.pairwise([0.0, *times])]


def test_arrivals_keep_their_rate_and_their_burstiness() -> None:
    """Mean 1/rate whatever the template; the coefficient of variation is 1/sqrt(burstiness); seeds repeat."""
    for burstiness, variation in ((1.0, 1.0), (4.0, 0.5), (0.25, 2.0)):
        found = gaps(Load(rate=10.0, burstiness=burstiness))
        mean = sum(found) / len(found)
        deviation = (sum((gap - mean) ** 2 for gap in found) / len(found)) ** 0.5
        assert mean == pytest.approx(0.1, rel=0.12)
        assert deviation / mean == pytest.approx(variation, rel=0.15)
    assert gaps(Load(rate=3.0)) == gaps(Load(rate=3.0))
    assert gaps(Load(rate=4.0, arrivals="constant"))[:3] == pytest.approx([0.25] * 3)


def test_a_ramp_starts_slowly() -> None:
    """The first gaps are longer than those after the ramp."""
    found = gaps(Load(rate=10.0, ramp_s=5.0, arrivals="constant"))

    assert found[0] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(0.1)


def test_limits_are_read_and_nonsense_is_refused() -> None:
    """Times with units; one line for anything else."""
    slo = parse_slo("ttft=2s,tpot=50ms")

    assert (slo.ttft_s, slo.tpot_s, slo.e2e_s) == (2.0, 0.05, None)
    for text in ("ttft", "ttft=", "ttft=fast", "speed=2s", "", "ttft=2s,,", "share=0.5", "ttft=1s,share=2"):
        with pytest.raises(BadInput):
            parse_slo(text)


def test_the_search_finds_the_knee() -> None:
    """Everything up to 37 streams is good: doubling, then halving, ends within a tenth of it."""
    tried: list[float] = []

    def run(load: float) -> MeasuredLoad:
        tried.append(load)
        good = 1.0 if load <= 37 else 0.0
        return MeasuredLoad(result=measurement(request_goodput=good), samples=Samples())

    best = find_highest_load(run, parse_slo("ttft=1s"), axis="concurrency", start=1)

    assert best is not None
    assert 34 <= tried[best] <= 37
    assert len(tried) <= 12
    assert find_highest_load(lambda load: run(100.0), parse_slo("ttft=1s"), axis="concurrency", start=1) is None


def test_failed_requests_count_against_the_slo() -> None:
    """Eight of ten requests were good and two failed: 80 % met the limits, not all of those that completed."""
    result = measurement(num_prompts=10, completed=8, failed=2, cancelled=0, duration=4.0, request_goodput=2.0)

    assert load_meets_slo(result, parse_slo("ttft=1s,share=0.8"))
    assert not load_meets_slo(result, parse_slo("ttft=1s,share=0.9"))


def test_words_of_one_token_make_prompts_of_exact_length() -> None:
    """A tokenizer that splits long words: only the short ones are used, and the count is what was asked for."""

    def count(text: str) -> int:
        return sum(1 + (len(word) > 5) for word in text.split())

    text = calibrate_words(count, "a tokenizer")
    source = open_source(Workload(input_tokens=777, output_tokens=3), text, "m")

    assert text.is_exact
    assert all(len(word) <= 5 for word in text.words)
    body = source.make_conversation(5).next_body().decode()
    assert count(body.split('"content":"')[1].split('"')[0]) == 777
    assert (
        source.make_conversation(5).next_body()
        == source.make_conversation(5).next_body()
        != source.make_conversation(6).next_body()
    )


def test_where_no_word_is_one_token_lengths_are_estimated() -> None:
    """Two tokens a word: half as many words, and it reports it."""
    text = calibrate_words(lambda text: 2 * len(text.split()), "a tokenizer")

    assert (text.is_exact, text.tokens_per_word) == (False, 2.0)
    assert "mean length" in text.source


def test_shared_prefixes_are_shared_and_the_rest_is_not() -> None:
    """Requests of a group start alike and differ after."""
    text = PromptWords(words=("a", "b", "c", "d", "e"))
    work = Workload(kind="prefix", prefix_tokens=50, prefixes=2, input_tokens=40)
    texts = [
        open_source(work, text, "m").make_conversation(i).next_body().decode().split('"content":"')[1][:180]
        for i in range(4)
    ]

    assert texts[0][:99] == texts[2][:99] != texts[1][:99] == texts[3][:99]
    assert texts[0] != texts[2]


def test_code_reads_like_code_and_repeats() -> None:
    """Same seed, same module; about as long as asked for."""
    source = open_source(Workload(kind="code", input_tokens=500), PromptWords(words=("a",)), "m")
    body = source.make_conversation(1).next_body().decode()

    assert "def " in body
    assert body == source.make_conversation(1).next_body().decode()
    assert 200 <= len(body.split()) <= 400


def test_metrics_of_three_engines_get_one_name() -> None:
    """Labels are summed, counters are taken as growth, what is not a number is left out."""
    vllm = 'vllm:num_requests_running{model_name="k",engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 2.0\n'
    assert pick_metrics(parse_prometheus("# HELP x\n" + vllm)) == {"running": 5.0}
    assert pick_metrics(parse_prometheus('sglang:token_usage{a="b"} 0.25\nsglang:num_queue_reqs NaN\n')) == {
        "kv_use": 0.25
    }
    assert pick_metrics(parse_prometheus("llamacpp:requests_processing 1\nllamacpp:requests_deferred 7\n")) == {
        "running": 1.0,
        "waiting": 7.0,
    }

    rows = [
        (10**9 * i, {"running": float(i), "drafted_total": 100.0 * i, "accepted_total": 60.0 * i}) for i in (1, 2, 3)
    ]
    found = summarize_scrapes(rows, 10**9)
    assert found is not None
    figures = [found.figures[name] for name in ("peak_running", "mean_running", "acceptance")]
    assert figures == [3.0, 2.0, 0.6]
    assert found.series["time_s"] == (0.0, 1.0, 2.0)
    assert summarize_scrapes([], 0) is None


def test_presets_are_what_was_published() -> None:
    """Their names and figures, and a hint for a misspelt one."""
    assert find_workload_file("shenanigans-sm120").concurrency == (128, 256, 512, 1024, 2048)
    assert (find_workload_file("lambda").workload.input_tokens, find_workload_file("lambda").requests) == (8192, 512)
    assert find_workload_file("aiperf-16-turns").workload.turns == 16
    assert all(one.source for one in shipped_workloads().values())
    with pytest.raises(UnknownName):
        find_workload_file("lamda")


@pytest.mark.parametrize(
    "line", ["{", "{}", "3", '{"prompt": 3}', '{"messages": "x"}', '{"prompt":"x","max_tokens":"y"}']
)
def test_a_bad_prompts_file_names_the_line(tmp_path: Path, line: str) -> None:
    """The file and the line number are in the message."""
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "good"}\n' + line)

    with pytest.raises(BadInput, match=r"p\.jsonl:2"):
        load_prompts(str(file))


def test_a_bad_trace_names_the_line(tmp_path: Path) -> None:
    """A row without its lengths is no row."""
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5}\n')

    with pytest.raises(BadInput, match=r"t\.jsonl:1"):
        load_trace(str(file))
    with pytest.raises(BadInput, match="no such file"):
        load_trace(str(tmp_path / "none"))
