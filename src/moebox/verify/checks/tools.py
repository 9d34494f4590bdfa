"""tools: none, auto, required and named; parallel calls; valid arguments; results sent back and used."""

import itertools
import json
import re
from dataclasses import replace
from functools import partial

from moebox.core import registry
from moebox.core.verdict import Score
from moebox.phantom.question import Question
from moebox.verify.checks.schemas import CALL_TOKENS, SHAPES, probe_argument_shapes, schema_violation
from moebox.verify.checks.streaming import compare_modes, probe_silence
from moebox.verify.checks.turns import calls_turn, chat_or_skip, probe_malformed_history, result_turns, user_turn
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import REJECTED_STATUSES, ProbeFailed, ProbeSkipped, ProbeWarning, Settings, skip_if_rejected
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, QuestionAttempt, judge_answer, probe_family
from moebox.verify.violations import is_json

MIN_PARAMETERS = 2  # of a tool, so that they have an order
MIN_REPEATED_CHARS = 8  # of arguments that are in the text too, but not by chance
KIMI_ID = re.compile(r"functions\.(?P<name>.+):(?P<index>\d+)")


async def probe_call(session: CheckSession, *, stream: bool) -> Score:
    """Left to choose, the model calls the right tool, and the arguments, streamed or whole, fit its schema."""
    return await session.run_trials("tool-call", call_attempt(session), stream=stream)


def call_problem(question: Question, answer: ChatAnswer) -> str:
    """Return "" if there are calls of offered tools, with arguments that fit, under unique ids."""
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in question.tools}
    if not answer.calls:
        return f"no tool was called: {answer.content[:80]}"
    for call in answer.calls:
        if call.name not in offered:
            return f"called {call.name!r}, which was not offered"
        if reason := schema_violation(call.arguments, offered[call.name]):
            return f"arguments of {call.name}: {reason}"
    for call in answer.calls:
        bare = "".join(call.arguments.split())
        if len(bare) >= MIN_REPEATED_CHARS and bare in "".join(answer.content.split()):
            return f"the call of {call.name} is in the content too: {answer.content[:80]!r}"
    ids = [call.id for call in answer.calls]
    return "" if all(ids) and len(set(ids)) == len(ids) else f"ids {ids} are not unique"


def call_attempt(session: CheckSession, family: str = "tool_call", **settings: object) -> QuestionAttempt:
    """Attempts that must end in valid and right calls. Every other question for parallel ones wants three."""
    least = itertools.cycle((3, 2) if family == "tool_parallel" else (1,))

    def draw_distinct() -> Question:
        count = next(least)
        while True:
            question = session.draw(family)
            wanted = [*map(json.dumps, question.expect)]
            if len(set(wanted)) == len(wanted) >= count:  # of two equal calls, one would be a right answer too
                return question

    return QuestionAttempt(session, draw_distinct, judge_calls, settings=lambda question: settings)


def judge_calls(question: Question, answer: ChatAnswer) -> str:
    return call_problem(question, answer) or judge_answer(question, answer)


async def probe_parallel_calls(session: CheckSession) -> Score:
    """Several calls in one answer, whole and streamed."""
    # OpenAI's default is true, llama.cpp's is false, and some servers do not know the setting
    question = session.draw("tool_parallel")
    request = session.question_request(question, max_tokens=8, parallel_tool_calls=True)
    accepted = (await session.post_chat(request)).status not in REJECTED_STATUSES
    setting = {"parallel_tool_calls": True if accepted else None}
    score = await session.run_both_modes("tool-call", call_attempt(session, "tool_parallel", **setting), 0.25)

    async def attempt_both(stream: bool) -> str:
        """A call without arguments before another: parsers forget which one they are at."""
        drawn = session.draw("tool_call")
        name, ask, schema = next(shape for shape in SHAPES if not shape[2]["properties"])
        bare = {"type": "function", "function": {"name": name, "description": ask, "parameters": schema}}
        turn = user_turn(f"Do two things. {ask} {drawn.messages[-1]['content']}")
        both = replace(drawn, messages=(*drawn.messages[:-1], turn), tools=(*drawn.tools, bare))
        return await compare_modes(session, both, **setting)

    await session.run_trials("tool-call", attempt_both, 0.13, 1, stream=True)
    return score


