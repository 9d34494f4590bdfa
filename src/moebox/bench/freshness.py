"""Were the prompts new to the server? A salt for each measurement, and what the prefix cache says to it."""

import secrets
from dataclasses import replace

from moebox.core.measure import Workload
from moebox.core.result import ServerView

MAX_CACHED_SHARE = (
    0.01  # of prompt tokens: a prefix cache that answers more than this of prompts that share nothing knew them
)


def with_salt(workload: Workload) -> Workload:
    """The workload with a salt of its own, unless it has one or means to ask the same again."""
    if workload.salt or workload.reuse_prompts:
        return workload
    return replace(workload, salt=secrets.token_hex(8))


def prefix_hit_rate(*, prompt_tokens: int, cached_tokens: int, server: ServerView | None) -> float | None:
    """Share of prompt tokens that came out of a prefix cache; None where nobody tells.

    The larger of what the replies' usage (`cached` of `asked` tokens, -1 where it says nothing) and the server's own
    counters say.
    """
    usage = cached_tokens / prompt_tokens if prompt_tokens and cached_tokens >= 0 else None
    rates = [rate for rate in (usage, _server_rate(server)) if rate is not None]
    return min(1.0, max(rates)) if rates else None


def _server_rate(server: ServerView | None) -> float | None:
    """By the server's counters, or where it has none, the mean of what it shows."""
    if server is None:
        return None
    return server.mean_cache_hit_rate if server.prefix_hit_rate is None else server.prefix_hit_rate


def cached_prompts_flag(workload: Workload, rate: float | None, *, template_share: float = 0.0) -> str:
    """Why figures of these prompts are a cache's and not the model's; "" when they are not.

    `template` is the share of prompt tokens that are the chat template's: it opens every prompt of any client, so that
    a cache may know it.
    """
    if rate is None or rate - template_share <= MAX_CACHED_SHARE or not workload.has_unique_prompts:
        return ""
    why = "--reuse-prompts asked them before" if workload.reuse_prompts else "though no two prompts share anything"
    return f"{rate:.1%} of prompt tokens came from the server's prefix cache, {why}"
