"""implement: a module of several files from a specification: models, validation, an admin-like listing."""

import random
from dataclasses import dataclass

from moebox.tasks.families import names
from moebox.tasks.job import HiddenCheck, JobDraft, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityField:
    """One field of the entity."""

    name: str
    kind: str  # text, number, choice, flag
    most: int = 0  # of text: characters; of numbers: the largest
    least: int = 0
    choices: tuple[str, ...] = ()
    default: object = None

    @property
    def rule(self) -> str:
        """In words, as the specification has it."""
        if self.kind == "text":
            return f"`{self.name}`: text, required, at most {self.most} characters once outer blanks are removed"
        if self.kind == "number":
            return (
                f"`{self.name}`: a whole number (not a bool) from {self.least} to {self.most}, default {self.default}"
            )
        if self.kind == "choice":
            listed = ", ".join(f"`{choice}`" for choice in self.choices)
            return f"`{self.name}`: one of {listed}, default `{self.default}`"
        return f"`{self.name}`: True or False, default {self.default}"


def make(rng: random.Random, level: Level) -> JobDraft:
    """An entity with drawn fields; harder levels ask for more of the files."""
    entity = rng.choice(names.THINGS).title()
    package = names.draw_package_name(rng)
    fields = draw_fields(rng, {"easy": 3, "medium": 5, "hard": 7}[level])
    page = rng.randint(3, 6)
    parts = {"easy": 1, "medium": 2, "hard": 3}[level]
    text = [spec_models(package, entity, fields), spec_validation(package, fields), spec_listing(package, fields, page)]
    sources = [models_source(entity, fields), validation_source(fields), listing_source(fields, page)]
    paths = [f"{package}/models.py", f"{package}/validation.py", f"{package}/listing.py"]
    checks = [
        HiddenCheck(name="models", snippets=models_checks(package, entity, fields)),
        HiddenCheck(name="validation", snippets=validation_checks(package, rng, fields)),
        HiddenCheck(name="listing", snippets=listing_checks(package, entity, rng, fields, page)),
    ]
    readme = f"# {package}\n\nAn empty package. See the specification.\n"
    return JobDraft(
        instruction=(
            f"Write the package `{package}` from this specification, with Python's standard library only. "
            "Hidden tests check every sentence of it. Write each file completely, try your code, then end with one "
            "sentence.\n\n" + "\n\n".join(text[:parts])
        ),
        files={f"{package}/__init__.py": "", "README.md": readme},
        solution=dict(zip(paths[:parts], sources[:parts], strict=True)),
        checks=tuple(checks[:parts]),
    )


def draw_fields(rng: random.Random, count: int) -> list[EntityField]:
    """Fields of every kind, the first a text called `name`."""
    fields = [EntityField(name="name", kind="text", most=rng.randint(12, 30))]
    pool = names.sample_words(rng, ("weight", "stock", "rank", "size", "level", "year"), 3)
    for number, title in enumerate(pool):
        low = rng.randint(-9, 9)
        fields.append(
            EntityField(name=title, kind="number", least=low, most=low + rng.randint(20, 90), default=low + number)
        )
    choices = tuple(names.sample_words(rng, names.COLOURS, 4))
    fields.append(EntityField(name="colour", kind="choice", choices=choices, default=rng.choice(choices)))
    fields.append(EntityField(name="active", kind="flag", default=rng.random() < 0.5))
    fields.append(EntityField(name="note", kind="text", most=rng.randint(40, 80)))
    kinds = [fields[0], fields[1], fields[4], fields[5], fields[2], fields[3], fields[6]]
    return kinds[:count]


def spec_models(package: str, entity: str, fields: list[EntityField]) -> str:
    """The first file in words."""
    rules = "\n".join(f"- {field.rule}" for field in fields)
    return (
        f"## {package}/models.py\n\nA class `{entity}` whose constructor takes the fields by keyword only:\n\n"
        f"{rules}\n\n"
        "Fields with a default may be left out; a required one that is missing raises TypeError. Instances are equal "
        "when all fields are equal. `as_dict()` gives a dict of all fields in the order above. A class method "
        "`from_dict(data)` makes an instance and raises KeyError, naming the key, for a key that is no field."
    )


