"""Prefill alone and decode alone, one request at a time, as llama.cpp's people report them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from moebox import __version__
from moebox.bench.freshness import CACHED, salted
from moebox.bench.measure import Subject, measure
from moebox.bench.metrics import Figures, figures, latency
from moebox.core.measure import Load, Workload
from moebox.core.result import PrefillDecode, PrefillDecodeRow
from moebox.errors import ExternalError

ONE = Load(concurrency=1)
TG_PROMPT = 16  # tokens before a decode test: as little as a chat template allows


def pp_tg(
    subject: Subject,
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
        rows += _prefill(subject, replace(workload, input_tokens=tokens, output_tokens=1), load, repeat)
    for tokens in tg:
        on_test(f"tg{tokens}")
        work = _apart(replace(workload, input_tokens=TG_PROMPT, output_tokens=tokens))
        rows.append(
            _row(f"tg{tokens}", tokens, _run(subject, work, load, repeat, 0), decode_rate, cold=True, asked=repeat)
        )
    return PrefillDecode(
        tool=f"moebox {__version__}",
        date=time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
        simulation=subject.simulation,
        model_id=subject.endpoint.model,
        tokenizer_id=subject.text.how,
        workload=workload,
        load=load,
        repeat=repeat,
        flags=tuple(flag for row in rows if (flag := _cached(row, subject))),
        rows=tuple(rows),
    )


def prefill_rate(reply: Figures) -> float | None:
    """Prompt tokens a second until the first token."""
    prompt = reply.request.prompt
    return prompt / reply.ttft_s if prompt > 0 and reply.ttft_s else None


def decode_rate(reply: Figures) -> float | None:
    """Tokens a second after the first."""
    return 1 / reply.tpot_s if reply.tpot_s else None


def _prefill(subject: Subject, work: Workload, load: Load, repeat: int) -> list[PrefillDecodeRow]:
    """Each prompt once when it is new and once again at once, when a prefix cache may know it."""
    cold, warm = [], []
    for number in range(repeat):
        same = salted(_apart(work))
        cold += _run(subject, same, load, 1, number)
        warm += _run(subject, same, load, 1, number)
    name, tokens = f"pp{work.input_tokens}", work.input_tokens
    return [
        _row(name, tokens, cold, prefill_rate, cold=True, asked=repeat),
        _row(name, tokens, warm, prefill_rate, cold=False, asked=repeat),
    ]


def _apart(work: Workload) -> Workload:
    """Seeds as large as these keep a test's prompts from being those of another length, where there is no salt."""
    return replace(work, seed=work.seed + 7919 * (work.input_tokens + work.output_tokens))


def _run(subject: Subject, work: Workload, load: Load, requests: int, offset: int) -> list[Figures]:
    made = measure(subject, work, replace(load, concurrency=1, requests=requests), scrape=False, offset=offset)
    if made.interrupted:
        raise KeyboardInterrupt
    done = figures(made.samples)
    if not done:
        reason = next(iter(made.result.errors), "no request was completed")
        raise ExternalError(f"{subject.endpoint.base_url}: {reason}")
    return done


def _row(
    name: str, tokens: int, done: list[Figures], rate: Callable[[Figures], float | None], *, cold: bool, asked: int
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
        mean_ttft_ms=latency(done, "ttft_s").mean,
        pp_tok_s=mean if prefill else None,
        tg_tok_s=None if prefill else mean,
        prompt_tokens=statistics.median(each.request.prompt for each in done),
        failed=asked - len(done),
        cached_tokens=sum(each.cached for each in done),
    )


def _mean_and_std(rates: list[float]) -> tuple[float | None, float]:
    if len(rates) < 2:
        return (rates[0] if rates else None), 0.0
    return statistics.fmean(rates), statistics.stdev(rates)


def _cached(row: PrefillDecodeRow, subject: Subject) -> str:
    """Why a cold prefill was none; "" when it was one."""
    asked = row.prompt_tokens * row.tries
    cached = row.cached_tokens - subject.template_tokens * row.tries
    if not row.test.startswith("pp") or not row.cold or not asked or cached <= CACHED * asked:
        return ""
    return f"{row.test} cold: {cached / asked:.1%} of prompt tokens came from the server's prefix cache"
