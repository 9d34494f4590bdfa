"""tools: none, auto, required and named; parallel calls; valid arguments; results fed back and used."""

import json
import re
from typing import Any

from moebox.core.verdict import Score
from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.rung import Caution, Rung
from moebox.verify.rungs import tool_history
from moebox.verify.rungs.json_modes import misfit
from moebox.verify.score import share_text, wilson
from moebox.verify.trials import Attempt, asking, draw, judge, no_leak, sure

VALID_SHARE = 0.9  # of calls whose arguments fit the schema; Kimi's vendor verifier finds 100% at the vendor's own API
ALWAYS_SHOWN = ("llama.cpp", "ik_llama.cpp", "embedded")  # llama.cpp's server gives its template the tools in any case
HIDING = {"vllm": "; start vLLM with --exclude-tools-when-tool-choice-none"}  # SGLang hides them by itself
KIMI_ID = re.compile(r"functions\.(?P<name>.+):(?P<index>\d+)")


async def auto(ask: Asker) -> Score:
    """Left to choose, it calls the right tool, and the arguments fit its schema: the score over N trials."""
    wrong, valid = [], 0
    for trial in range(ask.options.trials):
        task = draw(ask, "tool_call")
        answer = await ask.ask(task, stream=trial % 2 == 1)
        no_leak(answer)
        why = schema_fault(task, answer)
        valid += not why
        if why := why or judge(task, answer):
            wrong.append(why)
    score = wilson(valid, ask.options.trials)
    if valid < VALID_SHARE * ask.options.trials:
        raise Failed(f"valid by schema: {share_text(score)}: {wrong[0]}", score=score)
    if len(wrong) > max(1, ask.options.trials // 8):
        raise Failed(f"{len(wrong)} of {ask.options.trials} calls are not what was asked: {wrong[0]}", score=score)
    return score


def schema_fault(task: Task, answer: Answer) -> str:
    """ "" when there are calls, of tools on offer, with arguments that fit, under ids of their own."""
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.tools}
    if not answer.calls:
        return f"no tool was called: {answer.content[:80]}"
    for call in answer.calls:
        if call.name not in offered:
            return f"called {call.name!r}, which is not on offer"
        if why := misfit(call.arguments, offered[call.name]):
            return f"arguments of {call.name}: {why}"
    ids = [call.id for call in answer.calls]
    if not all(ids) or len(set(ids)) < len(ids):
        return f"ids {ids} are not one of its own for each call"
    return ""


def valid_call(ask: Asker, family: str = "tool_call", **more: Any) -> Attempt:
    """An attempt that must end in valid and right calls."""

    async def attempt() -> str:
        task = draw(ask, family)
        while _repeats(task):
            task = draw(ask, family)
        answer = await ask.ask(task, **more)
        return judge(task, answer) or schema_fault(task, answer)

    return attempt


def _repeats(task: Task) -> bool:
    """The same call is wanted twice: answering it once would be right too."""
    wanted = [json.dumps(call) for call in task.expect]
    return len(set(wanted)) < len(wanted)


async def whole(ask: Asker) -> None:
    """A call, not streamed: finish_reason says tool_calls, the content is free of markers."""
    task = draw(ask, "tool_call")
    answer = await ask.ask(task)
    no_leak(answer)
    if answer.calls and answer.finish not in ("tool_calls", "stop"):
        raise Failed(f"finish_reason {answer.finish!r} with a tool call")
    await sure(valid_call(ask))


async def streamed(ask: Asker) -> None:
    """Streamed arguments assemble to the whole of them."""
    for _ in range(2):
        await sure(valid_call(ask, stream=True))


async def parallel(ask: Asker) -> None:
    """Several calls in one answer, whole and streamed."""
    # OpenAI's default is true; llama.cpp's is false
    await sure(valid_call(ask, "tool_parallel", parallel_tool_calls=True))
    await sure(valid_call(ask, "tool_parallel", parallel_tool_calls=True, stream=True))


