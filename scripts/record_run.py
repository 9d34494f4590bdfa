"""docs/images/run.svg: a real `moebox run` as an animated picture, its waits shortened.

python scripts/record_run.py                 # runs it (some minutes) and writes the picture
python scripts/record_run.py --show FILE     # only draws a recording that was kept
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).parents[1] / "docs" / "images" / "run.svg"
LONGEST_S = 16.0  # of the animation; the run itself takes minutes
WIDTH, LINE, SIZE = 96, 19, 13  # columns, pixels a line, pixels a letter's height
INK = {"✓": "#4fd1a0", "✗": "#ff8a80", "!": "#f0c060", "–": "#8b949e", "·": "#8b949e"}

Recording = list[tuple[float, str]]


def record() -> Recording:
    """Every line with the second at which it came; paths of this machine are shortened."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "MOEBOX_RUNS": f"{folder}/runs", "MOEBOX_STATE": f"{folder}/state", "COLUMNS": str(WIDTH)}
        began = time.monotonic()
        words = [sys.executable, "-m", "moebox", "run", "--yes"]
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            assert run.stdout is not None
            lines = [(time.monotonic() - began, line.rstrip()) for line in run.stdout]
        if run.returncode:
            raise SystemExit("the run failed:\n" + "\n".join(text for _, text in lines))
        return [(at, text.replace(f"{folder}/", "~/")) for at, text in lines]


def picture(recording: Recording) -> str:
    """The lines appear one after the other, in proportion to when they came, and stay."""
    rows = [(at, text) for at, line in [(0.0, "$ moebox run"), *recording] for text in _folded(line)]
    last = max(at for at, _ in rows) or 1.0
    height = (len(rows) + 2) * LINE
    drawn = [_text(place, text, at / last * LONGEST_S) for place, (at, text) in enumerate(rows)]
    style = (
        "text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;opacity:0;"
        "animation:show .15s forwards}@keyframes show{to{opacity:1}}"
        "@media (prefers-reduced-motion:reduce){text{animation:none;opacity:1}}"
    )
    width = WIDTH * 8 + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="moebox run in a terminal"><style>{style}</style>'
        f'<rect width="{width}" height="{height}" rx="8" fill="#121519"/>{"".join(drawn)}</svg>\n'
    )


def _folded(line: str) -> list[str]:
    return [line[start : start + WIDTH] for start in range(0, len(line), WIDTH)] or [""]


def _text(place: int, text: str, delay: float) -> str:
    mark = next((sign for sign in INK if re.match(rf"\s*{re.escape(sign)} ", text)), "")
    colour = INK.get(mark, "#e8eaed")
    return (
        f'<text x="20" y="{(place + 1.6) * LINE:.0f}" fill="{colour}" '
        f'style="animation-delay:{delay:.2f}s">{escape(text)}</text>'
    )


def main() -> None:
    """Record and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", type=Path, help="a recording to draw again")
    parser.add_argument("--keep", type=Path, help="keep the recording here")
    given = parser.parse_args()
    recording = json.loads(given.show.read_text()) if given.show else record()
    if given.keep:
        given.keep.write_text(json.dumps(recording))
    TARGET.write_text(picture([(float(at), str(text)) for at, text in recording]), encoding="utf-8")


if __name__ == "__main__":
    main()
