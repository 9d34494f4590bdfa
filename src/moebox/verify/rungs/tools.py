"""tools: none, auto, required and named; parallel calls; valid arguments; results fed back and used."""

import json
import re
from collections.abc import Mapping
from typing import Any

from moebox.core import registry
from moebox.core.verdict import Score
from moebox.phantom.tasks import Call, Task
from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped, skipped_if_refused
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung, Warned
from moebox.verify.rungs import tool_history, tool_schemas
from moebox.verify.rungs.json_modes import misfit
from moebox.verify.rungs.turns import or_skipped
from moebox.verify.trials import Attempt, Questions, Trial, asking, both, draw, judge, right_if, trials, wrong

LEAST_TOLD = 8  # characters of arguments that stand in no text by chance
KIMI_ID = re.compile(r"functions\.(?P<name>.+):(?P<index>\d+)")


async def whole(ask: Asker) -> Score:
    """Left to choose, it calls the right tool, and the arguments fit its schema."""
    return await trials(ask, "tool-call", calling(ask))


async def streamed(ask: Asker) -> Score:
    """Streamed arguments assemble to the whole of them."""
    return await trials(ask, "tool-call" + STREAMED, calling(ask, stream=True))


def schema_fault(task: Task, answer: Answer) -> str:
    """ "" when there are calls, of tools on offer, with arguments that fit, under ids of their own."""
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.tools}
    if not answer.calls:
        return f"no tool was called: {answer.content[:80]}"
    if why := next(filter(None, (_call_fault(call, offered) for call in answer.calls)), ""):
        return why
    if told := next((call.name for call in answer.calls if _is_told(call.arguments, answer.content)), ""):
        return f"the call of {told} stands in the content too: {answer.content[:80]!r}"
    return _id_fault([call.id for call in answer.calls])


def _id_fault(ids: list[str]) -> str:
    """ "" where each call has an id, and one of its own."""
    unique = all(ids) and len(set(ids)) == len(ids)
    return "" if unique else f"ids {ids} are not one of its own for each call"


def _call_fault(call: Call, offered: Mapping[str, Any]) -> str:
    """ "" for a call of a tool on offer with arguments that fit its schema."""
    if call.name not in offered:
        return f"called {call.name!r}, which is not on offer"
    why = misfit(call.arguments, offered[call.name])
    return f"arguments of {call.name}: {why}" if why else ""


def _is_told(arguments: str, content: str) -> bool:
    """The arguments stand in the text, blanks aside."""
    bare, text = "".join(arguments.split()), "".join(content.split())
    return len(bare) >= LEAST_TOLD and bare in text


def calling(ask: Asker, family: str = "tool_call", *, stream: bool = False, **more: Any) -> Questions:
    """Attempts that must end in valid and right calls."""

    def fresh() -> Task:
        task = draw(ask, family)
        while _repeats(task):
            task = draw(ask, family)
        return task

    return Questions(ask, fresh, judge=right_calls, stream=stream, **more)


def right_calls(task: Task, answer: Answer) -> str:
    """The calls that were asked for, and valid."""
    return schema_fault(task, answer) or judge(task, answer)


def _repeats(task: Task) -> bool:
    """The same call is wanted twice: answering it once would be right too."""
    wanted = [json.dumps(call) for call in task.expect]
    return len(set(wanted)) < len(wanted)


async def parallel(ask: Asker) -> Score:
    """Several calls in one answer, whole and streamed."""
    # OpenAI's default is true; llama.cpp's is false; some servers know no such switch
    asked = draw(ask, "tool_parallel")
    body = ask.body(asked.messages, tools=list(asked.tools), max_tokens=16, parallel_tool_calls=True)
    taken = (await ask.send(body)).status not in REFUSALS

    def make(*, stream: bool) -> Attempt:
        return calling(ask, "tool_parallel", parallel_tool_calls=True if taken else None, stream=stream)

    return await both(ask, "tool-call", make, ask.options.share(0.75))


async def not_needed(ask: Asker) -> Score:
    """Tools on offer are left alone when the question needs none."""
    return await both(ask, "answer", lambda stream: asking(ask, "tool_none", stream=stream), ask.options.share(0.25))


async def choice_none(ask: Asker) -> Warned | None:
    """tool_choice none: no call, even when the question begs for one, and none written into the text."""
    said = ""

    async def attempt(stream: bool) -> Trial:
        nonlocal said
        task = draw(ask, "tool_call")
        answer = await ask.ask(task, tool_choice="none", max_tokens=64, odd=True, stream=stream)
        if answer.calls:
            return wrong(f"tool_choice is none, yet {answer.calls[0].name} was called")
        if answer.leak and not said:
            said = await _shown(ask, task, answer)
        return wrong("")

    await trials(ask, "tool-choice", lambda: attempt(False), ask.options.share(0.34))
    await trials(ask, "tool-choice" + STREAMED, lambda: attempt(True), ask.options.share(0.25))
    return Warned(said) if said else None


async def _shown(ask: Asker, task: Task, answer: Answer) -> str:
    """Why a call stands in the text where none may be made; Failed where a setting of the server helps."""
    bare = await ask.ask(task, tools=None, max_tokens=64, odd=True)
    if bare.leak:
        return f"{bare.leak} in the text even with no tool on offer: a habit of the model, not of the server"
    if _tools_under_none(ask.engine) == "shown":
        return f"{answer.leak} in the text: {ask.engine} shows tools to the model even under none"
    hint = _hiding(ask.engine)
    raise Failed(f"{answer.leak} in the text: the model was shown tools that it may not call{hint}")


