"""Words that jobs are filled with, drawn afresh for each."""

import random
from collections.abc import Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


THINGS = _words(
    "anchor badge barrel basket beacon bottle bracket bucket button cabinet candle canvas carton chisel clock compass"
    " copper crate drawer easel engine fabric filter funnel gasket girder hammer handle helmet hinge kettle ladder"
    " lantern lever locker magnet marble mirror motor needle nozzle packet paddle pallet pencil pillar piston pliers"
    " pocket pulley rivet roller rudder saddle sensor shovel signal socket spindle spring stamp switch tablet ticket"
    " timber trolley tunnel valve vessel wagon washer wheel whistle window"
)
PLACES = _words("harbour depot garage cellar attic hangar orchard quarry studio library foundry bakery mill")
PEOPLE = _words("Ada Bela Cora Dario Edda Falk Gerta Hugo Ines Jarl Kaja Lino Mara Nils Olga Pia Runa Sven Tove")
COLOURS = _words("amber azure black coral crimson grey green ivory olive purple silver teal white yellow")


def sample_words(rng: random.Random, pool: Sequence[str], count: int) -> list[str]:
    """So many different words of a pool, in any order."""
    return rng.sample(list(pool), count)


def draw_package_name(rng: random.Random) -> str:
    """A package's name that is no module of Python's."""
    return f"{rng.choice(PLACES)}_{rng.choice(THINGS)}"
