"""Tokens of replies by a tokenizer: where the server did not count them, and where it did, as a check of its count."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from moebox.bench.samples import COMPLETED, Samples
from moebox.stream.events import tokens_by_chunk

if TYPE_CHECKING:
    from moebox.core.result import UsageCheck

CHECKED_REPLIES = 4  # replies of a measurement whose text is held against the server's count
MAX_COUNT_RATIO = 1.25  # ratio of the two counts from which on one of them is wrong
COUNT_SLACK_TOKENS = 8  # tokens: special ones and those of a template are in one count and not in the other

TokenCounter = Callable[[str], int]


def usage_mismatch(usage: "UsageCheck | None") -> str:
    """Why the two counts cannot be of the same text; "" when they can."""
    if usage is None:
        return ""
    low, high = sorted((usage.usage_tokens, usage.tokenizer_tokens))
    if high <= MAX_COUNT_RATIO * low + COUNT_SLACK_TOKENS * usage.replies:
        return ""
    return (
        f"usage counts {usage.usage_tokens:,} tokens in {usage.replies} replies, the tokenizer "
        f"{usage.tokenizer_tokens:,}: text was left out of the stream, or one of them is wrong"
    )


def check_usage(samples: Samples, count: TokenCounter) -> "UsageCheck | None":
    """Hold the replies that still have their text against what the server counted; None where there are none."""
    from moebox.core.result import UsageCheck  # here: a process of the load generator needs none of a result's types

    rows = [(pieces, samples.columns["output"][row]) for row, pieces in samples.texts.items() if _whole(samples, row)]
    if not rows:
        return None
    return UsageCheck(
        replies=len(rows),
        usage_tokens=sum(output for _, output in rows),
        tokenizer_tokens=sum(_reply_tokens(pieces, count) for pieces, _ in rows),
    )


def _whole(samples: Samples, row: int) -> bool:
    """A reply that was completed, has text, and was counted by the server."""
    columns = samples.columns
    return columns["output"][row] >= 0 and columns["outcome"][row] == COMPLETED and any(samples.texts[row])


def count_missing_tokens(samples: Samples, count: TokenCounter) -> None:
    """Fill in the output tokens of every reply that still has its text and that the server did not count.

    How many tokens each event holds follows its length.
    """
    output, first = samples.columns["output"], 0
    for row, chunks in enumerate(samples.columns["chunks"]):
        last, pieces = first + chunks, samples.texts.get(row, [])
        if pieces and len(pieces) == chunks and output[row] < 0:
            output[row] = _reply_tokens(pieces, count)
            samples.tokens[first:last] = tokens_by_chunk([len(piece.encode()) for piece in pieces], [], output[row])
        first = last
    samples.texts.clear()


def _reply_tokens(pieces: list[str], count: TokenCounter) -> int:
    """Tokens of a reply's events; one without text (a piece of a tool call) is one."""
    text = "".join(pieces)
    return (count(text) if text else 0) + sum(not piece for piece in pieces)
