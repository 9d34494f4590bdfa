"""Small modules with known behaviour, and ways to break each: what packages to repair and to refactor are made of.

A part's text has constants in it ({a}, {b}) that are drawn for each job, so no answer can be known by heart.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePart:
    """One module."""

    name: str
    source: str
    bugs: tuple[tuple[str, str], ...]  # right, wrong: each changes what a check sees
    checks: tuple[str, ...]  # expressions on the module `m`; the first two are shown to the agent as tests
    about: str


def draw_parts(rng: random.Random, count: int) -> list[ModulePart]:
    """So many different parts, their constants filled in."""
    chosen = rng.sample(PARTS, count)
    return [_filled(part, rng.randint(2, 9), rng.randint(11, 29)) for part in chosen]


def _filled(part: ModulePart, a: int, b: int) -> ModulePart:
    def fill(text: str) -> str:
        return text.replace("{a}", str(a)).replace("{b}", str(b))

    return ModulePart(
        name=part.name,
        source=fill(part.source),
        bugs=tuple((fill(right), fill(wrong)) for right, wrong in part.bugs),
        checks=tuple(map(fill, part.checks)),
        about=fill(part.about),
    )


PARTS = (
    ModulePart(
        name="spans",
        about="merges spans of time that overlap or lie no more than {a} apart",
        source='''"""Spans of time, as (start, end)."""

GAP = {a}


def merge(spans):
    """Spans in order, joined where they overlap or lie no more than GAP apart."""
    merged = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] <= GAP:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def covered(spans):
    """How long at least one span lasts."""
    return sum(end - start for start, end in merge(spans))
''',
        bugs=(
            ("max(merged[-1][1], end)", "end"),
            ("start - merged[-1][1] <= GAP", "start - merged[-1][1] < GAP"),
            ("sorted(spans)", "spans"),
        ),
        checks=(
            "m.merge([(50, 60), (0, 20), (5, 10)])",
            "m.merge([(0, 10), (10 + {a}, 40)])",
            "m.covered([(0, {b}), (2, 4), (100, 101)])",
            "m.merge([])",
            "m.covered([(9, 12), (3, 5), (100, 140), (110, 120)])",
            "m.merge([(0, 10), (11 + {a}, 12 + {a})])",
        ),
    ),
    ModulePart(
        name="wrapping",
        about="breaks text into lines of at most {b} characters",
        source='''"""Text in lines."""

WIDTH = {b}


def wrap(text):
    """Lines of at most WIDTH characters, broken between words; a longer word has a line of its own."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and len(longer) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = longer
    if line:
        lines.append(line)
    return lines


def justify(line):
    """A line padded on the left to WIDTH."""
    return line.rjust(WIDTH)
''',
        bugs=(
            ("len(longer) > WIDTH", "len(longer) >= WIDTH"),
            ("    if line:\n        lines.append(line)\n    return", "    return"),
            ("line.rjust(WIDTH)", "line.ljust(WIDTH)"),
            ("            line = word\n", "            line = longer\n"),
        ),
        checks=(
            "m.wrap('x' * ({b} - 2) + ' y ' + 'z' * {b})",
            "m.justify('end')",
            "m.wrap('one two three four five six seven eight nine ten eleven twelve')",
            "m.wrap('')",
            "m.wrap('a' * 40 + ' b')",
            "[len(line) for line in m.wrap('word ' * 30)]",
        ),
    ),
    ModulePart(
        name="account",
        about="keeps an account that takes a fee of {a} for each withdrawal",
        source='''"""An account with a fee."""

FEE = {a}
FLOOR = -{b}


class Account:
    """Money, and what happened to it."""

    def __init__(self, balance=0):
        self.balance = balance
        self.events = []

    def deposit(self, amount):
        """Put money in; ValueError for nothing or less."""
        if amount <= 0:
            raise ValueError("amount")
        self.balance += amount
        self.events.append(("in", amount))

    def withdraw(self, amount):
        """Take money out, with the fee on top; False where that would go below FLOOR."""
        if self.balance - amount - FEE < FLOOR:
            return False
        self.balance -= amount + FEE
        self.events.append(("out", amount))
        return True

    def statement(self):
        """Events, newest first, and the balance."""
        return {"events": self.events[::-1], "balance": self.balance}
''',
        bugs=(
            ("self.balance -= amount + FEE", "self.balance -= amount"),
            ("- FEE < FLOOR", "- FEE <= FLOOR"),
            ("self.events[::-1]", "self.events"),
            ("if amount <= 0:", "if amount < 0:"),
        ),
        checks=(
            "(lambda x: [x.withdraw(10), x.statement()])(m.Account(100))",
            "(lambda x: [x.withdraw({b} - {a}), x.balance])(m.Account())",
            "(lambda x: [x.deposit(5), x.withdraw(1), x.deposit(2), x.statement()])(m.Account(50))",
            "(lambda x: [x.withdraw({b} - {a} + 1), x.balance])(m.Account())",
            "(lambda x: x.statement())(m.Account(3))",
            "m.raised(ValueError, lambda: m.Account().deposit(0))",
        ),
    ),
    ModulePart(
        name="ranks",
        about="ranks scores, with equal ranks for equal scores, and keeps the best {a}",
        source='''"""Scores in order."""

