"""Run folders: everything that happens is written down as it happens.

    RUN/  run.json  recipe.toml  box.toml  plan.json  events.jsonl  engine.log  verdicts/  measurements/  report.html

events.jsonl is append-only, one JSON object a line with `time` (seconds since the epoch), `kind` and `data`.
Killed at any byte, the folder still reads: files are replaced whole, and a torn journal line is dropped and told.
"""

from moebox.store.journal import Entry, Journal, Torn
from moebox.store.listing import Brief, briefs
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
    "briefs",
    "rotate",
    "runs_dir",
]
