"""Reasons as comments, in the way that each kind of file allows."""

from collections.abc import Callable
from dataclasses import dataclass

from moebox.render.pieces import Piece, Pieces, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An entry of a YAML list, and the comment above it."""

    word: str
    why: str = ""


def lines(explained: list[tuple[str, str]]) -> list[str]:
    """Lines of a bash array, each under its reason."""
    return [line for text, why in explained for line in ((f"# {why}", text) if why else (text,))]


def items(whole: Pieces, given: tuple[Piece, ...], quoted: Callable[[Value], str]) -> list[Item]:
    """Flags and values as entries of a YAML list; the reason stands above the flag."""
    return [
        Item(word=quoted(value), why=whole.why[piece] if place == 0 else "")
        for piece in given
        for place, value in enumerate(piece)
    ]


def above(whole: Pieces, given: tuple[Piece, ...]) -> list[str]:
    """`--flag: reason`, for a form that takes no comment between the words of a command."""
    named = [(_name(piece), whole.why[piece]) for piece in given]
    return list(dict.fromkeys(f"{name}: {why}" for name, why in named if why))


def _name(piece: Piece) -> str:
    """The flag alone; a positional is named by its variable."""
    first = piece[0][0]
    return first if isinstance(first, str) else first.name
