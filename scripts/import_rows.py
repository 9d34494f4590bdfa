"""Import rows of other registries as rows of the public matrix, marked "not verified by checks".

python scripts/import_rows.py inferencex agg_bmk.json --url URL --date 2026-07-04 > rows/inferencex.toml
python scripts/import_rows.py spark-arena report.csv --url URL --date … --gpu dgx-spark
python scripts/import_rows.py local-ai-registry recipes.json --url URL --date …
python scripts/import_rows.py club-3090 BENCHMARKS.md --url URL --date …

Formats: InferenceX's array of results (utils/process_result.py), llama-benchy's CSV as sparkrun uploads it, 0xSero's
recipes.json (recipes without speed: the engine serves that model on that GPU), the Markdown tables of club-3090.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.core import registry
from moebox.core.matrix_row import NOT_VERIFIED, MatrixRow, SpeedCell, row_problems

ENGINES = {"llama-cpp": "llama.cpp", "llamacpp": "llama.cpp", "ik-llama": "ik_llama.cpp", "kt": "ktransformers"}


def make_row(given: argparse.Namespace, **fields: Any) -> MatrixRow:
    """A row with what all imported rows share."""
    note = f"{NOT_VERIFIED}; {fields.pop('note', '')}".rstrip("; ")
    return MatrixRow(source=given.registry, url=given.url, verified=False, state="runs", note=note, **fields)


def read_inferencex(text: str, given: argparse.Namespace) -> Iterator[MatrixRow]:
    """Single-node results; several nodes and disaggregated serving are left out."""
    for item in json.loads(text):
        if item.get("is_multinode") or item.get("disagg") in (True, "true"):
            continue
        gpus = int(item["tp"]) * int(item.get("pp") or 1)
        cell = SpeedCell(
            concurrency=item["conc"],
            input_tokens=item["isl"],
            output_tokens=item["osl"],
            output_tok_s=item["output_tput_per_gpu"] * gpus,
        )
        yield make_row(
            given,
            date=given.date,
            box=f"{gpus}x-{item['hw']}",
            engine=item["framework"].lower(),
            model=item["model"],
            checkpoint=item["precision"],
            settings={
                "tp": str(item["tp"]),
                "ep": str(item.get("ep", 1)),
                "speculate": str(item.get("spec_decoding", "")),
            },
            versions={"image": str(item.get("image", ""))},
            speed=(cell,),
        )


def read_spark_arena(text: str, given: argparse.Namespace) -> Iterator[MatrixRow]:
    """Token generation rows of llama-benchy ("tg128 @ d4096 (c2)")."""
    for item in csv.DictReader(text.splitlines()):
        match = re.match(r"tg(\d+)(?: @ d(\d+))?(?: \(c(\d+)\))?", item["test_name"])
        if not match or not item["t_s_mean"]:
            continue
        cell = SpeedCell(
            concurrency=int(match[3] or 1),
            input_tokens=int(match[2] or 0),
            output_tokens=int(match[1]),
            output_tok_s=float(item["t_s_mean"]),
            ttft_ms=float(item["e2e_ttft_mean"]) if item.get("e2e_ttft_mean") else None,
        )
        box = f"1x-{given.gpu or 'dgx-spark'}"
        yield make_row(
            given, date=given.date, box=box, engine=given.engine, model=item["model"], checkpoint="", speed=(cell,)
        )


def read_local_ai_registry(text: str, given: argparse.Namespace) -> Iterator[MatrixRow]:
    """Recipes by GPU; they have no speed, so their checks are the capabilities that the registry states."""
    for gpu, entry in json.loads(text)["hardware"].items():
        for item in entry["recipes"]:
            capabilities = {name: "stated" for name, value in item.get("capabilities", {}).items() if value}
            weights = item["weights"][0]["repository"] if item["weights"] else item["servedName"]
            yield make_row(
                given,
                date=given.date,
                box=f"{item['cards']}x-{gpu}",
                gpus=(entry["match"]["name"],) * item["cards"],
                engine=item["engine"],
                model=item["name"],
                checkpoint=weights,
                versions={"image": item["image"]},
                checks=capabilities,
                note=f"{item['format']}, context {item['serving']['ctxTokens']:,}",
            )


def read_club_3090(text: str, given: argparse.Namespace) -> Iterator[MatrixRow]:
    """Rows of the tables with a rig and "Narr / Code TPS"; the headings above name model and engine."""
    model, engine = "", given.engine
    head: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            model, engine, head = line.removeprefix("## ").strip(), given.engine, []
        elif line.startswith("### "):
            named = [name for name in registry.engine_names() if name in line.lower()]
            engine = max(named, key=len, default=given.engine)
        cells = [re.sub(r"[`*~]", "", cell).strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        if "Narr / Code TPS" in cells:
            head = cells
            continue
        item = dict(zip(head, cells, strict=False))
        rate = re.match(r"([\d.]+) */ *([\d.]+)", item.get("Narr / Code TPS", ""))
        rig = re.search(r"(\d)× *(\d{4}\w*)", item.get("Rig", ""))
        if not rate or not rig:
            continue
        yield make_row(
            given,
            date=item.get("Date", "")[:10] or given.date,
            box=f"{rig[1]}x-rtx-{rig[2]}",
            engine=engine,
            model=model,
            checkpoint=item.get("Compose", ""),
            settings={"kv": item.get("KV", ""), "context": item.get("Max ctx", "")},
            speed=(SpeedCell(concurrency=1, output_tok_s=float(rate[1])),),
            note="prose at one stream",
        )


READERS: dict[str, Callable[[str, argparse.Namespace], Iterator[MatrixRow]]] = {
    "inferencex": read_inferencex,
    "spark-arena": read_spark_arena,
    "local-ai-registry": read_local_ai_registry,
    "club-3090": read_club_3090,
}


def main() -> int:
    """Print the rows of a file as TOML; what cannot be a row is counted on standard error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("registry", choices=READERS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", required=True, help="where the file is published")
    parser.add_argument("--date", required=True, help="of the file, if its rows have none")
    parser.add_argument("--engine", default=registry.engine_names()[0], help="if the rows do not name it")
    parser.add_argument("--gpu", default="", help="if the rows do not name it")
    given = parser.parse_args()
    rows, left_out = [], 0
    for row in READERS[given.registry](given.file.read_text(encoding="utf-8"), given):
        named = codec.decode(
            MatrixRow, {**codec.to_plain(row), "engine": ENGINES.get(row.engine, row.engine)}, where="row"
        )
        problem = next(row_problems(named), "")
        left_out += bool(problem)
        rows += [] if problem else [codec.to_plain(named)]
    print(codec.to_toml({"row": rows}) if rows else "")
    print(f"{len(rows)} rows, {left_out} left out (engines or values that the matrix does not take)", file=sys.stderr)
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
