"""json: replies and tool arguments that must fit a schema, also against a prompt that argues otherwise."""

import json
import random
import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import fastjsonschema

from moebox.core import catalogue
from moebox.phantom import vocabulary
from moebox.phantom.format_questions import strip_fence
from moebox.phantom.question import Question
from moebox.verify.checks.turns import PADDING, user_turn
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeWarning, RequestRejected, Settings, skip_if_rejected
from moebox.verify.trials import CheckSession, Probes, judge_answer, probe_family
from moebox.verify.violations import parse_json_or, parse_strict_json

Schema = Mapping[str, Any]
CALL_TOKENS = 96  # for a call; the longest but one here takes some eighty
LONG_CALL_TOKENS = 768
LONG_TOOL = "write_file"  # the tool with a long argument
BRIEF_TOOLS = ("deliver", "refresh_all", "edit")  # of a quick run, streamed only
MIN_SHARED_LETTERS = 4  # of a name
MCP_TOOL = "mcp__home-assistant__set_flags_of_every_lamp"  # as MCP servers name them: __, a dash, over 40 letters

# Values that parsers change: more than a double holds, and strings that look like something else.
_EXACT: dict[str, object] = {"number": 9007199254740993, "code": "007", "flag": "true", "rate": "1e5"}
_FILE = f"{PADDING.strip()}\n\n\t<a> & b\n" * 2  # agents write whole files


# A tool's name, what is asked for, and its parameters.
SHAPES: tuple[tuple[str, str, Schema], ...] = tuple(
    (row["name"], row["ask"], json.loads(row["parameters"].replace("FILE", json.dumps(_FILE)[1:-1])))
    for row in catalogue.load_table("check_requests")["shape"]
)


async def probe_contradictions(session: CheckSession) -> str:
    """A prompt that asks for something else does not get past the schema: the only proof that it is enforced."""
    kept, rejected = 0, 0
    contradictions = draw_contradictions(session.rng, session.options.trial_share(1.4, 4))
    for number, (text, schema) in session.track(contradictions):
        stream, wanted = number % 3 == 2, {"name": "record", "strict": True, "schema": schema}
        settings: Settings = {"response_format": {"type": "json_schema", "json_schema": wanted}, "max_tokens": 128}
        try:
            answer = await session.chat([user_turn(text)], allow_marks=True, stream=stream, **settings)
        except RequestRejected:
            rejected += 1  # the server reports that it cannot enforce this schema
            continue
        reason = "" if answer.finish_reason == "length" else schema_violation(answer.content.strip(), schema)
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


_compile_schema = cache(lambda schema: fastjsonschema.compile(json.loads(schema)))


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


async def probe_argument_shapes(session: CheckSession) -> str | ProbeWarning:
    """Forced calls with nested, optional and no arguments have the right format, whatever the model writes."""
    fitting = made = 0
    other_value = ""  # the first call with another value than its schema allows
    brief = session.options.brief
    for _, (name, question, schema) in session.track(SHAPES):
        untried = name == LONG_TOOL and 2 * fitting <= made  # takes long, and is judged only if schemas are enforced
        if untried or (brief and name not in BRIEF_TOOLS):
            continue
        for stream in (True,) if brief or name in (LONG_TOOL, MCP_TOOL) else (False, True):
            with skip_if_rejected("the server does not accept such tools"):
                answer = await session.chat(
                    [user_turn(question)],
                    tools=[{"type": "function", "function": {"name": name, "description": name, "parameters": schema}}],
                    tool_choice={"type": "function", "function": {"name": name}},
                    max_tokens=LONG_CALL_TOKENS if name == LONG_TOOL else CALL_TOKENS,
                    stream=stream,
                    allow_marks=True,
                )
            if answer.finish_reason == "length":  # too long to be judged, in a stream too
                break
            for call in answer.calls:
                # A part of the name, or the name with other marks: no model writes another tool's name that way
                bare, whole = (re.sub(r"\W|_", "", text).lower() for text in (call.name, name))
                alike = len(bare) >= MIN_SHARED_LETTERS and (bare in whole or whole in bare)
                reason = f"{name} was named and came as {call.name}"
                session.failures.expect("tool-call", call.name == name or not alike, reason, stream=stream)
                problem, violation = argument_problem(call.arguments, schema), schema_violation(call.arguments, schema)
                session.failures.add("tool-call", problem, stream=stream, where=name)
                made += 1
                fitting += not violation
                if violation and not problem:
                    other_value = other_value or f"{name}: {violation}"
    result = f"{fitting} of {made} calls fit their schemas"
    enforced = 2 * fitting > made
    return ProbeWarning(f"{other_value}; {result}") if other_value and enforced else result


def argument_problem(arguments: str, schema: Schema) -> str:
    """Damage by a parser that no model causes (not JSON, not an object, changed values), or ""."""
    given = parse_json_or(arguments)
    if not isinstance(given, dict):
        return f"arguments that are not a JSON object: {arguments[:60]!r}"
    for key, value in given.items():
        exact = _EXACT.get(key)
        if exact is None or (type(value) is type(exact) and value == exact):
            continue
        # It looks the same, but has another type or is rounded
        rounded = isinstance(exact, int) and isinstance(value, int | float) and float(value) == float(exact)
        if rounded or (isinstance(exact, str) and value in (7, True, 100000.0, "7")):
            return f"{exact!r} came as {value!r}: a parser took it for something else"
    return next(_values_in_strings(given, schema, "arguments"), "")


_PYTHON_WORDS: dict[str, object] = {"True": True, "False": False, "None": None}


def _values_in_strings(value: Any, schema: Schema, name: str) -> Iterator[str]:
    """Describe values, at any depth, that came as a string although the schema wants the value itself."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for key, item in value.items():
            if key in known:
                yield from _values_in_strings(item, known[key], key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _values_in_strings(item, schema.get("items", {}), f"{name}[{place}]")
    elif isinstance(value, str):
        wanted = _allowed_types(schema)
        parsed = _PYTHON_WORDS[value] if value in _PYTHON_WORDS else parse_json_or(value, value)
        if wanted and "string" not in wanted and not schema_violation(json.dumps(parsed), {"type": wanted}):
            yield f"the {wanted[0]} {name!r} came as a string of it: {value[:60]!r}"


def _allowed_types(schema: Schema) -> list[str]:
    if "anyOf" in schema:
        return [kind for each in schema["anyOf"] for kind in _allowed_types(each)]
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


probe_json = partial(probe_family, kind="json", judge=judge_json)
PROBES: Probes = {
    "json_object": partial(probe_json, family="json_object", share=0.25),
    "json_schema": partial(probe_json, family="json_schema"),
    "in a stream": partial(probe_json, family="json_schema", stream=True),
    "contradicted": probe_contradictions,
}
