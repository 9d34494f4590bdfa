"""The load generator: `run_job` sends the load and returns a record of every request (see README.md)."""

from moebox.bench.generator.job import CHECKED_REPLIES as CHECKED_REPLIES
from moebox.bench.generator.job import LATE_NS as LATE_NS
from moebox.bench.generator.job import Conversation as Conversation
from moebox.bench.generator.job import LoadJob as LoadJob
from moebox.bench.generator.job import LoadProgress as LoadProgress
from moebox.bench.generator.job import PromptWords as PromptWords
from moebox.bench.generator.job import WorkerGauge as WorkerGauge
from moebox.bench.generator.processes import LoadRun as LoadRun
from moebox.bench.generator.processes import run_job as run_job
