"""anthropic: the messages API where it is served, since Claude Code is a client that people use."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moebox.core.verdict import HttpExchange, Score
from moebox.phantom.tasks import Question
from moebox.stream.events import anthropic_prompt_tokens
from moebox.verify import messages
from moebox.verify.ask import (
    REJECTED_STATUSES,
    THINKING_TOKENS,
    CheckSession,
    ProbeFailed,
    ProbeSkipped,
    skip_if_rejected,
)
from moebox.verify.breach import object_of, objects_of, parse_strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.message import AnthropicMessage
from moebox.verify.rung import Check, ProbeWarning
from moebox.verify.rungs.errors import rejection_problem
from moebox.verify.rungs.streaming import first_difference
from moebox.verify.rungs.thinking import spilled_reasoning
from moebox.verify.rungs.tool_results import SLACK
from moebox.verify.rungs.tool_schemas import CALL_TOKENS
from moebox.verify.rungs.turns import GROWTH, PADDING, prompt_grew
from moebox.verify.trials import (
    PASSED,
    Attempt,
    TrialOutcome,
    draw_question,
    run_both_modes,
    run_trials,
    server_failure,
)

FEW = 8  # tokens, for an answer that wants many more


async def probe_text(session: CheckSession) -> Score:
    """A question is answered, with stop_reason and usage, whole and streamed alike."""

    def check(message: AnthropicMessage) -> str:
        ended = message.stop_reason in ("end_turn", "stop_sequence")
        return "" if ended else f"stop_reason {message.stop_reason!r} at the end of an answer"

    return await run_both_modes(
        session, "text", lambda stream: _asked(session, "copy", stream, check), session.options.trial_share(0.5)
    )


async def probe_same_words(session: CheckSession) -> Score:
    """The pieces of a stream are the text of the whole message."""

    async def attempt() -> TrialOutcome:
        task = draw_question(session, "copy")
        whole, pieces = [
            await messages.send_message(session, messages.message_request(session, task, stream=way))
            for way in (False, True)
        ]
        if whole.text.rstrip() == pieces.text.rstrip():
            return PASSED
        again = await messages.send_message(session, messages.message_request(session, task))
        return server_failure(first_difference(whole.text, pieces.text)) if again.text == whole.text else PASSED

    return await run_trials(session, "text" + STREAMED, attempt, session.options.trial_share(0.25))


async def probe_tools(session: CheckSession) -> Score:
    """A tool is used, whole and streamed, with its input as an object."""
    await run_both_modes(
        session, "tool-call", lambda stream: _asked(session, "tool_call", stream), session.options.trial_share(0.34)
    )
    return await run_both_modes(
        session, "tool-call", lambda stream: _asked(session, "tool_parallel", stream), session.options.trial_share(0.17)
    )


async def probe_tool_results(session: CheckSession) -> Score:
    """A tool_result block is read and used."""
    return await run_both_modes(
        session, "answer", lambda stream: _asked(session, "tool_result", stream), session.options.trial_share(0.17)
    )


async def probe_system(session: CheckSession) -> ProbeWarning | None:
    """`system` reaches the model, as a string and as blocks, marked for the cache too: the prompt grows by it."""
    task = draw_question(session, "secret")
    plain = messages.message_request(session, task)
    few = await _input_tokens(session, plain)
    block = {"type": "text", "text": PADDING}
    marked = block | {"cache_control": {"type": "ephemeral"}}  # as Claude Code sends it
    for how, value in (("a string", PADDING), ("blocks", [block]), ("blocks with cache_control", [marked])):
        try:
            many = await _input_tokens(session, plain | {"system": value})
        except ProbeFailed as problem:
            return ProbeWarning(_refusal(problem, f"system as {how}"))
        _grown(session, "prompt", f"system as {how}", few, many)
    return None


def _refusal(problem: ProbeFailed, what: str) -> str:
    """That something was refused politely; what was not is raised again."""
    if problem.status in REJECTED_STATUSES:
        return f"{what} is refused: {problem}"
    raise problem


def _grown(session: CheckSession, kind: str, what: str, few: int | None, many: int | None) -> None:
    """Count whether the prompt grew by PADDING."""
    session.failures.expect(
        kind,
        prompt_grew(few, many, GROWTH),
        f"24 words more in {what}, yet {few} and {many} input_tokens: it is dropped",
    )


async def probe_blocks(session: CheckSession) -> None:
    """A tool_result whose content is a list of blocks is the same result, as is a turn in several blocks."""
    task = draw_question(session, "tool_result")
    first, *others = _turns(task)
    turns = [first | {"content": f"{PADDING}\n{first['content']}"}, *others]  # lines become blocks
    listed = [_in_blocks(turn) for turn in turns]
    as_text, as_blocks = [
        await _input_tokens(session, messages.message_request(session, task, turns=shown)) for shown in (turns, listed)
    ]
    kept = prompt_grew(as_text, as_blocks, -SLACK)
    why = f"a conversation is {as_text} input_tokens with strings and {as_blocks} with blocks: something is lost"
    session.failures.expect("tool-history", kept, why)
    await _beside(session, task, turns)


async def _beside(session: CheckSession, task: Question, turns: list[Any]) -> None:
    """A second result, and words in the turn that brings results, as Claude Code sends both: the prompt grows."""
    call, result = turns[-2]["content"][-1], turns[-1]["content"][-1]
    before = [*turns[:-2], {"role": "assistant", "content": [call, call | {"id": f"{call['id']}-2"}]}]
    again = result | {"tool_use_id": f"{call['id']}-2"}

    async def counted(*blocks: object) -> int | None:
        return await _input_tokens(
            session,
            messages.message_request(session, task, turns=[*before, {"role": "user", "content": [result, *blocks]}]),
        )

    few = await counted(again)
    for what, blocks in {
        "a second result": (again | {"content": PADDING},),
        "the text beside results": (again, {"type": "text", "text": PADDING}),
    }.items():
        _grown(session, "tool-history", what, few, await counted(*blocks))


def _in_blocks(turn: dict[str, object]) -> dict[str, object]:
    """The same turn with every text as a block of its own."""
    content = turn["content"]
    if isinstance(content, str):
        return {**turn, "content": [{"type": "text", "text": line} for line in content.splitlines(keepends=True)]}
    return {**turn, "content": [_inner(block) for block in objects_of(content)]}


def _inner(block: dict[str, object]) -> dict[str, object]:
    text = block.get("content")
    return {**block, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else block


async def _input_tokens(session: CheckSession, body: dict[str, object]) -> int | None:
    return anthropic_prompt_tokens((await messages.send_message(session, body)).usage)


async def probe_thinking(session: CheckSession) -> str | ProbeWarning:
    """Thoughts come in blocks of their own, and the answer in text."""
    session.require_thinking()
    shown, back = {}, None
    for stream in (False, True):
        task = draw_question(session, "sums")
        plain = await messages.send_message(session, messages.message_request(session, task, stream=stream))
        message = await _or_skipped(session, _thinking_request(session, task, stream))
        shown[stream] = bool(message.thinking)
        session.failures.add("reasoning" + STREAMED * stream, spilled_reasoning(message.reply, plain.reply))
        if message.thinking and not stream:
            back = await _thoughts_back(session, task, session.exchanges[-1])
    either = "thinking blocks came in one of a whole and a streamed message only"
    session.failures.expect("reply-style", shown[False] == shown[True], either)
    return back or ("thinking blocks came" if all(shown.values()) else "no thinking blocks came")


def _thinking_request(session: CheckSession, task: Question, stream: bool) -> dict[str, object]:
    """A task that is to be thought about first."""
    body = messages.message_request(session, task, stream=stream) | {
        "thinking": {"type": "enabled", "budget_tokens": 1024}
    }
    body |= {"max_tokens": session.token_limit(THINKING_TOKENS, thinking=True)}
    body["temperature"] = 1  # the API takes no other with thinking
    if "chat_template_kwargs" in body:
        body["chat_template_kwargs"] = {"thinking": True, "enable_thinking": True}
    return body


async def _thoughts_back(session: CheckSession, task: Question, exchange: HttpExchange) -> ProbeWarning | None:
    """The blocks that came, thoughts among them, are taken back as the assistant's turn: Claude Code sends them."""
    said = object_of(parse_strict_json(exchange.response)).get("content")
    turns = [*task.messages, {"role": "assistant", "content": said}, {"role": "user", "content": "Hello!"}]
    try:
        await messages.send_message(
            session, messages.message_request(session, task, turns=turns) | {"max_tokens": FEW}, allow_marks=True
        )
    except ProbeFailed as problem:
        return ProbeWarning(_refusal(problem, "a turn with its own thinking block"))
    return None


