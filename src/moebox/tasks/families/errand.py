"""errand: look, read, write a value down. The easiest family: what a very small model can learn."""

import random
from collections.abc import Mapping

from moebox.tasks.families import names
from moebox.tasks.job import READING, HiddenCheck, JobDraft, Level

SPREAD: dict[Level, int] = {"easy": 1, "medium": 3, "hard": 8}  # files that the keys are spread over


def make(rng: random.Random, level: Level) -> JobDraft:
    """A file with `key = value` lines; one value is wanted in a file of its own."""
    keys = names.sample_words(rng, names.THINGS, {"easy": 3, "medium": 20, "hard": 60}[level])
    title = f"{rng.choice(names.PLACES)}_{rng.randint(100, 999)}"
    values = {key: rng.randint(100, 999) for key in keys}
    return errand_draft(title, values, rng.choice(keys), SPREAD[level])


def errand_draft(title: str, values: Mapping[str, object], wanted: str, spread: int) -> JobDraft:
    """The errand for these keys and values, in one file or spread over several of a folder."""
    files: dict[str, str] = {}
    for number, (key, value) in enumerate(values.items()):
        path = f"{title}.txt" if spread == 1 else f"{title}/part_{number % spread}.txt"
        files[path] = files.get(path, "") + f"{key} = {value}\n"
    where = f"`{title}.txt`" if spread == 1 else f"the folder `{title}`"
    return JobDraft(
        instruction=f"Find the value of {wanted} in {where} and write it into the file `value.txt`. Then say done.",
        files=files,
        solution={"value.txt": f"{values[wanted]}\n"},
        protected=tuple(files),
        checks=(HiddenCheck(name="value", snippets=("result = open('value.txt').read().strip()",)),),
        tools=(*READING, "write_file"),
        turns=12,
    )
