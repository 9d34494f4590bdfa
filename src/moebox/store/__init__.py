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
    from moebox.store.journal import JournalEntry
    from moebox.store.run import DISK_FULL_ERRORS, FORMAT, PIPELINE, PIPELINE_BEFORE, Run, runs_dir

__all__ = ["DISK_FULL_ERRORS", "FORMAT", "PIPELINE", "PIPELINE_BEFORE", "JournalEntry", "Run", "runs_dir"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "journal" if name == "JournalEntry" else "run"
    return getattr(importlib.import_module(f"moebox.store.{home}"), name)
