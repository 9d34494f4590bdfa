"""docs/what-runs-where.md: model x GPU -> engine version and format that runs, its state and the date of the evidence.

python scripts/what_runs_where.py          # write it
python scripts/what_runs_where.py --check  # exit 1 if it is not current

Made from the support matrix (src/moebox/data/support.toml).
"""

import sys
from collections import defaultdict
from pathlib import Path

from moebox.core import catalogue
from moebox.core.registry import engine_traits
from moebox.core.support_matrix import STATE_TEXT, SupportRow, support_rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "what-runs-where.md"
# Generations by the GPUs that people ask for (CUDA programming guide, compute capabilities; AMD's product pages).
GPUS = {
    "sm120": "RTX PRO 6000, RTX 5090",
    "sm121": "DGX Spark",
    "sm103": "B300",
    "sm100": "B200",
    "sm90": "H100, H200",
    "sm89": "RTX 4090, L40S",
    "sm86": "RTX 3090",
    "sm80": "A100",
    "gfx950": "MI350X, MI355X",
    "gfx942": "MI300X, MI325X",
}
HEAD = """# What runs where

Which engine version runs which model on which GPU, by dated reports: {rows} rows of the support matrix name a model and
a GPU. The newest report comes first. **A field that is not here is not known**, which is no statement that it fails;
`moebox plan MODEL --box BOX` also asks the engines' own start checks, and `moebox up --dry-run` your recipe. Rows about
single settings are in `src/moebox/data/support.toml`; [CONTRIBUTING]({contributing}) has the steps to add yours with
`moebox pack --row`. What moebox itself was run on is in [Tested on](tested-on.md).
"""
CONTRIBUTING = "https://github.com/moebox/moebox/blob/main/CONTRIBUTING.md"


def row_line(row: SupportRow) -> str:
    """One report as a table row."""
    engine = f"{engine_traits(row.engine).title} {row.versions or 'any version'}".replace("|", "/")
    formats = ", ".join((*row.quant, *(f"{kind} cache" for kind in row.kv))) or "any"
    condition = row.layout + " " if row.layout else ""
    condition += ", ".join(f"{key} = {value}" for key, value in row.settings.items())
    state = STATE_TEXT[row.state] + (f" (x{row.factor:g})" if row.factor else "")
    newest = max(row.evidence, key=lambda item: item.date)
    condition = condition.strip().replace("_", "\\_").replace("|", "/") or "–"
    is_link = newest.url.startswith("https://")
    seen = f"[{newest.date}]({newest.url})" if is_link else f"{newest.date}: {newest.url}"
    return f"| {engine} | {formats} | {condition} | {state} | {seen} |"


def page() -> str:
    """The whole page."""
    titles: dict[str, list[str]] = defaultdict(list)
    for model in catalogue.models().values():
        titles[model.architecture].append(model.title)
    found: dict[str, dict[str, list[SupportRow]]] = defaultdict(lambda: defaultdict(list))
    for rows in support_rows().values():
        for row in rows:
            for architecture in row.architecture:
                for gpu in row.gpu:
                    if gpu in GPUS and architecture in titles:
                        found[architecture][gpu].append(row)
    count = len({row.id for gpus in found.values() for rows in gpus.values() for row in rows})
    lines = [
        HEAD.format(rows=count, contributing=CONTRIBUTING),
        "| model | " + " | ".join(GPUS.values()) + " |",
        "| --- " * (len(GPUS) + 1) + "|",
    ]
    order = sorted(found, key=lambda architecture: titles[architecture][0])
    for architecture in order:
        cells = []
        for gpu in GPUS:
            known = found[architecture].get(gpu, [])
            good = sorted({engine_traits(row.engine).title for row in known if row.state in ("runs", "slow")})
            cells.append(", ".join(good) or ("known problems" if known else ""))
        lines.append(f"| {titles[architecture][0]} | " + " | ".join(cells) + " |")
    for architecture in order:
        lines += ["", f"## {', '.join(titles[architecture])}"]
        for gpu, title in GPUS.items():
            if reports := found[architecture].get(gpu, []):
                reports.sort(key=lambda row: row.date, reverse=True)
                lines += ["", f"### {title}", "", "| engine | format | if | state | evidence |", "| --- " * 5 + "|"]
                lines += dict.fromkeys(row_line(row) for row in reports)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
