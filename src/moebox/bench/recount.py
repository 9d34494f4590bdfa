"""Tokens of replies that the server did not count, by a tokenizer."""

from collections.abc import Callable

from moebox.bench.samples import Samples
from moebox.stream.events import tokens_by_chunk


def recount(samples: Samples, count: Callable[[str], int]) -> None:
    """Fill in the output tokens of every reply that still has its text.

    An event without text (a piece of a tool call) is one token. How many tokens each event holds follows its length.
    """
    output, first = samples.columns["output"], 0
    seen: dict[str, int] = {}
    for row, chunks in enumerate(samples.columns["chunks"]):
        last, pieces = first + chunks, samples.texts.get(row, [])
        if pieces and len(pieces) == chunks:
            text = "".join(pieces)
            if text not in seen:
                seen[text] = count(text) if text else 0
            output[row] = seen[text] + sum(not piece for piece in pieces)
            samples.tokens[first:last] = tokens_by_chunk([len(piece.encode()) for piece in pieces], [], output[row])
        first = last
    samples.texts.clear()
