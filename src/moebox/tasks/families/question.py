"""question: what does this code base do? Answered by reading and searching, written down as exact values."""

import json
import random

from moebox.tasks.families import names
from moebox.tasks.job import READING, HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {
    "easy": (4, 1),
    "medium": (12, 3),
    "hard": (40, 6),
}  # modules, layers of settings


def make(rng: random.Random, level: Level) -> JobDraft:
    """Modules that call each other and settings that override each other; three questions about them."""
    package = names.draw_package_name(rng)
    count, layers = SIZES[level]
    modules = names.sample_words(rng, names.THINGS, count)
    setting = f"{rng.choice(names.PLACES)}_limit".upper()
    files = {f"{package}/__init__.py": ""}
    value = _settings(rng, package, setting, layers, files)
    called = f"settle_{rng.choice(names.COLOURS)}"
    home = modules[0]
    files[f"{package}/{home}.py"] = f"def {called}(amount):\n    return amount * {rng.randint(2, 9)}\n"
    callers = sorted(rng.sample(modules[1:], max(1, (count - 1) // 3)))
    for module in modules[1:]:
        files[f"{package}/{module}.py"] = _module(rng, package, module, home, called, module in callers)
    raised = rng.choice(modules[1:])
    error = f"{rng.choice(names.PEOPLE)}Error"
    files[f"{package}/{raised}.py"] += f"\n\nclass {error}(Exception):\n    code = {rng.randint(100, 999)}\n"
    answers = {"value": value, "callers": callers, "home": f"{package}/{raised}.py"}
    return JobDraft(
        instruction=(
            f"Read the package `{package}` and answer three questions:\n\n"
            f"- `value`: the number that `{package}.settings.{setting}` has once everything is imported\n"
            f"- `callers`: a sorted list of the modules (names without `.py`) in which `{called}` is really called, "
            "not only imported or named in a comment or text\n"
            f"- `home`: the path of the file that defines the exception `{error}`\n\n"
            "Write the answers as one JSON object with these three keys into `answer.json`. Change nothing else."
        ),
        files=files,
        solution={"answer.json": json.dumps(answers)},
        protected=tuple(files),
        tools=(*READING, "write_file"),
        checks=(
            HiddenCheck(
                name="answers",
                snippets=tuple(f"import json\nresult = json.load(open('answer.json'))[{key!r}]" for key in answers),
            ),
        ),
    )


def _settings(rng: random.Random, package: str, setting: str, layers: int, files: dict[str, str]) -> int:
    """A chain of settings modules; each may change the value that the one below it has."""
    value = rng.randint(10, 99)
    below = "defaults"
    files[f"{package}/defaults.py"] = f"{setting} = {value}\nOTHER_{setting} = {rng.randint(10, 99)}\n"
    for layer in range(1, layers + 1):
        name = f"layer_{layer}"
        text = f"from {package} import {below}\n\n{setting} = {below}.{setting}\n"
        kind = rng.randrange(3)
        step = rng.randint(2, 9)
        if kind == 0:
            text += f"{setting} = {setting} + {step}\n"
            value += step
        elif kind == 1:
            text += f"if {setting} > {value + step}:\n    {setting} = 0\nelse:\n    {setting} = {setting} - {step}\n"
            value -= step
        else:
            text += f"OLD_{setting} = {setting} * {step}  # {setting} = {step}\n"
        files[f"{package}/{name}.py"] = text
        below = name
    files[f"{package}/settings.py"] = f"from {package}.{below} import {setting}\n\n__all__ = [{setting!r}]\n"
    return value


def _module(rng: random.Random, package: str, module: str, home: str, called: str, calls: bool) -> str:
    """A module that calls the function, or only seems to."""
    lines = [f'"""The {module}."""', "", f"from {package}.{home} import {called}", ""]
    lines += ["", f"def handle_{module}(amount):"]
    if calls:
        lines += [f"    return {called}(amount + {rng.randint(1, 9)})"]
    elif rng.random() < 0.5:
        lines += [f"    # {called}(amount) was tried here", f"    return amount - {rng.randint(1, 9)}"]
    else:
        lines += [f'    return "{called}(amount)", amount']
    return "\n".join([*lines, ""])
