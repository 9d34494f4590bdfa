"""docs/images/run.svg: a real `moebox run` as a picture; every line can be read from the first frame.

python scripts/record_run.py          # runs it (3 to 20 minutes), keeps scripts/recorded/run.json and draws it
python scripts/record_run.py --draw   # only draws the recording that was kept

`scripts/tutorial_output.py` puts the same recording into the tutorial. Record on a machine that does nothing else.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).parents[1] / "docs" / "images" / "run.svg"
RECORDING = Path(__file__).parent / "recorded" / "run.json"
LONGEST_S = 15.0  # of the animation; the run itself takes minutes
WIDTH, LINE = 80, 19  # columns, pixels a line
ROWS = 26  # at most, so that the picture is read without scrolling
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


def draw(recording: Recording) -> str:
    """Draw the steps and the assessment: dim at first, then lit in proportion to when they came."""
    end = next(place for place, (_, text) in enumerate(recording) if not text)
    steps = [(at, text) for at, text in recording[:end] if text[:1] in ("✓", "✗")]
    rows = [(0.0, "$ moebox run")]
    for at, line in steps:
        rows += [(at, text) for text in textwrap.wrap(line, WIDTH, subsequent_indent="    ")]
    assessed = [(at, text) for at, text in recording[end:] if text]
    stop = next((place for place, (_, text) in enumerate(assessed) if text.startswith("! warning")), len(assessed))
    rows = [*rows, (assessed[0][0], ""), *assessed[:stop]][:ROWS]
    last = max(at for at, _ in rows) or 1.0
    height = (len(rows) + 2) * LINE
    drawn = [_text(place, text, at / last * LONGEST_S) for place, (at, text) in enumerate(rows)]
    style = (
        "text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;opacity:.6;"
        "animation:show .3s forwards}@keyframes show{to{opacity:1}}"
        "@media (prefers-reduced-motion:reduce){text{animation:none;opacity:1}}"
    )
    width = WIDTH * 8 + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="moebox run in a terminal"><style>{style}</style>'
        f'<rect width="{width}" height="{height}" rx="8" fill="#121519"/>{"".join(drawn)}</svg>\n'
    )


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
    parser.add_argument("--draw", action="store_true", help="draw the recording that was kept")
    if not parser.parse_args().draw:
        RECORDING.write_text(json.dumps(record(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    recording = json.loads(RECORDING.read_text(encoding="utf-8"))
    TARGET.write_text(draw([(float(at), str(text)) for at, text in recording]), encoding="utf-8")


if __name__ == "__main__":
    main()
