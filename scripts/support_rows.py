"""Check data/support.toml and write data/support.json, its compact form that moebox reads.

    python scripts/support_rows.py

Exits 1 and names the rows if one is not valid: an unknown field or state, a version range or layout that cannot be
read, a quantisation that no checkpoint is of, a slow row without a factor, or an id used twice. Parsing the TOML takes
100 ms, the JSON 2 ms.
"""

import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.core.recipe import Recipe, Speculate
from moebox.core.setting import with_settings
from moebox.core.support_matrix import SupportRow, layout_holds
from moebox.core.versions import in_versions
from moebox.data import FOLDER
from moebox.errors import BadInput

QUANTS = {"int4", "nvfp4", "fp8", "mxfp4", "mxfp8", "awq", "gptq", "bf16", "gguf", "exl3"}
RECIPE = Recipe(name="x", engine="vllm", model="x", checkpoint="x", served_name="", speculate=Speculate())


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """What is wrong with rows, a line each."""
    found = [
        f"{name}: used for {count} rows" for name, count in Counter(row["id"] for row in rows).items() if count > 1
    ]
    for row in rows:
        try:
            checked = codec.decode(SupportRow, row, where=row["id"])
            in_versions("0", checked.versions)
            layout_holds(checked.layout, RECIPE.parallel)
            with_settings(RECIPE, checked.change)
        except BadInput as error:
            found.append(f"{row['id']}: {error}")
            continue
        if (checked.state == "slow") != (checked.factor is not None):
            found.append(f"{row['id']}: a slow row has a factor, no other has one")
        if unknown := set(checked.quant) - QUANTS:
            found.append(f"{row['id']}: no checkpoint is of {', '.join(sorted(unknown))}, so the row never holds")
        dates = [item.date for item in checked.evidence]
        if not dates or not all(re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", date) for date in dates):
            found.append(f"{row['id']}: evidence needs a date")
    return found


def dump(rows: list[dict[str, Any]]) -> str:
    """The compact form: a line for each row."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    return f'{{"row": [\n{lines}\n]}}\n'


def main() -> int:
    rows = tomllib.loads((FOLDER / "support.toml").read_text(encoding="utf-8"))["row"]
    if found := problems(rows):
        print(*found, sep="\n", file=sys.stderr)
        return 1
    Path(FOLDER / "support.json").write_text(dump(rows), encoding="utf-8")
    print(f"support.json: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
