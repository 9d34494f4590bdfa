"""Run folders as an attacker would share them: one good folder, and ways to spoil it."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moebox.core.result import result_document
from moebox.flows.pipeline import PIPELINE
from moebox.store import Run
from tests.bench.example import measurement
from tests.report.making import a_run

ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e<script>alert(1)</script>`$(id)`|a|\n# forged"
NUMBERS = (-1, 0, 10**30, -(10**30), 1e308, float("nan"), float("inf"), -0.5, True)
TEXTS = ("", "x" * 5000, ESCAPES, "../../../etc/passwd", "/etc/passwd", "\ud800", "2026-13-99", "NaN", "1e999")
SHAPES: tuple[object, ...] = (None, [], {}, [1, 2], {"a": 1}, [[[[[]]]]], [None], {"": None})
VALUES: tuple[object, ...] = (*NUMBERS, *TEXTS, *SHAPES)

STEPS = ("plan", "doctor", "rehearse", "up", "verify", "climb", "bench", "task", "report")


def good(runs: Path) -> Run:
    """A whole run with measurements of our own, and a pipeline that ended after its plan."""
    run = a_run(runs)
    run.write_json("measurements/own.json", result_document(measurement()))
    steps = [{"name": name, "state": "done" if name == "plan" else "waiting"} for name in STEPS]
    run.write_json(PIPELINE, {"request": {"until": "plan", "recipe": "k26", "ram_bandwidth": "20GB/s"}, "steps": steps})
    return run


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in a document something stands, itself included."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def put(value: Any, at: tuple[str | int, ...], new: object) -> Any:
    """The document with `new` at a place."""
    if not at:
        return new
    value[at[0]] = put(value[at[0]], at[1:], new)
    return value


def files(run: Run) -> list[Path]:
    """Its files of JSON."""
    return sorted([*run.path.rglob("*.json"), *run.path.rglob("*.jsonl")])


def spoil(path: Path, place: int, value: object) -> None:
    """Put `value` at the `place`th place of a file, counted round and round."""
    text = path.read_text().strip()
    lines = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    known = list(places(lines))
    lines = put(lines, known[place % len(known)], value)
    if path.suffix == ".jsonl" and isinstance(lines, list):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        path.write_text(json.dumps(lines))


def replaced(name: str, data: bytes) -> Callable[[Run], None]:
    """A file with these bytes."""

    def attack(run: Run) -> None:
        path = run.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    return attack


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Run], None]:
    """Something that is no file where a file was."""

    def attack(run: Run) -> None:
        path = run.path / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return attack


def of_ours(**figures: object) -> Callable[[Run], None]:
    """A measurement of moebox's own, with these figures."""

    def attack(run: Run) -> None:
        for number, (name, value) in enumerate({"": None, **figures}.items()):
            shown = {name: value} if name else figures
            run.write_json(f"measurements/own-{number}.json", {**result_document(measurement()), **shown})

    return attack


def many(name: str, count: int) -> Callable[[Run], None]:
    """So many files of this kind."""

    def attack(run: Run) -> None:
        for number in range(count):
            run.write_json(name.format(number), {"completed": 1, "output_throughput": 1.0, "max_concurrency": number})

    return attack


def unwritable(run: Run) -> None:
    """Folders where files are wanted, and files where folders are."""
    (run.path / "report.html").mkdir()
    with contextlib.suppress(OSError):
        for path in (run.path / "verdicts").iterdir():
            path.unlink()
        (run.path / "verdicts").rmdir()
    (run.path / "verdicts").write_text("a file")


SECRET = "never-read-this-93ab41"
FOLDERS = ("measurements", "verdicts", "configs", "patches", "kernels", "recipes")


def elsewhere(run: Run) -> Path:
    """Files of the person who looks at the folder, none of anybody's business."""
    folder = run.path.parent.parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    secret = {"name": SECRET, "verdict": "fail", "evidence": SECRET, "label": SECRET, "output_throughput": 99.0}
    (folder / "secret.json").write_text(json.dumps({**secret, "completed": 1}))
    (folder / "secret.log").write_text(f"{SECRET}\n" * 20)
    (folder / "secret.toml").write_text(f'name = "{SECRET}"\n')
    return folder


def linked(name: str, target: str) -> Callable[[Run], None]:
    """A link to one of those files, or to a folder of them."""

    def attack(run: Run) -> None:
        path = run.path / name
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        path.symlink_to(elsewhere(run) / target)

    return attack


def linked_folders(run: Run) -> None:
    """Every folder of the run belongs to another user."""
    for name in FOLDERS:
        linked(name, "")(run)


def strange_names(run: Run) -> None:
    """Names of files that break lines, drive a terminal, and are markup."""
    for name in ("a\n# forged", "\x1b[2J\x1b]0;owned\x07", "<script>alert(1)<", "`$(id)`", "\u202egnp"):
        for folder in (*FOLDERS, "."):
            (run.path / folder).mkdir(exist_ok=True)
            (run.path / folder / f"{name}.json").write_text("[")
            (run.path / folder / f"{name}.bin").write_text("[")