async def probe_parameter_order(session: CheckSession) -> str | ProbeWarning:
    """Optional parameters come in any order: that of the schema does not decide which of them are there."""

    async def ask_for_calls(question: Question, step: int) -> list[list[str]]:
        (function,) = [tool["function"] for tool in question.tools if tool["function"]["name"] == question.expect[0][0]]
        known = dict(list(function["parameters"]["properties"].items())[::step])
        optional = {"type": "object", "properties": known, "required": []}
        tool = {"type": "function", "function": {**function, "parameters": optional}}
        answer = await session.ask_question(question, tools=[tool])
        return [sorted(json.loads(call.arguments)) for call in answer.calls if is_json(call.arguments)]

    while len((question := session.draw("tool_call")).expect[0][1]) < MIN_PARAMETERS:
        session.offered_tools = ()
    usual, other = await ask_for_calls(question, 1), await ask_for_calls(question, -1)
    if usual == other or await ask_for_calls(question, 1) != usual:
        return f"{usual} in either order"
    return ProbeWarning(f"a call had the arguments {usual}, and {other} with the schema's properties in reverse")


async def probe_choice_none(session: CheckSession) -> ProbeWarning | None:
    """tool_choice none: no call, even if the question asks for one, and none written into the text."""
    warning = ""

    async def attempt(stream: bool) -> str:
        nonlocal warning
        question = session.draw("tool_call")
        quiet = {"tool_choice": "none", "max_tokens": 64, "allow_marks": True}
        with skip_if_rejected("the server does not accept tool_choice none"):
            answer = await session.ask_question(question, stream=stream, **quiet)
        if answer.calls:
            return f"tool_choice is none, yet {answer.calls[0].name} was called"
        if answer.leaked_mark and not warning:
            warning = await _explain_call_in_text(session, question, answer.leaked_mark)
        return ""

    await session.run_both_modes("tool-choice", attempt, 0.25)
    return ProbeWarning(warning) if warning else None


async def _explain_call_in_text(session: CheckSession, question: Question, mark: str) -> str:
    """Explain a call that is written into the text. Raise ProbeFailed if a setting of the server avoids it."""
    bare = await session.ask_question(question, tools=None, max_tokens=64, allow_marks=True)
    if bare.leaked_mark:
        return f"{bare.leaked_mark} in the text even with no tool on offer: the model writes it, not the server"
    engine = session.engine
    traits = registry.engine_traits(engine) if engine in registry.engine_names() else None
    if engine == "embedded" or (traits and traits.tools_under_none == "shown"):
        return f"{mark} in the text: {engine} shows tools to the model even under none"
    needs_flag = traits and traits.tools_under_none == "flag"
    hint = f"; start {traits.title} with --{traits.hide_tools_flag}" if traits and needs_flag else ""
    raise ProbeFailed(f"{mark} in the text: the model was shown tools that it may not call{hint}")


async def probe_choice_required(session: CheckSession) -> Score | ProbeWarning:
    """tool_choice required: a call comes, even if the question needs none."""
    score = await _run_choice(session, "required", call_attempt(session, tool_choice="required"))
    settings: Settings = {"tool_choice": "required", "allow_marks": True, "max_tokens": CALL_TOKENS}
    answer = await session.ask_question(_draw_unneeded(session), **settings)
    if answer.calls or answer.finish_reason == "length":  # a call that became too long to be judged
        return score
    return ProbeWarning(f"no tool was called though one was required: {answer.content[:60]!r}")


def _draw_unneeded(session: CheckSession) -> Question:
    return replace(session.draw("sums"), tools=session.draw("tool_call").tools)


async def probe_choice_named(session: CheckSession) -> Score:

    def judge(question: Question, answer: ChatAnswer) -> str:
        name = question.expect[0][0]
        called = [call.name for call in answer.calls]
        if called != [name]:
            return f"{' and '.join(called) or 'no tool'} was called though {name} was required"
        return call_problem(question, answer)

    def choose(question: Question) -> dict[str, object]:
        return {"tool_choice": {"type": "function", "function": {"name": question.expect[0][0]}}}

    return await _run_choice(session, "by name", QuestionAttempt(session, "tool_call", judge, settings=choose), 1)