def spec_validation(package: str, fields: list[EntityField]) -> str:
    """The second."""
    return (
        f"## {package}/validation.py\n\n`errors(data)` takes a dict and gives a dict from field name to one message, "
        "in the order of the fields above; it is empty where all is well. Messages: `required` for a required field "
        "that is missing, None or blank; `not text`, `not a number`, `not a choice`, `not a flag` for a value of the "
        "wrong kind (a choice outside the list is `not a choice`); `too long` for text; `too small` and `too large` "
        "for numbers. Optional fields that are missing are no error. A key that is no field gives `unknown`, after "
        "all others, sorted by name. `clean(data)` gives the data with outer blanks removed from text and defaults "
        "filled in, in the order of the fields, and raises ValueError where `errors` is not empty."
    )


def spec_listing(package: str, fields: list[EntityField], page: int) -> str:
    """The third."""
    return (
        f"## {package}/listing.py\n\n`listing(items, search='', order='name', page=1, **filters)` takes instances and "
        "gives a dict with `count` (how many match), `pages` (at least 1), `page` (the page shown) and `rows` (their "
        f"`as_dict()`), {page} rows a page. `search` keeps items of which some text field contains it, ignoring case. "
        "Each filter keeps items whose field equals the value; a filter on no field raises KeyError. `order` is a "
        "field name, with a leading `-` for descending; items that are equal in it keep the order they came in, in "
        "both directions. A page below 1 shows the first, one beyond the last shows the last."
    )


def models_source(entity: str, fields: list[EntityField]) -> str:
    """The reference for the first file."""
    required = [field.name for field in fields if field.kind == "text"]
    optional = [f"{field.name}={field.default!r}" for field in fields if field.kind != "text"]
    names_ = tuple(field.name for field in fields)
    sets = "\n".join(f"        self.{field.name} = {field.name}" for field in fields)
    return (
        f"FIELDS = {names_!r}\n\n\nclass {entity}:\n    def __init__(self, *, {', '.join([*required, *optional])}):\n"
        f"{sets}\n\n    def as_dict(self):\n        return {{name: getattr(self, name) for name in FIELDS}}\n\n"
        "    def __eq__(self, other):\n"
        "        return type(other) is type(self) and other.as_dict() == self.as_dict()\n\n"
        "    @classmethod\n    def from_dict(cls, data):\n        for key in data:\n            if key not in FIELDS:\n"
        "                raise KeyError(key)\n        return cls(**data)\n"
    )


def validation_source(fields: list[EntityField]) -> str:
    """The reference for the second."""
    rows = [(f.name, f.kind, f.least, f.most, f.choices, f.default) for f in fields]
    return f"""FIELDS = {rows!r}


def one(value, kind, least, most, choices):
    if kind == "text":
        if not isinstance(value, str):
            return "not text"
        return "too long" if len(value.strip()) > most else ""
    if kind == "number":
        if not isinstance(value, int) or isinstance(value, bool):
            return "not a number"
        return "too small" if value < least else "too large" if value > most else ""
    if kind == "choice":
        return "" if isinstance(value, str) and value in choices else "not a choice"
    return "" if isinstance(value, bool) else "not a flag"


def errors(data):
    found = {{}}
    for name, kind, least, most, choices, default in FIELDS:
        if kind == "text" and (data.get(name) is None or not str(data[name]).strip()):
            found[name] = "required"
        elif name in data and one(data[name], kind, least, most, choices):
            found[name] = one(data[name], kind, least, most, choices)
    for name in sorted(set(data) - {{row[0] for row in FIELDS}}):
        found[name] = "unknown"
    return found


def clean(data):
    if errors(data):
        raise ValueError(str(errors(data)))
    values = {{name: data.get(name, default) for name, _, _, _, _, default in FIELDS}}
    return {{name: value.strip() if isinstance(value, str) else value for name, value in values.items()}}
"""


