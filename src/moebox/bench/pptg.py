"""Prefill alone and decode alone, one request at a time, as llama.cpp's people report them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from moebox import __version__
from moebox.bench.freshness import MAX_CACHED_SHARE, with_salt
from moebox.bench.measure import ProbedEndpoint, measure_load
from moebox.bench.metrics import RequestFigures, latency_stats, request_figures
from moebox.core.measure import Load, Workload
from moebox.core.result import PrefillDecode, PrefillDecodeRow
from moebox.errors import ExternalError

ONE = Load(concurrency=1)
DECODE_PROMPT_TOKENS = 16  # tokens before a decode test: as little as a chat template allows


def measure_prefill_decode(
    probed: ProbedEndpoint,
    *,
    pp: tuple[int, ...],
    tg: tuple[int, ...],
    repeat: int,
    workload: Workload,
    load: Load,
    on_test: Callable[[str], None],
) -> PrefillDecode:
    """A result with a row for each test: pp cold and warm, tg. Lengths are the tests', all else the workload's."""
    rows: list[PrefillDecodeRow] = []
    for tokens in pp:
        on_test(f"pp{tokens}")
        rows += _measure_prefill(probed, replace(workload, input_tokens=tokens, output_tokens=1), load, repeat)
    for tokens in tg:
        on_test(f"tg{tokens}")
        work = _with_own_seed(replace(workload, input_tokens=DECODE_PROMPT_TOKENS, output_tokens=tokens))
        rows.append(
            _make_row(
                f"tg{tokens}",
                tokens,
                _run_requests(probed, work, load, repeat, 0),
                decode_rate,
                cold=True,
                requests=repeat,
            )
        )
    return PrefillDecode(
        tool=f"moebox {__version__}",
        date=time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
        simulation=probed.simulation,
        model_id=probed.endpoint.model,
        tokenizer_id=probed.words.source,
        workload=workload,
        load=load,
        repeat=repeat,
        flags=tuple(flag for row in rows if (flag := _cached_flag(row, probed))),
        rows=tuple(rows),
    )


def prefill_rate(reply: RequestFigures) -> float | None:
    """Prompt tokens a second until the first token."""
    prompt = reply.request.prompt
    return prompt / reply.ttft_s if prompt > 0 and reply.ttft_s else None


def decode_rate(reply: RequestFigures) -> float | None:
    """Tokens a second after the first."""
    return 1 / reply.tpot_s if reply.tpot_s else None


def _measure_prefill(probed: ProbedEndpoint, work: Workload, load: Load, repeat: int) -> list[PrefillDecodeRow]:
    """Each prompt once when it is new and once again at once, when a prefix cache may know it."""
    cold, warm = [], []
    for number in range(repeat):
        same = with_salt(_with_own_seed(work))
        cold += _run_requests(probed, same, load, 1, number)
        warm += _run_requests(probed, same, load, 1, number)
    name, tokens = f"pp{work.input_tokens}", work.input_tokens
    return [
        _make_row(name, tokens, cold, prefill_rate, cold=True, requests=repeat),
        _make_row(name, tokens, warm, prefill_rate, cold=False, requests=repeat),
    ]


def _with_own_seed(work: Workload) -> Workload:
    """Seeds as large as these keep a test's prompts from being those of another length, where there is no salt."""
    return replace(work, seed=work.seed + 7919 * (work.input_tokens + work.output_tokens))


def _run_requests(
    probed: ProbedEndpoint, work: Workload, load: Load, requests: int, offset: int
) -> list[RequestFigures]:
    made = measure_load(
        probed, work, replace(load, concurrency=1, requests=requests), scrape_metrics=False, offset=offset
    )
    if made.was_interrupted:
        raise KeyboardInterrupt
    done = request_figures(made.samples)
    if not done:
        reason = next(iter(made.result.errors), "no request was completed")
        raise ExternalError(f"{probed.endpoint.base_url}: {reason}")
    return done


def _make_row(
    name: str,
    tokens: int,
    done: list[RequestFigures],
    rate: Callable[[RequestFigures], float | None],
    *,
    cold: bool,
    requests: int,
) -> PrefillDecodeRow:
    rates = [value for each in done if (value := rate(each)) is not None]
    mean, std = _mean_and_std(rates)
    prefill = name.startswith("pp")
    return PrefillDecodeRow(
        test=name,
        cold=cold,
        tokens=tokens,
        mean_tok_s=mean,
        std_tok_s=std,
        tries=len(rates),
        mean_ttft_ms=latency_stats(done, "ttft_s").mean,
        pp_tok_s=mean if prefill else None,
        tg_tok_s=None if prefill else mean,
        prompt_tokens=statistics.median(each.request.prompt for each in done),
        failed=requests - len(done),
        cached_tokens=sum(each.cached_tokens for each in done),
    )


def _mean_and_std(rates: list[float]) -> tuple[float | None, float]:
    if len(rates) < 2:
        return (rates[0] if rates else None), 0.0
    return statistics.fmean(rates), statistics.stdev(rates)


def _cached_flag(row: PrefillDecodeRow, probed: ProbedEndpoint) -> str:
    """Why a cold prefill was none; "" when it was one."""
    asked = row.prompt_tokens * row.tries
    cached = row.cached_tokens - probed.template_tokens * row.tries
    if not row.test.startswith("pp") or not row.cold or not asked or cached <= MAX_CACHED_SHARE * asked:
        return ""
    return f"{row.test} cold: {cached / asked:.1%} of prompt tokens came from the server's prefix cache"
