"""implement: a module of several files from a specification: models, validation, an admin-like listing."""

import random
from dataclasses import dataclass

from moebox.tasks.families import material
from moebox.tasks.job import HiddenCheck, JobDraft, Level

SIZES: dict[Level, tuple[int, int]] = {"easy": (3, 1), "medium": (5, 2), "hard": (7, 3)}  # fields, files


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityField:
    name: str
    kind: str  # text, number, choice, flag
    most: int = 0  # of text: characters; of numbers: the largest
    least: int = 0
    choices: tuple[str, ...] = ()
    default: object = None

    @property
    def rule(self) -> str:
        """The field's line in the specification."""
        if self.kind == "text":
            return f"`{self.name}`: text, required, at most {self.most} characters once outer blanks are removed"
        if self.kind == "number":
            limits = f"from {self.least} to {self.most}"
            return f"`{self.name}`: a whole number (not a bool) {limits}, default {self.default}"
        if self.kind == "choice":
            listed = ", ".join(f"`{choice}`" for choice in self.choices)
            return f"`{self.name}`: one of {listed}, default `{self.default}`"
        return f"`{self.name}`: True or False, default {self.default}"

    @property
    def edge_values(self) -> tuple[object, ...]:
        """Values at and past the limits, and of other types."""
        by_kind: dict[str, tuple[object, ...]] = {
            "number": (self.least - 1, self.most + 1, True, "3", self.most),
            "choice": ("none", 3, ["x"]),
            "flag": (1, "yes", None),
        }
        return by_kind.get(self.kind, ())


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """An entity with random fields; harder levels ask for more of the files."""
    entity = rng.choice(material.THINGS).title()
    package = material.draw_package_name(rng)
    field_count, parts = SIZES[level]
    fields = _draw_fields(rng, field_count)
    page = rng.randint(3, 6)
    rules = "\n".join(f"- {field.rule}" for field in fields)
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
    for field in fields:
        cases += [{**good, field.name: value} for value in field.edge_values]
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
