"""Jobs on files of text: errand, question, clean, plan, gadget and long-reply."""

import csv
import io
import json
import random
from collections.abc import Mapping

from moebox.tasks.families import material
from moebox.tasks.families.material import Sizes
from moebox.tasks.gadget import STATE_FILE, list_stock
from moebox.tasks.result import READING, HiddenCheck, JobDraft, Level

ERRAND_SIZES: Sizes = {"easy": (3, 1), "medium": (20, 3), "hard": (60, 8)}  # keys, files


def make_errand(rng: random.Random, level: Level) -> JobDraft:
    """Look, read, write a value to a file. The easiest family, which a very small model can learn.

    Files with `key = value` lines, one or several of a folder; one value is wanted in a file of its own.
    """
    count, file_count = ERRAND_SIZES[level]
    keys = rng.sample(material.THINGS, count)
    title = f"{rng.choice(material.PLACES)}_{rng.randint(100, 999)}"
    values = {key: rng.randint(100, 999) for key in keys}
    return errand_draft(title, values, rng.choice(keys), file_count)


def errand_draft(title: str, values: Mapping[str, object], wanted: str, file_count: int) -> JobDraft:
    """The errand for these keys and values, in one file or in several of a folder; training draws its own."""
    files: dict[str, str] = {}
    for number, (key, value) in enumerate(values.items()):
        path = f"{title}.txt" if file_count == 1 else f"{title}/part_{number % file_count}.txt"
        files[path] = files.get(path, "") + f"{key} = {value}\n"
    where = f"`{title}.txt`" if file_count == 1 else f"the folder `{title}`"
    return JobDraft(
        instruction=material.instruction("errand", wanted=wanted, where=where),
        files=files,
        solution={"value.txt": f"{values[wanted]}\n"},
        protected=tuple(files),
        checks=(HiddenCheck(name="value", snippets=("result = open('value.txt').read().strip()",)),),
        tools=(*READING, "write_file"),
        turns=12,
    )


QUESTION_SIZES: Sizes = {"easy": (4, 1), "medium": (12, 3), "hard": (40, 6)}  # modules, settings layers


def make_question(rng: random.Random, level: Level) -> JobDraft:
    """What does this code base do? Answered by reading and searching, as exact values in a file.

    Modules that call each other and settings that override each other; three questions about them.
    """
    package = material.draw_package_name(rng)
    count, layers = QUESTION_SIZES[level]
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


ROWS: dict[Level, int] = {"easy": 20, "medium": 120, "hard": 600}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Order = tuple[str, str, str, str]  # id, date, item, price


def make_clean(rng: random.Random, level: Level) -> JobDraft:
    """A messy table, and rules that make it usable.

    A table of orders made messy; the clean table is known because it was there first.
    """
    file = f"{rng.choice(material.PLACES)}_{rng.randint(100, 999)}.csv"
    goods = rng.sample(material.THINGS, 5)
    limit = rng.randint(300, 700)
    messy, clean = _draw_tables(rng, level, goods, limit)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("id", "date", "item", "price"), *sorted(clean)])
    read = "import csv\nrows = list(csv.reader(open('clean.csv', newline='')))\n"
    snippets = [f"{read}result = rows[0]", f"{read}result = len(rows)"]
    snippets += [f"{read}result = rows[1:][{number}::7]" for number in range(7)]
    return JobDraft(
        instruction=material.instruction("clean", file=file, limit=limit),
        files={file: "id;date;item;price\n" + "".join(";".join(row) + "\n" for row in messy)},
        solution={"clean.csv": out.getvalue()},
        protected=(file,),
        checks=(HiddenCheck(name="rows", snippets=tuple(snippets)),),
    )


def _draw_tables(rng: random.Random, level: Level, goods: list[str], limit: int) -> tuple[list[Order], list[Order]]:
    """The messy and the clean table; some messy rows have no price, too high a price, or a double."""
    clean: list[Order] = []
    messy: list[Order] = []

    def pad(text: str) -> str:
        return rng.choice((text, f" {text}", f"{text}  "))

    for number in range(ROWS[level]):
        key = f"A{1000 + number}"
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2026)
        thing, cents = rng.choice(goods), rng.randint(100, limit * 100)
        date, price = f"{year}-{month:02}-{day:02}", f"{cents / 100:.2f}"
        fate = rng.random() if level != "easy" else 0.5 + rng.random() / 2
        if fate < 0.06:
            messy.append((key, date, thing, ""))
            continue
        if fate < 0.12:
            messy.append((key, date, thing, f"{limit + 1 + cents / 100:.2f}"))
            continue
        clean.append((key, date, thing, price))
        padded_key = pad(key)
        dates = (date, f"{day:02}.{month:02}.{year}", f"{day} {MONTHS[month - 1]} {year}")
        padded_date = pad(rng.choice(dates))
        padded_thing = pad(rng.choice((thing, thing.upper(), thing.title())))
        prices = (price, price.replace(".", ","), f"{price.removesuffix('0')} EUR", f"${price}")
        messy.append((padded_key, padded_date, padded_thing, rng.choice(prices)))
        if fate > 0.94:
            messy.append((key, date, thing, f"{cents / 200:.2f}"))
    return messy, clean


STEPS: dict[Level, int] = {"easy": 8, "medium": 16, "hard": 32}  # two calls each: read, edit


