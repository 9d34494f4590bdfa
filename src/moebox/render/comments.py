"""Reasons as comments, in the way that each kind of file allows."""

from collections.abc import Callable
from dataclasses import dataclass

from moebox.render.pieces import LaunchPieces, Piece, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ListItem:
    """An entry of a YAML list, and the comment above it."""

    word: str
    reason: str = ""


def commented_lines(explained: list[tuple[str, str]]) -> list[str]:
    """Lines of a bash array, each under its reason."""
    return [line for text, why in explained for line in ((f"# {why}", text) if why else (text,))]


def list_items(whole: LaunchPieces, given: tuple[Piece, ...], quoted: Callable[[Value], str]) -> list[ListItem]:
    """Flags and values as entries of a YAML list; the reason stands above the flag."""
    return [
        ListItem(word=quoted(value), reason=whole.reasons[piece] if place == 0 else "")
        for piece in given
        for place, value in enumerate(piece)
    ]


def reason_lines(whole: LaunchPieces, given: tuple[Piece, ...]) -> list[str]:
    """`--flag: reason`, for a form that takes no comment between the words of a command."""
    named = [(_name(piece), whole.reasons[piece]) for piece in given]
    return list(dict.fromkeys(f"{name}: {why}" for name, why in named if why))


def _name(piece: Piece) -> str:
    """The flag alone; a positional is named by its variable."""
    first = piece[0][0]
    return first if isinstance(first, str) else first.name
