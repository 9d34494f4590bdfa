"""Tool tasks: no call, one, several at once, and an answer from what a tool returned."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from moebox.phantom.sums import sums
from moebox.phantom.talk import plain
from moebox.phantom.task import (
    Grade,
    Message,
    ModelReply,
    Question,
    ToolCall,
    accept,
    reject,
    shorten,
    token_budget,
    user_message,
)
from moebox.phantom.toolbox import INFORMING, TOOLS, ExampleTool

Wanted = tuple[str, Mapping[str, Any]]


def _arguments(rng: random.Random, tool: ExampleTool) -> dict[str, Any]:
    return {key: draw(rng) for key, draw in tool.arguments.items()}


def _offer(rng: random.Random, needed: list[ExampleTool]) -> tuple[Mapping[str, Any], ...]:
    """The needed tools among up to three others, in any order."""
    unique = list({tool.name: tool for tool in needed}.values())
    others = [tool for tool in TOOLS if tool not in unique]
    offered = unique + rng.sample(others, rng.choice((0, 1, 2)) if len(unique) < 3 else 0)
    rng.shuffle(offered)
    return tuple(tool.schema() for tool in offered)


def _calls(wanted: Sequence[Wanted], first: int = 0) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=f"functions.{name}:{index}", name=name, arguments=json.dumps(arguments))
        for index, (name, arguments) in enumerate(wanted, first)
    )


def tool_call(rng: random.Random, *, thinking: bool) -> Question:
    """One call, its arguments copied from the question; up to two other tools are on offer."""
    tool = rng.choice(TOOLS)
    arguments = _arguments(rng, tool)
    ask = rng.choice(tool.prompts).format(**arguments)
    return _task("tool_call", ask, [(tool.name, arguments)], _offer(rng, [tool]), thinking)


def tool_parallel(rng: random.Random, *, thinking: bool) -> Question:
    """Two or three calls at once: one tool for several cities, or different tools in one question."""
    if rng.random() < 0.5:
        tool = rng.choice(TOOLS[:2])
        cities = _different(rng, tool, rng.choice((2, 2, 3)))
        places = " and in ".join(arguments["city"] for _, arguments in cities)
        ask = rng.choice(tool.prompts[:1]).format(city=places)
        return _task("tool_parallel", ask, cities, _offer(rng, [tool]), thinking)
    tools = rng.sample(TOOLS, 2)
    wanted = [(tool.name, _arguments(rng, tool)) for tool in tools]
    asks = [rng.choice(tool.prompts).format(**a) for tool, (_, a) in zip(tools, wanted, strict=True)]
    return _task("tool_parallel", _both(asks), wanted, _offer(rng, tools), thinking)


def _different(rng: random.Random, tool: ExampleTool, count: int) -> list[Wanted]:
    """So many calls of a tool: of a city asked for twice, one call would be a right answer too."""
    found: list[Wanted] = []
    while len(found) < count:
        drawn = (tool.name, _arguments(rng, tool))
        if drawn not in found:
            found.append(drawn)
    return found


def _task(
    family: str, ask: str, wanted: Sequence[Wanted], tools: tuple[Mapping[str, Any], ...], thinking: bool
) -> Question:
    names = " and ".join(name for name, _ in wanted)
    return Question(
        family=family,
        messages=(user_message(ask),),
        expect=wanted,
        sample=ModelReply(calls=_calls(wanted), reasoning=f"I call {names}."),
        judge=_judge_calls,
        tools=tools,
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def tool_none(rng: random.Random, *, thinking: bool) -> Question:
    """Tools are on offer but the question needs none."""
    task = rng.choice((plain, sums))(rng, thinking=thinking)
    tools = tuple(tool.schema() for tool in rng.sample(TOOLS, rng.choice((1, 2, 3))))
    return Question(
        family="tool_none",
        messages=task.messages,
        expect=task,
        sample=task.sample,
        judge=_judge_none,
        tools=tools,
        thinking=thinking,
        max_tokens=task.max_tokens,
    )


def _judge_none(task: Question, reply: ModelReply) -> Grade:
    if reply.calls:
        return reject(f"called {reply.calls[0].name} without need")
    grade: Grade = task.expect.grade(reply)
    return grade


def tool_result(rng: random.Random, *, thinking: bool) -> Question:
    """One call or two were made and the results came back; the answer has to use them."""
    tools = rng.sample(INFORMING, rng.choice((1, 1, 2)))
    arguments = [_arguments(rng, tool) for tool in tools]
    found = [{key: draw(rng) for key, draw in tool.result.items()} for tool in tools]
    calls = _calls([(tool.name, given) for tool, given in zip(tools, arguments, strict=True)])
    asks = [rng.choice(tool.prompts).format(**given) for tool, given in zip(tools, arguments, strict=True)]
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": json.dumps(result)}
        for call, result in zip(calls, found, strict=True)
    ]
    told = [tool.answer.format(**given, **result) for tool, given, result in zip(tools, arguments, found, strict=True)]
    return Question(
        family="tool_result",
        messages=(user_message(_both(asks)), calls_message(*calls), *results),
        expect=[str(value) for result in found for value in result.values()],
        sample=ModelReply(content=" ".join(told), reasoning="The tool has answered."),
        judge=_judge_result,
        tools=_offer(rng, tools),
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def _both(asks: list[str]) -> str:
    return asks[0] if len(asks) == 1 else "Do two things. " + " ".join(asks)


def calls_message(*calls: ToolCall) -> Message:
    """An assistant's turn that made these calls, as the chat API wants it in the history."""
    made = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


def _judge_calls(task: Question, reply: ModelReply) -> Grade:
    if re.search(r"<\|tool_", reply.content):
        return reject(f"tool markers in the content: {shorten(reply.content)}")
    try:
        got = [(call.name, json.loads(call.arguments)) for call in reply.calls]
    except (ValueError, RecursionError) as error:
        return reject(f"arguments are not JSON ({error}): {shorten(reply.calls[0].arguments)}")
    left = list(got)
    for name, arguments in task.expect:
        match = next((g for g in left if g[0] == name and _same(g[1], arguments)), None)
        if match is None:
            return reject(f"no call {name}({json.dumps(arguments)}) among {shorten(repr(got), 160)}")
        left.remove(match)
    return reject(f"a call too many: {left[0][0]}") if left else accept()


def _same(got: Any, want: Mapping[str, Any]) -> bool:
    if not isinstance(got, dict) or set(got) != set(want):
        return False
    return all(got[key] == value or str(got[key]) == str(value) for key, value in want.items())


def _judge_result(task: Question, reply: ModelReply) -> Grade:
    if reply.calls:
        return reject(f"called {reply.calls[0].name} again")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", reply.content)
    missing = [value for value in task.expect if not re.search(rf"(?<!\w){re.escape(value.lstrip('-'))}(?!\w)", text)]
    return reject(f"{missing[0]} is not in: {shorten(reply.content)}") if missing else accept()
