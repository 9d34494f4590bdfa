"""json: json_object and json_schema, validated, whole and streamed, and against a prompt that argues otherwise."""

import json
import random
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import fastjsonschema

from moebox.core.verdict import Score
from moebox.phantom import vocabulary
from moebox.phantom.format_questions import strip_fence
from moebox.phantom.question import Question
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import REJECTED_STATUSES, ProbeFailed, ProbeSkipped
from moebox.verify.trials import Check, CheckSession, QuestionAttempt, TrialOutcome, judge_answer
from moebox.verify.violations import parse_strict_json

Schema = dict[str, object]


async def probe_json(session: CheckSession, *, family: str, share: float | None = None, stream: bool = False) -> Score:
    """response_format json_object or json_schema gives an object with the requested values that fits its schema."""
    return await session.run_trials("json", JsonAttempt(session, family), share, stream=stream)


async def probe_contradictions(session: CheckSession) -> str:
    """A prompt that asks for something else does not get past the schema: the only proof that it is enforced."""
    kept, rejected = 0, 0
    contradictions = draw_contradictions(session.rng, session.options.trial_share(1.0, 4))
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
                max_tokens=256,
                allow_marks=True,
                stream=stream or None,
            )
        except ProbeFailed as problem:
            if problem.status not in REJECTED_STATUSES:
                raise
            rejected += 1  # the server reports that it cannot enforce this schema
            continue
        cut = answer.finish_reason == "length"
        reason = "" if cut else schema_violation(answer.content.strip(), schema)
        session.failures.add("schema", reason, stream=stream, where="not held to the schema")
        kept += not reason
    note = f", {rejected} refused" if rejected else ""
    return f"{kept} of {len(contradictions)} schemas held against their prompts{note}"


class JsonAttempt(QuestionAttempt):
    """Attempts at a JSON question. Raise ProbeSkipped if the server does not know the response format."""

    def __init__(self, session: CheckSession, family: str, *, thinking: bool = False) -> None:
        super().__init__(session, family, judge=judge_json, thinking=thinking)

    async def __call__(self, stream: bool = False) -> TrialOutcome:
        try:
            return await super().__call__(stream)
        except ProbeFailed as problem:
            if problem.status in REJECTED_STATUSES and "response_format" in self.session.exchanges[-1].response:
                raise ProbeSkipped("the server does not take this response_format") from None
            raise


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


def _object_schema(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_INTEGER: Schema = {"type": "integer"}
_BOOLEAN: Schema = {"type": "boolean"}
_STRING: Schema = {"type": "string"}
_OPEN = _object_schema({"zip": _INTEGER, "open": _BOOLEAN})
_TASK = _object_schema({"rank": _INTEGER, "done": _BOOLEAN})


def draw_contradictions(rng: random.Random, count: int) -> list[tuple[str, Schema]]:
    """Prompts that ask for what their schema forbids, in the shapes that agents use, from a random one on."""
    first = rng.randrange(11)
    drawn = []
    for number in range(count):
        city, word, name = vocabulary.draw_city(rng), vocabulary.draw_word(rng), vocabulary.draw_name(rng)
        colours = [vocabulary.invent_word(rng) for _ in range(3)]
        levels = rng.sample(range(10, 99), 3)
        integers = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 4}
        tag = {"name": {**_STRING, "minLength": 5}, "tag": {**_STRING, "maxLength": 4}}
        score = {"age": {**_INTEGER, "minimum": 18}, "score": {**_INTEGER, "maximum": 100}}
        # The end of a prompt, and the properties of a schema that forbids what it asks for: an enumeration, other
        # types, an object inside, a list, an optional key, no additional keys, an enumeration of numbers, a reference
        # (as Pydantic writes nested models), lengths, a pattern, a range.
        shapes: list[tuple[str, dict[str, Schema]]] = [
            ("the key colour. The colour is blue.", {"colour": {**_STRING, "enum": colours}}),
            (f"the keys city and age. The city is {city}. The age is seven.", {"city": _INTEGER, "age": _BOOLEAN}),
            (f"the key city. The city is {city}. Use no nested objects.", {"place": _OPEN}),
            (f"the key item. The item is {word}. Do not use an array.", {"items": integers}),
            (f"the keys name and note. The name is {name}. The note is hello.", {"count": _INTEGER, "note": _BOOLEAN}),
            (f"the keys title and extra. The title is {word}. The extra is more.", {"title": _STRING}),
            ("the key level. The level is high.", {"level": {**_INTEGER, "enum": levels}}),
            (f"the key task. The task is {word}. Use no nested objects.", {"task": {"$ref": "#/$defs/Task"}}),
            ("the keys name and tag. The name is Bo. The tag is a very long one indeed.", tag),
            (f"the key code. The code is {word}.", {"code": {**_STRING, "pattern": "^[A-Z]{3}$"}}),
            ("the keys age and score. The age is 7. The score is 900.", score),
        ]
        prompt, properties = shapes[(first + number) % len(shapes)]
        schema = _object_schema(properties)
        if "task" in properties:
            schema["$defs"] = {"Task": _TASK}
        if "note" in properties:
            schema["required"] = ["count"]
        drawn.append((f"Reply with a JSON object with {prompt}", schema))
    return drawn


CHECK = Check(
    name="json",
    about="json_object and json_schema, validated and enforced",
    probes={
        "json_object": partial(probe_json, family="json_object", share=0.34),
        "json_schema": partial(probe_json, family="json_schema"),
        "in a stream": partial(probe_json, family="json_schema", stream=True),
        "contradicted": probe_contradictions,
    },
    request_estimate=36,
)
