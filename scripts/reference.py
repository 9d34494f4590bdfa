"""docs/reference/cli.md from the command line itself: every command with its help text.

python scripts/reference.py          # write it
python scripts/reference.py --check  # exit 1 where it is not current
"""

import contextlib
import io
import os
import sys
from pathlib import Path

TARGET = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
WIDTH = "100"


def reference() -> str:
    """The whole page."""
    os.environ |= {"COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    from moebox.cli import COMMANDS, main, section_of

    parts = ["# Command line", "", "Made from the commands' own help by `python scripts/reference.py`.", ""]
    names = sorted(COMMANDS, key=lambda name: (section_of(name.partition(" ")[0]), name))
    for name in names:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            main([*name.split(), "--help"])
        parts += [f"## moebox {name}", "", "```", _trimmed(text.getvalue()), "```", ""]
    return "\n".join(parts)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def main() -> int:
    """Write, or check."""
    text = reference()
    if "--check" in sys.argv:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        return int(current != text)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
