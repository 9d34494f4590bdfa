"""Questions answered in a format: JSON objects, free or by schema, and small Python functions."""

import ast
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moebox.data import load_table
from moebox.phantom import vocabulary
from moebox.phantom.question import FunctionCase, Grade, ModelReply, Question, accept, ask_user, reject, shorten
from moebox.phantom.text_questions import PROMPTS, REASONING

_KEYS = load_table("questions")["json_keys"]


def record_question(family: str, rng: random.Random, *, thinking: bool) -> Question:
    """Values in the question to be copied into an object, which json_schema requests by its schema."""
    keys = rng.sample(list(_KEYS), rng.choice((1, 2, 3, 3, 4)))
    record = {key: vocabulary.value_generator(_KEYS[key]["draw"])(rng) for key in keys}
    shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in record.items()}
    order = list(record)
    rng.shuffle(order)
    facts = " ".join(f"The {key} is {shown[key]}." for key in order)
    text = rng.choice(PROMPTS["json"]).format(keys=vocabulary.join_words(keys), facts=facts)
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


def _judge_record(question: Question, reply: ModelReply) -> Grade:
    try:
        got = json.loads(strip_fence(reply.content))
    except (ValueError, RecursionError) as error:
        return reject(f"not JSON ({error}): {shorten(reply.content)}")
    if not isinstance(got, dict):
        return reject(f"not an object: {shorten(reply.content)}")
    if set(got) != set(question.expect):
        return reject(f"keys {sorted(got)} instead of {sorted(question.expect)}")
    for key, want in question.expect.items():
        booleans = isinstance(want, bool) or isinstance(got[key], bool)  # True is not 1
        if got[key] is not want if booleans else got[key] != want:
            return reject(f"{key} is {got[key]!r}, not {want!r}")
    return accept()


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionSpec:
    """A family of functions: parameter, behaviour, body, and an independent implementation to test against."""

    takes: str
    does: str
    body: str
    truth: Callable[..., Any]
    slots: Callable[[random.Random], dict[str, Any]] = lambda rng: {}


def _draw_range(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(0, 40)
    return {"k": low, "m": low + rng.randint(1, 50)}


def _draw_letter(rng: random.Random) -> dict[str, Any]:
    return {"k": rng.choice("abcdefghiklmnoprstu")}


def _spec(takes: str, does: str, body: str, truth: Callable[..., Any], slots: Any = None) -> FunctionSpec:
    """A family; `slots` draws its constants, or is the range of the only one."""
    draw = slots if callable(slots) else lambda rng: {"k": rng.randint(*slots)} if slots else {}
    return FunctionSpec(takes=takes, does=does, body=body, truth=truth, slots=draw)


_NUMBER, _STRING, _LIST = "a number x", "a string s", "a list of numbers v"
_ELSE, _GREATER = " and False otherwise", "a list of the numbers in v that are greater than {k}"
# Random arguments by parameter.
_INPUTS: dict[str, Callable[[random.Random], Any]] = {
    _NUMBER: lambda rng: rng.randint(-50, 50),
    _STRING: lambda rng: " ".join(vocabulary.draw_word(rng) for _ in range(rng.randint(1, 3))),
    _LIST: lambda rng: [rng.randint(-50, 50) for _ in range(rng.randint(1, 6))],
}
FUNCTION_SPECS: tuple[FunctionSpec, ...] = (
    _spec(_NUMBER, "x plus {k}", "x + {k}", lambda x, k: x + k, (2, 99)),
    _spec(_NUMBER, "x minus {k}", "x - {k}", lambda x, k: x - k, (2, 99)),
    _spec(_NUMBER, "x times {k}", "x * {k}", lambda x, k: x * k, (2, 99)),
    _spec(_NUMBER, "x to the power of {k}", "x ** {k}", lambda x, k: x**k, (2, 9)),
    _spec(
        _NUMBER,
        "x limited to the range from {k} to {m}",
        "max({k}, min({m}, x))",
        lambda x, k, m: max(k, min(m, x)),
        _draw_range,
    ),
    _spec(_NUMBER, "True if x is divisible by {k}" + _ELSE, "x % {k} == 0", lambda x, k: x % k == 0, (2, 20)),
    _spec(_NUMBER, "True if x is greater than {k}" + _ELSE, "x > {k}", lambda x, k: x > k, (0, 40)),
    _spec(_STRING, "s reversed", "s[::-1]", lambda s: s[::-1]),
    _spec(_STRING, "s in upper case", "s.upper()", lambda s: s.upper()),
    _spec(_STRING, "how often the letter {k} occurs in s", 's.count("{k}")', lambda s, k: s.count(k), _draw_letter),
    _spec(_STRING, "s repeated {k} times", "s * {k}", lambda s, k: s * k, (2, 9)),
    _spec(_STRING, "the first {k} characters of s", "s[:{k}]", lambda s, k: s[:k], (1, 9)),
    _spec(_LIST, "the largest number in v", "max(v)", max),
    _spec(_LIST, "the smallest number in v", "min(v)", min),
    _spec(_LIST, "the sum of the numbers in v", "sum(v)", sum),
    _spec(_LIST, "v sorted in ascending order", "sorted(v)", sorted),
    _spec(
        _LIST,
        "a list with each number of v times {k}",
        "[x * {k} for x in v]",
        lambda v, k: [x * k for x in v],
        (2, 99),
    ),
    _spec(_LIST, _GREATER, "[x for x in v if x > {k}]", lambda v, k: [x for x in v if x > k], (0, 40)),
)


def code_question(rng: random.Random, *, thinking: bool) -> Question:
    """One function under a fresh name."""
    spec = rng.choice(FUNCTION_SPECS)
    slots = spec.slots(rng)
    first = vocabulary.invent_word(rng) if rng.random() < 0.5 else rng.choice(vocabulary.NOUNS)
    name = f"{first}_{vocabulary.draw_word(rng)}"
    text = rng.choice(PROMPTS["function"]).format(
        name=name, takes=spec.takes, does="returns " + spec.does.format(**slots)
    )
    values = [_INPUTS[spec.takes](rng) for _ in range(5)]
    code = f"```python\ndef {name}({spec.takes[-1]}):\n    return {spec.body.format(**slots)}\n```"
    sample = ModelReply(content=code, reasoning=REASONING["function"].format(name=name))
    cases = tuple(FunctionCase(args=(value,), want=spec.truth(value, **slots)) for value in values)
    return ask_user("code", text, sample, _judge_code, expect=name, thinking=thinking, cases=cases)


def extract_code(text: str) -> str:
    """The Python code of a reply: its fenced block, or all of it."""
    return strip_fence(text) + "\n"


def _judge_code(question: Question, reply: ModelReply) -> Grade:
    """Read the code; only the sandbox may run it."""
    name = question.expect
    try:
        tree = ast.parse(extract_code(reply.content))
    except (SyntaxError, ValueError) as error:
        return reject(f"not Python ({error}): {shorten(reply.content)}")
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not made:
        return reject(f"no function {name} in: {shorten(reply.content)}")
    return accept() if made[-1].args.args else reject(f"{name} takes no argument")
