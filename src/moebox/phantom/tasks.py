"""The task families that the phantom is trained on and that the ladder asks: one definition for both.

    rng = random.Random()                      # or seeded, to repeat
    task = FAMILIES["sums"].draw(rng)          # thinking on or off at random
    task = FAMILIES["needle"].draw(rng, thinking=False, chars=8000, depth=0.5)
    ... send task.messages, task.tools, task.response_format, task.max_tokens, temperature 0,
        chat_template_kwargs {"thinking": task.thinking} ...
    grade = task.grade(Reply(content=..., reasoning=..., calls=...))

Every draw is fresh: values are random, many are words that did not exist before. The questions are
plain enough that any competent model passes; the judges allow Markdown fences, extra words and
thousands separators, and never run code (see `Task.cases`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from moebox.phantom.calls import asked, tool_call, tool_none, tool_parallel, tool_result
from moebox.phantom.functions import code, code_in
from moebox.phantom.needles import haystack, needle
from moebox.phantom.records import json_object, json_schema, unfenced
from moebox.phantom.sums import sums
from moebox.phantom.talk import copy, count, flaw, memory, plain, secret, story
from moebox.phantom.task import Call, Case, Grade, Reply, Task

__all__ = [
    "FAMILIES",
    "Call",
    "Case",
    "Family",
    "Grade",
    "Reply",
    "Task",
    "asked",
    "code_in",
    "flaw",
    "haystack",
    "unfenced",
]


class Draw(Protocol):
    """A family's generator."""

    def __call__(self, rng: random.Random, *, thinking: bool, **size: Any) -> Task: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One kind of task."""

    name: str
    make: Draw

    def draw(self, rng: random.Random, *, thinking: bool | None = None, **size: Any) -> Task:
        """A fresh task; `size` is passed on (needle: chars, depth, decoys; count: start, end)."""
        return self.make(rng, thinking=rng.random() < 0.5 if thinking is None else thinking, **size)


def _family(make: Any) -> Family:
    return Family(name=make.__name__, make=make)


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in map(
        _family,
        (
            plain,
            sums,
            json_object,
            json_schema,
            code,
            tool_none,
            tool_call,
            tool_parallel,
            tool_result,
            needle,
            secret,
            copy,
            count,
            memory,
            story,
        ),
    )
}
