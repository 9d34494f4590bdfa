"""Tool tasks: no call, one, several at once, and an answer from what a tool returned."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from moebox.phantom.sums import sums
from moebox.phantom.talk import plain
from moebox.phantom.task import Call, Grade, Message, Reply, Task, no, room, short, user, yes
from moebox.phantom.toolbox import INFORMING, TOOLS, Tool

Wanted = tuple[str, Mapping[str, Any]]


def _arguments(rng: random.Random, tool: Tool) -> dict[str, Any]:
    return {key: draw(rng) for key, draw in tool.draws.items()}


def _offer(rng: random.Random, needed: list[Tool]) -> tuple[Mapping[str, Any], ...]:
    """The needed tools among up to three others, in any order."""
    unique = list({tool.name: tool for tool in needed}.values())
    others = [tool for tool in TOOLS if tool not in unique]
    offered = unique + rng.sample(others, rng.choice((0, 1, 2)) if len(unique) < 3 else 0)
    rng.shuffle(offered)
    return tuple(tool.schema() for tool in offered)


def _calls(wanted: Sequence[Wanted], first: int = 0) -> tuple[Call, ...]:
    return tuple(
        Call(id=f"functions.{name}:{index}", name=name, arguments=json.dumps(arguments))
        for index, (name, arguments) in enumerate(wanted, first)
    )


def tool_call(rng: random.Random, *, thinking: bool) -> Task:
    """One call, its arguments copied from the question; up to two other tools are on offer."""
    tool = rng.choice(TOOLS)
    arguments = _arguments(rng, tool)
    ask = rng.choice(tool.asks).format(**arguments)
    return _task("tool_call", ask, [(tool.name, arguments)], _offer(rng, [tool]), thinking)


def tool_parallel(rng: random.Random, *, thinking: bool) -> Task:
    """Two or three calls at once: one tool for several cities, or different tools in one question."""
    if rng.random() < 0.5:
        tool = rng.choice(TOOLS[:2])
        cities = _different(rng, tool, rng.choice((2, 2, 3)))
        places = " and in ".join(arguments["city"] for _, arguments in cities)
        ask = rng.choice(tool.asks[:1]).format(city=places)
        return _task("tool_parallel", ask, cities, _offer(rng, [tool]), thinking)
    tools = rng.sample(TOOLS, 2)
    wanted = [(tool.name, _arguments(rng, tool)) for tool in tools]
    asks = [rng.choice(tool.asks).format(**a) for tool, (_, a) in zip(tools, wanted, strict=True)]
    return _task("tool_parallel", _both(asks), wanted, _offer(rng, tools), thinking)


def _different(rng: random.Random, tool: Tool, count: int) -> list[Wanted]:
    """So many calls of a tool: of a city asked for twice, one call would be a right answer too."""
    found: list[Wanted] = []
    while len(found) < count:
        drawn = (tool.name, _arguments(rng, tool))
        if drawn not in found:
            found.append(drawn)
    return found


def _task(
    family: str, ask: str, wanted: Sequence[Wanted], tools: tuple[Mapping[str, Any], ...], thinking: bool
) -> Task:
    names = " and ".join(name for name, _ in wanted)
    return Task(
        family=family,
        messages=(user(ask),),
        expect=wanted,
        sample=Reply(calls=_calls(wanted), reasoning=f"I call {names}."),
        judge=_judge_calls,
        tools=tools,
        thinking=thinking,
        max_tokens=room(thinking),
    )


def tool_none(rng: random.Random, *, thinking: bool) -> Task:
    """Tools are on offer but the question needs none."""
    task = rng.choice((plain, sums))(rng, thinking=thinking)
    tools = tuple(tool.schema() for tool in rng.sample(TOOLS, rng.choice((1, 2, 3))))
    return Task(
        family="tool_none",
        messages=task.messages,
        expect=task,
        sample=task.sample,
        judge=_judge_none,
        tools=tools,
        thinking=thinking,
        max_tokens=task.max_tokens,
    )


def _judge_none(task: Task, reply: Reply) -> Grade:
    if reply.calls:
        return no(f"called {reply.calls[0].name} without need")
    grade: Grade = task.expect.grade(reply)
    return grade


def tool_result(rng: random.Random, *, thinking: bool) -> Task:
    """One call or two were made and the results came back; the answer has to use them."""
    tools = rng.sample(INFORMING, rng.choice((1, 1, 2)))
    arguments = [_arguments(rng, tool) for tool in tools]
    found = [{key: draw(rng) for key, draw in tool.result.items()} for tool in tools]
    calls = _calls([(tool.name, given) for tool, given in zip(tools, arguments, strict=True)])
    asks = [rng.choice(tool.asks).format(**given) for tool, given in zip(tools, arguments, strict=True)]
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": json.dumps(result)}
        for call, result in zip(calls, found, strict=True)
    ]
    told = [tool.tell.format(**given, **result) for tool, given, result in zip(tools, arguments, found, strict=True)]
    return Task(
        family="tool_result",
        messages=(user(_both(asks)), asked(*calls), *results),
        expect=[str(value) for result in found for value in result.values()],
        sample=Reply(content=" ".join(told), reasoning="The tool has answered."),
        judge=_judge_result,
        tools=_offer(rng, tools),
        thinking=thinking,
        max_tokens=room(thinking),
    )


def _both(asks: list[str]) -> str:
    return asks[0] if len(asks) == 1 else "Do two things. " + " ".join(asks)


def asked(*calls: Call) -> Message:
    """An assistant's turn that made these calls, as the chat API wants it in the history."""
    made = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


def _judge_calls(task: Task, reply: Reply) -> Grade:
    if re.search(r"<\|tool_", reply.content):
        return no(f"tool markers in the content: {short(reply.content)}")
    try:
        got = [(call.name, json.loads(call.arguments)) for call in reply.calls]
    except (ValueError, RecursionError) as error:
        return no(f"arguments are not JSON ({error}): {short(reply.calls[0].arguments)}")
    left = list(got)
    for name, arguments in task.expect:
        match = next((g for g in left if g[0] == name and _same(g[1], arguments)), None)
        if match is None:
            return no(f"no call {name}({json.dumps(arguments)}) among {short(repr(got), 160)}")
        left.remove(match)
    return no(f"a call too many: {left[0][0]}") if left else yes()


def _same(got: Any, want: Mapping[str, Any]) -> bool:
    if not isinstance(got, dict) or set(got) != set(want):
        return False
    return all(got[key] == value or str(got[key]) == str(value) for key, value in want.items())


def _judge_result(task: Task, reply: Reply) -> Grade:
    if reply.calls:
        return no(f"called {reply.calls[0].name} again")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", reply.content)
    missing = [value for value in task.expect if not re.search(rf"(?<!\w){re.escape(value.lstrip('-'))}(?!\w)", text)]
    return no(f"{missing[0]} is not in: {short(reply.content)}") if missing else yes()
