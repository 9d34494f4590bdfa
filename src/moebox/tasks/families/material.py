"""Words and small modules that jobs are made of, drawn anew for each."""

import random
from dataclasses import dataclass, replace

from moebox.core import catalogue
from moebox.data import FOLDER
from moebox.tasks.result import Level

_WORDS = catalogue.load_table("tasks/parts")["words"]
Sizes = dict[Level, tuple[int, int]]
THINGS, PLACES, PEOPLE, COLOURS = (_WORDS[name].split() for name in ("things", "places", "people", "colours"))


def instruction(name: str, **values: object) -> str:
    """An instruction of data/tasks/instructions.toml with its placeholders filled."""
    return str(catalogue.load_table("tasks/instructions")[name]).format(**values)


def code_text(name: str) -> str:
    """Python code of data/tasks that is run in the sandbox only."""
    return (FOLDER / "tasks" / f"{name}.py.txt").read_text(encoding="utf-8")


def draw_package_name(rng: random.Random) -> str:
    """A package name that is not a module of Python's."""
    return f"{rng.choice(PLACES)}_{rng.choice(THINGS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePart:
    """One module of data/tasks/parts.toml."""

    name: str
    source: str
    bugs: tuple[tuple[str, str], ...] = ()  # right and wrong code
    checks: tuple[str, ...]  # expressions on the module `m`
    about: str = ""


def module_parts() -> tuple[ModulePart, ...]:
    """All modules, with the placeholders of their constants."""
    return catalogue.table_rows(ModulePart, "tasks/parts", "part")


def helper_users() -> tuple[ModulePart, ...]:
    """Modules that use the helper of a refactoring, with the placeholders of its name."""
    return catalogue.table_rows(ModulePart, "tasks/parts", "helper_user")


def draw_parts(rng: random.Random, count: int) -> list[ModulePart]:
    """Different modules with their constants filled in."""
    drawn = []
    for part in rng.sample(module_parts(), count):
        a, b = str(rng.randint(2, 9)), str(rng.randint(11, 29))

        def fill(text: str, a: str = a, b: str = b) -> str:
            return text.replace("{a}", a).replace("{b}", b)

        bugs = tuple((fill(right), fill(wrong)) for right, wrong in part.bugs)
        texts = {"source": fill(part.source), "about": fill(part.about)}
        drawn.append(replace(part, **texts, bugs=bugs, checks=tuple(map(fill, part.checks))))
    return drawn
