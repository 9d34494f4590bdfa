"""The families of jobs; `make` gives the job of a family, level and seed, the same everywhere and always."""

import random
from collections.abc import Callable
from dataclasses import asdict

from moebox.errors import UnknownName
from moebox.tasks.families import (
    clean,
    errand,
    gadget,
    implement,
    long_reply,
    plan,
    question,
    refactor,
    repair,
)
from moebox.tasks.job import LEVELS, AgentJob, JobDraft, Level

JobMaker = Callable[[random.Random, Level], JobDraft]
FAMILIES: dict[str, JobMaker] = {
    "errand": errand.make,
    "question": question.make,
    "repair": repair.make,
    "clean": clean.make,
    "implement": implement.make,
    "refactor": refactor.make,
    "gadget": gadget.make,
    "plan": plan.make,
    "long-reply": long_reply.make,
}


def make_job(family: str, level: Level, seed: int) -> AgentJob:
    """The job; UnknownName for a family or level that is not there."""
    if family not in FAMILIES:
        raise UnknownName("family", family, FAMILIES)
    if level not in LEVELS:
        raise UnknownName("level", level, LEVELS)
    draft = FAMILIES[family](random.Random(f"{family}/{level}/{seed}"), level)  # text seeds are stable across Pythons
    return AgentJob(family=family, level=level, seed=seed, **asdict(draft) | {"checks": draft.checks})
