"""repair: a small package with a failing test; the fault is in the package, not in the test."""

import random
import types

from moebox.tasks.families import material
from moebox.tasks.families.material import ModulePart
from moebox.tasks.job import HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {"easy": (1, 1), "medium": (3, 1), "hard": (5, 3)}  # modules, of them broken


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """Modules of known behaviour, some of them broken, with tests that show it."""
    count, broken = SIZES[level]
    package = material.draw_package_name(rng)
    parts = material.draw_parts(rng, count)
    files = {f"{package}/__init__.py": ""}
    solution = {}
    for place, part in enumerate(parts):
        path = f"{package}/{part.name}.py"
        files[path] = part.source
        if place < broken:
            right, wrong = rng.choice(visible_bugs(part))
            files[path] = part.source.replace(right, wrong, 1)
            solution[path] = part.source
    tests = f"tests/test_{package}.py"
    files["tests/__init__.py"] = ""
    files[tests] = _visible_tests(package, parts)
    ordered = sorted(parts, key=lambda part: part.name)
    listed = "\n".join(f"- `{package}/{part.name}.py` {part.about}" for part in ordered)
    return JobDraft(
        instruction=material.instruction("repair", package=package, listed=listed),
        files=files,
        solution=solution,
        protected=("tests/__init__.py", tests),
        checks=tuple(behaviour_check(package, part) for part in parts),
    )


def behaviour_check(package: str, part: ModulePart) -> HiddenCheck:
    """Check of the part's whole known behaviour; `m.raised` in its expressions is True if a call raises."""
    head = (
        f"import types\nimport {package}.{part.name} as source\n"
        "def raised(kind, call):\n    try:\n        call()\n    except kind:\n        return True\n    return False\n"
        "m = types.SimpleNamespace(**vars(source), raised=raised)\n"
    )
    return HiddenCheck(name=part.name, snippets=tuple(f"{head}result = {check}\n" for check in part.checks))


def _visible_tests(package: str, parts: list[ModulePart]) -> str:
    """Tests that an agent may run: two of each part's checks, with the right values."""
    lines = ['"""What the package must do."""', "", "import types", "import unittest", ""]
    lines += [f"from {package} import {name}" for name in sorted(part.name for part in parts)]
    for part in parts:
        lines += ["", "", f"class {part.name.title()}(unittest.TestCase):"]
        for number, check in enumerate(part.checks[:2], 1):
            expression, value = check.replace("m.", f"{part.name}."), evaluate_expression(part.source, check)
            lines += [f"    def test_{number}(self):", f"        self.assertEqual({expression}, {value!r})", ""]
        lines.pop()
    return "\n".join([*lines, "", "", 'if __name__ == "__main__":', "    unittest.main()", ""])


def visible_bugs(part: ModulePart) -> list[tuple[str, str]]:
    """The bugs that a visible test shows with the drawn constants."""

    def values(source: str) -> list[object]:
        return [evaluate_expression(source, check) for check in part.checks[:2]]

    right = values(part.source)
    return [bug for bug in part.bugs if values(part.source.replace(*bug, 1)) != right]


def evaluate_expression(source: str, expression: str) -> object:
    """Value of an expression on a module; only for the shipped texts of data/tasks/parts.toml."""
    space: dict[str, object] = {}
    exec(source, space)  # noqa: S102  (our own module, not an agent's)
    return eval(expression, {"m": types.SimpleNamespace(**space)})  # noqa: S307  (our own expression)
