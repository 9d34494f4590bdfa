"""Questions with tools: no call, one, several at once, and an answer from a tool's result."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

from moebox.data import load_table
from moebox.phantom.question import Message, ModelReply, Question, ToolCall, ask_user, shorten, user_message
from moebox.phantom.text_questions import REASONING, plain_question, sum_question
from moebox.phantom.vocabulary import draw_value

WantedCall = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleTool:
    """A tool: its parameters, prompts that need it, its result, and the answer made from that.

    `prompts` and `answer` are filled with the arguments, `answer` also with the result.
    """

    name: str
    about: str
    params: Mapping[str, Mapping[str, Any]]  # type, description and what it is drawn from
    prompts: Sequence[str]
    result: Mapping[str, str | list[Any]]
    answer: str
    informs: bool = True  # False: it acts, and a fair answer need not repeat its result

    @property
    def arguments(self) -> dict[str, str | list[Any]]:
        """What each argument is drawn from."""
        return {key: param["draw"] for key, param in self.params.items()}

    def schema(self) -> dict[str, Any]:
        """The tool in the format of the chat API."""
        properties = {key: {name: each[name] for name in ("type", "description")} for key, each in self.params.items()}
        parameters = {"type": "object", "properties": properties, "required": list(self.params)}
        function = {"name": self.name, "description": self.about, "parameters": parameters}
        return {"type": "function", "function": function}


TOOLS = tuple(ExampleTool(**row) for row in load_table("questions")["tool"])
INFORMING_TOOLS = tuple(tool for tool in TOOLS if tool.informs)


def draw_values(rng: random.Random, specs: Mapping[str, str | list[Any]]) -> dict[str, Any]:
    """Random arguments or a random result of a tool."""
    return {key: draw_value(rng, spec) for key, spec in specs.items()}


def tool_call(name: str, arguments: Mapping[str, Any], index: int = 0) -> ToolCall:
    """A call with Kimi's id."""
    return ToolCall(id=f"functions.{name}:{index}", name=name, arguments=json.dumps(arguments))


def calls_message(*calls: ToolCall) -> Message:
    """The assistant's turn that made these calls, as the chat API wants it in the history."""
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def result_message(call: ToolCall, result: Mapping[str, Any]) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": json.dumps(result)}


def _offer_tools(rng: random.Random, needed: Sequence[ExampleTool]) -> tuple[Mapping[str, Any], ...]:
    """Schemas of the needed tools and of up to two others, in any order."""
    unique = list({tool.name: tool for tool in needed}.values())
    others = [tool for tool in TOOLS if tool not in unique]
    offered = unique + rng.sample(others, rng.choice((0, 1, 2)) if len(unique) < 3 else 0)
    rng.shuffle(offered)
    return tuple(tool.schema() for tool in offered)


def _question(
    family: str, text: str, wanted: Sequence[WantedCall], tools: tuple[Mapping[str, Any], ...], thinking: bool
) -> Question:
    calls = tuple(tool_call(name, arguments, index) for index, (name, arguments) in enumerate(wanted))
    names = " and ".join(name for name, _ in wanted)
    sample = ModelReply(calls=calls, reasoning=REASONING["call"].format(name=names))
    return ask_user(family, text, sample, _judge_calls, expect=wanted, thinking=thinking, tools=tools)


def tool_call_question(rng: random.Random, *, thinking: bool) -> Question:
    """One call, its arguments copied from the question; up to two other tools are on offer."""
    tool = rng.choice(TOOLS)
    arguments = draw_values(rng, tool.arguments)
    text = rng.choice(tool.prompts).format(**arguments)
    return _question("tool_call", text, [(tool.name, arguments)], _offer_tools(rng, [tool]), thinking)


