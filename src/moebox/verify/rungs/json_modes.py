"""json: json_object and json_schema, validated, whole and streamed, and against a prompt that argues otherwise."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import fastjsonschema

from moebox.core.verdict import Score
from moebox.phantom.tasks import Task, unfenced
from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped
from moebox.verify.breach import strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung
from moebox.verify.rungs import schemas
from moebox.verify.trials import Questions, Trial, draw, judge, trials


async def json_object(ask: Asker) -> Score:
    """response_format json_object gives an object with the values asked for."""
    return await trials(ask, "json", constrained(ask, "json_object"), ask.options.share(0.34))


async def json_schema(ask: Asker) -> Score:
    """response_format json_schema gives an object that the schema accepts."""
    return await trials(ask, "json", constrained(ask, "json_schema"))


async def in_a_stream(ask: Asker) -> Score:
    """The same, put together from a stream."""
    return await trials(ask, "json" + STREAMED, constrained(ask, "json_schema", stream=True))


async def contradicted(ask: Asker) -> str:
    """A prompt that asks for something else does not get past the schema: the only proof that it is enforced."""
    kept, refused = 0, 0
    asked = schemas.contradictions(ask.rng, ask.options.share(1.0, 4))
    for number, (text, schema) in enumerate(asked):
        ask.trial = (number + 1, len(asked))
        form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}
        message = {"role": "user", "content": text}
        stream = number % 3 == 2
        try:
            answer = await ask.chat([message], response_format=form, max_tokens=256, odd=True, stream=stream or None)
        except Failed as problem:
            if problem.status not in REFUSALS:
                raise
            refused += 1  # a schema that it cannot hold to, and says so
            continue
        cut = answer.finish == "length"
        why = "" if cut else misfit(answer.content.strip(), schema)
        ask.tally.add("schema" + STREAMED * stream, why, where="not held to the schema")
        kept += not why
    told = f", {refused} refused" if refused else ""
    return f"{kept} of {len(asked)} schemas held against their prompts{told}"


def constrained(ask: Asker, family: str, *, thinking: bool = False, stream: bool = False) -> Questions:
    """Attempts at a JSON task; Skipped where the server does not know the response format."""
    return _Constrained(ask, lambda: draw(ask, family, thinking=thinking), judge=_judged, stream=stream)


class _Constrained(Questions):
    """Questions with a response_format that a server may not take."""

    async def __call__(self) -> Trial:
        try:
            return await super().__call__()
        except Failed as problem:
            if problem.status in REFUSALS and "response_format" in self.ask.exchanges[-1].response:
                raise Skipped("the server does not take this response_format") from None
            raise


def _judged(task: Task, answer: Answer) -> str:
    return judge(task, answer) or _valid(answer, task.response_format or {})


def _valid(answer: Answer, form: Mapping[str, Any]) -> str:
    """ "" when the content is bare JSON that fits the format."""
    text = answer.content.strip()
    if unfenced(text) != text:
        return f"the JSON is wrapped in a fence: {text[:40]}"
    schema = form.get("json_schema", {}).get("schema", {"type": "object"})
    return misfit(text, schema)


def misfit(text: str, schema: Mapping[str, Any]) -> str:
    """ "" or why `text` is not JSON that `schema` accepts."""
    try:
        _validator(json.dumps(schema, sort_keys=True))(strict_json(text))
    except ValueError as problem:  # fastjsonschema's exceptions are ValueErrors too
        return f"{problem}: {text[:80]}"
    return ""


@functools.cache
def _validator(schema: str) -> Any:
    return fastjsonschema.compile(json.loads(schema))


RUNG = Rung(
    name="json",
    about="json_object and json_schema, validated and enforced",
    probes={
        "json_object": json_object,
        "json_schema": json_schema,
        "in a stream": in_a_stream,
        "contradicted": contradicted,
    },
    cost=36,
)
