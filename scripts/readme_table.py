"""The README's table: box, what fits, forecast and a published figure, from the planner and the tables.

python scripts/readme_table.py          # print it
python scripts/readme_table.py --write  # put it between the markers in README.md; a test keeps it current
"""

import argparse
import csv
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from moebox import detect
from moebox.checkpoint import resolve_model
from moebox.core import registry
from moebox.core.plan import Plan
from moebox.errors import DoesNotFit
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.units import format_count

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- table: boxes -->", "<!-- end of table -->"
MODEL = "kimi-k2.6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A box that people own or rent, and what somebody published for one like it."""

    box: str
    title: str
    ram: str = ""
    bandwidth: str = ""
    published: Callable[[], str] = lambda: "–"


def published_decode() -> str:
    """One stream at an empty context with TP8 and no draft, of all runs with the community's image (rtx6kpro wiki)."""
    plain = {"tp": "8", "dcp": "1", "guesses": "0", "context": "0", "concurrency": "1"}
    rows = csv.DictReader(_published("decode.csv").splitlines())
    found = [float(row["decode_tok_s"]) for row in rows if plain.items() <= row.items()]
    return f"{_span(found, 0)} at 1 (patched vLLM, TP8)"


def published_hybrid() -> str:
    """One stream of Kimi K2.6 on two of these GPUs and RAM, in the form that most people run there."""
    wanted = {"model": MODEL, "gpu": "rtx-pro-6000-max-q", "gpus": 2, "engine": "ik_llama.cpp", "checkpoint": "IQ3_K"}
    runs = tomllib.loads(_published("hybrid.toml"))["run"]
    found = [run["tg_tok_s"] for run in runs if wanted.items() <= run.items() and "tg_tok_s" in run]
    return f"{_span(found, 1)} at 1 (ik_llama.cpp, IQ3_K)"


def published_serving() -> str:
    """The serving benchmark of Lambda's guide."""
    run = next(run for run in tomllib.loads(_published("serving.toml"))["run"] if run["name"] == "lambda-k2.6")
    row = run["rows"][0]
    lengths = f"{run['input'] // 1024}k in, {run['output'] // 1024}k out"
    return f"{format_count(row['output_tok_s'])} output at {row['concurrency']} requests, {lengths}, EAGLE3 (vLLM)"


def _published(name: str) -> str:
    return resources.files("moebox.data").joinpath("published", name).read_text(encoding="utf-8")


def _span(figures: list[float], digits: int) -> str:
    return f"{min(figures):.{digits}f} to {max(figures):.{digits}f}"


ROWS = (
    Row(box="8x-rtx-pro-6000-server", title="8× RTX PRO 6000 Server", published=published_decode),
    Row(box="4x-rtx-pro-6000-server", title="4× RTX PRO 6000 Server, 512 GiB RAM", ram="512GiB", bandwidth="460GB/s"),
    Row(
        box="2x-rtx-pro-6000-max-q",
        title="2× RTX PRO 6000 Max-Q, 768 GiB RAM",
        ram="768GiB",
        bandwidth="614GB/s",
        published=published_hybrid,
    ),
    Row(box="1x-rtx-5090", title="RTX 5090, 768 GiB RAM", ram="768GiB", bandwidth="460GB/s"),
    Row(box="8x-h200", title="8× H200"),
    Row(box="8x-b200", title="8× B200", published=published_serving),
)


def table() -> str:
    """All rows as Markdown."""
    head = "| box | what fits of Kimi K2.6 | forecast decode, tok/s | published, tok/s |\n| --- | --- | --- | --- |"
    return "\n".join([head, *(line(row) for row in ROWS)])


def line(row: Row) -> str:
    """One box."""
    box = detect.load_box(row.box, ram=row.ram, ram_bandwidth=row.bandwidth)
    model, checkpoints = resolve_model(MODEL)
    try:
        plan = choose_plan(box, model, checkpoints, Constraints())
    except DoesNotFit as problem:
        return f"| {row.title} | does not fit: {problem.hint or problem.message} | – | {row.published()} |"
    return f"| {row.title} | {what(plan)} | {rates(plan)} | {row.published()} |"


def what(plan: Plan) -> str:
    """Engine, checkpoint, layout and context."""
    recipe = plan.recipe
    sizes = ((name.upper(), getattr(recipe.parallel, name)) for name in ("tp", "pp", "dcp"))
    layout = " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "experts in RAM"
    title = registry.engine_traits(recipe.engine).title
    return f"{title}, {recipe.checkpoint}, {layout}, {format_count(recipe.context)} tokens"


def rates(plan: Plan) -> str:
    """The forecast at one stream and at the most that was forecast, with bands."""
    shortest = min(row.context for row in plan.forecast)
    rows = [row for row in plan.forecast if row.context == shortest]
    ends = [rows[0], rows[-1]] if len(rows) > 1 else rows
    return "; ".join(
        f"{row.decode_tok_s:,.0f} ({row.low_tok_s:,.0f} to {row.high_tok_s:,.0f}) at {row.concurrency}" for row in ends
    )


def written(text: str) -> str:
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
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
