"""anthropic: the messages API where it is served, since Claude Code is a client that people use."""

import json
from typing import Any

from moebox.phantom.tasks import Task
from moebox.verify import messages
from moebox.verify.ask import Asker, Failed
from moebox.verify.messages import Message
from moebox.verify.rung import Rung
from moebox.verify.trials import draw, sure


async def text(ask: Asker) -> None:
    """A question is answered, with stop_reason and usage, whole and streamed alike."""
    for stream in (False, True):

        async def attempt(stream: bool = stream) -> str:
            task = draw(ask, "copy")
            message = await messages.send(ask, messages.request(ask, task, stream=stream))
            if message.stop not in ("end_turn", "stop_sequence"):
                raise Failed(f"stop_reason {message.stop!r} at the end of an answer")
            if not message.usage.get("output_tokens"):
                raise Failed(f"no output_tokens in the {'stream' if stream else 'message'}'s usage")
            return _judge(task, message)

        await sure(attempt)


async def tools(ask: Asker) -> None:
    """A tool is used, whole and streamed, with its input as an object."""
    for stream in (False, True):

        async def attempt(stream: bool = stream) -> str:
            task = draw(ask, "tool_call")
            message = await messages.send(ask, messages.request(ask, task, stream=stream))
            if message.calls and message.stop != "tool_use":
                raise Failed(f"stop_reason {message.stop!r} with a tool_use block")
            return _judge(task, message)

        await sure(attempt)


async def and_back(ask: Asker) -> None:
    """A tool_result block is read and used."""

    async def attempt() -> str:
        task = draw(ask, "tool_result")
        return _judge(task, await messages.send(ask, messages.request(ask, task, turns=_turns(task))))

    await sure(attempt)


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


def _judge(task: Task, message: Message) -> str:
    grade = task.grade(message.reply)
    return "" if grade.ok else grade.why


RUNG = Rung(
    name="anthropic",
    about="Anthropic's messages API, where served",
    probes={"text": text, "tools": tools, "and back": and_back},
)
