"""Check rows of the public matrix before they are accepted: rows/*.toml, as `moebox pack --row` writes them.

python scripts/check_rows.py [FILE…]     # default: every file in rows/; exit 1 if one is not acceptable
python scripts/check_rows.py --schema    # write rows/schema.json, the JSON schema of a row
"""

import json
import sys
from pathlib import Path

import msgspec

from moebox import codec
from moebox.core.matrix_row import MatrixRow, row_problems
from moebox.errors import MoeboxError

ROWS = Path(__file__).parents[1] / "rows"


def schema_text() -> str:
    """The schema of a row."""
    return json.dumps(msgspec.json.schema(MatrixRow), indent=1) + "\n"


def check_file(path: Path) -> list[str]:
    """Return what is wrong with a file, each with its place."""
    try:
        documents = codec.load_toml(path)
        rows = documents.get("row", [documents])
        found = codec.decode(tuple[MatrixRow, ...], rows, where=path.name)
    except MoeboxError as problem:
        return [problem.message]
    return [f"{path.name}, row {number}: {text}" for number, row in enumerate(found, 1) for text in row_problems(row)]


def main() -> int:
    """Check the named files, or all."""
    if "--schema" in sys.argv:
        (ROWS / "schema.json").write_text(schema_text(), encoding="utf-8")
        return 0
    files = [Path(name) for name in sys.argv[1:]] or sorted(ROWS.glob("*.toml"))
    problems = [text for path in files for text in check_file(path)]
    print("\n".join(problems) or f"{len(files)} files: every row is acceptable")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
