"""Questions answered in a format: JSON objects, free or by schema, and small Python functions."""

import ast
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from moebox.data import load_table
from moebox.phantom import vocabulary
from moebox.phantom.question import ModelReply, Question, ask_user, shorten
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


class CodeSpec(NamedTuple):
    """A family of functions: parameter, behaviour, body, and an independent implementation to test against."""

    takes: str
    does: str
    body: str
    truth: Callable[..., Any]
    k: Sequence[Any] = ()  # what its constant is drawn from
    width: range = range(0)  # if there are two: what the other, m, is larger by


_NUMBER, _STRING, _LIST = "a number x", "a string s", "a list of numbers v"
_ELSE, _GREATER = " and False otherwise", "a list of the numbers in v that are greater than {k}"
_LETTERS = "abcdefghiklmnoprstu"
# Random arguments by parameter.
_INPUTS: dict[str, Callable[[random.Random], Any]] = {
    _NUMBER: lambda rng: rng.randint(-50, 50),
    _STRING: lambda rng: " ".join(vocabulary.draw_word(rng) for _ in range(rng.randint(1, 3))),
    _LIST: lambda rng: [rng.randint(-50, 50) for _ in range(rng.randint(1, 6))],
}
FUNCTION_SPECS: tuple[CodeSpec, ...] = (
    CodeSpec(_NUMBER, "x plus {k}", "x + {k}", lambda x, k: x + k, range(2, 100)),
    CodeSpec(_NUMBER, "x minus {k}", "x - {k}", lambda x, k: x - k, range(2, 100)),
    CodeSpec(_NUMBER, "x times {k}", "x * {k}", lambda x, k: x * k, range(2, 100)),
    CodeSpec(_NUMBER, "x to the power of {k}", "x ** {k}", lambda x, k: x**k, range(2, 10)),
    CodeSpec(
        _NUMBER,
        "x limited to the range from {k} to {m}",
        "max({k}, min({m}, x))",
        lambda x, k, m: max(k, min(m, x)),
        range(41),
        range(1, 51),
    ),
    CodeSpec(_NUMBER, "True if x is divisible by {k}" + _ELSE, "x % {k} == 0", lambda x, k: x % k == 0, range(2, 21)),
    CodeSpec(_NUMBER, "True if x is greater than {k}" + _ELSE, "x > {k}", lambda x, k: x > k, range(41)),
    CodeSpec(_STRING, "s reversed", "s[::-1]", lambda s: s[::-1]),
    CodeSpec(_STRING, "s in upper case", "s.upper()", lambda s: s.upper()),
    CodeSpec(_STRING, "how often the letter {k} occurs in s", 's.count("{k}")', lambda s, k: s.count(k), _LETTERS),
    CodeSpec(_STRING, "s repeated {k} times", "s * {k}", lambda s, k: s * k, range(2, 10)),
    CodeSpec(_STRING, "the first {k} characters of s", "s[:{k}]", lambda s, k: s[:k], range(1, 10)),
    CodeSpec(_LIST, "the largest number in v", "max(v)", max),
    CodeSpec(_LIST, "the smallest number in v", "min(v)", min),
    CodeSpec(_LIST, "the sum of the numbers in v", "sum(v)", sum),
    CodeSpec(_LIST, "v sorted in ascending order", "sorted(v)", sorted),
    CodeSpec(
        _LIST,
        "a list with each number of v times {k}",
        "[x * {k} for x in v]",
        lambda v, k: [x * k for x in v],
        range(2, 100),
    ),
    CodeSpec(_LIST, _GREATER, "[x for x in v if x > {k}]", lambda v, k: [x for x in v if x > k], range(41)),
)


def code_question(rng: random.Random, *, thinking: bool) -> Question:
    """One function under a fresh name."""
    spec = rng.choice(FUNCTION_SPECS)
    slots: dict[str, Any] = {"k": rng.choice(spec.k)} if spec.k else {}
    if spec.width:
        slots["m"] = slots["k"] + rng.choice(spec.width)
    first = vocabulary.invent_word(rng) if rng.random() < 0.5 else rng.choice(vocabulary.NOUNS)
    name = f"{first}_{vocabulary.draw_word(rng)}"
    text = rng.choice(PROMPTS["function"]).format(
        name=name, takes=spec.takes, does="returns " + spec.does.format(**slots)
    )
    values = [_INPUTS[spec.takes](rng) for _ in range(5)]
    code = f"```python\ndef {name}({spec.takes[-1]}):\n    return {spec.body.format(**slots)}\n```"
    sample = ModelReply(content=code, reasoning=REASONING["function"].format(name=name))
    cases = tuple((value, spec.truth(value, **slots)) for value in values)
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
