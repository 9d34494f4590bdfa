"""tools: none, auto, required and named; parallel calls; valid arguments; results fed back and used."""

import json
import re
from collections.abc import Mapping
from typing import Any

from moebox.core import registry
from moebox.core.verdict import Score
from moebox.phantom.tasks import Question, ToolCall
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, ProbeSkipped, skip_if_rejected
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check, ProbeWarning
from moebox.verify.rungs import tool_history, tool_schemas
from moebox.verify.rungs.json_modes import schema_violation
from moebox.verify.rungs.turns import chat_or_skip
from moebox.verify.trials import (
    Attempt,
    QuestionAttempt,
    TrialOutcome,
    draw_question,
    family_attempt,
    judge_answer,
    pass_if,
    run_both_modes,
    run_trials,
    server_failure,
)

LEAST_TOLD = 8  # characters of arguments that stand in no text by chance
KIMI_ID = re.compile(r"functions\.(?P<name>.+):(?P<index>\d+)")


async def probe_whole_call(session: CheckSession) -> Score:
    """Left to choose, it calls the right tool, and the arguments fit its schema."""
    return await run_trials(session, "tool-call", call_attempt(session))


async def probe_streamed_call(session: CheckSession) -> Score:
    """Streamed arguments assemble to the whole of them."""
    return await run_trials(session, "tool-call" + STREAMED, call_attempt(session, stream=True))


def call_problem(task: Question, answer: ChatAnswer) -> str:
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


def _call_fault(call: ToolCall, offered: Mapping[str, Any]) -> str:
    """ "" for a call of a tool on offer with arguments that fit its schema."""
    if call.name not in offered:
        return f"called {call.name!r}, which is not on offer"
    why = schema_violation(call.arguments, offered[call.name])
    return f"arguments of {call.name}: {why}" if why else ""


def _is_told(arguments: str, content: str) -> bool:
    """The arguments stand in the text, blanks aside."""
    bare, text = "".join(arguments.split()), "".join(content.split())
    return len(bare) >= LEAST_TOLD and bare in text


def call_attempt(
    session: CheckSession, family: str = "tool_call", *, stream: bool = False, **more: Any
) -> QuestionAttempt:
    """Attempts that must end in valid and right calls."""

    def fresh() -> Question:
        task = draw_question(session, family)
        while _repeats(task):
            task = draw_question(session, family)
        return task

    return QuestionAttempt(session, fresh, judge=judge_calls, stream=stream, **more)


def judge_calls(task: Question, answer: ChatAnswer) -> str:
    """The calls that were asked for, and valid."""
    return call_problem(task, answer) or judge_answer(task, answer)


def _repeats(task: Question) -> bool:
    """The same call is wanted twice: answering it once would be right too."""
    wanted = [json.dumps(call) for call in task.expect]
    return len(set(wanted)) < len(wanted)


async def probe_parallel_calls(session: CheckSession) -> Score:
    """Several calls in one answer, whole and streamed."""
    # OpenAI's default is true; llama.cpp's is false; some servers know no such switch
    asked = draw_question(session, "tool_parallel")
    body = session.chat_request(asked.messages, tools=list(asked.tools), max_tokens=16, parallel_tool_calls=True)
    taken = (await session.post_chat(body)).status not in REJECTED_STATUSES

    def make(*, stream: bool) -> Attempt:
        return call_attempt(session, "tool_parallel", parallel_tool_calls=True if taken else None, stream=stream)

    return await run_both_modes(session, "tool-call", make, session.options.trial_share(0.75))


async def probe_unneeded_tools(session: CheckSession) -> Score:
    """Tools on offer are left alone when the question needs none."""
    return await run_both_modes(
        session,
        "answer",
        lambda stream: family_attempt(session, "tool_none", stream=stream),
        session.options.trial_share(0.25),
    )


async def probe_choice_none(session: CheckSession) -> ProbeWarning | None:
    """tool_choice none: no call, even when the question begs for one, and none written into the text."""
    said = ""

    async def attempt(stream: bool) -> TrialOutcome:
        nonlocal said
        task = draw_question(session, "tool_call")
        answer = await session.ask_question(task, tool_choice="none", max_tokens=64, allow_marks=True, stream=stream)
        if answer.calls:
            return server_failure(f"tool_choice is none, yet {answer.calls[0].name} was called")
        if answer.leaked_mark and not said:
            said = await _shown(session, task, answer)
        return server_failure("")

    await run_trials(session, "tool-choice", lambda: attempt(False), session.options.trial_share(0.34))
    await run_trials(session, "tool-choice" + STREAMED, lambda: attempt(True), session.options.trial_share(0.25))
    return ProbeWarning(said) if said else None


async def _shown(session: CheckSession, task: Question, answer: ChatAnswer) -> str:
    """Why a call stands in the text where none may be made; Failed where a setting of the server helps."""
    bare = await session.ask_question(task, tools=None, max_tokens=64, allow_marks=True)
    if bare.leaked_mark:
        return f"{bare.leaked_mark} in the text even with no tool on offer: a habit of the model, not of the server"
    if _tools_under_none(session.engine) == "shown":
        return f"{answer.leaked_mark} in the text: {session.engine} shows tools to the model even under none"
    hint = _hiding(session.engine)
    raise ProbeFailed(f"{answer.leaked_mark} in the text: the model was shown tools that it may not call{hint}")


async def probe_choice_required(session: CheckSession) -> Score | ProbeWarning:
    """tool_choice required: a call comes, even where the question needs none."""
    score = await _honoured(
        session, "required", lambda stream: call_attempt(session, tool_choice="required", stream=stream)
    )
    answer = await session.ask_question(
        draw_question(session, "tool_none"),
        tool_choice="required",
        allow_marks=True,
        max_tokens=tool_schemas.CALL_TOKENS,
    )
    if answer.calls or answer.finish_reason == "length":  # a call that grew too long to be judged
        return score
    return ProbeWarning(f"tool_choice is required, yet a question that needs no tool got none: {answer.content[:60]!r}")


