"""Run folders: everything that happens in a run is written to its folder at once.

    RUN/  run.json  recipe.toml  box.toml  plan.json  events.jsonl  engine.log  verdicts/  measurements/  report.html

events.jsonl is append-only, one JSON object a line with `time` (seconds since the epoch), `kind` and `data`.
A folder can be read even if its writer was killed: files are replaced whole, and an incomplete journal line is dropped
and noted.

Names are imported on first use: an engine's guard and the load generator's processes need only a part of this package,
and start in half the time without the types of a journal.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moebox.store.journal import JournalEntry as JournalEntry
    from moebox.store.run import DISK_FULL_ERRORS as DISK_FULL_ERRORS
    from moebox.store.run import FORMAT as FORMAT
    from moebox.store.run import PIPELINE as PIPELINE
    from moebox.store.run import PIPELINE_BEFORE as PIPELINE_BEFORE
    from moebox.store.run import Run as Run
    from moebox.store.run import runs_dir as runs_dir

_HOMES = {
    "journal": ("JournalEntry",),
    "run": ("DISK_FULL_ERRORS", "FORMAT", "PIPELINE", "PIPELINE_BEFORE", "Run", "runs_dir"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"moebox.store.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
