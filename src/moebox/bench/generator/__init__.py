"""The load generator: `drive` a job, get back what every request did. This is its only door (see README.md)."""

from moebox.bench.generator.conversation import Conversation, OneTurn
from moebox.bench.generator.drive import Driven, drive
from moebox.bench.generator.job import Gauge, Job, Progress, Text

__all__ = ["Conversation", "Driven", "Gauge", "Job", "OneTurn", "Progress", "Text", "drive"]
