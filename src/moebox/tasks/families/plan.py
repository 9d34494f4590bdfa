"""plan: many small edits in an order that only shows as one goes, under rules given once at the start."""

import random

from moebox.tasks.families import names
from moebox.tasks.job import HiddenCheck, JobDraft, Level

STEPS: dict[Level, int] = {"easy": 8, "medium": 16, "hard": 32}  # two calls each: read, edit


def _walk(
    rng: random.Random, house: str, path: list[str], numbers: list[int], every: int
) -> tuple[dict[str, str], dict[str, str]]:
    """The rooms on the way as they are, and as they should be at its end."""
    files, solution = {}, {}
    total = 0
    for visited, (room, number, following) in enumerate(zip(path, numbers, [*path[1:], "none"], strict=True), 1):
        sealed = rng.random() < 0.2
        text = _note(room, number, following, sealed=sealed)
        files[f"{house}/{room}.txt"] = f"{text}total: ?\n"
        total += 0 if sealed else number
        mark = f"visited: {visited}\n" if visited % every == 0 else ""
        solution[f"{house}/{room}.txt"] = f"{text}total: {total}\n{mark}"
    solution["done.txt"] = f"{total}\n"
    return files, solution


def _note(room: str, number: int, following: str, *, sealed: bool) -> str:
    """What a room's file says before its total."""
    return f"room: {room}\nnumber: {number}\nsealed: {'yes' if sealed else 'no'}\nnext: {following}\n"


def make(rng: random.Random, level: Level) -> JobDraft:
    """A chain of note files: each says which comes next, and what of it must be filled in from the one before."""
    steps = STEPS[level]
    house = f"{rng.choice(names.PLACES)}_{rng.randint(100, 999)}"
    rooms = [f"{a}_{b}" for a in names.COLOURS for b in names.THINGS[:8]]
    chain = names.sample_words(rng, rooms, steps + 4)
    path, spare = chain[:steps], chain[steps:]
    numbers = [rng.randint(10, 99) for _ in path]
    every = rng.randint(3, 5)
    files, solution = _walk(rng, house, path, numbers, every)
    for room in spare:
        files[f"{house}/{room}.txt"] = f"{_note(room, rng.randint(10, 99), path[0], sealed=False)}total: ?\n"
    listed = sorted(files)
    return JobDraft(
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
            HiddenCheck(
                name="rooms",
                snippets=tuple(f"result = open({path!r}).read().split()" for path in (*listed, "done.txt")),
            ),
        ),
    )
