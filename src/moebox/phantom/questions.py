"""The question families that the phantom is trained on and the checks ask: one definition for both.

Every draw is fresh: values are random, many are words that did not exist before. The questions are so plain that any
competent model passes; the judges allow Markdown fences, extra words and thousands separators, and never run code
(see `Question.cases`).
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from moebox.phantom import format_questions, text_questions, tool_questions
from moebox.phantom.question import Question

QUESTION_FAMILIES: Mapping[str, Callable[..., Question]] = {
    "plain": text_questions.plain_question,
    "sums": text_questions.sum_question,
    "json_object": partial(format_questions.record_question, "json_object"),
    "json_schema": partial(format_questions.record_question, "json_schema"),
    "code": format_questions.code_question,
    "tool_none": tool_questions.tool_none_question,
    "tool_call": tool_questions.tool_call_question,
    "tool_parallel": tool_questions.tool_parallel_question,
    "tool_result": tool_questions.tool_result_question,
    "needle": text_questions.needle_question,
    "secret": text_questions.secret_question,
    "copy": text_questions.copy_question,
    "count": text_questions.count_question,
    "memory": text_questions.memory_question,
    "story": text_questions.story_question,
}


def draw_question(family: str, rng: random.Random, *, thinking: bool | None = None, **size: Any) -> Question:
    """Draw a question; `size` is passed on (needle: chars, depth, decoys; count: start, end)."""
    return QUESTION_FAMILIES[family](rng, thinking=rng.random() < 0.5 if thinking is None else thinking, **size)