KEEP = {a}


def ranked(scores):
    """(rank, name, score), best first; equal scores share a rank and the next one is counted on."""
    order = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    rows = []
    for place, (name, score) in enumerate(order, 1):
        rank = rows[-1][0] if rows and rows[-1][2] == score else place
        rows.append((rank, name, score))
    return rows


def best(scores):
    """Names of the first KEEP places."""
    return [name for _, name, _ in ranked(scores)[:KEEP]]
''',
        bugs=(
            ("enumerate(order, 1)", "enumerate(order)"),
            ("(-item[1], item[0])", "(-item[1], )"),
            ("rows[-1][2] == score else place", "rows[-1][2] == score else len(set(r[0] for r in rows)) + 1"),
            ("ranked(scores)[:KEEP]", "ranked(scores)[: KEEP - 1]"),
        ),
        checks=(
            "m.ranked({'zoe': 5, 'abe': 5, 'kim': 9, 'lee': 1})",
            "m.best({chr(97 + n): n * 7 % 11 for n in range(20)})",
            "m.ranked({'b': 4, 'a': 4, 'c': 4, 'd': 2})",
            "m.ranked({})",
            "m.best({'x': 1})",
            "[row[0] for row in m.ranked({str(n): n // 3 for n in range(12)})]",
        ),
    ),
    ModulePart(
        name="codes",
        about="writes numbers as codes with a check digit modulo {b}",
        source='''"""Numbers as codes that catch a slip of the pen."""

MODULUS = {b}
DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def check_digit(number):
    """The digit that guards a number."""
    total = 0
    for place, digit in enumerate(reversed(str(number)), 1):
        total += place * int(digit)
    return DIGITS[total % MODULUS]


def encode(number):
    """The number with its check digit."""
    return f"{number}-{check_digit(number)}"


def decode(code):
    """The number of a code, or None where the check digit is wrong."""
    text, _, digit = code.rpartition("-")
    if not text.isdigit() or check_digit(int(text)) != digit:
        return None
    return int(text)
''',
        bugs=(
            ("enumerate(reversed(str(number)), 1)", "enumerate(reversed(str(number)))"),
            ("reversed(str(number))", "str(number)"),
            ("code.rpartition", "code.partition"),
            ("        return None\n", "        return 0\n"),
        ),
        checks=(
            "[m.encode(n) for n in (1, 72, 9043)]",
            "[m.decode(m.encode(512)), m.decode('512-?')]",
            "[m.encode(n) for n in range(90, 130)]",
            "m.decode('-7-1')",
            "[m.decode(m.encode(n)) for n in (0, 5, 81001)]",
            "m.decode('x')",
        ),
    ),
    ModulePart(
        name="queueing",
        about="hands out work by priority, oldest first, and gives up after {a} tries",
        source='''"""Work in order of urgency."""

import heapq

TRIES = {a}


class Queue:
    """Higher priority first; among equals the older first."""

    def __init__(self):
        self._heap = []
        self._count = 0
        self._tries = {}

    def put(self, name, priority=0):
        """Add work."""
        heapq.heappush(self._heap, (-priority, self._count, name))
        self._count += 1

    def take(self):
        """The next piece of work, or None."""
        return heapq.heappop(self._heap)[2] if self._heap else None

    def failed(self, name, priority=0):
        """Put work back, unless it has failed TRIES times; True where it will be tried again."""
        self._tries[name] = self._tries.get(name, 0) + 1
        if self._tries[name] >= TRIES:
            return False
        self.put(name, priority)
        return True
''',
        bugs=(
            ("(-priority, self._count, name)", "(priority, self._count, name)"),
            ("(-priority, self._count, name)", "(-priority, -self._count, name)"),
            ("self._tries[name] >= TRIES", "self._tries[name] > TRIES"),
            ("self._tries.get(name, 0) + 1", "1"),
        ),
        checks=(
            "(lambda q: [q.put('a'), q.put('b', 5), q.put('c', 5), q.take(), q.take(), q.take(), q.take()])(m.Queue())",
            "(lambda q: [q.failed('x') for _ in range({a} + 1)])(m.Queue())",
            "(lambda q: [q.put(n, p) or n for n, p in (('k', 1), ('l', 9), ('m', 1))] + [q.take() for _ in 'abc'])"
            "(m.Queue())",
            "(lambda q: [q.failed('x', 2), q.put('y', 1), q.take(), q.take()])(m.Queue())",
            "m.Queue().take()",
            "(lambda q: [q.failed('x'), q.failed('y'), q.take(), q.take()])(m.Queue())",
        ),
    ),
)
