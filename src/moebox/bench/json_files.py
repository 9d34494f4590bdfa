"""Files of JSON that other tools wrote: one document, or one a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.errors import BadInput

MAX_JSON_BYTES = 2**31  # bytes; guidellm keeps every request in its file


def read_json_text(path: Path) -> str:
    """The text of a file, however many requests it holds; BadInput says what is wrong with it otherwise."""
    return codec.read_text(path, max_bytes=MAX_JSON_BYTES)


def parse_json(text: str, where: str) -> Any:
    """One document, with the NaN and Infinity that Python's tools write."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: also integers beyond Python's own
        raise BadInput(f"{where}: not valid JSON: {problem}") from None


def parse_json_lines(text: str, where: str) -> Iterator[tuple[str, Any]]:
    """The document of each line, and where it stands."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"{where}:{number}", parse_json(line, f"{where}:{number}")
