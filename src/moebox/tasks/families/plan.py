"""plan: many small edits in an order that only shows as one goes, under rules given once at the start."""

import random

from moebox.tasks.families import names
from moebox.tasks.job import Check, Draft, Level

STEPS: dict[Level, int] = {"easy": 8, "medium": 16, "hard": 32}  # two calls each: read, edit


def make(rng: random.Random, level: Level) -> Draft:
    """A chain of note files: each says which comes next, and what of it must be filled in from the one before."""
    steps = STEPS[level]
    house = f"{rng.choice(names.PLACES)}_{rng.randint(100, 999)}"
    rooms = [f"{a}_{b}" for a in names.COLOURS for b in names.THINGS[:8]]
    chain = names.several(rng, rooms, steps + 4)
    path, spare = chain[:steps], chain[steps:]
    numbers = [rng.randint(10, 99) for _ in path]
    every = rng.randint(3, 5)
    files, solution = {}, {}
    total = 0
    for place, room in enumerate(path):
        following = path[place + 1] if place + 1 < steps else "none"
        sealed = rng.random() < 0.2
        text = f"room: {room}\nnumber: {numbers[place]}\nsealed: {'yes' if sealed else 'no'}\nnext: {following}\n"
        files[f"{house}/{room}.txt"] = f"{text}total: ?\n"
        total += 0 if sealed else numbers[place]
        mark = f"visited: {place + 1}\n" if (place + 1) % every == 0 else ""
        solution[f"{house}/{room}.txt"] = f"{text}total: {total}\n{mark}"
    for room in spare:
        files[f"{house}/{room}.txt"] = (
            f"room: {room}\nnumber: {rng.randint(10, 99)}\nsealed: no\nnext: {path[0]}\ntotal: ?\n"
        )
    solution["done.txt"] = f"{total}\n"
    listed = sorted(files)
    return Draft(
        instruction=(
            f"Walk through the rooms in `{house}/`, one file each, starting with `{house}/{path[0]}.txt`; each names "
            "the next, and `next: none` is the last. Keep a running total of the numbers of the rooms you have walked "
            "through, this one included; the number of a sealed room is not added. In each room you walk through, "
            "replace the `?` after `total:` by the running total. In every "
            f"{every}th room you walk through (the {every}th, the {2 * every}th and so on) also add a last line "
            "`visited: N`, N being how many rooms you have walked through. Rooms that are not on the way stay as they "
            "are. At the end write the final total into `done.txt` and say done."
        ),
        files=files,
        solution=solution,
        tools=("list_files", "read_file", "edit_file", "write_file"),
        turns=4 * steps + 10,
        checks=(
            Check(
                name="rooms",
                snippets=tuple(f"result = open({path!r}).read().split()" for path in (*listed, "done.txt")),
            ),
        ),
    )