async def not_needed(ask: Asker) -> None:
    """Tools on offer are left alone when the question needs none."""
    await sure(asking(ask, "tool_none"))


async def choice_none(ask: Asker) -> Caution | None:
    """tool_choice none: no call, even when the question begs for one, and none written into the text."""
    await sure(asking(ask, "tool_none", tool_choice="none"))
    task = draw(ask, "tool_call")
    answer = await ask.ask(task, tool_choice="none", max_tokens=64)
    if answer.calls:
        raise Failed(f"tool_choice is none, yet {answer.calls[0].name} was called")
    if not answer.leak:
        return None
    bare = await ask.ask(task, tools=None, max_tokens=64)
    if bare.leak:
        return Caution(f"{bare.leak} in the text even with no tool on offer: a habit of the model, not of the server")
    if ask.engine in ALWAYS_SHOWN:
        return Caution(f"{answer.leak} in the text: {ask.engine} shows tools to the model even under none")
    raise Failed(
        f"{answer.leak} in the text: the model was shown tools that it may not call{HIDING.get(ask.engine, '')}"
    )


async def choice_required(ask: Asker) -> None:
    """tool_choice required: a call comes."""
    await _honoured(valid_call(ask, tool_choice="required"), ask, "required")


async def choice_named(ask: Asker) -> None:
    """tool_choice by name: that tool is called."""

    async def attempt() -> str:
        task = draw(ask, "tool_call")
        name = task.expect[0][0]
        answer = await ask.ask(task, tool_choice={"type": "function", "function": {"name": name}})
        no_leak(answer)
        if [call.name for call in answer.calls] != [name]:
            return f"{name} was named, called was {[call.name for call in answer.calls] or 'nothing'}"
        return schema_fault(task, answer)

    await _honoured(attempt, ask, "by name")


async def _honoured(attempt: Attempt, ask: Asker, choice: str) -> None:
    try:
        await sure(attempt)
    except Failed:
        if ask.exchanges[-1].status in (400, 422, 501):
            raise Skipped(f"the server does not take tool_choice {choice}") from None
        raise


async def ids(ask: Asker) -> str:
    """Kimi's ids are functions.NAME:INDEX; its template expects them back in the history."""
    task = draw(ask, "tool_call")
    answer = await ask.ask(task)
    if not answer.calls:
        raise Failed("no tool was called")
    call = answer.calls[0]
    form = KIMI_ID.fullmatch(call.id)
    if form and form["name"] == call.name:
        return call.id
    if ask.is_kimi and ask.engine in ("vllm", "sglang"):
        raise Failed(f"id {call.id!r} instead of functions.{call.name}:0; the history will confuse the model")
    raise Skipped(f"ids look like {call.id[:40]!r}: this server has its own")


async def and_back(ask: Asker) -> None:
    """The server's own call, with a result fed back under its own id, leads to an answer that uses it."""
    secret = f"{ask.rng.randint(100, 999)}"

    async def attempt() -> str:
        task = draw(ask, "tool_call")
        answer = await ask.ask(task)
        if not answer.calls:
            return f"no tool was called: {answer.content[:80]}"
        made = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
        turns = [*task.messages, {"role": "assistant", "content": answer.content, "tool_calls": made}]
        result = json.dumps({"result": secret})
        turns += [
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result} for call in answer.calls
        ]
        last = await ask.chat(turns, tools=list(task.tools), max_tokens=task.max_tokens)
        no_leak(last)
        return "" if last.content.strip() or last.calls else "no answer after the tool's result"

    await sure(attempt)
    for stream in (False, True):
        await sure(asking(ask, "tool_result", stream=stream))


RUNG = Rung(
    name="tools",
    about="every tool_choice, parallel calls, valid arguments, results used",
    probes={
        "auto": auto,
        "whole": whole,
        "streamed": streamed,
        "parallel": parallel,
        "not needed": not_needed,
        "choice none": choice_none,
        "choice required": choice_required,
        "choice named": choice_named,
        "ids": ids,
        "and back": and_back,
        "malformed history": tool_history.malformed,
    },
)
