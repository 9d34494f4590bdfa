"""The load generator: `drive` a job, get back what every request did. This is its only door (see README.md)."""

from moebox.bench.generator.conversation import Conversation, SingleTurn
from moebox.bench.generator.job import LATE_NS, LoadJob, LoadProgress, PromptWords, WorkerGauge
from moebox.bench.generator.processes import LoadRun, run_job

__all__ = [
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