async def probe_choice_named(session: CheckSession) -> Score:
    """tool_choice by name: that tool is called."""

    def make(stream: bool) -> Attempt:
        return QuestionAttempt(
            session, lambda: draw_question(session, "tool_call"), judge=_named, stream=stream, settings=_choice
        )

    return await _honoured(session, "by name", make)


def _choice(task: Question) -> dict[str, object]:
    return {"tool_choice": {"type": "function", "function": {"name": task.expect[0][0]}}}


def _named(task: Question, answer: ChatAnswer) -> str:
    name = task.expect[0][0]
    if [call.name for call in answer.calls] != [name]:
        return f"{name} was named, called was {[call.name for call in answer.calls] or 'nothing'}"
    return call_problem(task, answer)


async def _honoured(session: CheckSession, choice: str, make: Any) -> Score:
    def taken(stream: bool) -> Attempt:
        attempt = make(stream)

        async def asked() -> TrialOutcome:
            with skip_if_rejected(f"the server does not take tool_choice {choice}"):
                result: TrialOutcome = await attempt()
            return result

        return asked

    return await run_both_modes(session, "tool-choice", lambda stream: taken(stream), session.options.trial_share(0.75))


async def probe_response_format(session: CheckSession) -> str | ProbeWarning:
    """response_format binds the answer, tools on offer or not; until then tools can be called."""
    task = draw_question(session, "tool_call")
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    form = {"type": "json_schema", "json_schema": {"name": "final", "schema": schema}}
    answer = await chat_or_skip(session, list(task.messages), tools=list(task.tools), response_format=form)
    if answer.calls or not (await session.ask_question(task)).calls:
        return await _bound(session, form, schema) or f"{len(answer.calls)} call"
    return ProbeWarning(f"with a response_format no tool is called: {answer.content[:60]!r}")


async def _bound(
    session: CheckSession, form: Mapping[str, object], schema: Mapping[str, object]
) -> ProbeWarning | None:
    """Where no tool is needed, the answer fits the schema with tools on offer, if it does without them."""
    task = draw_question(session, "tool_none")
    said = await chat_or_skip(session, list(task.messages), tools=list(task.tools), response_format=form)
    why = "" if said.calls or said.finish_reason == "length" else schema_violation(said.content, schema)
    if not why:
        return None
    alone = await chat_or_skip(session, list(task.messages), response_format=form)
    held = not schema_violation(alone.content, schema)
    return ProbeWarning(f"with tools on offer a response_format is not held to: {why}") if held else None


async def probe_call_ids(session: CheckSession) -> str:
    """Kimi's ids are functions.NAME:INDEX; its template expects them back in the history."""
    task = draw_question(session, "tool_call")
    answer = await session.ask_question(task)
    if not answer.calls:
        raise ProbeSkipped("no tool was called")
    call = answer.calls[0]
    form = KIMI_ID.fullmatch(call.id)
    if form and form["name"] == call.name:
        return call.id
    if (
        session.is_kimi
        and session.engine in registry.engine_names()
        and registry.engine_traits(session.engine).own_call_ids
    ):
        raise ProbeFailed(f"id {call.id!r} instead of functions.{call.name}:0; the history will confuse the model")
    raise ProbeSkipped(f"ids look like {call.id[:40]!r}: this server has its own")


async def probe_result_use(session: CheckSession) -> Score:
    """The server's own call, with a result fed back under its own id, leads to an answer that uses it."""
    secret = f"{session.rng.randint(100, 999)}"

    async def attempt() -> TrialOutcome:
        task = draw_question(session, "tool_call")
        answer = await session.ask_question(task)
        if not answer.calls:
            return TrialOutcome(reason=f"no tool was called: {answer.content[:80]}", attributed_to="model")
        back = tool_history.result_turns(answer, {"result": secret}, named=False)
        turns = [*task.messages, tool_history.calls_turn(answer), *back]
        last = await session.chat(turns, tools=list(task.tools), max_tokens=task.max_tokens)
        return pass_if(last.content.strip() or last.calls, "no answer after the tool's result")

    await run_trials(session, "tool-history", attempt, session.options.trial_share(0.25))
    return await run_both_modes(
        session,
        "answer",
        lambda stream: family_attempt(session, "tool_result", stream=stream),
        session.options.trial_share(0.34),
    )


CHECK = Check(
    name="tools",
    about="every tool_choice, parallel calls, valid arguments, results used",
    probes={
        "whole": probe_whole_call,
        "streamed": probe_streamed_call,
        "parallel": probe_parallel_calls,
        "not needed": probe_unneeded_tools,
        "choice none": probe_choice_none,
        "choice required": probe_choice_required,
        "choice named": probe_choice_named,
        "with a form": probe_response_format,
        "ids": probe_call_ids,
        "shapes": tool_schemas.probe_argument_shapes,
        "and back": probe_result_use,
        "malformed history": tool_history.probe_malformed_history,
    },
    request_estimate=126,
)


def _tools_under_none(engine: str) -> str:
    """Whether the model sees tools it may not call: "flag", "hidden" or "shown"; embedded servers show them."""
    if engine == "embedded":
        return "shown"
    return registry.engine_traits(engine).tools_under_none if engine in registry.engine_names() else "hidden"


def _hiding(engine: str) -> str:
    """How to hide them, where that takes a flag."""
    if _tools_under_none(engine) != "flag":
        return ""
    traits = registry.engine_traits(engine)
    return f"; start {traits.title} with --{traits.hide_tools_flag}"
