"""The load generator: `drive` a job, get back what every request did. This is its only door (see README.md)."""

from moebox.bench.generator.conversation import Conversation, OneTurn
from moebox.bench.generator.job import LATE, Gauge, Job, Progress, Text
from moebox.bench.generator.processes import Driven, drive

__all__ = ["LATE", "Conversation", "Driven", "Gauge", "Job", "OneTurn", "Progress", "Text", "drive"]
