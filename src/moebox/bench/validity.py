"""Whether figures can be believed: new prompts, plausible counts, a steady server that worked for us alone."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from moebox.bench.metrics import RequestFigures
from moebox.bench.samples import COMPLETED, Samples
from moebox.core.measure import Workload
from moebox.core.result import ServerView, SteadyState, UsageCheck
from moebox.stream.events import tokens_by_chunk
from moebox.units import format_tok_s

MAX_CACHED_SHARE = 0.01  # of prompt tokens: if a prefix cache held more of prompts that share nothing, it knew them
MAX_COUNT_RATIO = 1.25  # of the server's and the tokenizer's count: beyond it one of them is wrong
MAX_DRIFT = 0.2  # between the halves of a steady window; identical loads of a quiet server stay below a tenth
MIN_STEADY_REQUESTS = 8  # with fewer, two halves cannot be compared
MAX_FOREIGN_SHARE = 0.05  # of the prompt tokens that the server counted and we did not send
COUNTED_EVENTS = "tokens were counted as stream events, which may hold several: rates are a lower bound"
COUNT_SLACK_TOKENS = 8  # per reply: special tokens and those of a template are in one count and not in the other

TokenCounter = Callable[[str], int]


def with_salt(workload: Workload) -> Workload:
    """Return the workload with a salt of its own, unless it has one or is meant to repeat its prompts."""
    if workload.salt or workload.reuse_prompts:
        return workload
    return replace(workload, salt=secrets.token_hex(8))


def prefix_hit_rate(*, prompt_tokens: int, cached_tokens: int, server: ServerView | None) -> float | None:
    """Return the share of prompt tokens that came out of a prefix cache, or None if it is unknown.

    The larger of the replies' usage (`cached_tokens` is -1 if it reports none) and the server's own counters or, if it
    has none, the mean of its gauge.
    """
    rates = [cached_tokens / prompt_tokens] if prompt_tokens and cached_tokens >= 0 else []
    counted = server.figures if server else {}
    rates += [counted[name] for name in ("prefix_hit_rate", "mean_cache_hit_rate") if name in counted][:1]
    return min(1.0, max(rates)) if rates else None


def cached_prompts_flag(workload: Workload, rate: float | None, *, template_share: float = 0.0) -> str:
    """Return a warning if a prefix cache answered prompts that should be new, or "".

    `template_share` is the share of prompt tokens that belong to the chat template: it opens every prompt of any
    client, so a cache may know it.
    """
    if rate is None or rate - template_share <= MAX_CACHED_SHARE or not workload.has_unique_prompts:
        return ""
    why = (
        "workload.reuse_prompts asked them before" if workload.reuse_prompts else "though no two prompts share anything"
    )
    return f"{rate:.1%} of prompt tokens came from the server's prefix cache, {why}"


def unstreamed_flag(done: Sequence[RequestFigures]) -> str:
    """Return a warning if over a tenth of the replies came in one piece, or ""."""
    whole = sum(each.worst_itl_s is None and each.ttft_s is not None for each in done)
    return (
        f"{whole} of {len(done)} replies came in one piece: the server does not stream, or a proxy buffers; their TTFT "
        "is the whole time, their TPOT and ITL are unknown and meet no limit"
    ) * (10 * whole > len(done))


def unsteady_flag(steady: SteadyState | None) -> str:
    """Return a warning if the speed changed between the two halves of the steady window, or ""."""
    if steady is None or steady.halves is None or steady.requests < MIN_STEADY_REQUESTS or min(steady.halves) <= 0:
        return ""
    first, second = steady.halves
    if 1 - min(first, second) / max(first, second) <= MAX_DRIFT:
        return ""
    return f"not steady: {format_tok_s(first)} in the first half, {format_tok_s(second)} in the second"


def foreign_traffic_flag(server: ServerView | None, *, prompt_tokens: int, requests: int) -> str:
    """Return a warning if the server's counters grew by more than our requests explain, or ""."""
    counted = server.figures.get("prompt_tokens", 0.0) if server else 0.0
    ours = prompt_tokens + COUNT_SLACK_TOKENS * requests  # servers differ in whether they count cached tokens
    foreign = counted - ours
    if foreign <= MAX_FOREIGN_SHARE * ours or foreign <= prompt_tokens / max(1, requests):
        return ""
    return f"other clients used the server: it read {counted:,.0f} prompt tokens, ours were {prompt_tokens:,}"


def check_usage(samples: Samples, count: TokenCounter) -> UsageCheck | None:
    """Count the replies whose text was kept, to compare with the server's counts; None if there are none."""
    output, outcome = samples.columns["output"], samples.columns["outcome"]
    rows = [
        (pieces, output[row])
        for row, pieces in samples.texts.items()
        if output[row] >= 0 and outcome[row] == COMPLETED and any(pieces)
    ]
    if not rows:
        return None
    return UsageCheck(
        replies=len(rows),
        usage_tokens=sum(tokens for _, tokens in rows),
        tokenizer_tokens=sum(_reply_tokens(pieces, count) for pieces, _ in rows),
    )


def usage_mismatch(usage: UsageCheck | None) -> str:
    """Return a warning if the two counts cannot be of the same text, or ""."""
    if usage is None:
        return ""
    low, high = sorted((usage.usage_tokens, usage.tokenizer_tokens))
    if high <= MAX_COUNT_RATIO * low + COUNT_SLACK_TOKENS * usage.replies:
        return ""
    return (
        f"usage counts {usage.usage_tokens:,} tokens in {usage.replies} replies, the tokenizer "
        f"{usage.tokenizer_tokens:,}: text was left out of the stream, or one of them is wrong"
    )


def count_missing_tokens(samples: Samples, count: TokenCounter) -> None:
    """Fill in the output tokens of replies that the server did not count; each event's share follows its length."""
    output, first = samples.columns["output"], 0
    for row, chunks in enumerate(samples.columns["chunks"]):
        last, pieces = first + chunks, samples.texts.get(row, [])
        if pieces and len(pieces) == chunks and output[row] < 0:
            output[row] = _reply_tokens(pieces, count)
            samples.tokens[first:last] = tokens_by_chunk([len(piece.encode()) for piece in pieces], [], output[row])
        first = last
    samples.texts.clear()


def _reply_tokens(pieces: list[str], count: TokenCounter) -> int:
    """Count the tokens of a reply's events; one without text (a piece of a tool call) is one token."""
    text = "".join(pieces)
    return (count(text) if text else 0) + sum(not piece for piece in pieces)
