"""The house in numbers: size, complexity and joints of src/moebox, for tests/test_house.py and for people.

python scripts/house.py            # the figures
python scripts/house.py --worst 20 # and the functions with the most branches
"""

import argparse
import ast
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "moebox"
LONG = 15  # lines from which a function counts as long
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function with its cyclomatic complexity: one, and one more for each branch and each `and` or `or`."""

    place: str
    lines: int
    complexity: int


def functions(path: Path) -> Iterator[Function]:
    """Every function of a file; what is nested in one counts for itself alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, FUNCTIONS):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            place = f"{path.relative_to(SOURCES)}:{node.lineno} {node.name}"
            yield Function(place=place, lines=lines, complexity=1 + sum(map(_branches, _own(node))))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS | ast.Lambda):
            continue
        yield child
        yield from _own(child)


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return 1 if isinstance(node, BRANCHES) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What is counted."""

    files: int
    lines: int
    longest_file: int
    mean_complexity: float
    median_of_long: float
    untyped: int  # dict[str, Any]
    engine_names: tuple[str, ...]  # literals of an engine's name outside engines/


def engine_literals(names: tuple[str, ...]) -> tuple[str, ...]:
    """Places outside engines/ where a string is an engine's name and nothing else."""
    wanted = re.compile("|".join(f'"{re.escape(name)}"' for name in names))
    places = []
    for path in sorted(SOURCES.rglob("*.py")):
        if SOURCES / "engines" in path.parents:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            places += [f"{path.relative_to(SOURCES)}:{number}" for _ in wanted.findall(line)]
    return tuple(places)


def measure(names: tuple[str, ...]) -> House:
    """The figures of src/moebox; `names` are the engines."""
    paths = sorted(SOURCES.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    counted = [function for path in paths for function in functions(path)]
    return House(
        files=len(paths),
        lines=sum(text.count("\n") for text in texts),
        longest_file=max(text.count("\n") for text in texts),
        mean_complexity=statistics.mean(function.complexity for function in counted),
        median_of_long=statistics.median(function.complexity for function in counted if function.lines > LONG),
        untyped=sum(len(re.findall(r"dict\[str, Any\]", text)) for text in texts),
        engine_names=engine_literals(names),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="the N functions with the most branches")
    worst = parser.parse_args().worst
    house = measure(("vllm", "sglang", "llama.cpp", "ik_llama.cpp", "ktransformers"))
    print(f"{house.files} files, {house.lines:,} lines, the longest {house.longest_file}")
    print(
        f"complexity: mean {house.mean_complexity:.2f}, median of functions over {LONG} lines {house.median_of_long:g}"
    )
    print(f"dict[str, Any]: {house.untyped}; an engine's name outside engines/: {len(house.engine_names)}")
    counted = [function for path in SOURCES.rglob("*.py") for function in functions(path)]
    for function in sorted(counted, key=lambda each: -each.complexity)[:worst]:
        print(f"{function.complexity:4} in {function.lines:3} lines  {function.place}")


if __name__ == "__main__":
    main()
