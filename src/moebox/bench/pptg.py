"""Prefill alone and decode alone, one request at a time, as llama.cpp's people report them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moebox import __version__
from moebox.bench.measure import FORMAT, Subject, measure
from moebox.bench.metrics import Figures, figures
from moebox.core.measure import Load, Workload
from moebox.errors import Outside

ONE = Load(concurrency=1)
TG_PROMPT = 16  # tokens before a decode test: as little as a chat template allows


def pp_tg(
    subject: Subject,
    *,
    pp: tuple[int, ...],
    tg: tuple[int, ...],
    repeat: int = 3,
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """A result with a row for each test: pp cold and warm, tg."""
    say = tell or (lambda line: None)
    rows: list[dict[str, Any]] = []
    for tokens in pp:
        say(f"pp{tokens}")
        rows += _prefill(subject, tokens, repeat, seed)
    for tokens in tg:
        say(f"tg{tokens}")
        work = Workload(input_tokens=TG_PROMPT, output_tokens=tokens, seed=seed)
        rows.append(_row(f"tg{tokens}", tokens, _run(subject, work, repeat, 0), decode_rate, cold=True))
    return {
        "format": FORMAT,
        "kind": "pp-tg",
        "tool": f"moebox {__version__}",
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
        "simulation": subject.simulation,
        "model_id": subject.endpoint.model,
        "tokenizer_id": subject.text.how,
        "rows": rows,
    }


def prefill_rate(one: Figures) -> float | None:
    """Prompt tokens a second until the first token."""
    prompt = one.request.prompt
    return prompt / one.ttft_s if prompt > 0 and one.ttft_s > 0 else None


def decode_rate(one: Figures) -> float | None:
    """Tokens a second after the first."""
    return 1 / one.tpot_s if one.tpot_s else None


def _prefill(subject: Subject, tokens: int, repeat: int, seed: int) -> list[dict[str, Any]]:
    """Each prompt once when it is new and once again at once, when a prefix cache may know it."""
    work = Workload(input_tokens=tokens, output_tokens=1, seed=seed)
    cold, warm = [], []
    for number in range(repeat):
        cold += _run(subject, work, 1, number)
        warm += _run(subject, work, 1, number)
    return [
        _row(f"pp{tokens}", tokens, cold, prefill_rate, cold=True),
        _row(f"pp{tokens}", tokens, warm, prefill_rate, cold=False),
    ]


def _run(subject: Subject, work: Workload, requests: int, offset: int) -> list[Figures]:
    # Seeds as large as these keep a test's prompts from being those of another length.
    work = replace(work, seed=work.seed + 7919 * (work.input_tokens + work.output_tokens))
    made = measure(subject, work, replace(ONE, requests=requests), scrape=False, offset=offset)
    if made.interrupted:
        raise KeyboardInterrupt
    done = figures(made.samples)
    if not done:
        reason = next(iter(made.result["errors"]), "no request was completed")
        raise Outside(f"{subject.endpoint.base_url}: {reason}")
    return done


def _row(
    name: str, tokens: int, done: list[Figures], rate: Callable[[Figures], float | None], *, cold: bool
) -> dict[str, Any]:
    rates = [found for one in done if (found := rate(one)) is not None]
    mean = statistics.fmean(rates) if rates else None
    return {
        "test": name,
        "cold": cold,
        "tokens": tokens,
        "mean_tok_s": mean,
        "std_tok_s": statistics.stdev(rates) if len(rates) > 1 else 0.0,
        "tries": len(rates),
        "mean_ttft_ms": statistics.fmean(one.ttft_s for one in done) * 1e3,
        ("pp_tok_s" if name.startswith("pp") else "tg_tok_s"): mean,
        "prompt_tokens": statistics.median(one.request.prompt for one in done),
    }
