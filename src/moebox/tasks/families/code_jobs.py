"""Jobs on Python packages: repair, refactor and implement."""

import random
import types
from dataclasses import dataclass

from moebox.tasks.families import material
from moebox.tasks.families.material import ModulePart, Sizes
from moebox.tasks.result import HiddenCheck, JobDraft, Level

REPAIR_SIZES: Sizes = {"easy": (1, 1), "medium": (3, 1), "hard": (5, 3)}  # modules, of them broken


def make_repair(rng: random.Random, level: Level) -> JobDraft:
    """A small package with a failing test; the fault is in the package, not in the test.

    Modules of known behaviour, some of them broken, with tests that show it.
    """
    count, broken = REPAIR_SIZES[level]
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


REFACTOR_SIZES: Sizes = {"easy": (2, 0), "medium": (3, 1), "hard": (5, 3)}  # users, other modules


def make_refactor(rng: random.Random, level: Level) -> JobDraft:
    """The same helper is in several modules; move it to one place without changing any behaviour.

    Two to five modules with the helper copied into each, beside others that must not change.
    """
    package = material.draw_package_name(rng)
    helper, top = f"scale_{rng.choice(material.THINGS)}", rng.randint(5, 40)
    user_count, other_count = REFACTOR_SIZES[level]
    users = rng.sample(material.helper_users(), user_count)
    others = material.draw_parts(rng, other_count)
    text = material.code_text("helper").format(name=helper, top=top)
    tests = f"tests/test_{package}.py"
    files = {f"{package}/__init__.py": "", "tests/__init__.py": ""}
    solution = {f"{package}/scaling.py": text}
    structure = f"PACKAGE, HELPER = {package!r}, {helper!r}\n{material.code_text('structure')}"
    checks = [HiddenCheck(name="structure", snippets=(structure,))]
    for user in users:
        code = user.source.format(name=helper, top=top)
        files[f"{package}/{user.name}.py"] = f"{text}\n\n{code}"
        solution[f"{package}/{user.name}.py"] = f"from {package}.scaling import {helper}\n\n\n{code}"
        head = f"import {package}.{user.name} as m\n"
        direct = f"{head}result = [m.{helper}(v) for v in ([], [0], [-1, 4], [7, 3, 1])]"
        checks.append(HiddenCheck(name=user.name, snippets=(f"{head}result = {user.checks[0]}", direct)))
    for part in others:
        files[f"{package}/{part.name}.py"] = part.source
        checks.append(behaviour_check(package, part))
    modules = [user.name for user in users]
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


IMPLEMENT_SIZES: Sizes = {"easy": (3, 1), "medium": (5, 2), "hard": (7, 3)}  # fields, files


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityField:
    name: str
    kind: str  # text, number, choice, flag
    most: int = 0  # of text: characters; of numbers: the largest
    least: int = 0
    choices: tuple[str, ...] = ()
    default: object = None

    @property
    def listed_choices(self) -> str:
        return ", ".join(f"`{choice}`" for choice in self.choices)


def make_implement(rng: random.Random, level: Level) -> JobDraft:
    """A module of several files from a specification: models, validation, an admin-like listing.

    An entity with random fields; harder levels ask for more of the files.
    """
    entity = rng.choice(material.THINGS).title()
    package = material.draw_package_name(rng)
    field_count, parts = IMPLEMENT_SIZES[level]
    fields = _draw_fields(rng, field_count)
    page = rng.randint(3, 6)
    rules = "\n".join(f"- {material.instruction(f'rule_{field.kind}', field=field)}" for field in fields)
    specification = [
        material.instruction("implement_models", package=package, entity=entity, rules=rules),
        material.instruction("implement_validation", package=package),
        material.instruction("implement_listing", package=package, page=page),
    ]
    checks = [
        HiddenCheck(name="models", snippets=_models_snippets(package, entity, fields)),
        HiddenCheck(name="validation", snippets=_validation_snippets(package, rng, fields)),
        HiddenCheck(name="listing", snippets=_listing_snippets(package, entity, rng, fields, page)),
    ]
    solution = dict(list(_reference_files(package, entity, fields, page).items())[:parts])
    readme = f"# {package}\n\nAn empty package. See the specification.\n"
    return JobDraft(
        instruction=material.instruction("implement", package=package, parts="\n\n".join(specification[:parts])),
        files={f"{package}/__init__.py": "", "README.md": readme},
        solution=solution,
        checks=tuple(checks[:parts]),
    )


def _draw_fields(rng: random.Random, count: int) -> list[EntityField]:
    """Fields of every kind, the first a text called `name`."""
    fields = [EntityField(name="name", kind="text", most=rng.randint(12, 30))]
    titles = rng.sample(("weight", "stock", "rank", "size", "level", "year"), 3)
    for number, title in enumerate(titles):
        low = rng.randint(-9, 9)
        most = low + rng.randint(20, 90)
        fields.append(EntityField(name=title, kind="number", least=low, most=most, default=low + number))
    choices = tuple(rng.sample(material.COLOURS, 4))
    fields.append(EntityField(name="colour", kind="choice", choices=choices, default=rng.choice(choices)))
    fields.append(EntityField(name="active", kind="flag", default=rng.random() < 0.5))
    fields.append(EntityField(name="note", kind="text", most=rng.randint(40, 80)))
    return [fields[place] for place in (0, 1, 4, 5, 2, 3, 6)][:count]


