"""What a checks ask does not hang on luck: every draw can show the faults that it is there to show."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.endpoint import endpoint_from_url
from moebox.verify.checks.schemas import MCP_TOOL, SHAPES, argument_problem
from moebox.verify.client import ExchangeClient
from moebox.verify.options import VerifyOptions
from moebox.verify.trials import CheckSession

from .oracle import rates
from .oracle.solve import least

SCHEMAS = {name: schema for name, _, schema in SHAPES}


def asker(seed: int) -> CheckSession:
    async def make() -> CheckSession:
        return CheckSession(ExchangeClient(endpoint_from_url("http://127.0.0.1:9", "m")), VerifyOptions(seed=seed))

    return asyncio.run(make())


@given(st.integers(0, 10**6))
def test_the_tools_on_offer_take_a_city_and_a_number(seed: int):
    """A draw of three without a number let a server pass that sends numbers as strings."""
    ask = asker(seed)
    ask.draw("tool_call")
    properties = [tool["function"]["parameters"]["properties"] for tool in ask.offered_tools]

    assert {"city"} in [set(each) for each in properties]
    assert any(value["type"] == "integer" for each in properties for value in each.values())


@pytest.mark.parametrize(
    ("tool", "given", "named"),
    [
        ("deliver", {"place": {"zip": "1234", "street": "Main Street"}, "sizes": [3, 4]}, "zip"),
        ("deliver", {"place": {"zip": 1234, "street": "Main Street"}, "sizes": ["3", "4"]}, "sizes[0]"),
        ("deliver", {"place": '{"zip": 1234}', "sizes": [3, 4]}, "place"),
        ("deliver", {"place": {"zip": 1234, "street": "Main Street"}, "sizes": "[3, 4]"}, "sizes"),
        ("book", {"number": "9007199254740993", "code": "007", "flag": "true", "rate": "1e5"}, "number"),
        (MCP_TOOL, {"light": "true"}, "light"),
        (MCP_TOOL, {"light": "True"}, "light"),
        (MCP_TOOL, {"light": True, "level": "null"}, "level"),
        (MCP_TOOL, {"light": True, "level": "7"}, "level"),
    ],
)
def test_a_value_that_came_as_a_string_of_it_is_named(tool: str, given: object, named: str):
    """Numbers, switches, lists and objects, at any depth."""
    kind = {"place": "object", "sizes": "array", "light": "boolean"}.get(named, "integer")

    assert argument_problem(json.dumps(given), SCHEMAS[tool]).startswith(f"the {kind} {named!r} came as a string of it")


@pytest.mark.parametrize("tool", sorted(SCHEMAS))
def test_what_fits_is_not_blamed(tool: str):
    """Nor is a string that a schema wants, whatever it looks like."""
    assert argument_problem(json.dumps(least(SCHEMAS[tool])), SCHEMAS[tool]) == ""


def test_the_oracle_draws_its_faults_from_what_it_is_asked():
    """Alike for the same request, whatever came between, and another time each time that it comes again."""

    def series(name: str, between: int) -> list[bool]:
        drawn = []
        for _ in range(40):
            drawn.append(rates.drawn(name, {"messages": "mine"}) is rates.named(name))
            for number in range(between):
                rates.drawn(name, {"messages": number})
        return drawn

    name = "json-cut@3"
    alone, others = series(f"{name}+1", 0), series(f"{name}+2", 0)
    rates._asked.clear()

    assert series(f"{name}+1", 3) == alone
    assert others != alone
    assert 4 < sum(alone) < 25
