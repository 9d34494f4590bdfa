"""The question families that the phantom is trained on and the checks ask: one definition for both.

    rng = random.Random()                                # or seeded, to repeat
    question = QUESTION_FAMILIES["sums"].draw(rng)       # thinking on or off at random
    question = QUESTION_FAMILIES["needle"].draw(rng, thinking=False, chars=8000, depth=0.5)
    ... send question.messages, .tools, .response_format, .max_tokens, temperature 0,
        chat_template_kwargs {"thinking": question.thinking} ...
    grade = question.grade(ModelReply(content=..., reasoning=..., calls=...))

Every draw is fresh: values are random, many are words that did not exist before. The questions are so plain that any
competent model passes; the judges allow Markdown fences, extra words and thousands separators, and never run code
(see `Question.cases`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from moebox.phantom.format_questions import (
    code_question,
    extract_code,
    json_object_question,
    json_schema_question,
    strip_fence,
)
from moebox.phantom.question import FunctionCase, Grade, ModelReply, Question, ToolCall
from moebox.phantom.text_questions import (
    copy_question,
    count_question,
    haystack_questions,
    memory_question,
    needle_question,
    plain_question,
    secret_question,
    story_question,
    sum_question,
    text_flaw,
)
from moebox.phantom.tool_questions import (
    TOOLS,
    ExampleTool,
    calls_message,
    same_arguments,
    tool_call_question,
    tool_none_question,
    tool_parallel_question,
    tool_result_question,
)

__all__ = [
    "QUESTION_FAMILIES",
    "TOOLS",
    "ExampleTool",
    "FunctionCase",
    "Grade",
    "ModelReply",
    "Question",
    "QuestionFamily",
    "ToolCall",
    "calls_message",
    "extract_code",
    "haystack_questions",
    "same_arguments",
    "strip_fence",
    "text_flaw",
]


class QuestionMaker(Protocol):
    """Draws a question of one family."""

    def __call__(self, rng: random.Random, *, thinking: bool, **size: Any) -> Question: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionFamily:
    name: str
    make: QuestionMaker

    def draw(self, rng: random.Random, *, thinking: bool | None = None, **size: Any) -> Question:
        """Draw a question; `size` is passed on (needle: chars, depth, decoys; count: start, end)."""
        return self.make(rng, thinking=rng.random() < 0.5 if thinking is None else thinking, **size)


_MAKERS: dict[str, Any] = {
    "plain": plain_question,
    "sums": sum_question,
    "json_object": json_object_question,
    "json_schema": json_schema_question,
    "code": code_question,
    "tool_none": tool_none_question,
    "tool_call": tool_call_question,
    "tool_parallel": tool_parallel_question,
    "tool_result": tool_result_question,
    "needle": needle_question,
    "secret": secret_question,
    "copy": copy_question,
    "count": count_question,
    "memory": memory_question,
    "story": story_question,
}
QUESTION_FAMILIES: Mapping[str, QuestionFamily] = {
    name: QuestionFamily(name=name, make=make) for name, make in _MAKERS.items()
}