def halved(run: Run) -> None:
    """As a power cut leaves them: every file ends in the middle."""
    for path in [*files(run), *run.path.glob("*.toml")]:
        os.truncate(path, path.stat().st_size // 2)


def marked_up(run: Run) -> None:
    """Markup and escapes in every text."""

    def spoilt(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoilt(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [spoilt(inner) for inner in value]
        return ESCAPES if isinstance(value, str) and key not in ("kind", "state", "format") else value

    for path in files(run):
        text = path.read_text()
        documents = text.splitlines() if path.suffix == ".jsonl" else [text]
        path.write_text("".join(json.dumps(spoilt(json.loads(document))) + "\n" for document in documents))


FIGURES = b'{"completed": %s, "output_throughput": %s, "max_concurrency": %s, "mean_ttft_ms": %s}'
JOURNAL, RECIPE, ROW = "events.jsonl", "recipe.toml", "measurements/x.json"
RUNS: dict[str, Callable[[Run], None]] = {
    "a journal of nothing but brackets": replaced(JOURNAL, b"[" * 200_000 + b"\n"),
    "a journal of NULs": replaced(JOURNAL, bytes(100_000)),
    "a journal of a hundred thousand lines": replaced(
        "events.jsonl", b'{"kind": "x", "time": 1, "data": {}}\n' * 100_000
    ),
    "a journal of other shapes": replaced(
        "events.jsonl", b'7\n"x"\nnull\n[]\n{"kind": 7}\n{"kind": "attempt.ready"}\n'
    ),
    "times beyond all calendars": replaced(JOURNAL, b'{"kind": "run.created", "time": 1e300, "data": {}}\n' * 3),
    "a pipeline that is a list": replaced(PIPELINE, b"[]"),
    "a pipeline of unknown steps": replaced(PIPELINE, b'{"request": {}, "steps": [{"name": "rm", "state": "done"}]}'),
    "a pipeline whose recipe is elsewhere": replaced(PIPELINE, b'{"request": {"recipe": "/etc/shadow"}, "steps": []}'),
    "a pipeline of a megabyte of brackets": replaced(PIPELINE, b"{" * 2**20),
    "a recipe that runs commands": replaced(RECIPE, b'name = "$(touch /tmp/x)"\nengine = "vllm"\nmodel = "m"\n'),
    "a recipe that is none": replaced(RECIPE, b"\xff\xfe\x00"),
    "figures that are none": replaced(ROW, FIGURES % (b"NaN", b"Infinity", b"-1", b"-Infinity")),
    "figures beyond all bounds": replaced(ROW, FIGURES % (b"1e400", b"1e308", b"1" + b"0" * 400, b"-5")),
    "counts that no float holds": of_ours(
        **dict.fromkeys(
            ("total_input_tokens", "total_output_tokens", "completed", "failed", "max_concurrency"), 10**400
        )
    ),
    "a load that would be simulated for days": of_ours(
        max_concurrency=10**7, num_prompts=10**9, completed=1, total_input_tokens=1, total_output_tokens=1
    ),
    "figures of words": replaced(ROW, FIGURES % (b'"many"', b"[]", b"{}", b"null")),
    "a name that leaves the folder": replaced(
        ROW, b'{"completed": 1, "output_throughput": 5, "samples": "../../../../etc/passwd"}'
    ),
    "samples that are none": replaced("measurements/own.samples", b'{"magic": "moebox-samples-1"}\n' + bytes(99)),
    "two thousand measurements": many("measurements/m{:05d}.json", 2000),
    "evidence of ten megabytes": replaced(
        "verdicts/99-x.json", b'{"name": "x", "verdict": "fail", "evidence": "' + b"y" * 10_000_000 + b'"}'
    ),
    "names that move the cursor": replaced(
        "verdicts/99-y.json", json.dumps({"name": ESCAPES, "verdict": ESCAPES, "probes": [{"name": ESCAPES}]}).encode()
    ),
    "a pipe for a log": instead("engine.log", os.mkfifo),
    "a link for a box": instead("box.toml", lambda path: path.symlink_to("/etc/passwd")),
    "a loop of links": instead("measurements/loop.json", lambda path: path.symlink_to(path)),
    "folders for files": unwritable,
    "a pipe for a lock": instead(".lock", os.mkfifo),
    "a pipe for a journal": instead(JOURNAL, os.mkfifo),
    "a pipe for a pipeline": instead(PIPELINE, os.mkfifo),
    "a pipe for a report": instead("report.html", os.mkfifo),
    "a journal without end": instead(JOURNAL, lambda path: path.symlink_to("/dev/zero")),
    "a recipe without end": instead(RECIPE, lambda path: path.symlink_to("/dev/zero")),
    "a recipe with a key of a million parts": replaced(RECIPE, b"a" + b".a" * 1_000_000 + b" = 1"),
    "a link for a log": linked("engine.log", "secret.log"),
    "a link for a journal": linked(JOURNAL, "secret.log"),
    "a link for a lock": linked(".lock", "secret.log"),
    "a link for a recipe": linked(RECIPE, "secret.toml"),
    "a link for a report": linked("report.html", "secret.log"),
    "links for folders": linked_folders,
    "names that break lines": strange_names,
    "half of every file": halved,
    "markup in every text": marked_up,
}
