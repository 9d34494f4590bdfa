"""plan: many small edits in an order that shows only step by step, under rules given once at the start."""

import random

from moebox.tasks.families import material
from moebox.tasks.job import HiddenCheck, JobDraft, Level

STEPS: dict[Level, int] = {"easy": 8, "medium": 16, "hard": 32}  # two calls each: read, edit


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """A chain of note files: each names the next, and must be filled in from the one before."""
    steps = STEPS[level]
    house = f"{rng.choice(material.PLACES)}_{rng.randint(100, 999)}"
    rooms = [f"{colour}_{thing}" for colour in material.COLOURS for thing in material.THINGS[:8]]
    chain = rng.sample(rooms, steps + 4)
    path, spare = chain[:steps], chain[steps:]
    numbers = [rng.randint(10, 99) for _ in path]
    every = rng.randint(3, 5)
    files: dict[str, str] = {}
    solution: dict[str, str] = {}
    total = 0
    for visited, (room, number, following) in enumerate(zip(path, numbers, [*path[1:], "none"], strict=True), 1):
        sealed = rng.random() < 0.2
        text = _room_note(room, number, following, sealed=sealed)
        files[f"{house}/{room}.txt"] = f"{text}total: ?\n"
        total += 0 if sealed else number
        mark = f"visited: {visited}\n" if visited % every == 0 else ""
        solution[f"{house}/{room}.txt"] = f"{text}total: {total}\n{mark}"
    solution["done.txt"] = f"{total}\n"
    for room in spare:
        note = _room_note(room, rng.randint(10, 99), path[0], sealed=False)
        files[f"{house}/{room}.txt"] = f"{note}total: ?\n"
    snippets = tuple(f"result = open({name!r}).read().split()" for name in (*sorted(files), "done.txt"))
    return JobDraft(
        instruction=material.instruction("plan", house=house, first=path[0], every=every, twice=2 * every),
        files=files,
        solution=solution,
        tools=("list_files", "read_file", "edit_file", "write_file"),
        turns=4 * steps + 10,
        checks=(HiddenCheck(name="rooms", snippets=snippets),),
    )


def _room_note(room: str, number: int, following: str, *, sealed: bool) -> str:
    return f"room: {room}\nnumber: {number}\nsealed: {'yes' if sealed else 'no'}\nnext: {following}\n"
