"""json: json_object and json_schema, validated, whole and streamed, and against a prompt that argues otherwise."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import fastjsonschema

from moebox.core.verdict import Score
from moebox.phantom.tasks import Question, strip_fence
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, ProbeSkipped
from moebox.verify.breach import parse_strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check
from moebox.verify.rungs import schemas
from moebox.verify.trials import QuestionAttempt, TrialOutcome, draw_question, judge_answer, run_trials


async def probe_json_object(session: CheckSession) -> Score:
    """response_format json_object gives an object with the values asked for."""
    return await run_trials(session, "json", json_attempt(session, "json_object"), session.options.trial_share(0.34))


async def probe_json_schema(session: CheckSession) -> Score:
    """response_format json_schema gives an object that the schema accepts."""
    return await run_trials(session, "json", json_attempt(session, "json_schema"))


async def probe_json_stream(session: CheckSession) -> Score:
    """The same, put together from a stream."""
    return await run_trials(session, "json" + STREAMED, json_attempt(session, "json_schema", stream=True))


async def probe_contradictions(session: CheckSession) -> str:
    """A prompt that asks for something else does not get past the schema: the only proof that it is enforced."""
    kept, refused = 0, 0
    asked = schemas.draw_contradictions(session.rng, session.options.trial_share(1.0, 4))
    for number, (text, schema) in enumerate(asked):
        session.trial_progress = (number + 1, len(asked))
        form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}
        message = {"role": "user", "content": text}
        stream = number % 3 == 2
        try:
            answer = await session.chat(
                [message], response_format=form, max_tokens=256, allow_marks=True, stream=stream or None
            )
        except ProbeFailed as problem:
            if problem.status not in REJECTED_STATUSES:
                raise
            refused += 1  # a schema that it cannot hold to, and says so
            continue
        cut = answer.finish_reason == "length"
        why = "" if cut else schema_violation(answer.content.strip(), schema)
        session.failures.add("schema" + STREAMED * stream, why, where="not held to the schema")
        kept += not why
    told = f", {refused} refused" if refused else ""
    return f"{kept} of {len(asked)} schemas held against their prompts{told}"


def json_attempt(
    session: CheckSession, family: str, *, thinking: bool = False, stream: bool = False
) -> QuestionAttempt:
    """Attempts at a JSON task; Skipped where the server does not know the response format."""
    return _JsonAttempt(
        session, lambda: draw_question(session, family, thinking=thinking), judge=_judged, stream=stream
    )


class _JsonAttempt(QuestionAttempt):
    """Questions with a response_format that a server may not take."""

    async def __call__(self) -> TrialOutcome:
        try:
            return await super().__call__()
        except ProbeFailed as problem:
            if problem.status in REJECTED_STATUSES and "response_format" in self.session.exchanges[-1].response:
                raise ProbeSkipped("the server does not take this response_format") from None
            raise


def _judged(task: Question, answer: ChatAnswer) -> str:
    return judge_answer(task, answer) or _valid(answer, task.response_format or {})


def _valid(answer: ChatAnswer, form: Mapping[str, Any]) -> str:
    """ "" when the content is bare JSON that fits the format."""
    text = answer.content.strip()
    if strip_fence(text) != text:
        return f"the JSON is wrapped in a fence: {text[:40]}"
    schema = form.get("json_schema", {}).get("schema", {"type": "object"})
    return schema_violation(text, schema)


def schema_violation(text: str, schema: Mapping[str, Any]) -> str:
    """ "" or why `text` is not JSON that `schema` accepts."""
    try:
        _validator(json.dumps(schema, sort_keys=True))(parse_strict_json(text))
    except ValueError as problem:  # fastjsonschema's exceptions are ValueErrors too
        return f"{problem}: {text[:80]}"
    return ""


@functools.cache
def _validator(schema: str) -> Any:
    return fastjsonschema.compile(json.loads(schema))


CHECK = Check(
    name="json",
    about="json_object and json_schema, validated and enforced",
    probes={
        "json_object": probe_json_object,
        "json_schema": probe_json_schema,
        "in a stream": probe_json_stream,
        "contradicted": probe_contradictions,
    },
    request_estimate=36,
)