async def choice_required(ask: Asker) -> Score | Warned:
    """tool_choice required: a call comes, even where the question needs none."""
    score = await _honoured(ask, "required", lambda stream: calling(ask, tool_choice="required", stream=stream))
    answer = await ask.ask(draw(ask, "tool_none"), tool_choice="required", odd=True, max_tokens=tool_schemas.ROOM)
    if answer.calls or answer.finish == "length":  # a call that grew too long to be judged
        return score
    return Warned(f"tool_choice is required, yet a question that needs no tool got none: {answer.content[:60]!r}")


async def choice_named(ask: Asker) -> Score:
    """tool_choice by name: that tool is called."""

    def make(stream: bool) -> Attempt:
        return Questions(ask, lambda: draw(ask, "tool_call"), judge=_named, stream=stream, settings=_choice)

    return await _honoured(ask, "by name", make)


def _choice(task: Task) -> dict[str, object]:
    return {"tool_choice": {"type": "function", "function": {"name": task.expect[0][0]}}}


def _named(task: Task, answer: Answer) -> str:
    name = task.expect[0][0]
    if [call.name for call in answer.calls] != [name]:
        return f"{name} was named, called was {[call.name for call in answer.calls] or 'nothing'}"
    return schema_fault(task, answer)


async def _honoured(ask: Asker, choice: str, make: Any) -> Score:
    def taken(stream: bool) -> Attempt:
        attempt = make(stream)

        async def asked() -> Trial:
            with skipped_if_refused(f"the server does not take tool_choice {choice}"):
                result: Trial = await attempt()
            return result

        return asked

    return await both(ask, "tool-choice", lambda stream: taken(stream), ask.options.share(0.75))


async def with_a_form(ask: Asker) -> str | Warned:
    """response_format binds the answer, tools on offer or not; until then tools can be called."""
    task = draw(ask, "tool_call")
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    form = {"type": "json_schema", "json_schema": {"name": "final", "schema": schema}}
    answer = await or_skipped(ask, list(task.messages), tools=list(task.tools), response_format=form)
    if answer.calls or not (await ask.ask(task)).calls:
        return await _bound(ask, form, schema) or f"{len(answer.calls)} call"
    return Warned(f"with a response_format no tool is called: {answer.content[:60]!r}")


async def _bound(ask: Asker, form: Mapping[str, object], schema: Mapping[str, object]) -> Warned | None:
    """Where no tool is needed, the answer fits the schema with tools on offer, if it does without them."""
    task = draw(ask, "tool_none")
    said = await or_skipped(ask, list(task.messages), tools=list(task.tools), response_format=form)
    why = "" if said.calls or said.finish == "length" else misfit(said.content, schema)
    if not why:
        return None
    alone = await or_skipped(ask, list(task.messages), response_format=form)
    held = not misfit(alone.content, schema)
    return Warned(f"with tools on offer a response_format is not held to: {why}") if held else None


async def ids(ask: Asker) -> str:
    """Kimi's ids are functions.NAME:INDEX; its template expects them back in the history."""
    task = draw(ask, "tool_call")
    answer = await ask.ask(task)
    if not answer.calls:
        raise Skipped("no tool was called")
    call = answer.calls[0]
    form = KIMI_ID.fullmatch(call.id)
    if form and form["name"] == call.name:
        return call.id
    if ask.is_kimi and ask.engine in registry.names() and registry.traits(ask.engine).own_call_ids:
        raise Failed(f"id {call.id!r} instead of functions.{call.name}:0; the history will confuse the model")
    raise Skipped(f"ids look like {call.id[:40]!r}: this server has its own")


async def and_back(ask: Asker) -> Score:
    """The server's own call, with a result fed back under its own id, leads to an answer that uses it."""
    secret = f"{ask.rng.randint(100, 999)}"

    async def attempt() -> Trial:
        task = draw(ask, "tool_call")
        answer = await ask.ask(task)
        if not answer.calls:
            return Trial(why=f"no tool was called: {answer.content[:80]}", whose="model")
        back = tool_history.results(answer, {"result": secret}, named=False)
        turns = [*task.messages, tool_history.turn(answer), *back]
        last = await ask.chat(turns, tools=list(task.tools), max_tokens=task.max_tokens)
        return right_if(last.content.strip() or last.calls, "no answer after the tool's result")

    await trials(ask, "tool-history", attempt, ask.options.share(0.25))
    return await both(ask, "answer", lambda stream: asking(ask, "tool_result", stream=stream), ask.options.share(0.34))


RUNG = Rung(
    name="tools",
    about="every tool_choice, parallel calls, valid arguments, results used",
    probes={
        "whole": whole,
        "streamed": streamed,
        "parallel": parallel,
        "not needed": not_needed,
        "choice none": choice_none,
        "choice required": choice_required,
        "choice named": choice_named,
        "with a form": with_a_form,
        "ids": ids,
        "shapes": tool_schemas.shapes,
        "and back": and_back,
        "malformed history": tool_history.malformed,
    },
    cost=126,
)


def _tools_under_none(engine: str) -> str:
    """Whether the model sees tools it may not call: "flag", "hidden" or "shown"; embedded servers show them."""
    if engine == "embedded":
        return "shown"
    return registry.traits(engine).tools_under_none if engine in registry.names() else "hidden"


def _hiding(engine: str) -> str:
    """How to hide them, where that takes a flag."""
    if _tools_under_none(engine) != "flag":
        return ""
    traits = registry.traits(engine)
    return f"; start {traits.title} with --{traits.hide_tools_flag}"
