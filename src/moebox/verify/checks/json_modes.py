"""json: json_object and json_schema, validated, whole and streamed, and against a prompt that argues otherwise."""

import json
import random
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import fastjsonschema

from moebox.core import catalogue
from moebox.core.verdict import Score
from moebox.phantom import vocabulary
from moebox.phantom.format_questions import strip_fence
from moebox.phantom.question import Question
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import REJECTED_STATUSES, ProbeFailed
from moebox.verify.trials import Check, CheckSession, QuestionAttempt, judge_answer
from moebox.verify.violations import parse_strict_json

Schema = dict[str, object]


async def probe_json(session: CheckSession, *, family: str, share: float | None = None, stream: bool = False) -> Score:
    """response_format json_object or json_schema gives an object with the requested values that fits its schema."""
    attempt = QuestionAttempt(session, family, judge=judge_json)
    return await session.run_trials("json", attempt, share, stream=stream)


async def probe_contradictions(session: CheckSession) -> str:
    """A prompt that asks for something else does not get past the schema: the only proof that it is enforced."""
    kept, rejected = 0, 0
    contradictions = draw_contradictions(session.rng, session.options.trial_share(1.4, 4))
    for number, (text, schema) in enumerate(contradictions):
        session.trial_progress = (number + 1, len(contradictions))
        stream = number % 3 == 2
        try:
            answer = await session.chat(
                [{"role": "user", "content": text}],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "record", "strict": True, "schema": schema},
                },
                max_tokens=128,
                allow_marks=True,
                stream=stream,
            )
        except ProbeFailed as problem:
            if problem.status not in REJECTED_STATUSES:
                raise
            rejected += 1  # the server reports that it cannot enforce this schema
            continue
        cut = answer.finish_reason == "length"
        reason = "" if cut else schema_violation(answer.content.strip(), schema)
        session.failures.add("schema", reason, stream=stream, where="the reply broke the JSON schema")
        kept += not reason
    note = f", {rejected} refused" if rejected else ""
    return f"{kept} of {len(contradictions)} schemas enforced against contradicting prompts{note}"


def judge_json(question: Question, answer: ChatAnswer) -> str:
    """Return "" if the answer is right and its content is bare JSON that fits the format."""
    if reason := judge_answer(question, answer):
        return reason
    text, response_format = answer.content.strip(), question.response_format or {}
    if strip_fence(text) != text:
        return f"the JSON is wrapped in a fence: {text[:40]}"
    return schema_violation(text, response_format.get("json_schema", {}).get("schema", {"type": "object"}))


def schema_violation(text: str, schema: Mapping[str, Any]) -> str:
    """Return why `text` is not JSON that `schema` accepts, or ""."""
    try:
        _compile_schema(json.dumps(schema, sort_keys=True))(parse_strict_json(text))
    except ValueError as problem:  # fastjsonschema's exceptions are ValueErrors too
        return f"{problem}: {text[:80]}"
    return ""


@cache
def _compile_schema(schema: str) -> Any:
    return fastjsonschema.compile(json.loads(schema))


def draw_contradictions(rng: random.Random, count: int) -> list[tuple[str, Schema]]:
    """Prompts that ask for what their schema forbids, in the shapes that agents use, from a random one on."""
    rows = catalogue.load_table("check_requests")["contradiction"]
    first, drawn = rng.randrange(len(rows)), []
    for number in range(count):
        row = rows[(first + number) % len(rows)]
        ask, schema = row["ask"], row["schema"].replace("LEVEL", ", ".join(map(str, rng.sample(range(10, 99), 3))))
        words = {
            "CITY": vocabulary.draw_city(rng),
            "WORD": vocabulary.draw_word(rng),
            "NAME": vocabulary.draw_name(rng),
        }
        words |= {f"COLOUR{place}": vocabulary.invent_word(rng) for place in (1, 2, 3)}
        for mark, word in words.items():
            ask, schema = ask.replace(mark, word), schema.replace(mark, word)
        drawn.append((f"Reply with a JSON object with {ask}", json.loads(schema)))
    return drawn


CHECK = Check(
    name="json",
    probes={
        "json_object": partial(probe_json, family="json_object", share=0.25),
        "json_schema": partial(probe_json, family="json_schema"),
        "in a stream": partial(probe_json, family="json_schema", stream=True),
        "contradicted": probe_contradictions,
    },
)
