"""question: what does this code base do? Answered by reading and searching, as exact values in a file."""

import json
import random

from moebox.tasks.families import material
from moebox.tasks.job import READING, HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {"easy": (4, 1), "medium": (12, 3), "hard": (40, 6)}  # modules, settings layers


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """Modules that call each other and settings that override each other; three questions about them."""
    package = material.draw_package_name(rng)
    count, layers = SIZES[level]
    modules = rng.sample(material.THINGS, count)
    setting = f"{rng.choice(material.PLACES)}_limit".upper()
    files = {f"{package}/__init__.py": ""}
    value = _write_settings(rng, package, setting, layers, files)
    called = f"settle_{rng.choice(material.COLOURS)}"
    home = modules[0]
    files[f"{package}/{home}.py"] = f"def {called}(amount):\n    return amount * {rng.randint(2, 9)}\n"
    callers = sorted(rng.sample(modules[1:], max(1, (count - 1) // 3)))
    for module in modules[1:]:
        lines = [f'"""The {module}."""', "", f"from {package}.{home} import {called}", ""]
        lines += ["", f"def handle_{module}(amount):"]
        if module in callers:
            lines += [f"    return {called}(amount + {rng.randint(1, 9)})"]
        elif rng.random() < 0.5:  # the function only seems to be called
            lines += [f"    # {called}(amount) was tried here", f"    return amount - {rng.randint(1, 9)}"]
        else:
            lines += [f'    return "{called}(amount)", amount']
        files[f"{package}/{module}.py"] = "\n".join([*lines, ""])
    raising = rng.choice(modules[1:])
    error = f"{rng.choice(material.PEOPLE)}Error"
    files[f"{package}/{raising}.py"] += f"\n\nclass {error}(Exception):\n    code = {rng.randint(100, 999)}\n"
    answers = {"value": value, "callers": callers, "home": f"{package}/{raising}.py"}
    snippets = tuple(f"import json\nresult = json.load(open('answer.json'))[{key!r}]" for key in answers)
    return JobDraft(
        instruction=material.instruction("question", package=package, setting=setting, called=called, error=error),
        files=files,
        solution={"answer.json": json.dumps(answers)},
        protected=tuple(files),
        tools=(*READING, "write_file"),
        checks=(HiddenCheck(name="answers", snippets=snippets),),
    )


def _write_settings(rng: random.Random, package: str, setting: str, layers: int, files: dict[str, str]) -> int:
    """Add a chain of settings modules, each of which may change the value of the one below; return the value."""
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
