"""The load generator: `run_job` sends the load and returns a record of every request (see README.md)."""

from moebox.bench.generator.job import (
    CHECKED_REPLIES,
    LATE_NS,
    Conversation,
    LoadJob,
    LoadProgress,
    PromptWords,
    SingleTurn,
    WorkerGauge,
)
from moebox.bench.generator.processes import LoadRun, run_job

__all__ = [
    "CHECKED_REPLIES",
    "LATE_NS",
    "Conversation",
    "LoadJob",
    "LoadProgress",
    "LoadRun",
    "PromptWords",
    "SingleTurn",
    "WorkerGauge",
    "run_job",
]