def listing_source(fields: list[EntityField], page: int) -> str:
    """The reference for the third."""
    names_ = [field.name for field in fields]
    texts = [field.name for field in fields if field.kind == "text"]
    return f"""FIELDS = {names_!r}
TEXTS = {texts!r}


def listing(items, search="", order="name", page=1, **filters):
    for name in filters:
        if name not in FIELDS:
            raise KeyError(name)
    word = search.lower()
    found = [item for item in items if any(word in getattr(item, name).lower() for name in TEXTS)]
    found = [item for item in found if all(getattr(item, name) == value for name, value in filters.items())]
    found.sort(key=lambda item: getattr(item, order.lstrip("-")), reverse=order.startswith("-"))
    pages = max(1, -(-len(found) // {page}))
    page = min(max(page, 1), pages)
    rows = [item.as_dict() for item in found[(page - 1) * {page} : page * {page}]]
    return {{"count": len(found), "pages": pages, "page": page, "rows": rows}}
"""


def example_values(fields: list[EntityField], number: int) -> dict[str, object]:
    """A good set of values."""
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


def models_checks(package: str, entity: str, fields: list[EntityField]) -> tuple[str, ...]:
    """Every sentence of the first part."""
    head = f"from {package}.models import {entity} as E\n"
    full = example_values(fields, 4)
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


def validation_checks(package: str, rng: random.Random, fields: list[EntityField]) -> tuple[str, ...]:
    """Every message, and cleaning."""
    head = f"from {package}.validation import errors, clean\n"
    good = example_values(fields, 5)
    cases: list[dict[str, object]] = [good, {}, {**good, "name": "  "}, {**good, "name": 7}, {**good, "zz": 1, "aa": 2}]
    cases.append({**good, "name": f"  {'x' * fields[0].most}  "})
    cases.append({**good, "name": "x" * (fields[0].most + 1)})
    for field in fields:
        cases += [{**good, field.name: value} for value in edge_values(field)]
    rng.shuffle(cases)
    bare = {field.name: f"  {good[field.name]} " for field in fields if field.kind == "text"}
    return (
        *(f"{head}result = list(errors({case!r}).items())" for case in cases),
        f"{head}result = list(clean({bare!r}).items())",
        f"{head}try:\n    result = clean({{}})\nexcept ValueError:\n    result = 'ValueError'",
    )


def edge_values(field: EntityField) -> tuple[object, ...]:
    """Values at and past the limits of a field, and of other types."""
    by_kind: dict[str, tuple[object, ...]] = {
        "number": (field.least - 1, field.most + 1, True, "3", field.most),
        "choice": ("none", 3, ["x"]),
        "flag": (1, "yes", None),
    }
    return by_kind.get(field.kind, ())


def listing_checks(
    package: str, entity: str, rng: random.Random, fields: list[EntityField], page: int
) -> tuple[str, ...]:
    """Search, filters, order, pages."""
    rows = [example_values(fields, rng.randint(0, 50)) for _ in range(3 * page - 1)]
    head = f"from {package}.models import {entity} as E\nfrom {package}.listing import listing\n"
    head += f"items = [E(**row) for row in {rows!r}]\n"
    number, choice = fields[1].name, fields[2]
    calls = ["items", "items, search='ALPHA'", "items, search='no such thing'", f"items, order='-{number}'"]
    calls += [f"items, order='{number}', page=2", "items, page=99", "items, page=0", "[]"]
    calls += [f"items, {choice.name}={choice.choices[0]!r}", f"items, search='a', order='-{choice.name}', page=2"]
    wrong = f"{head}try:\n    result = listing(items, nosuch=1)\nexcept KeyError:\n    result = 'KeyError'"
    return (*(f"{head}result = listing({call})" for call in calls), wrong)
