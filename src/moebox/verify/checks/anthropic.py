"""anthropic: the messages API, if it is served, since Claude Code uses it."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moebox.core.verdict import HttpExchange, Score
from moebox.phantom.question import Question
from moebox.stream.events import anthropic_prompt_tokens
from moebox.verify.anthropic_api import key_headers, message_request, send_message
from moebox.verify.checks.errors import rejection_problem
from moebox.verify.checks.streaming import first_difference
from moebox.verify.checks.thinking import spilled_reasoning
from moebox.verify.checks.tool_arguments import CALL_TOKENS
from moebox.verify.checks.tool_history import PARTS_SLACK
from moebox.verify.checks.turns import PADDING, PADDING_TOKENS, prompt_grew
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import (
    REJECTED_STATUSES,
    THINKING_TOKENS,
    ProbeFailed,
    ProbeSkipped,
    ProbeWarning,
    skip_if_rejected,
)
from moebox.verify.statistics import KindName
from moebox.verify.trials import NOT_OFFERED, PASSED, Check, CheckSession, QuestionAttempt, TrialOutcome, server_failure
from moebox.verify.violations import object_of, objects_of, parse_strict_json

FEW_TOKENS = 8  # for an answer that wants many more


async def probe_text(session: CheckSession) -> Score:
    """A question is answered, with stop_reason and usage, whole and streamed."""

    def check_end(message: ChatAnswer) -> str:
        ended = message.finish_reason in ("end_turn", "stop_sequence")
        return "" if ended else f"stop_reason {message.finish_reason!r} at the end of an answer"

    return await session.run_both_modes("text", _message_attempt(session, "copy", check_end), 0.13, 1)


async def probe_same_words(session: CheckSession) -> Score:
    """The pieces of a stream are the text of the whole message."""

    async def attempt(stream: bool) -> TrialOutcome:
        question = session.draw("copy")
        whole, pieces = [
            await send_message(session, message_request(session, question, stream=mode)) for mode in (False, True)
        ]
        if whole.content.rstrip() == pieces.content.rstrip():
            return PASSED
        again = await send_message(session, message_request(session, question))
        return (
            server_failure(first_difference(whole.content, pieces.content))
            if again.content == whole.content
            else PASSED
        )

    return await session.run_trials("text", attempt, 0.13, 1, stream=True)


async def probe_tools(session: CheckSession) -> Score:
    """A tool is called, whole and streamed, with its input as an object."""
    await session.run_both_modes("tool-call", _message_attempt(session, "tool_call"), 0.13, 1)
    return await session.run_both_modes("tool-call", _message_attempt(session, "tool_parallel"), 0.13, 1)


async def probe_tool_results(session: CheckSession) -> Score:
    """A tool_result block is read and used."""
    return await session.run_both_modes("answer", _message_attempt(session, "tool_result"), 0.13, 1)


async def probe_system(session: CheckSession) -> None:
    """`system` reaches the model, as a string and as blocks, with cache_control too: the prompt grows by it."""
    plain = message_request(session, session.draw("secret"))
    block = {"type": "text", "text": PADDING}
    cached = block | {"cache_control": {"type": "ephemeral"}}  # as Claude Code sends it
    few = None  # tokens with a short one: without any a template may write a message of its own
    for how, value in (("a string", PADDING), ("blocks", [block]), ("blocks with cache_control", [cached])):
        with skip_if_rejected(f"system as {how} is refused", "anthropic"):
            few = few or await _input_tokens(session, plain | {"system": "Hi."})
            many = await _input_tokens(session, plain | {"system": value})
        _expect_growth(session, "prompt", f"system as {how}", few, many)


def _expect_growth(session: CheckSession, kind: KindName, what: str, few: int | None, many: int | None) -> None:
    reason = f"24 more words in {what} took the prompt from {few} to {many} input_tokens only: it is dropped"
    session.failures.expect(kind, prompt_grew(few, many, PADDING_TOKENS), reason)


async def _input_tokens(session: CheckSession, body: dict[str, object]) -> int | None:
    limited = body | {"max_tokens": FEW_TOKENS}
    return anthropic_prompt_tokens((await send_message(session, limited, allow_marks=True)).usage)


async def probe_blocks(session: CheckSession) -> None:
    """A tool_result whose content is a list of blocks is the same result, as is a turn in several blocks."""
    question = dataclasses.replace(drawn := session.draw("tool_result"), tools=drawn.tools[:1])
    first, *others = _message_turns(question)
    turns = [first | {"content": f"{PADDING}\n{first['content']}"}, *others]  # lines become blocks
    in_blocks = [*map(_as_blocks, turns)]
    as_text, as_blocks = [
        await _input_tokens(session, message_request(session, question, turns=form)) for form in (turns, in_blocks)
    ]
    counts = f"{as_text} input_tokens with strings and {as_blocks} with blocks"
    kept = prompt_grew(as_text, as_blocks, -PARTS_SLACK)
    session.failures.expect("tool-history", kept, f"a conversation is {counts}: something is lost")
    # A second result, and words in the turn that brings results, as Claude Code sends both
    call, result = turns[-2]["content"][-1], turns[-1]["content"][-1]
    second_id = f"{call['id']}-2"
    before = [*turns[:-2], {"role": "assistant", "content": [call, call | {"id": second_id}]}]
    second = result | {"tool_use_id": second_id}

    async def count_with(*blocks: object) -> int | None:
        history = [*before, {"role": "user", "content": [result, *blocks]}]
        return await _input_tokens(session, message_request(session, question, turns=history))

    few = await count_with(second)
    many = await count_with(second | {"content": PADDING})
    _expect_growth(session, "tool-history", "a second result", few, many)
    many = await count_with(second, {"type": "text", "text": PADDING})
    _expect_growth(session, "tool-history", "the text beside results", few, many)


def _as_blocks(turn: dict[str, object]) -> dict[str, object]:
    """The same turn with every text as a block of its own."""
    content = turn["content"]
    if isinstance(content, str):
        return {**turn, "content": [{"type": "text", "text": line} for line in content.splitlines(keepends=True)]}
    blocks = []
    for block in objects_of(content):
        text = block.get("content")
        blocks.append({**block, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else block)
    return {**turn, "content": blocks}


async def probe_thinking(session: CheckSession) -> str | ProbeWarning:
    """Reasoning comes in blocks of its own, and the answer in text."""
    session.require_thinking()
    shown: dict[bool, bool] = {}
    warning = None
    for stream in (False, True):
        question = session.draw("sums")
        plain_request = message_request(session, question, stream=stream)
        plain = await send_message(session, plain_request)
        body = plain_request | {
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "max_tokens": session.token_limit(THINKING_TOKENS, thinking=True),
            "temperature": 1,  # the API takes no other with thinking
            **session.template_arguments(thinking=True),
        }
        with skip_if_rejected("thinking is refused"):
            message = await send_message(session, body)
        shown[stream] = bool(message.reasoning)
        session.failures.add("reasoning", spilled_reasoning(message.reply, plain.reply), stream=stream)
        if message.reasoning and not stream:
            warning = await _send_thinking_back(session, question, session.exchanges[-1])
    reason = "thinking blocks came in one of a whole and a streamed message only"
    session.failures.expect("reply-style", shown[False] == shown[True], reason)
    return warning or ("thinking blocks came" if all(shown.values()) else "no thinking blocks came")


async def _send_thinking_back(session: CheckSession, question: Question, exchange: HttpExchange) -> ProbeWarning | None:
    """The blocks of a message, thinking included, are accepted as the assistant's turn: Claude Code sends them."""
    content = object_of(parse_strict_json(exchange.response)).get("content")
    hello = {"role": "user", "content": "Hello!"}
    turns = [*question.messages, {"role": "assistant", "content": content}, hello]
    body = message_request(session, question, turns=turns) | {"max_tokens": FEW_TOKENS}
    try:
        await send_message(session, body, allow_marks=True)
    except ProbeFailed as problem:
        if problem.status not in REJECTED_STATUSES:
            raise
        return ProbeWarning(f"a turn with its own thinking block is refused: {problem}")
    return None


