"""long-reply: one reply of more than 8,000 tokens that must run, without tools."""

import random

from moebox.tasks.families import material
from moebox.tasks.job import HiddenCheck, JobDraft, Level

# Requested functions. One is about 45 tokens with known tokenizers, so 240 are more than 8,000.
COUNTS: dict[Level, int] = {"easy": 240, "medium": 300, "hard": 360}
PER_SNIPPET = 20


def make_draft(rng: random.Random, level: Level) -> JobDraft:
    """A table of conversions, to be written out as one function each."""
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
