"""refactor: the same helper stands in several modules; bring it to one place without changing what anything does."""

import random

from moebox.tasks.families import names, parts
from moebox.tasks.families.repair import behaviour_check
from moebox.tasks.job import HiddenCheck, JobDraft, Level

HELPER = '''def {name}(values):
    """Numbers scaled so that the largest is {top}, rounded down; an empty list stays empty."""
    largest = max(values, default=0)
    if largest <= 0:
        return [0 for _ in values]
    return [value * {top} // largest if value > 0 else 0 for value in values]
'''
USERS = (
    ("bars", "def bars(values):\n    return ['#' * size for size in {name}(values)]\n", "m.bars([1, 5, 10, -2])"),
    ("ticks", "def ticks(values):\n    return sorted(set({name}(values)))\n", "m.ticks([3, 9, 27, 27])"),
    ("share", "def share(values):\n    return dict(enumerate({name}(values), 1))\n", "m.share([2, 2, 8])"),
    ("heat", "def heat(rows):\n    return [{name}(row) for row in rows]\n", "m.heat([[1, 2], [], [0, 0]])"),
    ("crest", "def crest(values):\n    return {name}(values).index({top})\n", "m.crest([4, 9, 2])"),
)


def make(rng: random.Random, level: Level) -> JobDraft:
    """Two to five modules with the helper copied into each, beside others that must not change."""
    package = names.draw_package_name(rng)
    helper, top = f"scale_{rng.choice(names.THINGS)}", rng.randint(5, 40)
    users = rng.sample(USERS, {"easy": 2, "medium": 3, "hard": 5}[level])
    bystanders = parts.draw_parts(rng, {"easy": 0, "medium": 1, "hard": 3}[level])
    text = HELPER.format(name=helper, top=top)
    files = {f"{package}/__init__.py": "", "tests/__init__.py": ""}
    solution = {f"{package}/scaling.py": text}
    for module, body, _ in users:
        code = body.format(name=helper, top=top)
        files[f"{package}/{module}.py"] = f"{text}\n\n{code}"
        solution[f"{package}/{module}.py"] = f"from {package}.scaling import {helper}\n\n\n{code}"
    for part in bystanders:
        files[f"{package}/{part.name}.py"] = part.source
    tests = f"tests/test_{package}.py"
    files[tests] = _tests(package, [module for module, _, _ in users])
    listed = ", ".join(f"`{module}.py`" for module, _, _ in users)
    return JobDraft(
        instruction=(
            f"In the package `{package}` the function `{helper}` stands in {listed}, the same each time. Move it into "
            f"a new module `{package}/scaling.py`, define it nowhere else, and let the others import it from there. "
            "Nothing may behave differently afterwards, and no other function may change its name or place. "
            "Do not change anything in `tests/`. End with one sentence."
        ),
        files=files,
        solution=solution,
        protected=("tests/__init__.py", tests),
        checks=(
            HiddenCheck(name="structure", snippets=(_structure(package, helper),)),
            *(_users(package, users, helper)),
            *(behaviour_check(package, part) for part in bystanders),
        ),
    )


def _structure(package: str, helper: str) -> str:
    """Read, not run: where functions are defined, and who imports the helper from where."""
    return (
        "import ast, os\n"
        f"found = {{'defined': [], 'imported': [], 'functions': []}}\n"
        f"for name in sorted(os.listdir({package!r})):\n"
        "    if not name.endswith('.py'):\n        continue\n"
        f"    tree = ast.parse(open(os.path.join({package!r}, name)).read())\n"
        "    for node in ast.walk(tree):\n"
        "        if isinstance(node, ast.FunctionDef):\n"
        f"            found['defined' if node.name == {helper!r} else 'functions'].append([name, node.name])\n"
        "        if isinstance(node, ast.ImportFrom) and (node.module or '').endswith('scaling'):\n"
        "            found['imported'].append(name)\n"
        "        if isinstance(node, ast.Import) and any(a.name.endswith('scaling') for a in node.names):\n"
        "            found['imported'].append(name)\n"
        "found['imported'] = sorted(set(found['imported']))\n"
        "found['functions'] = sorted(found['functions'])\n"
        "result = found\n"
    )


def _users(package: str, users: list[tuple[str, str, str]], helper: str) -> list[HiddenCheck]:
    head = "import {package}.{module} as m\n"
    made = []
    for module, _, expression in users:
        start = head.format(package=package, module=module)
        direct = f"{start}result = [m.{helper}(v) for v in ([], [0], [-1, 4], [7, 3, 1])]"
        made.append(HiddenCheck(name=module, snippets=(f"{start}result = {expression}", direct)))
    return made


def _tests(package: str, modules: list[str]) -> str:
    lines = ["import unittest", "", f"from {package} import {', '.join(sorted(modules))}", "", ""]
    lines += ["class Importable(unittest.TestCase):", "    def test_each(self):"]
    lines += [f"        self.assertTrue(callable({module}.{module}))" for module in modules]
    return "\n".join([*lines, "", "", 'if __name__ == "__main__":', "    unittest.main()", ""])