def tool_parallel_question(rng: random.Random, *, thinking: bool) -> Question:
    """Two or three calls at once: one tool for several cities, or different tools in one question."""
    wanted: list[WantedCall] = []
    if rng.random() < 0.5:
        tool = rng.choice(TOOLS[:2])
        count = rng.choice((2, 2, 3))
        while len(wanted) < count:  # all different: of a city asked for twice, one call would be right too
            drawn = (tool.name, draw_values(rng, tool.arguments))
            if drawn not in wanted:
                wanted.append(drawn)
        places = " and in ".join(arguments["city"] for _, arguments in wanted)
        text = rng.choice(tool.prompts[:1]).format(city=places)
        return _question("tool_parallel", text, wanted, _offer_tools(rng, [tool]), thinking)
    tools = rng.sample(TOOLS, 2)
    wanted = [(tool.name, draw_values(rng, tool.arguments)) for tool in tools]
    prompts = [rng.choice(tool.prompts).format(**given) for tool, (_, given) in zip(tools, wanted, strict=True)]
    return _question("tool_parallel", _join_prompts(prompts), wanted, _offer_tools(rng, tools), thinking)


def _join_prompts(prompts: list[str]) -> str:
    return prompts[0] if len(prompts) == 1 else "Do two things. " + " ".join(prompts)


def tool_none_question(rng: random.Random, *, thinking: bool) -> Question:
    """Tools are on offer but the question needs none."""
    inner = rng.choice((plain_question, sum_question))(rng, thinking=thinking)
    tools = tuple(tool.schema() for tool in rng.sample(TOOLS, rng.choice((1, 2, 3))))
    return replace(inner, family="tool_none", expect=inner, judge=_judge_none, tools=tools)


def _judge_none(question: Question, reply: ModelReply) -> str:
    if reply.calls:
        return f"called {reply.calls[0].name} without need"
    inner: Question = question.expect
    return inner.find_fault(reply)


def tool_result_question(rng: random.Random, *, thinking: bool) -> Question:
    """One call or two were made and the results came back; the answer has to use them."""
    tools = rng.sample(INFORMING_TOOLS, rng.choice((1, 1, 2)))
    arguments = [draw_values(rng, tool.arguments) for tool in tools]
    results = [draw_values(rng, tool.result) for tool in tools]
    rows = list(zip(tools, arguments, results, strict=True))
    calls = [tool_call(tool.name, given, index) for index, (tool, given, _) in enumerate(rows)]
    prompts = [rng.choice(tool.prompts).format(**given) for tool, given, _ in rows]
    answers = [tool.answer.format(**given, **result) for tool, given, result in rows]
    returned = list(starmap(result_message, zip(calls, results, strict=True)))
    return Question(
        family="tool_result",
        messages=(user_message(_join_prompts(prompts)), calls_message(*calls), *returned),
        expect=[str(value) for result in results for value in result.values()],
        sample=ModelReply(content=" ".join(answers), reasoning=REASONING["result"]),
        judge=_judge_result,
        tools=_offer_tools(rng, tools),
        thinking=thinking,
    )


def _judge_calls(question: Question, reply: ModelReply) -> str:
    if re.search(r"<\|tool_", reply.content):
        return f"tool markers in the content: {shorten(reply.content)}"
    try:
        got = [(call.name, json.loads(call.arguments)) for call in reply.calls]
    except (ValueError, RecursionError) as error:
        return f"arguments are not JSON ({error}): {shorten(reply.calls[0].arguments)}"
    left = list(got)
    for name, arguments in question.expect:
        match = next((call for call in left if call[0] == name and same_arguments(call[1], arguments)), None)
        if match is None:
            return f"no call {name}({json.dumps(arguments)}) among {shorten(repr(got), 160)}"
        left.remove(match)
    return f"a call too many: {left[0][0]}" if left else ""


def same_arguments(got: Any, want: Mapping[str, Any]) -> bool:
    """True if the arguments are the same; a number may be written as a text."""
    if not isinstance(got, dict) or set(got) != set(want):
        return False
    return all(got[key] == value or str(got[key]) == str(value) for key, value in want.items())


def _judge_result(question: Question, reply: ModelReply) -> str:
    if reply.calls:
        return f"called {reply.calls[0].name} again"
    text = re.sub(r"(?<=\d),(?=\d{3})", "", reply.content)
    for value in question.expect:
        if not re.search(rf"(?<!\w){re.escape(value.lstrip('-'))}(?!\w)", text):
            return f"{value} is not in: {shorten(reply.content)}"
    return ""