async def probe_tool_choice(session: CheckSession) -> str | ProbeWarning:
    """tool_choice `any` and `tool` call a tool that is not needed, `none` does not call one that is."""
    ignored: list[str] = []
    for number, family in enumerate(("sums", "sums", "tool_call", "tool_call")):
        tools = session.draw("tool_call").tools[:1]
        question = dataclasses.replace(session.draw(family), tools=tools)
        name = str(question.tools[0]["function"]["name"])
        choice = ({"type": "any"}, {"type": "tool", "name": name}, {"type": "none"}, {"type": "none"})[number]
        body = message_request(session, question, stream=number % 2 == 1) | {"tool_choice": choice}
        body["max_tokens"] = session.token_limit(CALL_TOKENS)  # a longer reply is not a call
        with skip_if_rejected(f"the server does not accept tool_choice {choice['type']}"):
            message = await send_message(session, body, allow_marks=True)
        ignored += filter(None, [ignored_choice(choice, [call.name for call in message.calls])])
    return ProbeWarning("; ".join(ignored)) if ignored else "any, tool and none are obeyed"


def ignored_choice(choice: Mapping[str, str], called: Sequence[str]) -> str:
    if choice["type"] == "none":
        return f"tool_choice is none, yet {called[0]} was called" if called else ""
    wanted = {choice["name"]} if "name" in choice else set(called)
    if called and set(called) == wanted:
        return ""
    return f"{' and '.join(called) or 'no tool'} was called though {choice.get('name', 'one')} was required"