async def _run_choice(session: CheckSession, choice: str, attempt: QuestionAttempt, least: int = 2) -> Score:
    """Few trials: `prompts` forces many calls, `shapes` and `combinations` name many."""

    async def accepted_attempt(stream: bool) -> str:
        with skip_if_rejected(f"the server does not accept tool_choice {choice}"):
            return await attempt(stream)

    return await session.run_both_modes("tool-choice", accepted_attempt, 0.12, least)


async def probe_response_format(session: CheckSession) -> str | ProbeWarning:
    """response_format binds the answer, with tools on offer or not; before that, tools can be called."""
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "final", "schema": schema}}

    async def ask(question: Question, *, offer: bool = True) -> ChatAnswer:
        more = {"response_format": response_format, "max_tokens": CALL_TOKENS}
        return await chat_or_skip(session, question.messages, tools=list(question.tools) if offer else None, **more)

    question = session.draw("tool_call")
    answer = await ask(question)
    if not answer.calls and (await session.ask_question(question)).calls:
        return ProbeWarning(f"with a response_format no tool is called: {answer.content[:60]!r}")
    unneeded = _draw_unneeded(session)
    plain = await ask(unneeded)
    reason = "" if plain.calls or plain.finish_reason == "length" else schema_violation(plain.content, schema)
    if reason and not schema_violation((await ask(unneeded, offer=False)).content, schema):
        return ProbeWarning(f"with tools on offer a response_format is not enforced: {reason}")
    return f"{len(answer.calls)} call"


async def probe_call_ids(session: CheckSession) -> str:
    """Kimi's ids are functions.NAME:INDEX; its template expects them back in the history."""
    answer = await session.ask_question(session.draw("tool_call"))
    if not answer.calls:
        raise ProbeSkipped("no tool was called")
    call = answer.calls[0]
    match = KIMI_ID.fullmatch(call.id)
    if match and match["name"] == call.name:
        return call.id
    engine, model = session.engine, session.endpoint.model.lower()
    own_ids = engine in registry.engine_names() and registry.engine_traits(engine).own_call_ids
    if own_ids and re.search("kimi|k2", model):
        raise ProbeFailed(f"id {call.id!r} instead of functions.{call.name}:0; the history will confuse the model")
    raise ProbeSkipped(f"ids look like {call.id[:40]!r}: this server has its own")


async def probe_result_use(session: CheckSession) -> Score:
    """The server's own call, with a result sent back under its own id, leads to an answer that uses it."""
    secret = f"{session.rng.randint(100, 999)}"

    async def attempt(stream: bool) -> str:
        question = session.draw("tool_call")
        answer = await session.ask_question(question)
        if not answer.calls:
            return ModelFailure(f"no tool was called: {answer.content[:80]}")
        turns = [*question.messages, calls_turn(answer), *result_turns(answer, {"result": secret}, named=False)]
        last = await session.chat(turns, tools=list(question.tools), max_tokens=question.max_tokens)
        return "" if last.content.strip() or last.calls else "no answer after the tool's result"

    await session.run_trials("tool-history", attempt, 0.13, 1)  # "agents" sends more results back
    return await session.run_both_modes("answer", QuestionAttempt(session, "tool_result"), 0.13, 1)


PROBES: Probes = {
    "whole": partial(probe_call, stream=False),
    "streamed": partial(probe_call, stream=True),
    "parallel": probe_parallel_calls,
    "not needed": partial(probe_family, family="tool_none", both_modes=True, share=0.13, least=1),
    "choice none": probe_choice_none,
    "choice required": probe_choice_required,
    "choice named": probe_choice_named,
    "with a form": probe_response_format,
    "ids": probe_call_ids,
    "and back": probe_result_use,
    "malformed history": probe_malformed_history,
    "shapes": probe_argument_shapes,
    "silence": probe_silence,
    "order": probe_parameter_order,
}
