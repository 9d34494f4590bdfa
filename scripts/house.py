"""Count what a reader of src/moebox feels: names, sizes, joints, words. tests/test_house.py sets the limits.

python scripts/house.py                     # the whole package
python scripts/house.py planner             # one package
python scripts/house.py planner --list      # and the places behind each figure
python scripts/house.py --of moebox_fleet   # a plug-in
"""

import argparse
import ast
import contextlib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "moebox"
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Nodes without a branch of the function itself; most of all nodes
SKIPPED: tuple[type[ast.AST], ...] = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.boolop)
SKIPPED += (ast.unaryop, *FUNCTIONS, ast.Lambda)
SHORT = 6  # lines of a body-and-signature that a helper used once does not deserve

# Words that the field does not use, or uses for something else. Looked for in identifiers (split at _ and capitals),
# strings, comments and docstrings. The second list says where such a word is right.
FORBIDDEN = (
    r"mend(s|ed|ing)?|caution(s|ed|ary)?|troubles?|troubled|tells?|telling|told|sa(y|ys|id|ying)|hear(s|d|ing)?"
    r"|slip(s|ped)?|habits?|whoever|somebody|nobody|strangers?|persons?|ladders?|rungs?|wakes?|woken|weigh(s|ed|ing)?"
    r"|guess(es|ed|ing)?|claim(s|ed|ing)?|cards?|pinned|pins?"
)
ALLOWED = {
    # (file or *, word): reason
    ("*", "rungs"): "key of verify's stored results",
    ("*", "slips"): "key of a check's failures in `verify --json`, which other programs read",
    ("core/event.py", "rung"): "name of a journal event that old runs have",
    ("core/engine_event.py", "mended"): "key in journals of old runs",
    ("core/engine_event.py", "heard"): "key in journals of old runs",
    ("serve/node_checks.py", "heard"): "the same key, sent by a node",
    ("runs/reader.py", "caution"): "key in results of old runs",
    ("runs/reader.py", "habits"): "key in results of old runs",
    ("tasks/result.py", "said"): "key of a stored task result",
    ("tasks/agent.py", "said"): "the same key",
    ("engines/vllm/traits.py", "wake"): "a route of vLLM",
    ("doctor/box.py", "pinned"): "pinned memory, CUDA's word",
    ("engines/ggml/engine.py", "pinned"): "part of a variable of ggml",
    ("doctor/rank_program.py", "pin"): "an argument of torch",
    ("render/cluster.py", "claim"): "PersistentVolumeClaim, Kubernetes' word",
    ("hub/fetch.py", "tell"): "a method of Python's files",
    ("up.py", "say"): "a prompt: Say hello.",
    ("serve/connect.py", "say"): "a prompt: Say hello.",
    ("serve/facts.py", "say"): "a prompt: Say hello.",
}
PARTICIPLES = re.compile(
    r"^(?!(?:need|feed|seed|speed|embed|shed|bleed|red|exceed|proceed|bed)$)\w+ed$|^(told|said|heard|seen|known|shown|given|taken"
    r"|made|kept|held|left|lost|found|sent|built|read_?|written|drawn|worn|begun|done|gone|set_?|put|cut|met|got|run_"
    r"|understood|thought|brought|meant|spent|spread|split_|told|torn|worth|woken|spoken|broken|chosen|driven|fallen)$"
)


@dataclass(slots=True)
class Figures:
    """What is counted in one package or in all of them."""

    files: int = 0
    lines: int = 0
    functions: list[tuple[str, int, int]] = field(default_factory=list)  # place, lines, complexity
    one_word: list[str] = field(default_factory=list)
    participles: list[str] = field(default_factory=list)
    used_once: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    long_files: list[str] = field(default_factory=list)
    tiny_files: list[str] = field(default_factory=list)
    untyped: int = 0  # dict[str, Any]
    classes: Counter[str] = field(default_factory=Counter)

    @property
    def per_thousand(self) -> float:
        """Functions per 1,000 lines."""
        return 1000 * len(self.functions) / max(self.lines, 1)

    @property
    def branches(self) -> int:
        """All branches, which do not change if a function is cut up or inlined."""
        return sum(complexity - 1 for _, _, complexity in self.functions)


def complexity(node: ast.AST) -> int:
    """Cyclomatic complexity of a function, without the functions nested in it."""
    total = 1
    stack = list(ast.iter_child_nodes(node))
    while stack:
        child = stack.pop()
        if isinstance(child, SKIPPED):
            continue
        if isinstance(child, ast.BoolOp):
            total += len(child.values) - 1
        elif isinstance(child, ast.comprehension):
            total += 1 + len(child.ifs)
        elif isinstance(child, BRANCHES):
            total += 1
        stack += ast.iter_child_nodes(child)
    return total


