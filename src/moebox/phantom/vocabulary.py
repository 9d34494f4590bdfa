"""Word pools and fresh values that the task families draw from.

Half of the values are invented on the spot (`invented`, `code`), so that a model can only
repeat them by reading them, never by having seen them before.
"""

from __future__ import annotations

import random


def _pool(words: str) -> list[str]:
    return words.split()


NAMES = _pool(
    "Mira Jonas Elena Omar Priya Lukas Aiko Tomas Nadia Felix Ingrid Pavel Rosa Samir Greta Diego Hanna "
    "Kofi Leila Marco Yuki Anton Clara Emil Freya Hugo Iris Kenji Lena Mateo Nora Oscar Petra Quinn "
    "Rafael Sofia Tariq Uma Viktor Wendy Xavier Zoe"
)
CITIES = _pool(
    "Paris Oslo Lima Cairo Tokyo Berlin Madrid Rome Vienna Dublin Athens Lisbon Prague Warsaw Sydney "
    "Nairobi Toronto Chicago Boston Denver Seoul Delhi Mumbai Bangkok Hanoi Havana Quito Bogota Dakar "
    "Accra Tunis Riga Vilnius Zurich Geneva Munich Hamburg Porto Seville Naples Milan Turin"
)
COLOURS = _pool("red blue green yellow purple orange black white silver golden pink brown")
DAYS = _pool("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
ANIMALS = _pool("cat dog horse rabbit turtle parrot fox owl goat duck")
ROOMS = _pool("kitchen bedroom office hallway garage bathroom attic cellar")
LANGUAGES = _pool("French German Spanish Italian Polish Greek Turkish Swedish Dutch Hindi")
NOUNS = _pool(
    "apple river table window garden candle mountain letter basket bridge pencil lantern forest market "
    "engine ladder blanket mirror kettle hammer violin compass barrel feather marble saddle thimble "
    "anchor island button teapot wagon whistle orchard pillow"
)
ADJECTIVES = _pool("old quiet small bright heavy narrow gentle wooden early distant broken clean warm tall round")
VERBS = _pool("painted carried repaired watched visited sold cleaned followed found measured moved opened")
PEOPLE = _pool("farmer teacher sailor baker doctor painter gardener student driver neighbour miller clerk")
PLACES = _pool(
    "harbour library station museum lighthouse bakery school castle theatre airport hotel factory "
    "hospital stadium temple tower palace observatory warehouse laboratory"
)

_STARTS = _pool("b c d f g h k l m n p r s t v z br cr dr gr kr pl st tr")
_VOWELS = "aeiou"
_ENDS = [*_pool("l n r s t m x nd rt"), *[""] * 9]  # half of the syllables end open
_CAPITALS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_DIGITS = "0123456789"


def invent_word(rng: random.Random, *, capital: bool = False) -> str:
    """A word of two or three syllables that nobody has seen before."""
    word = "".join(rng.choice(_STARTS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(rng.choice((2, 2, 3))))
    return word.capitalize() if capital else word


def draw_name(rng: random.Random) -> str:
    """A person's name, half of the time an invented one."""
    return rng.choice(NAMES) if rng.random() < 0.5 else invent_word(rng, capital=True)


def draw_city(rng: random.Random) -> str:
    """A city, half of the time an invented one."""
    return rng.choice(CITIES) if rng.random() < 0.5 else invent_word(rng, capital=True)


def draw_word(rng: random.Random) -> str:
    """A common noun, adjective or colour, or an invented word."""
    return rng.choice(NOUNS + ADJECTIVES + COLOURS) if rng.random() < 0.6 else invent_word(rng)


def draw_code(rng: random.Random, length: int | None = None) -> str:
    """A code of capitals and digits such as K7Q2; letters and digits alternate, so it is never a word."""
    size = length or rng.choice((4, 5, 6, 8))
    return "".join(rng.choice(_DIGITS if place % 2 else _CAPITALS) for place in range(size))


def draw_number(rng: random.Random, *, digits: int | None = None) -> int:
    """A whole number with a length drawn first, so short ones are not rare."""
    size = digits or rng.choice((1, 2, 2, 3, 3, 4, 5))
    low = 0 if size == 1 else 10 ** (size - 1)
    return rng.randrange(low, 10**size)


def join_words(items: list[str]) -> str:
    """Join as people write: "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def draw_sentence(rng: random.Random) -> str:
    """One plain sentence of filler, such as "The old farmer painted the blue boat near the harbour."."""
    who = f"{rng.choice(ADJECTIVES)} {rng.choice(PEOPLE)}"
    what = f"{rng.choice(COLOURS + ADJECTIVES)} {rng.choice(NOUNS)}"
    where = f"{rng.choice(('near', 'behind', 'inside', 'outside'))} the {rng.choice(PLACES)}"
    when = rng.choice(("", "", "", f" on {rng.choice(DAYS)}"))
    return f"The {who} {rng.choice(VERBS)} the {what} {where}{when}."