def _reference_files(package: str, entity: str, fields: list[EntityField], page: int) -> dict[str, str]:
    names = [field.name for field in fields]
    texts = [field.name for field in fields if field.kind == "text"]
    defaults = [f"{field.name}={field.default!r}" for field in fields if field.kind != "text"]
    assignments = "\n".join(f"        self.{name} = {name}" for name in names)
    constructor = f"    def __init__(self, *, {', '.join([*texts, *defaults])}):\n{assignments}\n"
    rows = [(f.name, f.kind, f.least, f.most, f.choices, f.default) for f in fields]
    headers = {
        "models": f"FIELDS = {tuple(names)!r}\n\n\nclass {entity}:\n{constructor}",
        "validation": f"FIELDS = {rows!r}\n",
        "listing": f"FIELDS = {names!r}\nTEXTS = {texts!r}\nPAGE = {page}\n",
    }
    return {f"{package}/{name}.py": header + material.code_text(name) for name, header in headers.items()}


def _example_values(fields: list[EntityField], number: int) -> dict[str, object]:
    values: dict[str, object] = {}
    for field in fields:
        if field.kind == "text":
            values[field.name] = f"{('alpha', 'Beta', 'gamma')[number % 3]} {number}"
        elif field.kind == "number":
            values[field.name] = field.least + number % (field.most - field.least)
        elif field.kind == "choice":
            values[field.name] = field.choices[number % len(field.choices)]
        else:
            values[field.name] = number % 3 == 0
    return values


def _models_snippets(package: str, entity: str, fields: list[EntityField]) -> tuple[str, ...]:
    """Every sentence of the first part."""
    head = f"from {package}.models import {entity} as E\n"
    full = _example_values(fields, 4)
    least = {field.name: full[field.name] for field in fields if field.kind == "text"}
    tail = "    result = 'nothing raised'\nexcept (TypeError, KeyError) as problem:\n"
    return (
        f"{head}result = list(E(**{full!r}).as_dict().items())",
        f"{head}result = list(E(**{least!r}).as_dict().items())",
        f"{head}result = [E(**{full!r}) == E(**{full!r}), E(**{full!r}) == E(**{least!r}), E(**{full!r}) == 3]",
        f"{head}try:\n    E()\n{tail}    result = type(problem).__name__",
        f"{head}try:\n    E('x')\n{tail}    result = type(problem).__name__",
        f"{head}result = E.from_dict({full!r}).as_dict()",
        f"{head}try:\n    E.from_dict({{**{full!r}, 'extra': 1}})\n{tail}"
        "    result = [type(problem).__name__, problem.args]",
    )


def _validation_snippets(package: str, rng: random.Random, fields: list[EntityField]) -> tuple[str, ...]:
    """Every message, and cleaning."""
    head = f"from {package}.validation import errors, clean\n"
    good = _example_values(fields, 5)
    cases: list[dict[str, object]] = [good, {}, {**good, "name": "  "}, {**good, "name": 7}, {**good, "zz": 1, "aa": 2}]
    cases.append({**good, "name": f"  {'x' * fields[0].most}  "})
    cases.append({**good, "name": "x" * (fields[0].most + 1)})
    for field in fields:  # values at and past the limits, and of other types
        number = (field.least - 1, field.most + 1, True, "3", field.most)
        values = {"number": number, "choice": ("none", 3, ["x"]), "flag": (1, "yes", None)}.get(field.kind, ())
        cases += [{**good, field.name: value} for value in values]
    rng.shuffle(cases)
    bare = {field.name: f"  {good[field.name]} " for field in fields if field.kind == "text"}
    return (
        *(f"{head}result = list(errors({case!r}).items())" for case in cases),
        f"{head}result = list(clean({bare!r}).items())",
        f"{head}try:\n    result = clean({{}})\nexcept ValueError:\n    result = 'ValueError'",
    )


def _listing_snippets(
    package: str, entity: str, rng: random.Random, fields: list[EntityField], page: int
) -> tuple[str, ...]:
    """Search, filters, order, pages."""
    rows = [_example_values(fields, rng.randint(0, 50)) for _ in range(3 * page - 1)]
    head = f"from {package}.models import {entity} as E\nfrom {package}.listing import listing\n"
    head += f"items = [E(**row) for row in {rows!r}]\n"
    number, choice = fields[1].name, fields[2]
    calls = ["items", "items, search='ALPHA'", "items, search='no such thing'", f"items, order='-{number}'"]
    calls += [f"items, order='{number}', page=2", "items, page=99", "items, page=0", "[]"]
    calls += [f"items, {choice.name}={choice.choices[0]!r}", f"items, search='a', order='-{choice.name}', page=2"]
    wrong = f"{head}try:\n    result = listing(items, nosuch=1)\nexcept KeyError:\n    result = 'KeyError'"
    return (*(f"{head}result = listing({call})" for call in calls), wrong)
