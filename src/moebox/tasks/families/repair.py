"""repair: a small package with a failing test; the fault is in the package, not in the test."""

import random
import types

from moebox.tasks.families import names, parts
from moebox.tasks.job import HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {"easy": (1, 1), "medium": (3, 1), "hard": (5, 3)}  # modules, of them broken


def make(rng: random.Random, level: Level) -> JobDraft:
    """Modules of known behaviour, some of them broken, with tests that see it."""
    count, broken = SIZES[level]
    package = names.draw_package_name(rng)
    chosen = parts.draw_parts(rng, count)
    files = {f"{package}/__init__.py": ""}
    solution = {}
    for place, part in enumerate(chosen):
        path = f"{package}/{part.name}.py"
        files[path] = part.source
        if place < broken:
            right, wrong = rng.choice(visible_bugs(part))
            files[path] = part.source.replace(right, wrong, 1)
            solution[path] = part.source
    tests = f"tests/test_{package}.py"
    files["tests/__init__.py"] = ""
    files[tests] = visible_tests(package, chosen)
    listed = "\n".join(f"- `{package}/{part.name}.py` {part.about}" for part in sorted(chosen, key=lambda p: p.name))
    return JobDraft(
        instruction=(
            f"The package `{package}` does not do what its docstrings say, and some of its tests fail.\n\n{listed}\n\n"
            f"Find the fault and repair it in the package. The tests are right: do not change anything in `tests/`. "
            "Everything that works must go on working. Run the tests, and end with one sentence on what was wrong."
        ),
        files=files,
        solution=solution,
        protected=("tests/__init__.py", tests),
        checks=tuple(behaviour_check(package, part) for part in chosen),
    )


def behaviour_check(package: str, part: parts.ModulePart) -> HiddenCheck:
    """Everything the part is known to do."""
    return HiddenCheck(
        name=part.name, snippets=tuple(check_snippet(package, part.name, check) for check in part.checks)
    )


def check_snippet(package: str, module: str, expression: str) -> str:
    """An expression on a module; `m.raised` tells whether a call raises."""
    return (
        f"import types\nimport {package}.{module} as source\n"
        "def raised(kind, call):\n    try:\n        call()\n    except kind:\n        return True\n    return False\n"
        "m = types.SimpleNamespace(**vars(source), raised=raised)\n"
        f"result = {expression}\n"
    )


def visible_tests(package: str, chosen: list[parts.ModulePart]) -> str:
    """Tests that an agent may run: two of each part's checks, with the values that are right."""
    lines = ['"""What the package must do."""', "", "import types", "import unittest", ""]
    lines += [f"from {package} import {part.name}" for part in sorted(chosen, key=lambda p: p.name)]
    for part in chosen:
        lines += ["", "", f"class {part.name.title()}(unittest.TestCase):"]
        for number, check in enumerate(part.checks[:2], 1):
            expression = check.replace("m.", f"{part.name}.")
            lines += [
                f"    def test_{number}(self):",
                f"        self.assertEqual({expression}, {evaluate_expression(part.source, check)!r})",
                "",
            ]
        lines.pop()
    return "\n".join([*lines, "", "", 'if __name__ == "__main__":', "    unittest.main()", ""])


def visible_bugs(part: parts.ModulePart) -> list[tuple[str, str]]:
    """The bugs that a visible test sees with the constants drawn."""
    right = [evaluate_expression(part.source, check) for check in part.checks[:2]]
    broken = [(bug, part.source.replace(*bug, 1)) for bug in part.bugs]
    return [bug for bug, source in broken if [evaluate_expression(source, check) for check in part.checks[:2]] != right]


def evaluate_expression(source: str, expression: str) -> object:
    """What a module of ours gives: only ever called with the texts in `parts`."""
    space: dict[str, object] = {}
    exec(source, space)  # noqa: S102  (our own module, no agent's)
    return eval(expression, {"m": types.SimpleNamespace(**space)})  # noqa: S307  (our own expression)
