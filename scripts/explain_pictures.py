"""Pictures of the pages "how it works": docs/images/how-*.svg, from moebox's own figures and stored measurements.

python scripts/explain_pictures.py          # draw them
python scripts/explain_pictures.py --check  # exit 1 if one is not current
"""

import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from moebox import detect
from moebox.checkpoint import resolve_model
from moebox.core.deployment import Deployment
from moebox.core.verdict import wilson_score
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
BOOTS = ROOT / "tests" / "planner" / "h200"  # vLLM on an H200, Kimi's layers with dummy weights, November 2026
WIDTH, ROW = 760, 34
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#8c8c8c")


def svg(title: str, height: int, body: list[str]) -> str:
    """Return a picture with its title; readable on light and dark pages."""
    style = "text{font:13px system-ui,sans-serif;fill:#1c1f23}.t{font-weight:600;font-size:15px}.s{fill:#555}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{style}</style><rect width="{WIDTH}" height="{height}" rx="8" '
        f'fill="#fff"/>{text(20, 28, title, "t")}{"".join(body)}</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "", *, end: bool = False) -> str:
    """Return one line of text."""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}"{anchor}>{escape(words)}</text>'


def bar(x: float, y: float, width: float, colour: str, *, height: float = 20) -> str:
    """Return one bar."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" fill="{colour}"/>'


def forecast_picture() -> str:
    """Draw where the time of one decode step goes: Kimi K2.6 on eight RTX PRO 6000s, at 1, 8 and 32 streams."""
    box = detect.load_box("8x-rtx-pro-6000-server")
    model, checkpoints = resolve_model("kimi-k2.6")
    plan = choose_plan(box, model, checkpoints, Constraints())
    checkpoint = next(each for each in checkpoints if each.name == plan.recipe.checkpoint)
    speed = Speed.from_published_rows(Deployment(plan.recipe, model, checkpoint, box))
    step = speed.gpu_step
    assert step is not None
    loads = {streams: step.step_parts(streams, 8192) for streams in (1, 8, 32)}
    names = [name for name in loads[32] if max(parts.get(name, 0) for parts in loads.values()) > 2e-4]
    scale = 560 / max(sum(parts.values()) for parts in loads.values())
    body, y = [], 50
    for streams, parts in loads.items():
        body.append(text(100, y + 15, f"{streams} stream{'s' * (streams > 1)}", end=True))
        x = 110.0
        for place, name in enumerate(names):
            body.append(bar(x, y, parts.get(name, 0) * scale, COLOURS[place % len(COLOURS)]))
            x += parts.get(name, 0) * scale
        body.append(text(x + 6, y + 15, f"{sum(parts.values()) * 1e3:.1f} ms", "s"))
        y += ROW
    for place, name in enumerate(names):
        x, row = 110 + place % 3 * 200, y + 8 + place // 3 * 20
        body += [bar(x, row, 12, COLOURS[place % len(COLOURS)], height=12), text(x + 18, row + 11, name)]
    height = y + 40 + (len(names) - 1) // 3 * 20
    return svg("One decode step of Kimi K2.6 on 8 RTX PRO 6000s, 8,192 tokens of context", height, body)


def checks_picture() -> str:
    """Draw which failure rates are still possible after so many trials without and with failures."""
    body, y = [], 50
    for failures, trials in ((0, 4), (0, 12), (0, 36), (1, 36), (2, 36), (6, 36)):
        score = wilson_score(failures, trials)
        colour = "#54a24b" if not failures else "#e45756" if failures > 1 and score.low > 0.03 else "#eeb117"
        body.append(text(170, y + 15, f"{failures} of {trials} trials failed", end=True))
        body.append(bar(180 + score.low * 900, y, (score.high - score.low) * 900, colour))
        body.append(text(188 + score.high * 900, y + 15, f"{score.low:.1%} to {score.high:.1%}", "s"))
        y += ROW
    body.append(f'<line x1="207" x2="207" y1="44" y2="{y}" stroke="#555" stroke-dasharray="4 3"/>')
    body.append(text(180, y + 16, "0%     3%: red if two failures were seen and the whole interval lies above", "s"))
    return svg("What a check knows about the true failure rate (95% interval)", y + 34, body)


def calibration_picture() -> str:
    """Draw steps timed with 4 and 8 layers, the line through them, and what 12 layers really took."""
    boots = json.loads((BOOTS / "kimi-4-and-8.json").read_text(encoding="utf-8"))["boots"]
    boots = [*boots, json.loads((BOOTS / "kimi-12.json").read_text(encoding="utf-8"))]
    body = ['<line x1="80" y1="290" x2="730" y2="290" stroke="#555"/>', text(400, 318, "layers", "s")]
    body += [text(80 + layers * 45, 306, str(layers), "s") for layers in (0, 4, 8, 12)]
    for place, batch in enumerate((1, 8, 32)):
        at = [
            next(each["seconds"] for each in boot["decode"] if (each["batch"], each["context"]) == (batch, 256)) * 1e3
            for boot in boots
        ]
        slope = (at[1] - at[0]) / 4
        points = [(80 + layers * 45, 290 - (at[1] + slope * (layers - 8)) * 12) for layers in (0, 12)]
        (x1, y1), (x2, y2) = points
        colour = COLOURS[place]
        body.append(f'<line x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" stroke="{colour}" stroke-width="2"/>')
        for layers, seconds in zip((4, 8, 12), at, strict=True):
            fill = "#fff" if layers == 12 else colour
            x, y = 80 + layers * 45, 290 - seconds * 12
            body.append(f'<circle cx="{x}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>')
        line = at[1] + slope * 4
        words = f"{batch} stream{'s' * (batch > 1)}: line {line:.1f} ms, measured {at[2]:.1f} ms"
        body += [bar(80, 49 + place * 20, 12, colour, height=12), text(98, 60 + place * 20, words)]
    return svg("Two short boots give the cost of a layer (filled: timed; ring: measured later)", 330, body)


PICTURES = {
    "how-forecasts.svg": forecast_picture,
    "how-checks.svg": checks_picture,
    "how-calibration.svg": calibration_picture,
}


def main() -> int:
    """Draw, or check."""
    drawn = {IMAGES / name: picture() for name, picture in PICTURES.items()}
    if "--check" in sys.argv:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in drawn.items()))
    for path, text in drawn.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
