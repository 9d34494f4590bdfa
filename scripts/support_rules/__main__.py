"""Write and query the start rules: what an engine release accepts, chooses or refuses on a GPU generation.

    python -m scripts.support_rules read SOURCE... --facts DIR    read releases (static analysis, nothing is imported)
    python -m scripts.support_rules write --facts DIR             merge them into src/moebox/data/start_rules/
    python -m scripts.support_rules check vllm 0.32.0 sm80 --architecture KimiK25ForConditionalGeneration --kv fp8

SOURCE is a wheel or a folder with the unpacked wheel, named ENGINE-VERSION (vllm-0.32.0, sglang-0.5.23), or a git
repository of llama.cpp or ik_llama.cpp, named ENGINE=FOLDER. A release that DIR already has is not read again.
What data/start_rules has of releases that DIR lacks is kept.
"""

import argparse
import json
import re
import sys
import tempfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from . import check, ggml_rules, rows
from .facts import READERS

DATA = Path(__file__).parents[2] / "src/moebox/data/start_rules"


def main() -> int:
    parser = argparse.ArgumentParser(prog="support_rules", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    read = commands.add_parser("read", help="read releases into facts")
    read.add_argument("sources", nargs="+", metavar="SOURCE")
    read.add_argument("--facts", type=Path, required=True)
    read.add_argument("--jobs", type=int, default=1)
    write = commands.add_parser("write", help="merge facts into data/start_rules")
    write.add_argument("--facts", type=Path, required=True)
    write.add_argument("--out", type=Path, default=DATA)
    check.add_arguments(commands.add_parser("check", help="answer from data/start_rules"))
    options = parser.parse_args()
    try:
        if options.command == "read":
            options.facts.mkdir(parents=True, exist_ok=True)
            with ProcessPoolExecutor(options.jobs) as pool:
                for line in pool.map(read_source, options.sources, [options.facts] * len(options.sources)):
                    print(line, flush=True)
            return 0
        if options.command == "write":
            return rows.write(options.facts, options.out)
        return check.run(options, DATA)
    except (ValueError, OSError) as error:
        print(f"support_rules: {error}", file=sys.stderr)
        return 2


def read_source(source: str, facts: Path) -> str:
    """Read one release into FACTS/ENGINE-VERSION.json and return a line about it."""
    sys.setrecursionlimit(20_000)  # the interpreter uses up to 20 frames for each call of the source
    if "=" in source:
        engine, folder = source.split("=", 1)
        return ggml_rules.read_repository(engine, Path(folder), facts)
    path = Path(source)
    found = re.match(r"(vllm|sglang)-(\d[\w.]*?)(?:-\d+)?(?:-\w+-\w+-[\w.]+\.whl)?$", path.name)
    if not found or not path.exists():
        raise ValueError(f"{source} is not a wheel or folder named vllm-VERSION or sglang-VERSION")
    engine, version = found.groups()
    target = facts / f"{engine}-{version}.json"
    if target.exists():
        return f"{target.stem}: already read"
    with tempfile.TemporaryDirectory() as scratch:
        if path.is_file():
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(scratch, [n for n in wheel.namelist() if n.endswith((".py", "/METADATA"))])
            path = Path(scratch)
        made = [asdict(fact) for fact in READERS[engine](path)]
    target.write_text(json.dumps(made), encoding="utf-8")
    return f"{target.stem}: {len(made)} facts"


if __name__ == "__main__":
    sys.exit(main())
