"""clean: a table as people hand it over, and rules that make it usable."""

import csv
import io
import random

from moebox.tasks.families import names
from moebox.tasks.job import HiddenCheck, JobDraft, Level

ROWS: dict[Level, int] = {"easy": 20, "medium": 120, "hard": 600}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


Order = tuple[str, str, str, str]  # id, date, item, price


def _tables(rng: random.Random, level: Level, goods: list[str], limit: int) -> tuple[list[Order], list[Order]]:
    """Orders as they are handed over, and as they should be: some have no price, too high a price, or come twice."""
    clean: list[Order] = []
    dirty: list[Order] = []
    for number in range(ROWS[level]):
        key = f"A{1000 + number}"
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2026)
        thing, cents = rng.choice(goods), rng.randint(100, limit * 100)
        good = (key, f"{year}-{month:02}-{day:02}", thing, f"{cents / 100:.2f}")
        fate = rng.random() if level != "easy" else 0.5 + rng.random() / 2
        if fate < 0.06:
            dirty.append((key, good[1], thing, ""))
            continue
        if fate < 0.12:
            dirty.append((key, good[1], thing, f"{limit + 1 + cents / 100:.2f}"))
            continue
        clean.append(good)
        dirty.append((_blank(rng, key), _date(rng, day, month, year), _case(rng, thing), _price(rng, cents)))
        if fate > 0.94:
            dirty.append((key, good[1], thing, f"{cents / 200:.2f}"))
    return dirty, clean


def make(rng: random.Random, level: Level) -> JobDraft:
    """Rows of orders, dirtied; the clean table is known because it was there first."""
    raw_name = f"{rng.choice(names.PLACES)}_{rng.randint(100, 999)}.csv"
    goods = names.sample_words(rng, names.THINGS, 5)
    limit = rng.randint(300, 700)
    dirty, clean = _tables(rng, level, goods, limit)
    raw = "id;date;item;price\n" + "".join(";".join(row) + "\n" for row in dirty)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("id", "date", "item", "price"), *sorted(clean)])
    return JobDraft(
        instruction=(
            f"Clean `{raw_name}` (separated by semicolons, first line the names) into `clean.csv` (by commas, "
            "the same names in the first line):\n\n"
            "- blanks around values go, items in lower case\n"
            "- dates (`2024-03-09`, `09.03.2024` day first, `9 Mar 2024`) become `2024-03-09`\n"
            "- prices (`12.50`, `12,50`, `12.5 EUR`, `$12.50`) become numbers with two decimals and a point\n"
            f"- rows without a price, and rows whose price is above {limit}, are left out\n"
            "- of rows with the same id the first that is not left out stays\n"
            "- rows are sorted by id\n\n"
            f"A script is the sensible way; `run_python` runs one. `{raw_name}` must stay as it is. Then say done."
        ),
        files={raw_name: raw},
        solution={"clean.csv": out.getvalue()},
        protected=(raw_name,),
        checks=(
            HiddenCheck(
                name="rows",
                snippets=(
                    "import csv\nrows = list(csv.reader(open('clean.csv', newline='')))\nresult = rows[0]",
                    "import csv\nresult = len(list(csv.reader(open('clean.csv', newline=''))))",
                    *(
                        f"import csv\nrows = list(csv.reader(open('clean.csv', newline='')))\nresult = rows[1:][{n}::7]"
                        for n in range(7)
                    ),
                ),
            ),
        ),
    )


def _blank(rng: random.Random, text: str) -> str:
    return rng.choice((text, f" {text}", f"{text}  "))


def _date(rng: random.Random, day: int, month: int, year: int) -> str:
    forms = (f"{year}-{month:02}-{day:02}", f"{day:02}.{month:02}.{year}", f"{day} {MONTHS[month - 1]} {year}")
    return _blank(rng, rng.choice(forms))


def _case(rng: random.Random, text: str) -> str:
    return _blank(rng, rng.choice((text, text.upper(), text.title())))


def _price(rng: random.Random, cents: int) -> str:
    text = f"{cents / 100:.2f}"
    return rng.choice((text, text.replace(".", ","), f"{text.removesuffix('0')} EUR", f"${text}"))
