"""gadget: an unknown tool, whose use is explained in the system prompt alone."""

import json
import random

from moebox.tasks.families import material
from moebox.tasks.gadget import STATE_FILE, list_stock
from moebox.tasks.job import HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {"easy": (3, 2), "medium": (5, 6), "hard": (8, 14)}  # shelves, moves wanted


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """A store with shelves; goods must be moved until the store is as described."""
    count, moves = SIZES[level]
    shelves = [f"{row}{number}" for row in "ABC" for number in range(1, 4)][:count]
    goods = rng.sample(material.THINGS, count)
    store = {shelf: {thing: rng.randint(6, 30)} for shelf, thing in zip(shelves, goods, strict=True)}
    wanted = {shelf: dict(held) for shelf, held in store.items()}
    for _ in range(moves):  # some pieces of something go from one shelf to another
        source = rng.choice([shelf for shelf, held in wanted.items() if held])
        thing = rng.choice(sorted(wanted[source]))
        target = rng.choice([shelf for shelf in wanted if shelf != source])
        amount = rng.randint(1, min(5, wanted[source][thing]))
        wanted[source][thing] -= amount
        wanted[target][thing] = wanted[target].get(thing, 0) + amount
        if not wanted[source][thing]:
            del wanted[source][thing]
    listed = "\n".join(f"- {shelf}: {list_stock(wanted[shelf])}" for shelf in shelves)
    snippets = tuple(f"import json\nresult = json.load(open({STATE_FILE!r}))[{shelf!r}]" for shelf in shelves)
    return JobDraft(
        instruction=material.instruction("gadget", wanted=listed),
        files={},
        solution={STATE_FILE: json.dumps(wanted, sort_keys=True)},
        tools=("gadget",),
        gadget=json.dumps(store),
        turns=6 * moves + 12,
        system=material.instruction("gadget_system"),
        checks=(HiddenCheck(name="store", snippets=snippets),),
    )
