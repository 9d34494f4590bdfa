"""errand: look, read, write a value to a file. The easiest family, which a very small model can learn."""

import random
from collections.abc import Mapping

from moebox.tasks.families import material
from moebox.tasks.job import READING, HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {"easy": (3, 1), "medium": (20, 3), "hard": (60, 8)}  # keys, files


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """Files with `key = value` lines; one value is wanted in a file of its own."""
    count, files = SIZES[level]
    keys = rng.sample(material.THINGS, count)
    title = f"{rng.choice(material.PLACES)}_{rng.randint(100, 999)}"
    values = {key: rng.randint(100, 999) for key in keys}
    return errand_draft(title, values, rng.choice(keys), files)


def errand_draft(title: str, values: Mapping[str, object], wanted: str, file_count: int) -> JobDraft:
    """The errand for these keys and values, in one file or in several of a folder."""
    files: dict[str, str] = {}
    for number, (key, value) in enumerate(values.items()):
        path = f"{title}.txt" if file_count == 1 else f"{title}/part_{number % file_count}.txt"
        files[path] = files.get(path, "") + f"{key} = {value}\n"
    where = f"`{title}.txt`" if file_count == 1 else f"the folder `{title}`"
    return JobDraft(
        instruction=material.instruction("errand", wanted=wanted, where=where),
        files=files,
        solution={"value.txt": f"{values[wanted]}\n"},
        protected=tuple(files),
        checks=(HiddenCheck(name="value", snippets=("result = open('value.txt').read().strip()",)),),
        tools=(*READING, "write_file"),
        turns=12,
    )
