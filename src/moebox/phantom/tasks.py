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

from moebox.phantom.calls import calls_message, tool_call, tool_none, tool_parallel, tool_result
from moebox.phantom.functions import code, extract_code
from moebox.phantom.needles import haystack_questions, needle
from moebox.phantom.records import json_object, json_schema, strip_fence
from moebox.phantom.sums import sums
from moebox.phantom.talk import copy, count, memory, plain, secret, story, text_flaw
from moebox.phantom.task import FunctionCase, Grade, ModelReply, Question, ToolCall

__all__ = [
    "FAMILIES",
    "FunctionCase",
    "Grade",
    "ModelReply",
    "Question",
    "QuestionFamily",
    "ToolCall",
    "calls_message",
    "extract_code",
    "haystack_questions",
    "strip_fence",
    "text_flaw",
]


class QuestionMaker(Protocol):
    """A family's generator."""

    def __call__(self, rng: random.Random, *, thinking: bool, **size: Any) -> Question: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionFamily:
    """One kind of task."""

    name: str
    make: QuestionMaker

    def draw(self, rng: random.Random, *, thinking: bool | None = None, **size: Any) -> Question:
        """A fresh task; `size` is passed on (needle: chars, depth, decoys; count: start, end)."""
        return self.make(rng, thinking=rng.random() < 0.5 if thinking is None else thinking, **size)


def _family(make: Any) -> QuestionFamily:
    return QuestionFamily(name=make.__name__, make=make)


FAMILIES: Mapping[str, QuestionFamily] = {
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
