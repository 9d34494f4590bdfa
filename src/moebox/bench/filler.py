"""Plain words to write prompts from, and code-like text made of them: the same everywhere, so seeds mean the same."""

import functools
import random

from moebox.data import FOLDER


@functools.cache
def common_words() -> tuple[str, ...]:
    """Short lower-case English words: most tokenizers have each as one token when a space stands before it."""
    return tuple((FOLDER / "words.txt").read_text(encoding="utf-8").split())


def fake_code(seed: str, words: int) -> str:
    """About `words` words of something that reads like a Python module: repetitive, as code is."""
    draw = random.Random(seed)
    lines = ["from dataclasses import dataclass", "", ""]
    count = 3
    while count < words:
        block = _fake_function(draw) if draw.random() < 0.6 else _fake_dataclass(draw)
        lines += block
        count += sum(len(line.split()) for line in block)
    return "\n".join(lines)


def _fake_function(draw: random.Random) -> list[str]:
    verb, noun, item, other = (draw.choice(common_words()) for _ in range(4))
    return [
        f"def {verb}_{noun}({item}s: list[int], *, {other}: int = {draw.randrange(100)}) -> dict[str, int]:",
        f'    """Return each {noun} of the {item}s with its {other}."""',
        "    result: dict[str, int] = {}",
        f"    for index, {item} in enumerate({item}s):",
        f"        if {item} > {other}:",
        f"            result[f'{noun}_{{index}}'] = {item} * {draw.randrange(2, 9)} + {other}",
        f"    return result if result else {{'{noun}': {other}}}",
        "",
        "",
    ]


def _fake_dataclass(draw: random.Random) -> list[str]:
    name, *fields = (draw.choice(common_words()) for _ in range(5))
    lines = ["@dataclass(frozen=True)", f"class {name.title()}:"]
    lines += [f"    {field}: {draw.choice(['int', 'str', 'float', 'bool'])}" for field in dict.fromkeys(fields)]
    return [*lines, "", ""]