async def probe_limits(session: CheckSession) -> None:
    """stop_sequences stop, max_tokens ends, and stop_reason names which."""
    for stream in (False, True):
        request = message_request(session, session.draw("count", start=7, end=30), stream=stream)
        stopped = await send_message(session, request | {"stop_sequences": ["12"]})
        past = "12" in stopped.content or "13" in stopped.content
        reason = f"went on past stop_sequences: {stopped.content[-40:]!r}"
        session.failures.expect("limits", not past, reason, stream=stream)
        named = past or not stopped.content or stopped.finish_reason == "stop_sequence"
        reason = f"stop_reason {stopped.finish_reason!r} at a stop sequence"
        session.failures.expect("reply-style", named, reason, stream=stream)
        cut = await send_message(session, request | {"max_tokens": FEW_TOKENS})
        made = cut.usage.get("output_tokens")
        kept = cut.finish_reason == "max_tokens" and (not isinstance(made, int) or made <= FEW_TOKENS)
        reason = f"stop_reason {cut.finish_reason!r} and {made} output_tokens with max_tokens {FEW_TOKENS}"
        session.failures.expect("limits", kept, reason, stream=stream)


async def probe_rejection(session: CheckSession) -> ProbeWarning | None:
    """A request without messages is rejected in this API's format."""
    url, body = f"{session.endpoint.base_url}/messages", {"model": session.endpoint.model, "max_tokens": 8}
    exchange = session.keep_evidence(await session.client.post(url, body, headers=key_headers(session)))
    if exchange.status in NOT_OFFERED:
        raise ProbeSkipped("the server does not offer /v1/messages")
    reason = rejection_problem(exchange)
    return ProbeWarning(f"a request without messages: {reason}") if reason else None


def _message_attempt(
    session: CheckSession, family: str, check: Callable[[ChatAnswer], str] = lambda message: ""
) -> QuestionAttempt:
    """Attempts that ask a question over this API."""

    async def send(question: Question, stream: bool) -> ChatAnswer:
        request = message_request(session, question, stream=stream, turns=_message_turns(question))
        return await send_message(session, request)

    def judge(question: Question, message: ChatAnswer) -> str:
        if reason := check(message):
            return reason
        if question.family == "tool_parallel" and message.calls:
            # Some of the wanted calls are enough: this API cannot ask for all at once
            wanted = [(name, dict(given)) for name, given in question.expect]
            for call in message.calls:
                given = parse_strict_json(call.arguments)
                if (call.name, given) not in wanted:
                    return f"{call.name}({json.dumps(given)}) was not asked for"
            return ""
        grade = question.grade(message.reply)
        return "" if grade.ok else grade.reason

    return QuestionAttempt(session, family, judge=judge, send=send)


def _message_turns(question: Question) -> list[Any]:
    """The history of a question in this API's blocks; results of one round of calls are in one turn."""
    turns: list[Any] = []
    for turn in question.messages:
        if turn.get("tool_calls"):
            blocks = [
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "input": json.loads(call["function"]["arguments"]),
                }
                for call in turn["tool_calls"]
            ]
            turns.append({"role": "assistant", "content": blocks})
        elif turn["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
            if turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                turns[-1]["content"].append(result)
            else:
                turns.append({"role": "user", "content": [result]})
        else:
            turns.append(dict(turn))
    return turns


CHECK = Check(
    name="anthropic",
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
)