async def _or_skipped(session: CheckSession, body: dict[str, object]) -> AnthropicMessage:
    try:
        return await messages.send_message(session, body)
    except ProbeFailed as problem:
        raise ProbeSkipped(_refusal(problem, "thinking")) from None


async def probe_tool_choice(session: CheckSession) -> str | ProbeWarning:
    """tool_choice `any` and `tool` call where nothing need be called, `none` does not where something should be."""
    unheeded: list[str] = []
    for number, family in enumerate(("tool_none", "tool_none", "tool_call", "tool_call")):
        task = draw_question(session, family)
        name = str(task.tools[0]["function"]["name"])
        choice = ({"type": "any"}, {"type": "tool", "name": name}, {"type": "none"}, {"type": "none"})[number]
        stream = number % 2 == 1
        body = messages.message_request(session, task, stream=stream) | {"tool_choice": choice}
        body["max_tokens"] = session.token_limit(CALL_TOKENS)  # a call is shorter; what goes on is no call
        with skip_if_rejected(f"the server does not take tool_choice {choice['type']}"):
            message = await messages.send_message(session, body, allow_marks=True)
        unheeded += _unheeded(choice, [call.name for call in message.calls])
    return ProbeWarning("; ".join(unheeded)) if unheeded else "any, tool and none are heeded"


