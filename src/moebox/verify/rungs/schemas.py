"""Schemas of the shapes that agents use, each with a prompt that asks for something the schema forbids."""

import random
from collections.abc import Callable

from moebox.phantom import vocabulary as words

Schema = dict[str, object]


def draw_contradictions(rng: random.Random, count: int) -> list[tuple[str, Schema]]:
    """`count` prompts and schemas, every shape in turn, from any of them on."""
    first = rng.randrange(len(SHAPES))
    return [SHAPES[(first + number) % len(SHAPES)](rng) for number in range(count)]


def _record(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _enum(rng: random.Random) -> tuple[str, Schema]:
    allowed = [words.invent_word(rng) for _ in range(3)]
    text = "Reply with a JSON object with the key colour. The colour is blue."
    return text, _record({"colour": {"type": "string", "enum": allowed}})


def _type(rng: random.Random) -> tuple[str, Schema]:
    text = f"Reply with a JSON object with the keys city and age. The city is {words.draw_city(rng)}. The age is seven."
    return text, _record({"city": {"type": "integer"}, "age": {"type": "boolean"}})


def _nested(rng: random.Random) -> tuple[str, Schema]:
    inner = _record({"zip": {"type": "integer"}, "open": {"type": "boolean"}})
    text = f"Reply with a JSON object with the key city. The city is {words.draw_city(rng)}. Use no nested objects."
    return text, _record({"place": inner})


def _array(rng: random.Random) -> tuple[str, Schema]:
    items = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}
    text = f"Reply with a JSON object with the key item. The item is {words.draw_word(rng)}. Do not use an array."
    return text, _record({"items": items})


def _optional(rng: random.Random) -> tuple[str, Schema]:
    text = (
        f"Reply with a JSON object with the keys name and note. The name is {words.draw_name(rng)}. The note is hello."
    )
    return text, _record({"count": {"type": "integer"}, "note": {"type": "boolean"}}, required=["count"])


def _closed(rng: random.Random) -> tuple[str, Schema]:
    text = (
        "Reply with a JSON object with the keys title and extra. "
        f"The title is {words.draw_word(rng)}. The extra is more."
    )
    return text, _record({"title": {"type": "string"}})


def _numbers(rng: random.Random) -> tuple[str, Schema]:
    allowed = rng.sample(range(10, 99), 3)
    text = "Reply with a JSON object with the key level. The level is high."
    return text, _record({"level": {"type": "integer", "enum": allowed}})


def _referred(rng: random.Random) -> tuple[str, Schema]:
    """As Pydantic writes nested models."""
    inner = _record({"rank": {"type": "integer"}, "done": {"type": "boolean"}})
    text = f"Reply with a JSON object with the key task. The task is {words.draw_word(rng)}. Use no nested objects."
    return text, _record({"task": {"$ref": "#/$defs/Task"}}) | {"$defs": {"Task": inner}}


def _lengths(rng: random.Random) -> tuple[str, Schema]:
    text = "Reply with a JSON object with the keys name and tag. The name is Bo. The tag is a very long one indeed."
    return text, _record({"name": {"type": "string", "minLength": 5}, "tag": {"type": "string", "maxLength": 4}})


def _pattern(rng: random.Random) -> tuple[str, Schema]:
    text = f"Reply with a JSON object with the key code. The code is {words.draw_word(rng)}."
    return text, _record({"code": {"type": "string", "pattern": "^[A-Z]{3}$"}})


def _range(rng: random.Random) -> tuple[str, Schema]:
    text = "Reply with a JSON object with the keys age and score. The age is 7. The score is 900."
    return text, _record({"age": {"type": "integer", "minimum": 18}, "score": {"type": "integer", "maximum": 100}})


SHAPES: tuple[Callable[[random.Random], tuple[str, Schema]], ...] = (
    _enum,
    _type,
    _nested,
    _array,
    _optional,
    _closed,
    _numbers,
    _referred,
    _lengths,
    _pattern,
    _range,
)
