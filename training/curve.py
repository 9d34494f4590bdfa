"""Draw the loss curve of a run's log.json as SVG.

python -m training.curve out/phantom/log.json training/loss.svg
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 320, 56, 40, 24
COLOURS = {"phantom": "#2563eb", "draft": "#d97706"}


def curve(logs: list[list[dict[str, float]]]) -> str:
    """An SVG of loss (log scale) over time; several runs follow one another."""
    runs: list[list[dict[str, float]]] = []
    cuts: list[float] = []
    for log in logs:
        start = runs[-1][-1]["s"] if runs else 0.0
        cuts.append(start)
        runs.append([{**row, "s": row["s"] + start} for row in log])
    rows = [row for run in runs for row in run]
    values = [row[name] for row in rows for name in COLOURS if name in row]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    end = rows[-1]["s"]

    def x(s: float) -> float:
        return LEFT + (WIDTH - LEFT - 16) * s / end

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(loss)) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        out.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - 16}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#374151">{10**power:g}</text>')
    out += [
        f'<text x="{x(60 * minute):.1f}" y="{HEIGHT - 20}" text-anchor="middle" fill="#374151">{minute}</text>'
        for minute in range(int(end // 60) + 1)
    ]
    out += [
        f'<path d="M{x(cut):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#9ca3af" stroke-dasharray="4 3"/>' for cut in cuts[1:]
    ]
    for place, (name, colour) in enumerate(COLOURS.items()):
        for run in runs:
            points = " ".join(f"{x(row['s']):.1f},{y(row[name]):.1f}" for row in run if name in row)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        out.append(f'<text x="{WIDTH - 90}" y="{TOP + 14 + 16 * place}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle" fill="#374151">minutes on one H200</text>')
    out.append(f'<text x="{LEFT}" y="14" fill="#374151">loss per answer token</text></svg>')
    return "\n".join(out) + "\n"


def main() -> None:
    """All arguments but the last are logs, in order."""
    *logs, target = map(Path, sys.argv[1:])
    target.write_text(curve([json.loads(log.read_text())["log"] for log in logs]))


if __name__ == "__main__":
    main()
