"""Word pools and random values for questions.

Half of the values are invented on the spot, so that a model can repeat them only by reading them.
"""

import random
from collections.abc import Callable
from typing import Any

from moebox.data import load_table

_POOLS = {name: words.split() for name, words in load_table("questions")["words"].items()}
NAMES, CITIES, COLOURS, DAYS, ANIMALS = (_POOLS[n] for n in ("names", "cities", "colours", "days", "animals"))
ROOMS, LANGUAGES, NOUNS, ADJECTIVES = (_POOLS[n] for n in ("rooms", "languages", "nouns", "adjectives"))
VERBS, PEOPLE, PLACES = (_POOLS[n] for n in ("verbs", "people", "places"))

_STARTS = [*"bcdfghklmnprstvz", "br", "cr", "dr", "gr", "kr", "pl", "st", "tr"]
_VOWELS = "aeiou"
_ENDS = [*["l", "n", "r", "s", "t", "m", "x", "nd", "rt"], *[""] * 9]  # half of the syllables end in a vowel
_CAPITALS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_DIGITS = "0123456789"
_SYMBOL_LETTERS = "ABCDEFGHKLMNPRSTVXYZ"


def invent_word(rng: random.Random, *, capital: bool = False) -> str:
    """A new word of two or three syllables."""
    word = "".join(rng.choice(_STARTS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(rng.choice((2, 2, 3))))
    return word.capitalize() if capital else word


def draw_name(rng: random.Random) -> str:
    """A first name, half of the time an invented one."""
    return rng.choice(NAMES) if rng.random() < 0.5 else invent_word(rng, capital=True)


def draw_city(rng: random.Random) -> str:
    """A city, half of the time an invented one."""
    return rng.choice(CITIES) if rng.random() < 0.5 else invent_word(rng, capital=True)


def draw_word(rng: random.Random) -> str:
    """A common noun, adjective or colour, or an invented word."""
    return rng.choice(NOUNS + ADJECTIVES + COLOURS) if rng.random() < 0.6 else invent_word(rng)


def draw_code(rng: random.Random, length: int | None = None) -> str:
    """A code such as K7Q2; letters and digits alternate, so it is never a word."""
    size = length or rng.choice((4, 5, 6, 8))
    return "".join(rng.choice(_DIGITS if place % 2 else _CAPITALS) for place in range(size))


def draw_number(rng: random.Random) -> int:
    """A whole number whose length is drawn first, so that short ones are not rare."""
    size = rng.choice((1, 2, 2, 3, 3, 4, 5))
    return rng.randrange(0 if size == 1 else 10 ** (size - 1), 10**size)


def draw_sentence(rng: random.Random) -> str:
    """A sentence of filler, such as "The old farmer painted the blue boat near the harbour."."""
    who = f"{rng.choice(ADJECTIVES)} {rng.choice(PEOPLE)}"
    what = f"{rng.choice(COLOURS + ADJECTIVES)} {rng.choice(NOUNS)}"
    where = f"{rng.choice(('near', 'behind', 'inside', 'outside'))} the {rng.choice(PLACES)}"
    when = rng.choice(("", "", "", f" on {rng.choice(DAYS)}"))
    return f"The {who} {rng.choice(VERBS)} the {what} {where}{when}."


_GENERATORS: dict[str, Callable[[random.Random], Any]] = {
    "name": draw_name,
    "city": draw_city,
    "word": draw_word,
    "code": draw_code,
    "number": draw_number,
    "colour": lambda rng: rng.choice(COLOURS),
    "animal": lambda rng: rng.choice(ANIMALS),
    "day": lambda rng: rng.choice(DAYS),
    "room": lambda rng: rng.choice(ROOMS),
    "language": lambda rng: rng.choice(LANGUAGES),
    "two words": lambda rng: f"{draw_word(rng)} {draw_word(rng)}",
    "some words": lambda rng: " ".join(draw_word(rng) for _ in range(rng.randint(1, 4))),
    "two invented words": lambda rng: f"{invent_word(rng)} {invent_word(rng)}",
    "stock symbol": lambda rng: "".join(rng.choice(_SYMBOL_LETTERS) for _ in range(rng.choice((3, 4)))),
    "time": lambda rng: f"{rng.randrange(24):02}:{rng.randrange(60):02}",
    "yes or no": lambda rng: rng.random() < 0.5,
}


def draw_value(rng: random.Random, spec: str | list[Any]) -> Any:
    """A value of the kind named in questions.toml, one of a list of texts, or a number between two."""
    if isinstance(spec, str):
        return _GENERATORS[spec](rng)
    return rng.randint(*spec) if isinstance(spec[0], int) else rng.choice(spec)
