"""The README's first table: this autumn's models on RTX PRO 6000 and RTX 5090 boxes, from the planner.

python scripts/readme_table.py          # print it
python scripts/readme_table.py --write  # put it between the markers in README.md; a test keeps it current
"""

import argparse
import re
from pathlib import Path

from moebox import detect
from moebox.checkpoint import resolve_model
from moebox.core import registry
from moebox.errors import DoesNotFit
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.rate import USUAL_CONTEXT

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- table: boxes -->", "<!-- end of table -->"
MODELS = (
    "kimi-k2.6",
    "glm-5.3",
    "glm-5.3-flash",
    "deepseek-v4-flash-0731",
    "minimax-m3",
    "qwen3.8-flash-next",
    "mimo-v2.6-flash",
    "nemotron-3-super",
)
PRO, SMALL = "rtx-pro-6000-server", "rtx-5090"
RAM, RAM_BANDWIDTH = "512GiB", "460GB/s"  # twelve channels of DDR5-4800, as EPYC boxes of the last two years have
BOXES = tuple((f"{count}x-{PRO}", f"{count}× PRO 6000") for count in (1, 2, 4, 8))
BOXES += tuple((f"{count}x-{SMALL}", f"{count}× 5090") for count in (1, 2, 4))


def cell(model_name: str, box_name: str) -> str:
    """The format that fits and its forecast at one stream; with the engine if experts stay in RAM."""
    box = detect.load_box(box_name, ram=RAM, ram_bandwidth=RAM_BANDWIDTH)
    model, checkpoints = resolve_model(model_name)
    try:
        plan = choose_plan(box, model, checkpoints, Constraints())
    except DoesNotFit:
        return "–"
    row = min(plan.forecast, key=lambda row: (abs(row.context - USUAL_CONTEXT), row.concurrency))  # as `plan` prints
    engine = registry.engine_traits(plan.recipe.engine)
    mark = " ᴿ" if plan.recipe.hybrid else ""
    return f"{row.low_tok_s:,.0f}–{row.high_tok_s:,.0f}{mark}<br>{engine.title} {plan.recipe.checkpoint}"


def line(model_name: str) -> str:
    """One model on every box."""
    title = resolve_model(model_name)[0].title
    return f"| {title} | " + " | ".join(cell(model_name, box) for box, _ in BOXES) + " |"


def table() -> str:
    """All rows as Markdown."""
    head = "| tok/s, one stream | " + " | ".join(title for _, title in BOXES) + " |"
    return "\n".join([head, "| --- " * (len(BOXES) + 1) + "|", *(line(model) for model in MODELS)])


def with_table(text: str) -> str:
    """README with the table between its markers."""
    body = f"{BEGIN}\n{table()}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: body, text, flags=re.DOTALL)


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put it into README.md")
    if not parser.parse_args().write:
        print(table())
        return
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
