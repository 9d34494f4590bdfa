"""gadget: a tool nobody has seen before; how it is used is said in the system prompt alone."""

import json
import random

from moebox.tasks.families import names
from moebox.tasks.gadget import STATE_FILE
from moebox.tasks.job import HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {"easy": (3, 2), "medium": (5, 6), "hard": (8, 14)}  # shelves, moves wanted


def make(rng: random.Random, level: Level) -> JobDraft:
    """A store with shelves; goods must be moved until the store is as described."""
    count, moves = SIZES[level]
    shelves = [f"{row}{number}" for row in "ABC" for number in range(1, 4)][:count]
    goods = names.sample_words(rng, names.THINGS, count)
    store = {shelf: {thing: rng.randint(6, 30)} for shelf, thing in zip(shelves, goods, strict=True)}
    wanted = {shelf: dict(held) for shelf, held in store.items()}
    for _ in range(moves):
        _move(rng, wanted)
    told = "\n".join(f"- {shelf}: {_held(wanted[shelf])}" for shelf in shelves)
    return JobDraft(
        instruction=(
            "Bring the store into this state with the tool `gadget`, and then say done:\n\n"
            f"{told}\n\nNothing may be created or lost: everything wanted is there already, on other shelves."
        ),
        files={},
        solution={STATE_FILE: json.dumps(wanted, sort_keys=True)},
        tools=("gadget",),
        gadget=json.dumps(store),
        turns=6 * moves + 12,
        system=(
            "The tool `gadget` takes one argument `line`, a command of the store's own language:\n"
            "`?SHELF` tells what lies on a shelf; `?*` lists the shelves.\n"
            "`@SHELF` sends the trolley to a shelf. The trolley starts nowhere.\n"
            "`^N:THING` loads N pieces of THING from the shelf at which the trolley stands.\n"
            "`vN:THING` unloads N pieces of THING there.\n"
            "The trolley holds 9 pieces. Every command answers with `ok` and what changed, or with `no` and the reason."
        ),
        checks=(
            HiddenCheck(
                name="store",
                snippets=tuple(
                    f"import json\nresult = json.load(open({STATE_FILE!r}))[{shelf!r}]" for shelf in shelves
                ),
            ),
        ),
    )


def _move(rng: random.Random, store: dict[str, dict[str, int]]) -> None:
    """Some pieces of something go from one shelf to another."""
    source = rng.choice([shelf for shelf, held in store.items() if held])
    thing = rng.choice(sorted(store[source]))
    target = rng.choice([shelf for shelf in store if shelf != source])
    amount = rng.randint(1, min(5, store[source][thing]))
    store[source][thing] -= amount
    store[target][thing] = store[target].get(thing, 0) + amount
    if not store[source][thing]:
        del store[source][thing]


def _held(stock: dict[str, int]) -> str:
    return ", ".join(f"{count} {thing}" for thing, count in sorted(stock.items())) or "nothing"
