"""Families of jobs; `make_job` gives the job of a family, level and seed, the same everywhere."""

import random
from collections.abc import Callable
from dataclasses import asdict

from moebox.errors import UnknownName
from moebox.tasks.families import clean, errand, gadget, implement, long_reply, plan, question, refactor, repair
from moebox.tasks.job import LEVELS, AgentJob, JobDraft, Level

JobMaker = Callable[[random.Random, Level], JobDraft]
FAMILIES: dict[str, JobMaker] = {
    "errand": errand.make_draft,
    "question": question.make_draft,
    "repair": repair.make_draft,
    "clean": clean.make_draft,
    "implement": implement.make_draft,
    "refactor": refactor.make_draft,
    "gadget": gadget.make_draft,
    "plan": plan.make_draft,
    "long-reply": long_reply.make_draft,
}


def make_job(family: str, level: Level, seed: int) -> AgentJob:
    """Make a job. Raise UnknownName for a family or level that does not exist."""
    if family not in FAMILIES:
        raise UnknownName("family", family, FAMILIES)
    if level not in LEVELS:
        raise UnknownName("level", level, LEVELS)
    draft = FAMILIES[family](random.Random(f"{family}/{level}/{seed}"), level)  # text seeds are stable across Pythons
    return AgentJob(family=family, level=level, seed=seed, **asdict(draft) | {"checks": draft.checks})
