"""long-reply: one reply of more than 8,000 tokens that must run. No tools: the model holds its thread alone."""

import random

from moebox.tasks.families import names
from moebox.tasks.job import HiddenCheck, JobDraft, Level

# Functions asked for. One is about 45 tokens in the tokenizers at hand, so 240 are more than 8,000.
COUNTS: dict[Level, int] = {"easy": 240, "medium": 300, "hard": 360}
AT_ONCE = 20


def make(rng: random.Random, level: Level) -> JobDraft:
    """A table of conversions, to be written out as one function each."""
    pairs = [(a, b) for a in names.COLOURS for b in names.THINGS]
    rows, code = [], ["LOG = []\n"]
    for colour, thing in rng.sample(pairs, COUNTS[level]):
        name = f"{colour}_{thing}"
        factor, offset, floor = rng.randint(2, 9), rng.randint(-50, 50), rng.randint(-20, 20)
        rows.append(f"{name} | {factor} | {offset} | {floor}")
        code.append(
            f'\ndef {name}(amount):\n    """Convert to {thing}, {colour}."""\n'
            f"    value = amount * {factor} + {offset}\n"
            f"    if value < {floor}:\n        value = {floor}\n    return value\n"
        )
    called = [row.partition(" |")[0] for row in rows]
    groups = [called[start : start + AT_ONCE] for start in range(0, len(called), AT_ONCE)]
    return JobDraft(
        instruction=(
            f"Write one Python module with {len(rows)} functions, one for each row below, in this order and all of "
            "them written out by hand: no loops that make functions, no tables, no abbreviation, nothing left out. "
            "Each function takes `amount`, has a docstring, multiplies by the factor, adds the offset and returns the "
            "result, but never less than the floor. Reply with the module in one ```python block and nothing else.\n\n"
            "name | factor | offset | floor\n" + "\n".join(rows)
        ),
        files={},
        solution={"reply.py": "\n".join(code)},
        tools=(),
        turns=1,
        reply_tokens=40_000,
        reply_file="reply.py",
        checks=(
            HiddenCheck(
                name="functions",
                snippets=tuple(
                    f"import reply\nresult = [[getattr(reply, n)(a) for a in (-9, 0, 13)] for n in {group!r}]"
                    for group in groups
                ),
            ),
            HiddenCheck(
                name="written out",
                snippets=(
                    "import ast\ntree = ast.parse(open('reply.py').read())\n"
                    "result = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]",
                ),
            ),
        ),
    )
