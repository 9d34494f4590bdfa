"""Families of jobs; `make_job` gives the job of a family, level and seed, the same everywhere."""

import random
from collections.abc import Callable
from dataclasses import asdict

from moebox.errors import require_known
from moebox.tasks.families import code_jobs, text_jobs
from moebox.tasks.result import LEVELS, AgentJob, JobDraft, Level

JobMaker = Callable[[random.Random, Level], JobDraft]
FAMILIES: dict[str, JobMaker] = {
    "errand": text_jobs.make_errand,
    "question": text_jobs.make_question,
    "repair": code_jobs.make_repair,
    "clean": text_jobs.make_clean,
    "implement": code_jobs.make_implement,
    "refactor": code_jobs.make_refactor,
    "gadget": text_jobs.make_gadget,
    "plan": text_jobs.make_plan,
    "long-reply": text_jobs.make_long_reply,
}


def make_job(family: str, level: Level, seed: int) -> AgentJob:
    """Make a job. Raise UnknownName for a family or level that does not exist."""
    require_known("family", family, FAMILIES)
    require_known("level", level, LEVELS)
    draft = FAMILIES[family](random.Random(f"{family}/{level}/{seed}"), level)  # text seeds are stable across Pythons
    return AgentJob(family=family, level=level, seed=seed, **asdict(draft) | {"checks": draft.checks})