def words(text: str) -> Iterator[tuple[int, str]]:
    """Words of the lines that may have a forbidden one: identifiers in their parts, strings and comments."""
    rough = re.compile(FORBIDDEN)
    for number, line in enumerate(text.split("\n"), 1):
        if rough.search(line.lower()):
            yield from ((number, part.lower()) for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", line))


def engine_literals(names: Sequence[str]) -> list[str]:
    """Places outside engines/ where a string is an engine's name and nothing else."""
    wanted = re.compile("|".join(f'"{re.escape(name)}"' for name in names))
    places = []
    for path in sorted(SOURCES.rglob("*.py")):
        if SOURCES / "engines" not in path.parents:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                places += [f"{path.relative_to(SOURCES)}:{number}" for _ in wanted.findall(line)]
    return places


def measure(package: str = "", *, of: str = "moebox") -> Figures:
    """Count one package (a folder or a file below src/moebox or a plug-in), or all of it."""
    found = Figures()
    forbidden = re.compile(FORBIDDEN)
    sources = ROOT / "src" / of
    start = sources / package
    for path in [start] if start.is_file() else sorted(start.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = str(path.relative_to(sources))
        count = text.count("\n")
        uses = Counter(re.findall(r"\w+", text))
        found.files += 1
        found.lines += count
        found.untyped += len(re.findall(r"dict\[str, Any\]", text))
        if count > 400:
            found.long_files.append(f"{name} {count}")
        if count < 30 and path.name not in ("__init__.py", "__main__.py"):
            found.tiny_files.append(f"{name} {count}")
        nodes: list[ast.AST] = [ast.parse(text)]
        for node in nodes:
            # No expression has a definition in it
            nodes += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
            if isinstance(node, ast.ClassDef):
                found.classes[node.name] += 1
            if not isinstance(node, FUNCTIONS) or node.name.startswith("__"):
                continue
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            place = f"{name}:{node.lineno} {node.name}"
            found.functions.append((place, size, complexity(node)))
            bare = node.name.strip("_")
            if "_" not in bare:
                found.one_word.append(place)
            if "_" not in bare and PARTICIPLES.match(bare):
                found.participles.append(place)
            if node.name.startswith("_") and size <= SHORT + 1 and uses[node.name] == 2:
                found.used_once.append(place)
        for number, word in words(text):
            if forbidden.fullmatch(word) and (name, word) not in ALLOWED and ("*", word) not in ALLOWED:
                found.forbidden.append(f"{name}:{number} {word}")
    return found


def count_hops(recipe: str = "kimi-k26-vllm") -> tuple[int, int]:
    """Count the modules that get the recipe or its deployment in `moebox up --dry-run`, and the moves between them."""
    from moebox.cli.up import up
    from moebox.core.deployment import Deployment
    from moebox.core.recipe import Recipe

    modules: list[str] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "/moebox/" in code.co_filename:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), Recipe | Deployment) for name in names):
                modules.append(code.co_filename)

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sys.setprofile(watch)
        try:
            up(recipe, dry_run=True, force=True)
        finally:
            sys.setprofile(None)
    return len(set(modules)), sum(before != after for before, after in pairwise(modules))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", nargs="?", default="")
    parser.add_argument("--of", default="moebox", help="the folder in src/: moebox or a plug-in")
    parser.add_argument("--list", action="store_true", help="list the places behind each figure")
    chosen = parser.parse_args()
    figures = measure(chosen.package, of=chosen.of)
    total = max(len(figures.functions), 1)
    print(f"{figures.files} files, {figures.lines:,} lines")
    print(f"{total:,} functions, {figures.per_thousand:.0f} per 1,000 lines")
    most = max(complexity for _, _, complexity in figures.functions) - 1
    print(f"branches: {figures.branches:,}, in one function at most {most}")
    print(f"one-word names: {100 * len(figures.one_word) / total:.0f} %")
    print(f"participles: {100 * len(figures.participles) / total:.1f} %")
    print(f"private helpers of at most {SHORT} lines used once: {len(figures.used_once)}")
    print(f"forbidden words: {len(figures.forbidden)}; dict[str, Any]: {figures.untyped}")
    print(f"files over 400 lines: {len(figures.long_files)}; under 30: {len(figures.tiny_files)}")
    repeated = sorted(name for name, count in figures.classes.items() if count > 1)
    print("a recipe through `moebox up --dry-run`: {} modules, {} moves between them".format(*count_hops()))
    print(f"class names used more than once: {', '.join(repeated)}")
    if chosen.list:
        for title in ("long_files", "tiny_files", "participles", "used_once", "one_word", "forbidden"):
            print(f"\n{title}:")
            for place in getattr(figures, title):
                print(f"  {place}")


if __name__ == "__main__":
    main()
