"""json: json_object and json_schema, validated, whole and streamed."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import fastjsonschema

from moebox.phantom.tasks import unfenced
from moebox.verify.answer import Answer, strict_json
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.rung import Rung
from moebox.verify.trials import Attempt, draw, judge, sure

EACH = 3


async def json_object(ask: Asker) -> None:
    """response_format json_object gives an object with the values asked for."""
    for _ in range(EACH):
        await sure(constrained(ask, "json_object"))


async def json_schema(ask: Asker) -> None:
    """response_format json_schema gives an object that the schema accepts."""
    for _ in range(EACH):
        await sure(constrained(ask, "json_schema"))


async def in_a_stream(ask: Asker) -> None:
    """The same, put together from a stream."""
    await sure(constrained(ask, "json_schema", stream=True))


def constrained(ask: Asker, family: str, *, thinking: bool = False, stream: bool = False) -> Attempt:
    """An attempt at a JSON task; Skipped where the server does not know the response format."""

    async def attempt() -> str:
        task = draw(ask, family, thinking=thinking)
        try:
            answer = await ask.ask(task, stream=stream)
        except Failed:
            if ask.exchanges[-1].status in (400, 422, 501) and "response_format" in ask.exchanges[-1].response:
                raise Skipped(f"the server does not take response_format {family}") from None
            raise
        return judge(task, answer) or _valid(answer, task.response_format or {})

    return attempt


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
    about="json_object and json_schema, validated",
    probes={"json_object": json_object, "json_schema": json_schema, "in a stream": in_a_stream},
)
