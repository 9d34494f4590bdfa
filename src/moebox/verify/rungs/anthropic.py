"""anthropic: the messages API where it is served, since Claude Code is a client that people use."""

import json
from typing import Any

from moebox.core.verdict import Score
from moebox.phantom.tasks import Task
from moebox.verify import messages
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.message import Message
from moebox.verify.rung import Rung, Warned
from moebox.verify.rungs.errors import rude
from moebox.verify.trials import Attempt, Trial, both, draw, wrong


async def text(ask: Asker) -> Score:
    """A question is answered, with stop_reason and usage, whole and streamed alike."""

    def check(message: Message) -> str:
        ended = message.stop in ("end_turn", "stop_sequence")
        return "" if ended else f"stop_reason {message.stop!r} at the end of an answer"

    return await both(ask, "text", lambda stream: _asked(ask, "copy", stream, check), ask.options.share(0.5))


async def tools(ask: Asker) -> Score:
    """A tool is used, whole and streamed, with its input as an object."""
    await both(ask, "tool-call", lambda stream: _asked(ask, "tool_call", stream), ask.options.share(0.34))
    return await both(ask, "tool-call", lambda stream: _asked(ask, "tool_parallel", stream), ask.options.share(0.17))


async def and_back(ask: Asker) -> Score:
    """A tool_result block is read and used."""
    return await both(ask, "answer", lambda stream: _asked(ask, "tool_result", stream), ask.options.share(0.17))


async def system(ask: Asker) -> None:
    """`system` reaches the model: the prompt grows by it."""
    task = draw(ask, "secret")
    bare = await messages.send(ask, messages.request(ask, task))
    body = messages.request(ask, task) | {"system": "lantern orchard thimble " * 8}
    told = await messages.send(ask, body)
    few, many = bare.usage.get("input_tokens"), told.usage.get("input_tokens")
    grown = not (isinstance(few, int) and isinstance(many, int)) or many > few + 16
    ask.tally.add("prompt", "" if grown else f"24 words of system, yet {few} and {many} input_tokens")


async def refused(ask: Asker) -> Warned | None:
    """A request without messages is refused in this API's form."""
    exchange = await messages.post(ask, {"model": ask.endpoint.model, "max_tokens": 8})
    if exchange.status in (404, 405, 501):
        raise Skipped("the server does not speak Anthropic's API")
    why = rude(exchange)
    return Warned(f"a request without messages: {why}") if why else None


def _asked(ask: Asker, family: str, stream: bool, check: Any = lambda message: "") -> Attempt:
    async def attempt() -> Trial:
        task = draw(ask, family)
        why = await _wrong(ask, task, stream, check)
        if not why:
            return wrong("")
        for again in (stream, not stream):  # a model says the same thing again
            try:
                if not await _wrong(ask, task, again, check):
                    return wrong(why)
            except Failed:
                return wrong(why)
        return Trial(why=why, whose="model")

    return attempt


async def _wrong(ask: Asker, task: Task, stream: bool, check: Any) -> str:
    message = await messages.send(ask, messages.request(ask, task, stream=stream, turns=_turns(task)))
    why = str(check(message))
    if task.family == "tool_parallel" and message.calls:
        return why or _among(task, message)
    grade = task.grade(message.reply)
    return why or ("" if grade.ok else grade.why)


def _among(task: Task, message: Message) -> str:
    """Some of the calls that were wanted: this API has no word to ask for all at once."""
    wanted = [json.dumps([name, dict(given)], sort_keys=True) for name, given in task.expect]
    made = [json.dumps([call.name, json.loads(call.arguments)], sort_keys=True) for call in message.calls]
    strange = [call for call in made if call not in wanted]
    return f"{strange[0]} was not asked for" if strange else ""


def _turns(task: Task) -> list[Any]:
    """The chat history of a task in this API's blocks; results of one round of calls stand in one turn."""
    turns: list[Any] = []
    for turn in task.messages:
        if turn.get("tool_calls"):
            used = [
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "input": json.loads(call["function"]["arguments"]),
                }
                for call in turn["tool_calls"]
            ]
            turns.append({"role": "assistant", "content": used})
        elif turn["role"] == "tool":
            back = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
            if turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                turns[-1]["content"].append(back)
            else:
                turns.append({"role": "user", "content": [back]})
        else:
            turns.append(dict(turn))
    return turns


RUNG = Rung(
    name="anthropic",
    about="Anthropic's messages API, where served",
    probes={"text": text, "tools": tools, "and back": and_back, "system": system, "refused": refused},
    cost=30,
)