def _unheeded(choice: Mapping[str, str], called: Sequence[str]) -> list[str]:
    """How tool_choice was not heeded, if it was not."""
    if choice["type"] == "none":
        return [f"tool_choice is none, yet {called[0]} was called"] if called else []
    wanted = {choice["name"]} if "name" in choice else set(called)
    heeded = bool(called) and set(called) == wanted
    return (
        [] if heeded else [f"tool_choice is {' '.join(choice.values())}, called was {', '.join(called) or 'nothing'}"]
    )


async def probe_limits(session: CheckSession) -> None:
    """stop_sequences stop, max_tokens ends, and stop_reason says which."""
    for stream in (False, True):
        task = draw_question(session, "count", start=1, end=30)
        stopped = await messages.send_message(
            session, messages.message_request(session, task, stream=stream) | {"stop_sequences": ["12"]}
        )
        past = "12" in stopped.text or "13" in stopped.text
        session.failures.expect(
            "limits" + STREAMED * stream, not past, f"went on past stop_sequences: {stopped.text[-40:]!r}"
        )
        named = past or not stopped.text or stopped.stop_reason == "stop_sequence"
        session.failures.expect(
            "reply-style" + STREAMED * stream, named, f"stop_reason {stopped.stop_reason!r} at a stop sequence"
        )
        cut = await messages.send_message(
            session, messages.message_request(session, task, stream=stream) | {"max_tokens": FEW}
        )
        made = cut.usage.get("output_tokens")
        kept = cut.stop_reason == "max_tokens" and (not isinstance(made, int) or made <= FEW)
        why = f"stop_reason {cut.stop_reason!r} and {made} output_tokens with max_tokens {FEW}"
        session.failures.expect("limits" + STREAMED * stream, kept, why)


async def probe_rejection(session: CheckSession) -> ProbeWarning | None:
    """A request without messages is refused in this API's form."""
    exchange = await messages.post_message(session, {"model": session.endpoint.model, "max_tokens": 8})
    if exchange.status in (404, 405, 501):
        raise ProbeSkipped("the server does not speak Anthropic's API")
    why = rejection_problem(exchange)
    return ProbeWarning(f"a request without messages: {why}") if why else None


def _asked(session: CheckSession, family: str, stream: bool, check: Any = lambda message: "") -> Attempt:
    async def attempt() -> TrialOutcome:
        task = draw_question(session, family)
        why = await _wrong(session, task, stream, check)
        if not why:
            return server_failure("")
        for again in (stream, not stream):  # a model says the same thing again
            try:
                if not await _wrong(session, task, again, check):
                    return server_failure(why)
            except ProbeFailed:
                return server_failure(why)
        return TrialOutcome(reason=why, attributed_to="model")

    return attempt


async def _wrong(session: CheckSession, task: Question, stream: bool, check: Any) -> str:
    message = await messages.send_message(
        session, messages.message_request(session, task, stream=stream, turns=_turns(task))
    )
    why = str(check(message))
    if task.family == "tool_parallel" and message.calls:
        return why or _among(task, message)
    grade = task.grade(message.reply)
    return why or ("" if grade.ok else grade.reason)


def _among(task: Question, message: AnthropicMessage) -> str:
    """Some of the calls that were wanted: this API has no word to ask for all at once."""
    wanted = [(name, dict(given)) for name, given in task.expect]
    made = [(call.name, parse_strict_json(call.arguments)) for call in message.calls]
    strange = [call for call in made if call not in wanted]
    return f"{strange[0][0]}({json.dumps(strange[0][1])}) was not asked for" if strange else ""


def _turns(task: Question) -> list[Any]:
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


CHECK = Check(
    name="anthropic",
    about="Anthropic's messages API, where served",
    probes={
        "text": probe_text,
        "same words": probe_same_words,
        "tools": probe_tools,
        "and back": probe_tool_results,
        "system": probe_system,
        "blocks": probe_blocks,
        "thinking": probe_thinking,
        "choices": probe_tool_choice,
        "limits": probe_limits,
        "refused": probe_rejection,
    },
    request_estimate=44,
)
