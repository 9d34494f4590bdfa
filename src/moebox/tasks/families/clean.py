"""clean: a messy table, and rules that make it usable."""

import csv
import io
import random

from moebox.tasks.families import material
from moebox.tasks.job import HiddenCheck, JobDraft, Level

ROWS: dict[Level, int] = {"easy": 20, "medium": 120, "hard": 600}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Order = tuple[str, str, str, str]  # id, date, item, price


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """A table of orders made messy; the clean table is known because it was there first."""
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