def make_plan(rng: random.Random, level: Level) -> JobDraft:
    """Many small edits in an order that shows only step by step, under rules given once at the start.

    A chain of note files: each names the next, and must be filled in from the one before.
    """
    steps = STEPS[level]
    house = f"{rng.choice(material.PLACES)}_{rng.randint(100, 999)}"
    rooms = [f"{colour}_{thing}" for colour in material.COLOURS for thing in material.THINGS[:8]]
    chain = rng.sample(rooms, steps + 4)
    path, spare = chain[:steps], chain[steps:]
    numbers = [rng.randint(10, 99) for _ in path]
    every = rng.randint(3, 5)
    files: dict[str, str] = {}
    solution: dict[str, str] = {}
    total = 0
    for visited, (room, number, following) in enumerate(zip(path, numbers, [*path[1:], "none"], strict=True), 1):
        sealed = rng.random() < 0.2
        text = _room_note(room, number, following, sealed=sealed)
        files[f"{house}/{room}.txt"] = f"{text}total: ?\n"
        total += 0 if sealed else number
        mark = f"visited: {visited}\n" if visited % every == 0 else ""
        solution[f"{house}/{room}.txt"] = f"{text}total: {total}\n{mark}"
    solution["done.txt"] = f"{total}\n"
    for room in spare:
        note = _room_note(room, rng.randint(10, 99), path[0], sealed=False)
        files[f"{house}/{room}.txt"] = f"{note}total: ?\n"
    snippets = tuple(f"result = open({name!r}).read().split()" for name in (*sorted(files), "done.txt"))
    return JobDraft(
        instruction=material.instruction("plan", house=house, first=path[0], every=every, twice=2 * every),
        files=files,
        solution=solution,
        tools=("list_files", "read_file", "edit_file", "write_file"),
        turns=4 * steps + 10,
        checks=(HiddenCheck(name="rooms", snippets=snippets),),
    )


def _room_note(room: str, number: int, following: str, *, sealed: bool) -> str:
    return f"room: {room}\nnumber: {number}\nsealed: {'yes' if sealed else 'no'}\nnext: {following}\n"


GADGET_SIZES: Sizes = {"easy": (3, 2), "medium": (5, 6), "hard": (8, 14)}  # shelves, moves wanted


def make_gadget(rng: random.Random, level: Level) -> JobDraft:
    """An unknown tool, whose use is explained in the system prompt alone.

    A store with shelves; goods must be moved until the store is as described.
    """
    count, moves = GADGET_SIZES[level]
    shelves = [f"{row}{number}" for row in "ABC" for number in range(1, 4)][:count]
    goods = rng.sample(material.THINGS, count)
    store = {shelf: {thing: rng.randint(6, 30)} for shelf, thing in zip(shelves, goods, strict=True)}
    wanted = {shelf: dict(held) for shelf, held in store.items()}
    for _ in range(moves):  # some pieces of something go from one shelf to another
        source = rng.choice([shelf for shelf, held in wanted.items() if held])
        thing = rng.choice(sorted(wanted[source]))
        target = rng.choice([shelf for shelf in wanted if shelf != source])
        amount = rng.randint(1, min(5, wanted[source][thing]))
        wanted[source][thing] -= amount
        wanted[target][thing] = wanted[target].get(thing, 0) + amount
        if not wanted[source][thing]:
            del wanted[source][thing]
    listed = "\n".join(f"- {shelf}: {list_stock(wanted[shelf])}" for shelf in shelves)
    snippets = tuple(f"import json\nresult = json.load(open({STATE_FILE!r}))[{shelf!r}]" for shelf in shelves)
    return JobDraft(
        instruction=material.instruction("gadget", wanted=listed),
        files={},
        solution={STATE_FILE: json.dumps(wanted, sort_keys=True)},
        tools=("gadget",),
        gadget=json.dumps(store),
        turns=6 * moves + 12,
        system=material.instruction("gadget_system"),
        checks=(HiddenCheck(name="store", snippets=snippets),),
    )


# Requested functions. One is about 45 tokens with known tokenizers, so 240 are more than 8,000.
COUNTS: dict[Level, int] = {"easy": 240, "medium": 300, "hard": 360}
PER_SNIPPET = 20


def make_long_reply(rng: random.Random, level: Level) -> JobDraft:
    """One reply of more than 8,000 tokens that must run, without tools.

    A table of conversions, to be written out as one function each.
    """
    pairs = [(colour, thing) for colour in material.COLOURS for thing in material.THINGS]
    names, rows, code = [], [], ["LOG = []\n"]
    for colour, thing in rng.sample(pairs, COUNTS[level]):
        name = f"{colour}_{thing}"
        factor, offset, floor = rng.randint(2, 9), rng.randint(-50, 50), rng.randint(-20, 20)
        names.append(name)
        rows.append(f"{name} | {factor} | {offset} | {floor}")
        code.append(
            f'\ndef {name}(amount):\n    """Convert to {thing}, {colour}."""\n'
            f"    value = amount * {factor} + {offset}\n"
            f"    if value < {floor}:\n        value = {floor}\n    return value\n"
        )
    groups = [names[start : start + PER_SNIPPET] for start in range(0, len(names), PER_SNIPPET)]
    calls = "result = [[getattr(reply, n)(a) for a in (-9, 0, 13)] for n in"
    defined = "result = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]"
    parse = "import ast\ntree = ast.parse(open('reply.py').read())\n"
    return JobDraft(
        instruction=material.instruction("long_reply", count=len(rows), rows="\n".join(rows)),
        files={},
        solution={"reply.py": "\n".join(code)},
        tools=(),
        turns=1,
        reply_tokens=40_000,
        reply_file="reply.py",
        checks=(
            HiddenCheck(name="functions", snippets=tuple(f"import reply\n{calls} {group!r}]" for group in groups)),
            HiddenCheck(name="written out", snippets=(parse + defined,)),
        ),
    )
