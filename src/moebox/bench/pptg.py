"""Prefill alone and decode alone, one request at a time, as llama.cpp reports them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from moebox import __version__
from moebox.bench.measure import measure_load
from moebox.bench.metrics import RequestFigures, latency_stats, request_figures
from moebox.bench.probe import ProbedEndpoint
from moebox.bench.validity import COUNTED_EVENTS, MAX_CACHED_SHARE, unstreamed_flag, with_salt
from moebox.core.endpoint import faster_than_forecast
from moebox.core.measure import Load, Workload
from moebox.core.result import PrefillDecode, PrefillDecodeRow
from moebox.errors import ExternalError

DECODE_PROMPT_TOKENS = 16  # before a decode test: as few as a chat template allows


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
    """Return a row for each test: pp cold and warm, tg. Lengths are the tests', all else the workload's."""
    rows: list[PrefillDecodeRow] = []
    flags = list[str]()
    for tokens in pp:
        on_test(f"pp{tokens}")
        work = _with_own_seed(replace(workload, input_tokens=tokens, output_tokens=1))
        cold, warm = [], []
        for number in range(repeat):  # each prompt once when it is new, and again when a prefix cache may know it
            same = with_salt(work)
            cold += _run_requests(probed, same, load, 1, number)
            warm += _run_requests(probed, same, load, 1, number)
        rows.append(_make_row(f"pp{tokens}", tokens, cold, cold=True, requests=repeat))
        rows.append(_make_row(f"pp{tokens}", tokens, warm, cold=False, requests=repeat))
    for tokens in tg:
        on_test(f"tg{tokens}")
        work = _with_own_seed(replace(workload, input_tokens=DECODE_PROMPT_TOKENS, output_tokens=tokens))
        done = _run_requests(probed, work, load, repeat, 0)
        rows.append(_make_row(f"tg{tokens}", tokens, done, cold=True, requests=repeat))
        flags += [f"tg{tokens} {COUNTED_EVENTS}"] * any(each.request.output < 0 for each in done)
        flags += [f"tg{tokens}: {whole}" for whole in (unstreamed_flag(done),) if whole]
    faster = faster_than_forecast(probed.simulation)
    for row in rows:
        flags += [f"{row.test} simulation: {faster}"] * bool(faster)
        prompt_tokens = row.prompt_tokens * row.tries
        cached = row.cached_tokens - probed.template_tokens * row.tries
        if row.test.startswith("pp") and row.cold and prompt_tokens and cached > MAX_CACHED_SHARE * prompt_tokens:
            share = f"{cached / prompt_tokens:.1%} of prompt tokens"
            flags.append(f"{row.test} cold: {share} came from the server's prefix cache")
    return PrefillDecode(
        tool=f"moebox {__version__}",
        date=time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
        simulation=bool(probed.simulation),
        model_id=probed.endpoint.model,
        tokenizer_id=probed.words.source,
        workload=workload,
        load=load,
        repeat=repeat,
        flags=tuple(flags),
        rows=tuple(rows),
    )


def _with_own_seed(work: Workload) -> Workload:
    """Keep the prompts of tests of different lengths apart even without a salt."""
    return replace(work, seed=work.seed + 7919 * (work.input_tokens + work.output_tokens))


def _run_requests(
    probed: ProbedEndpoint, work: Workload, load: Load, requests: int, offset: int
) -> list[RequestFigures]:
    single = replace(load, concurrency=1, requests=requests)
    made = measure_load(probed, work, single, scrape_metrics=False, offset=offset)
    if made.result.partial:
        raise KeyboardInterrupt
    done = request_figures(made.samples)
    if not done:
        reason = next(iter(made.result.errors), "no request was completed")
        raise ExternalError(f"{probed.endpoint.base_url}: {reason}")
    return done


def _make_row(name: str, tokens: int, done: list[RequestFigures], *, cold: bool, requests: int) -> PrefillDecodeRow:
    prefill = name.startswith("pp")
    if prefill:  # prompt tokens a second until the first token
        timed = [(figures.request.prompt, figures.ttft_s) for figures in done]
        rates = [prompt / seconds for prompt, seconds in timed if prompt > 0 and seconds]
    else:  # tokens a second after the first
        rates = [1 / figures.tpot_s for figures in done if figures.tpot_s]
    mean = statistics.fmean(rates) if rates else None
    return PrefillDecodeRow(
        test=name,
        cold=cold,
        tokens=tokens,
        mean_tok_s=mean,
        std_tok_s=statistics.stdev(rates) if len(rates) > 1 else 0.0,
        tries=len(rates),
        mean_ttft_ms=latency_stats(done, "ttft_s").mean,
        pp_tok_s=mean if prefill else None,
        tg_tok_s=None if prefill else mean,
        prompt_tokens=statistics.median(figures.request.prompt for figures in done),
        failed=requests - len(done),
        cached_tokens=sum(figures.cached_tokens for figures in done),
    )
