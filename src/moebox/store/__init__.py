"""Run folders: everything that happens is written down as it happens.

    RUN/  run.json  recipe.toml  box.toml  plan.json  events.jsonl  engine.log  verdicts/  measurements/  report.html

events.jsonl is append-only, one JSON object a line with `time` (seconds since the epoch), `kind` and `data`.
Killed at any byte, the folder still reads: files are replaced whole, and a torn journal line is dropped and told.

Names are loaded when they are first asked for: an engine's guard and the load generator's processes take a log or an
array from here, and start in half the time without the types of a journal.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moebox.store.journal import Entry, Journal, Torn
    from moebox.store.listing import Brief
    from moebox.store.log import EngineLog, rotate
    from moebox.store.run import FORMAT, FULL, PIPELINE, PIPELINE_BEFORE, Run, runs_dir

__all__ = [
    "FORMAT",
    "FULL",
    "PIPELINE",
    "PIPELINE_BEFORE",
    "Brief",
    "EngineLog",
    "Entry",
    "Journal",
    "Run",
    "Torn",
    "rotate",
    "runs_dir",
]

_HOMES = {
    "journal": ("Entry", "Journal", "Torn"),
    "listing": ("Brief",),
    "log": ("EngineLog", "rotate"),
    "run": ("FORMAT", "FULL", "PIPELINE", "PIPELINE_BEFORE", "Run", "runs_dir"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"moebox.store.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
