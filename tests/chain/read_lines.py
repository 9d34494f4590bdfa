"""Command lines read by an engine's own parser, in a process of its own: `read_lines.py ENGINE [SOURCE]`.

Takes a JSON list of command lines on stdin and prints a JSON list of refusals, "" if the parser accepts the line.
Runs in the engine's environment, so it imports nothing of moebox.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
dump_flags = importlib.import_module("dump_flags")


class Refused(Exception):
    """The parser would end the program with this message."""


def refuse(message: str) -> None:
    """Raise instead of ending the program as argparse does."""
    raise Refused(message)


def reader(engine: str, source: Path | None) -> Callable[[list[str]], argparse.Namespace]:
    """Return a function that parses a line and checks it as far as the engine does without loading a model."""
    parser = dump_flags.real_parser(engine, source)
    parser.error = refuse
    check = dump_flags.vllm_arguments().validate_parsed_serve_args if engine == "vllm" else check_sglang

    def parsed(line: list[str]) -> argparse.Namespace:
        found = parser.parse_args(line)
        check(found)
        return found

    return parsed


def check_sglang(found: argparse.Namespace) -> None:
    """Check names that SGLang looks up only at its start."""
    algorithms = importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
    algorithms.from_string(found.speculative_algorithm)


def refusal(read: Callable[[list[str]], argparse.Namespace], line: list[str]) -> str:
    """Return why the engine would not start with `line`, or ""."""
    try:
        read(line)
    except (Refused, TypeError, ValueError) as problem:
        return str(problem) or type(problem).__name__
    return ""


def main() -> None:
    """Check every line of stdin."""
    engine, *source = sys.argv[1:]
    lines = json.load(sys.stdin)
    read = reader(engine, Path(source[0]) if source else None)
    sys.stdout.write(json.dumps([refusal(read, line) for line in lines]))


if __name__ == "__main__":
    main()
