"""Published figures to run folders to reports: what `make examples` runs.

    python examples/render.py [-o out/examples] [NAME …]

Each TOML file here holds what somebody published, as facts with their source. It is written into run folders through
the same store that real runs use, planned with the same planner, and rendered by the same report.
"""

import argparse
import calendar
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from moebox import codec
from moebox.core.box import Box, Cpu, Link
from moebox.core.engine_event import AttemptEnded, EngineFinding, PublishedFacts
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.core.recipe import Recipe
from moebox.detect.declared import parse_box
from moebox.report.files import write_report
from moebox.store import Run

HERE = Path(__file__).parent
GIB = 2**30


def main() -> int:
    """Render every example, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="examples to render; all without")
    parser.add_argument("-o", "--out", type=Path, default=HERE.parent / "out" / "examples")
    parser.add_argument("--pdf", action="store_true", help="PDF beside each HTML file")
    asked = parser.parse_args()
    for path in sorted(HERE.glob("*.toml")):
        if asked.names and path.stem not in asked.names:
            continue
        runs = imported(codec.load_toml(path), asked.out / path.stem)
        for made in write_report(runs, asked.out / f"{path.stem}.html", pdf=asked.pdf, markdown=True):
            print(made, file=sys.stdout)
    return 0


def imported(example: dict[str, Any], home: Path) -> list[Run]:
    """The example's runs as folders under `home`."""
    shutil.rmtree(home, ignore_errors=True)
    boxes = {"": box(example["box"])} | {row["key"]: box(row) for row in example.get("boxes", [])}
    notes = {"": example["box"].get("notes", [])} | {
        row["key"]: row.get("notes", []) for row in example.get("boxes", [])
    }
    made = []
    for number, row in enumerate(example["run"], 1):
        run = Run(home / f"{number}-{row['recipe']['name']}")
        run.path.mkdir(parents=True)
        where = row.get("box", "")
        write(run, example, row, boxes[where], notes[where])
        made.append(run)
    return made


def box(row: dict[str, Any]) -> Box:
    """A box by name with what else was published of it: NUMA nodes, switch pairs, CPU."""
    made = parse_box(row["name"], ram=row.get("ram", ""), ram_bandwidth=row.get("ram_bandwidth", ""))
    numa = row.get("numa") or [None] * len(made.gpus)
    pairs = {tuple(pair) for pair in row.get("pix", [])}
    links = [
        Link(a=a, b=b, kind="pix" if (a, b) in pairs else "node" if numa[a] == numa[b] else "sys")
        for a in range(len(made.gpus))
        for b in range(a + 1, len(made.gpus))
        if pairs
    ]
    gpus = tuple(replace(gpu, numa=node) for gpu, node in zip(made.gpus, numa, strict=True))
    cpu = codec.decode(Cpu, row.get("cpu", {}), where="cpu")
    return replace(made, gpus=gpus, links=tuple(links), cpu=cpu)


def write(run: Run, example: dict[str, Any], row: dict[str, Any], where: Box, notes: list[str]) -> None:
    """One run's folder."""
    day = example["created"]
    about = {
        "format": 1,
        "imported": True,
        "title": example["title"],
        "label": row["label"],
        "created": calendar.timegm(day.timetuple()),
        "sources": example["sources"],
        "box_notes": notes,
        "notes": row.get("notes", []),
        "versions": row.get("versions", {}),
        "commands": row.get("command", []),
    }
    run.write_json("run.json", about)
    recipe = codec.decode(
        Recipe, {**example.get("defaults", {}).get("recipe", {}), **row["recipe"]}, where=row["label"]
    )
    run.write_file("recipe.toml", codec.to_toml(recipe))
    run.write_file("box.toml", codec.to_toml(where))
    levels = row.get("levels") or table(row.get("measured", {}))
    run.write_json("measurements/published.json", {"levels": levels})
    if row.get("rungs"):
        run.write_json("verdicts/published.json", {"rungs": row["rungs"]})
    if row.get("step"):
        run.write_json("climb.json", {"steps": row["step"]})
    for attempt in row.get("attempt", []):
        run.add_event(AttemptEnded(undated=True, model=recipe.served_name, **attempt))
    for problem in row.get("problem", []):
        run.add_event(msgspec.convert(problem, EngineFinding))
    facts = EngineFacts(
        devices=tuple(device for part in row.get("memory", []) for device in devices(part)),
        kv_tokens=row.get("kv_tokens"),
        memory_note=row.get("memory_note", ""),
    )
    if facts.devices or facts.kv_tokens:
        run.add_event(PublishedFacts(facts=facts))


def table(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows under named columns as one dict each, with what they share."""
    shared = {key: value for key, value in measured.items() if key not in ("columns", "rows")}
    return [{**shared, **dict(zip(measured["columns"], row, strict=True))} for row in measured.get("rows", [])]


def devices(part: dict[str, Any]) -> list[DeviceFacts]:
    """ "gpu0-gpu7" as eight alike; sizes in bytes, what is left over as overhead."""
    first, _, last = part["devices"].partition("-")
    head = first.rstrip("0123456789")
    numbers = range(int(first[len(head) :]), int((last or first)[len(head) :]) + 1) if first != "ram" else [""]
    sizes = {f"{key.removesuffix('_gib')}_bytes": round(value * GIB) for key, value in part.items() if key != "devices"}
    spent = sum(value for key, value in sizes.items() if key != "total_bytes")
    rest = "free_bytes" if "used_bytes" in sizes else "overhead_bytes"
    sizes[rest] = sizes["total_bytes"] - spent
    return [DeviceFacts(device=f"{head}{number}", **sizes) for number in numbers]


if __name__ == "__main__":
    sys.exit(main())
