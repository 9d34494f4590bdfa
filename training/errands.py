"""Errands as moebox's own agent does them: the real loop, the real tools, and a perfect script in place of a model.

Every message, schema and tool answer is what `moebox task --family errand` sends; only names, keys and values go beyond
the family's own lists. Now and then the script makes a mistake first, so that the model learns to go on after an error;
the mistake itself is shown and not learned.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

from moebox.core.endpoint import Endpoint, ToolCall
from moebox.phantom import vocabulary as words
from moebox.phantom.question import ModelReply, Question
from moebox.phantom.tool_questions import TOOLS
from moebox.tasks import agent
from moebox.tasks.families import material, text_jobs
from moebox.tasks.reply import AgentReply as Said
from moebox.tasks.reply import ReplySettings, request_body
from moebox.tasks.result import AgentJob, JobDraft
from moebox.tasks.tools import AgentTool, Toolbox, Workspace

RESULT = "value.txt"
_ASK = ReplySettings(endpoint=Endpoint(base_url="http://127.0.0.1:1/v1", model="phantom"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One reply of the script; `learn` is False for a mistake that is only shown."""

    said: Said
    learn: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Errand:
    """A finished job as a task (its last reply is the sample), and which of its replies are to be learned."""

    task: Question
    learn: tuple[bool, ...]


def errand_task(rng: random.Random, *, thinking: bool) -> Errand:
    """One errand, done in the real loop."""
    spread = rng.choices((1, 3, 8), (8, 2, 1))[0]
    job, wanted, value = _job(rng, spread)
    turns = list(_script(rng, job, wanted, value, spread))
    if not thinking:
        turns = [replace(turn, said=replace(turn.said, reasoning="")) for turn in turns]
    bodies: list[dict[str, Any]] = []
    place = iter(turns)

    def scripted(ask: ReplySettings, system: str, messages: Any, tools: Any, **_: Any) -> Said:
        bodies.append(request_body(ask, system, [dict(message) for message in messages], tools, 512))
        return next(place).said

    space = Workspace(job.files)
    box = Toolbox(job, space)
    if rng.random() < 0.1:
        box.add(_other_tool(rng))
    with mock.patch.object(agent, "request_reply", scripted):
        done = agent.run_agent(job, _ASK, box, agent.WorkLimits(ends_at=time.monotonic() + 60))
    if done.end != "done" or space.files.get(RESULT, b"").decode().strip() != value:
        raise AssertionError(f"the script did not do its errand: {done.end} {done.reason}")
    last = turns[-1].said
    task = Question(
        family="errand",
        messages=tuple(bodies[-1]["messages"]),
        expect=value,
        sample=ModelReply(content=last.text, reasoning=last.reasoning),
        judge=lambda task, reply: "" if task.expect in reply.content else f"not done: {reply.content[:80]}",
        tools=tuple(bodies[-1]["tools"]),
        thinking=thinking,
    )
    return Errand(task=task, learn=tuple(turn.learn for turn in turns))


def _job(rng: random.Random, spread: int) -> tuple[AgentJob, str, str]:
    """A job with keys, values and a title of the family's own lists or of any others."""
    count = rng.choice((2, 3, 3, 3, 4, 6)) if spread == 1 else rng.randint(6, 40)
    key = rng.choice(
        (lambda: rng.choice(material.THINGS), lambda: words.draw_word(rng), lambda: words.invent_word(rng))
    )
    value = rng.choice((lambda: rng.randint(100, 999), lambda: rng.randint(100, 999), *_values(rng)))
    values = {key(): value() for _ in range(count)}
    place = rng.choice((rng.choice(material.PLACES), words.invent_word(rng), words.draw_word(rng)))
    title = f"{place}_{rng.randint(100, 999)}" if rng.random() < 0.8 else place
    wanted = rng.choice(list(values))
    drawn: JobDraft = text_jobs.errand_draft(title, values, wanted, spread)
    job = AgentJob(family="errand", level="easy", seed=0, **asdict(drawn) | {"checks": drawn.checks})
    return job, wanted, str(values[wanted])


def _values(rng: random.Random) -> tuple[Callable[[], Any], ...]:
    return (lambda: words.draw_number(rng), lambda: words.draw_code(rng), lambda: words.draw_word(rng))


def _script(rng: random.Random, job: AgentJob, wanted: str, value: str, spread: int) -> Iterator[Turn]:
    """List, read or search, write, look at what was written, say so."""
    number = 0

    def call(tool: str, thought: str, **given: Any) -> Turn:
        nonlocal number
        made = ToolCall(id=f"functions.{tool}:{number}", name=tool, arguments=json.dumps(given))
        number += 1
        return Turn(said=Said(calls=(made,), reasoning=thought, finish="tool_calls"))

    path = next(name for name, text in job.files.items() if f"{wanted} = {value}\n" in text)
    look = (
        ("read_file", f"I read {path}.", {"path": path})
        if spread == 1
        else ("search", f"I search for {wanted}.", {"text": f"{wanted} ="})
    )
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("list_files", "I list the files.", {}),
        look,
        ("write_file", f"The value of {wanted} is {value}. I write it.", {"path": RESULT, "content": value}),
        ("read_file", "I check the file.", {"path": RESULT}),
    ]
    slip = rng.randrange(len(steps)) if rng.random() < 0.25 else -1
    for place, (tool, thought, given) in enumerate(steps):
        if place == slip:
            wrong, badly = _mistake(rng, tool, given, path)
            yield replace(call(wrong, thought, **badly), learn=False)
            thought = f"That was an error. {thought}"
        yield call(tool, thought, **given)
    yield Turn(said=Said(text=f"Done. The value of {wanted} is {value}.", reasoning="It is written.", finish="stop"))


def _mistake(rng: random.Random, tool: str, given: dict[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """A call that ends in an error: no such tool, arguments that do not fit, a file that is not there."""
    wrong = [(words.invent_word(rng), given), (tool, {**given, words.draw_word(rng): words.draw_word(rng)})]
    if given.get("path") == path:
        wrong.append((tool, {"path": f"{words.draw_word(rng)}/{path}"}))
        wrong.append((tool, {"path": f"/{path}"}))
    if "content" in given:
        wrong.append((tool, {"path": given["path"]}))
    return rng.choice(wrong)


def _other_tool(rng: random.Random) -> AgentTool:
    """A tool of somebody's MCP server beside ours."""
    schema = rng.choice(TOOLS).schema()["function"]
    return AgentTool(
        name=schema["name"], description=schema["description"], parameters=schema["parameters"], run=lambda _: "ok"
    )
