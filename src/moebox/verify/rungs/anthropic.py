"""anthropic: the messages API where it is served, since Claude Code is a client that people use."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moebox.core.verdict import Exchange, Score
from moebox.phantom.tasks import Task
from moebox.stream.events import prompt_tokens
from moebox.verify import messages
from moebox.verify.ask import REFUSALS, THINKING_ROOM, Asker, Failed, Skipped, skipped_if_refused
from moebox.verify.breach import object_of, objects_of, strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.message import Message
from moebox.verify.rung import Rung, Warned
from moebox.verify.rungs.errors import rude
from moebox.verify.rungs.streaming import apart
from moebox.verify.rungs.thinking import spilled
from moebox.verify.rungs.tool_results import SLACK
from moebox.verify.rungs.tool_schemas import ROOM
from moebox.verify.rungs.turns import GROWTH, PADDING, grew
from moebox.verify.trials import GOOD, Attempt, Trial, both, draw, trials, wrong

FEW = 8  # tokens, for an answer that wants many more


async def text(ask: Asker) -> Score:
    """A question is answered, with stop_reason and usage, whole and streamed alike."""

    def check(message: Message) -> str:
        ended = message.stop in ("end_turn", "stop_sequence")
        return "" if ended else f"stop_reason {message.stop!r} at the end of an answer"

    return await both(ask, "text", lambda stream: _asked(ask, "copy", stream, check), ask.options.share(0.5))


async def same_words(ask: Asker) -> Score:
    """The pieces of a stream are the text of the whole message."""

    async def attempt() -> Trial:
        task = draw(ask, "copy")
        whole, pieces = [await messages.send(ask, messages.request(ask, task, stream=way)) for way in (False, True)]
        if whole.text.rstrip() == pieces.text.rstrip():
            return GOOD
        again = await messages.send(ask, messages.request(ask, task))
        return wrong(apart(whole.text, pieces.text)) if again.text == whole.text else GOOD

    return await trials(ask, "text" + STREAMED, attempt, ask.options.share(0.25))


async def tools(ask: Asker) -> Score:
    """A tool is used, whole and streamed, with its input as an object."""
    await both(ask, "tool-call", lambda stream: _asked(ask, "tool_call", stream), ask.options.share(0.34))
    return await both(ask, "tool-call", lambda stream: _asked(ask, "tool_parallel", stream), ask.options.share(0.17))


async def and_back(ask: Asker) -> Score:
    """A tool_result block is read and used."""
    return await both(ask, "answer", lambda stream: _asked(ask, "tool_result", stream), ask.options.share(0.17))


async def system(ask: Asker) -> Warned | None:
    """`system` reaches the model, as a string and as blocks, marked for the cache too: the prompt grows by it."""
    task = draw(ask, "secret")
    plain = messages.request(ask, task)
    few = await _input_tokens(ask, plain)
    block = {"type": "text", "text": PADDING}
    marked = block | {"cache_control": {"type": "ephemeral"}}  # as Claude Code sends it
    for how, value in (("a string", PADDING), ("blocks", [block]), ("blocks with cache_control", [marked])):
        try:
            many = await _input_tokens(ask, plain | {"system": value})
        except Failed as problem:
            return Warned(_refusal(problem, f"system as {how}"))
        _grown(ask, "prompt", f"system as {how}", few, many)
    return None


def _refusal(problem: Failed, what: str) -> str:
    """That something was refused politely; what was not is raised again."""
    if problem.status in REFUSALS:
        return f"{what} is refused: {problem}"
    raise problem


def _grown(ask: Asker, kind: str, what: str, few: int | None, many: int | None) -> None:
    """Count whether the prompt grew by PADDING."""
    ask.tally.need(
        kind, grew(few, many, GROWTH), f"24 words more in {what}, yet {few} and {many} input_tokens: it is dropped"
    )


async def blocks(ask: Asker) -> None:
    """A tool_result whose content is a list of blocks is the same result, as is a turn in several blocks."""
    task = draw(ask, "tool_result")
    first, *others = _turns(task)
    turns = [first | {"content": f"{PADDING}\n{first['content']}"}, *others]  # lines become blocks
    listed = [_in_blocks(turn) for turn in turns]
    as_text, as_blocks = [
        await _input_tokens(ask, messages.request(ask, task, turns=shown)) for shown in (turns, listed)
    ]
    kept = grew(as_text, as_blocks, -SLACK)
    why = f"a conversation is {as_text} input_tokens with strings and {as_blocks} with blocks: something is lost"
    ask.tally.need("tool-history", kept, why)
    await _beside(ask, task, turns)


async def _beside(ask: Asker, task: Task, turns: list[Any]) -> None:
    """A second result, and words in the turn that brings results, as Claude Code sends both: the prompt grows."""
    call, result = turns[-2]["content"][-1], turns[-1]["content"][-1]
    before = [*turns[:-2], {"role": "assistant", "content": [call, call | {"id": f"{call['id']}-2"}]}]
    again = result | {"tool_use_id": f"{call['id']}-2"}

    async def counted(*blocks: object) -> int | None:
        return await _input_tokens(
            ask, messages.request(ask, task, turns=[*before, {"role": "user", "content": [result, *blocks]}])
        )

    few = await counted(again)
    for what, blocks in {
        "a second result": (again | {"content": PADDING},),
        "the text beside results": (again, {"type": "text", "text": PADDING}),
    }.items():
        _grown(ask, "tool-history", what, few, await counted(*blocks))


def _in_blocks(turn: dict[str, object]) -> dict[str, object]:
    """The same turn with every text as a block of its own."""
    content = turn["content"]
    if isinstance(content, str):
        return {**turn, "content": [{"type": "text", "text": line} for line in content.splitlines(keepends=True)]}
    return {**turn, "content": [_inner(block) for block in objects_of(content)]}


def _inner(block: dict[str, object]) -> dict[str, object]:
    text = block.get("content")
    return {**block, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else block


async def _input_tokens(ask: Asker, body: dict[str, object]) -> int | None:
    return prompt_tokens((await messages.send(ask, body)).usage)


async def thinking(ask: Asker) -> str | Warned:
    """Thoughts come in blocks of their own, and the answer in text."""
    ask.need_thinking()
    shown, back = {}, None
    for stream in (False, True):
        task = draw(ask, "sums")
        plain = await messages.send(ask, messages.request(ask, task, stream=stream))
        message = await _or_skipped(ask, _thinking_request(ask, task, stream))
        shown[stream] = bool(message.thinking)
        ask.tally.add("reasoning" + STREAMED * stream, spilled(message.reply, plain.reply))
        if message.thinking and not stream:
            back = await _thoughts_back(ask, task, ask.exchanges[-1])
    either = "thinking blocks came in one of a whole and a streamed message only"
    ask.tally.need("reply-style", shown[False] == shown[True], either)
    return back or ("thinking blocks came" if all(shown.values()) else "no thinking blocks came")


def _thinking_request(ask: Asker, task: Task, stream: bool) -> dict[str, object]:
    """A task that is to be thought about first."""
    body = messages.request(ask, task, stream=stream) | {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    body |= {"max_tokens": ask.room(THINKING_ROOM, thinking=True)}
    body["temperature"] = 1  # the API takes no other with thinking
    if "chat_template_kwargs" in body:
        body["chat_template_kwargs"] = {"thinking": True, "enable_thinking": True}
    return body


async def _thoughts_back(ask: Asker, task: Task, exchange: Exchange) -> Warned | None:
    """The blocks that came, thoughts among them, are taken back as the assistant's turn: Claude Code sends them."""
    said = object_of(strict_json(exchange.response)).get("content")
    turns = [*task.messages, {"role": "assistant", "content": said}, {"role": "user", "content": "Hello!"}]
    try:
        await messages.send(ask, messages.request(ask, task, turns=turns) | {"max_tokens": FEW}, odd=True)
    except Failed as problem:
        return Warned(_refusal(problem, "a turn with its own thinking block"))
    return None


