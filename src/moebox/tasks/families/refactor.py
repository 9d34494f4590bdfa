"""refactor: the same helper is in several modules; move it to one place without changing any behaviour."""

import random

from moebox.tasks.families import material
from moebox.tasks.families.repair import behaviour_check
from moebox.tasks.job import HiddenCheck, JobDraft, Level

HELPER = '''def {name}(values):
    """Numbers scaled so that the largest is {top}, rounded down; an empty list stays empty."""
    largest = max(values, default=0)
    if largest <= 0:
        return [0 for _ in values]
    return [value * {top} // largest if value > 0 else 0 for value in values]
'''
# Modules that use the helper: name, code, and an expression that shows its behaviour.
USERS = (
    ("bars", "def bars(values):\n    return ['#' * size for size in {name}(values)]\n", "m.bars([1, 5, 10, -2])"),
    ("ticks", "def ticks(values):\n    return sorted(set({name}(values)))\n", "m.ticks([3, 9, 27, 27])"),
    ("share", "def share(values):\n    return dict(enumerate({name}(values), 1))\n", "m.share([2, 2, 8])"),
    ("heat", "def heat(rows):\n    return [{name}(row) for row in rows]\n", "m.heat([[1, 2], [], [0, 0]])"),
    ("crest", "def crest(values):\n    return {name}(values).index({top})\n", "m.crest([4, 9, 2])"),
)
SIZES: dict[Level, tuple[int, int]] = {"easy": (2, 0), "medium": (3, 1), "hard": (5, 3)}  # users, other modules


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """Two to five modules with the helper copied into each, beside others that must not change."""
    package = material.draw_package_name(rng)
    helper, top = f"scale_{rng.choice(material.THINGS)}", rng.randint(5, 40)
    user_count, other_count = SIZES[level]
    users = rng.sample(USERS, user_count)
    others = material.draw_parts(rng, other_count)
    text = HELPER.format(name=helper, top=top)
    tests = f"tests/test_{package}.py"
    files = {f"{package}/__init__.py": "", "tests/__init__.py": ""}
    solution = {f"{package}/scaling.py": text}
    structure = f"PACKAGE, HELPER = {package!r}, {helper!r}\n{material.code_text('structure')}"
    checks = [HiddenCheck(name="structure", snippets=(structure,))]
    for module, body, expression in users:
        code = body.format(name=helper, top=top)
        files[f"{package}/{module}.py"] = f"{text}\n\n{code}"
        solution[f"{package}/{module}.py"] = f"from {package}.scaling import {helper}\n\n\n{code}"
        head = f"import {package}.{module} as m\n"
        direct = f"{head}result = [m.{helper}(v) for v in ([], [0], [-1, 4], [7, 3, 1])]"
        checks.append(HiddenCheck(name=module, snippets=(f"{head}result = {expression}", direct)))
    for part in others:
        files[f"{package}/{part.name}.py"] = part.source
        checks.append(behaviour_check(package, part))
    modules = [module for module, _, _ in users]
    lines = ["import unittest", "", f"from {package} import {', '.join(sorted(modules))}", "", ""]
    lines += ["class Importable(unittest.TestCase):", "    def test_each(self):"]
    lines += [f"        self.assertTrue(callable({module}.{module}))" for module in modules]
    files[tests] = "\n".join([*lines, "", "", 'if __name__ == "__main__":', "    unittest.main()", ""])
    listed = ", ".join(f"`{module}.py`" for module in modules)
    return JobDraft(
        instruction=material.instruction("refactor", package=package, helper=helper, listed=listed),
        files=files,
        solution=solution,
        protected=("tests/__init__.py", tests),
        checks=tuple(checks),
    )
