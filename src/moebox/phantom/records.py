"""JSON: values from the question copied into an object, free (json_object) or by schema (json_schema)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from moebox.phantom import vocabulary as words
from moebox.phantom.task import Grade, ModelReply, Question, accept, reject, shorten, token_budget, user_message

_KEYS: dict[str, tuple[str, Callable[[random.Random], Any]]] = {
    "name": ("string", words.draw_name),
    "city": ("string", words.draw_city),
    "colour": ("string", lambda rng: rng.choice(words.COLOURS)),
    "animal": ("string", lambda rng: rng.choice(words.ANIMALS)),
    "day": ("string", lambda rng: rng.choice(words.DAYS)),
    "code": ("string", words.draw_code),
    "title": ("string", lambda rng: f"{words.draw_word(rng)} {words.draw_word(rng)}"),
    "language": ("string", lambda rng: rng.choice(words.LANGUAGES)),
    "room": ("string", lambda rng: rng.choice(words.ROOMS)),
    "item": ("string", words.draw_word),
    "age": ("integer", lambda rng: rng.randint(1, 99)),
    "count": ("integer", words.draw_number),
    "price": ("integer", words.draw_number),
    "year": ("integer", lambda rng: rng.randint(1900, 2099)),
    "score": ("integer", lambda rng: rng.randint(0, 100)),
    "active": ("boolean", lambda rng: rng.random() < 0.5),
    "open": ("boolean", lambda rng: rng.random() < 0.5),
}
_ASKS = (
    "Reply with a JSON object with the keys {keys}. {facts}",
    "Return only a JSON object with the keys {keys}. {facts}",
    "{facts} Give me this as a JSON object with the keys {keys}.",
    "{facts} Answer with one JSON object that has the keys {keys} and nothing else.",
)


def _record(rng: random.Random) -> dict[str, Any]:
    keys = rng.sample(list(_KEYS), rng.choice((1, 2, 3, 3, 4)))
    return {key: _KEYS[key][1](rng) for key in keys}


def _ask(rng: random.Random, record: dict[str, Any]) -> str:
    told = list(record)
    rng.shuffle(told)
    shown = {True: "true", False: "false"}
    facts = " ".join(
        f"The {key} is {shown[record[key]] if isinstance(record[key], bool) else record[key]}." for key in told
    )
    ask = rng.choice(_ASKS).format(keys=words.join_words(list(record)), facts=facts)
    return ask.replace("with the keys", "with the key") if len(record) == 1 else ask


def json_object(rng: random.Random, *, thinking: bool) -> Question:
    """An object asked for with `response_format` json_object."""
    return _task("json_object", rng, thinking, lambda record: {"type": "json_object"})


def json_schema(rng: random.Random, *, thinking: bool) -> Question:
    """The same with a schema, so that constrained decoding is in play."""
    return _task("json_schema", rng, thinking, _schema_format)


def _task(
    family: str, rng: random.Random, thinking: bool, form: Callable[[dict[str, Any]], dict[str, Any]]
) -> Question:
    record = _record(rng)
    return Question(
        family=family,
        messages=(user_message(_ask(rng, record)),),
        expect=record,
        sample=ModelReply(content=json.dumps(record), reasoning="The user wants a JSON object. I copy the values."),
        judge=_judge,
        response_format=form(record),
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def _schema_format(record: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": _KEYS[key][0]} for key in record},
        "required": list(record),
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}


def strip_fence(text: str) -> str:
    """The text without a Markdown fence around it."""
    fence = re.search(r"```[a-zA-Z]*\n(.*?)```", text, re.DOTALL)
    return (fence.group(1) if fence else text).strip()


def _judge(task: Question, reply: ModelReply) -> Grade:
    try:
        got = json.loads(strip_fence(reply.content))
    except (ValueError, RecursionError) as error:
        return reject(f"not JSON ({error}): {shorten(reply.content)}")
    if not isinstance(got, dict):
        return reject(f"not an object: {shorten(reply.content)}")
    if set(got) != set(task.expect):
        return reject(f"keys {sorted(got)} instead of {sorted(task.expect)}")
    wrong = [key for key, want in task.expect.items() if not _same(got[key], want)]
    return reject(f"{wrong[0]} is {got[wrong[0]]!r}, not {task.expect[wrong[0]]!r}") if wrong else accept()


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, bool) or isinstance(got, bool):
        return got is want
    return bool(got == want)