async def _or_skipped(ask: Asker, body: dict[str, object]) -> Message:
    try:
        return await messages.send(ask, body)
    except Failed as problem:
        raise Skipped(_refusal(problem, "thinking")) from None


async def choices(ask: Asker) -> str | Warned:
    """tool_choice `any` and `tool` call where nothing need be called, `none` does not where something should be."""
    unheeded: list[str] = []
    for number, family in enumerate(("tool_none", "tool_none", "tool_call", "tool_call")):
        task = draw(ask, family)
        name = str(task.tools[0]["function"]["name"])
        choice = ({"type": "any"}, {"type": "tool", "name": name}, {"type": "none"}, {"type": "none"})[number]
        stream = number % 2 == 1
        body = messages.request(ask, task, stream=stream) | {"tool_choice": choice}
        body["max_tokens"] = ask.room(ROOM)  # a call is shorter; what goes on is no call
        with skipped_if_refused(f"the server does not take tool_choice {choice['type']}"):
            message = await messages.send(ask, body, odd=True)
        unheeded += _unheeded(choice, [call.name for call in message.calls])
    return Warned("; ".join(unheeded)) if unheeded else "any, tool and none are heeded"


def _unheeded(choice: Mapping[str, str], called: Sequence[str]) -> list[str]:
    """How tool_choice was not heeded, if it was not."""
    if choice["type"] == "none":
        return [f"tool_choice is none, yet {called[0]} was called"] if called else []
    wanted = {choice["name"]} if "name" in choice else set(called)
    heeded = bool(called) and set(called) == wanted
    return (
        [] if heeded else [f"tool_choice is {' '.join(choice.values())}, called was {', '.join(called) or 'nothing'}"]
    )


async def limits(ask: Asker) -> None:
    """stop_sequences stop, max_tokens ends, and stop_reason says which."""
    for stream in (False, True):
        task = draw(ask, "count", start=1, end=30)
        stopped = await messages.send(ask, messages.request(ask, task, stream=stream) | {"stop_sequences": ["12"]})
        past = "12" in stopped.text or "13" in stopped.text
        ask.tally.need("limits" + STREAMED * stream, not past, f"went on past stop_sequences: {stopped.text[-40:]!r}")
        named = past or not stopped.text or stopped.stop == "stop_sequence"
        ask.tally.need("reply-style" + STREAMED * stream, named, f"stop_reason {stopped.stop!r} at a stop sequence")
        cut = await messages.send(ask, messages.request(ask, task, stream=stream) | {"max_tokens": FEW})
        made = cut.usage.get("output_tokens")
        kept = cut.stop == "max_tokens" and (not isinstance(made, int) or made <= FEW)
        why = f"stop_reason {cut.stop!r} and {made} output_tokens with max_tokens {FEW}"
        ask.tally.need("limits" + STREAMED * stream, kept, why)


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
    wanted = [(name, dict(given)) for name, given in task.expect]
    made = [(call.name, strict_json(call.arguments)) for call in message.calls]
    strange = [call for call in made if call not in wanted]
    return f"{strange[0][0]}({json.dumps(strange[0][1])}) was not asked for" if strange else ""


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
    probes={
        "text": text,
        "same words": same_words,
        "tools": tools,
        "and back": and_back,
        "system": system,
        "blocks": blocks,
        "thinking": thinking,
        "choices": choices,
        "limits": limits,
        "refused": refused,
    },
    cost=44,
)
