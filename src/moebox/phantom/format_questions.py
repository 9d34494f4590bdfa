"""Questions answered in a format: JSON objects, free or by schema, and small Python functions."""

import ast
import json
import random
import re
from collections.abc import Callable
from typing import Any

from moebox.data import load_table
from moebox.phantom import vocabulary
from moebox.phantom.question import ModelReply, Question, ask_user, shorten
from moebox.phantom.text_questions import PROMPTS, REASONING
from moebox.units import join_names

_KEYS, _FUNCTIONS = (load_table("questions")[name] for name in ("json_keys", "function"))


def record_question(family: str, rng: random.Random, *, thinking: bool) -> Question:
    """Values in the question to be copied into an object, which json_schema requests by its schema."""
    keys = rng.sample(list(_KEYS), rng.choice((1, 2, 3, 3, 4)))
    record = {key: vocabulary.draw_value(rng, _KEYS[key]["draw"]) for key in keys}
    shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in record.items()}
    order = list(record)
    rng.shuffle(order)
    facts = " ".join(f"The {key} is {shown[key]}." for key in order)
    text = rng.choice(PROMPTS["json"]).format(keys=join_names(keys), facts=facts)
    if len(record) == 1:
        text = text.replace("with the keys", "with the key")
    schema = {
        "type": "object",
        "properties": {key: {"type": _KEYS[key]["type"]} for key in record},
        "required": keys,
        "additionalProperties": False,
    }
    by_schema = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}
    response_format = by_schema if family == "json_schema" else {"type": "json_object"}
    sample = ModelReply(content=json.dumps(record), reasoning=REASONING["json"])
    return ask_user(
        family, text, sample, _judge_record, expect=record, thinking=thinking, response_format=response_format
    )


def strip_fence(text: str) -> str:
    """The text without a Markdown fence around it."""
    fence = re.search(r"```[a-zA-Z]*\n(.*?)```", text, re.DOTALL)
    return (fence.group(1) if fence else text).strip()


def _judge_record(question: Question, reply: ModelReply) -> str:
    try:
        got = json.loads(strip_fence(reply.content))
    except (ValueError, RecursionError) as error:
        return f"not JSON ({error}): {shorten(reply.content)}"
    if not isinstance(got, dict):
        return f"not an object: {shorten(reply.content)}"
    if set(got) != set(question.expect):
        return f"keys {sorted(got)} instead of {sorted(question.expect)}"
    for key, want in question.expect.items():
        booleans = isinstance(want, bool) or isinstance(got[key], bool)  # True is not 1
        if got[key] is not want if booleans else got[key] != want:
            return f"{key} is {got[key]!r}, not {want!r}"
    return ""


# Random arguments by parameter.
_INPUTS: dict[str, Callable[[random.Random], Any]] = {
    "a number x": lambda rng: rng.randint(-50, 50),
    "a string s": lambda rng: " ".join(vocabulary.draw_word(rng) for _ in range(rng.randint(1, 3))),
    "a list of numbers v": lambda rng: [rng.randint(-50, 50) for _ in range(rng.randint(1, 6))],
}


def code_question(rng: random.Random, *, thinking: bool) -> Question:
    """One function under a fresh name."""
    row = rng.choice(_FUNCTIONS)
    slots = {name: vocabulary.draw_value(rng, row[name]) for name in ("k", "m") if name in row}
    if "m" in slots:
        slots["m"] += slots["k"]
    first = vocabulary.invent_word(rng) if rng.random() < 0.5 else rng.choice(vocabulary.NOUNS)
    name = f"{first}_{vocabulary.draw_word(rng)}"
    takes, does, body = row["takes"], "returns " + row["does"].format(**slots), row["body"].format(**slots)
    text = rng.choice(PROMPTS["function"]).format(name=name, takes=takes, does=does)
    values = [_INPUTS[takes](rng) for _ in range(5)]
    code = f"```python\ndef {name}({takes[-1]}):\n    return {body}\n```"
    sample = ModelReply(content=code, reasoning=REASONING["function"].format(name=name))
    cases = tuple((value, eval(body, {takes[-1]: value})) for value in values)  # noqa: S307  our own table's text
    return ask_user("code", text, sample, _judge_code, expect=name, thinking=thinking, cases=cases)


def extract_code(text: str) -> str:
    """The Python code of a reply: its fenced block, or all of it."""
    return strip_fence(text) + "\n"


def _judge_code(question: Question, reply: ModelReply) -> str:
    """Read the code; only the sandbox may run it."""
    name = question.expect
    try:
        tree = ast.parse(extract_code(reply.content))
    except (SyntaxError, ValueError) as error:
        return f"not Python ({error}): {shorten(reply.content)}"
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not made:
        return f"no function {name} in: {shorten(reply.content)}"
    return "" if made[-1].args.args else f"{name} takes no argument"
