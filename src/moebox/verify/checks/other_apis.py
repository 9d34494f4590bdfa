"""anthropic and responses: the APIs that Claude Code and Codex use, if they are served."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial

from moebox.core.verdict import Score
from moebox.loose import drop_keys, get_objects, get_path
from moebox.phantom.question import Question
from moebox.stream.events import anthropic_prompt_tokens
from moebox.verify.checks.errors import rejection_problem
from moebox.verify.checks.schemas import CALL_TOKENS, draw_contradictions, schema_violation
from moebox.verify.checks.streaming import first_difference
from moebox.verify.checks.thinking import spilled_reasoning
from moebox.verify.checks.tools import judge_calls
from moebox.verify.checks.turns import HELLO, PADDING, PARTS_SLACK, assistant_turn, expect_growth, user_turn
from moebox.verify.completions import ChatAnswer
from moebox.verify.other_apis import message_request, message_turns, post_request, response_request, send_request
from moebox.verify.session import THINKING_TOKENS, ProbeWarning, RequestRejected, skip_if_rejected
from moebox.verify.trials import CheckSession, Probes, Request, probe_family
from moebox.verify.violations import parse_strict_json

FEW_TOKENS = 8  # for an answer that wants many more
LEAST_OUTPUT_TOKENS = 16  # for the same: the responses API takes no lower limit


async def send_message(session: CheckSession, question: Question, stream: bool) -> ChatAnswer:
    return await send_request(session, message_request(session, question, stream=stream))


async def send_response(session: CheckSession, question: Question, stream: bool) -> ChatAnswer:
    return await send_request(session, response_request(session, question, stream=stream))


probe_by_message = partial(probe_family, send=send_message, both_modes=True, share=0.13, least=1)
probe_by_response = partial(probe_family, send=send_response, both_modes=True, share=0.13, least=1)


def judge_message(question: Question, message: ChatAnswer) -> str:
    ended = message.finish_reason in ("end_turn", "stop_sequence")
    return question.find_fault(message) if ended else f"stop_reason {message.finish_reason!r} at the end of an answer"


async def probe_same_message(session: CheckSession) -> Score:
    """The pieces of a stream are the text of the whole message."""

    async def attempt(stream: bool) -> str:
        question = session.draw("copy")
        bodies = [message_request(session, question, stream=mode) for mode in (False, True)]
        whole, pieces = [await send_request(session, body) for body in bodies]
        if whole.content.rstrip() == pieces.content.rstrip():
            return ""
        again = await send_request(session, bodies[0])
        return first_difference(whole.content, pieces.content) if again.content == whole.content else ""

    return await session.run_trials("text", attempt, 0.13, 1, stream=True)


async def probe_message_tools(session: CheckSession) -> Score:
    """A tool is called, whole and streamed, with its input as an object."""

    def judge_wanted(question: Question, message: ChatAnswer) -> str:
        """Some of the wanted calls are enough: this API cannot ask for all at once."""
        if not message.calls:
            return question.find_fault(message)
        wanted = [(name, dict(given)) for name, given in question.expect]
        made = [(call.name, parse_strict_json(call.arguments)) for call in message.calls]
        others = [f"{name}({json.dumps(given)})" for name, given in made if (name, given) not in wanted]
        return f"{others[0]} was not asked for" if others else ""

    await probe_by_message(session, kind="tool-call", family="tool_call", judge=Question.find_fault)
    return await probe_by_message(session, kind="tool-call", family="tool_parallel", judge=judge_wanted)


async def probe_message_system(session: CheckSession) -> None:
    """`system` reaches the model, as a string and as blocks, with cache_control too: the prompt grows by it."""
    plain = message_request(session, session.draw("secret"))
    block = {"type": "text", "text": PADDING}
    cached = block | {"cache_control": {"type": "ephemeral"}}  # as Claude Code sends it
    few = None  # tokens with a short one: without any a template may write a message of its own
    for how, value in (("a string", PADDING), ("blocks", [block]), ("blocks with cache_control", [cached])):
        with skip_if_rejected(f"system as {how} is refused", "anthropic"):
            few = few or await _input_tokens(session, plain | {"system": "Hi."})
            many = await _input_tokens(session, plain | {"system": value})
        expect_growth(session, "prompt", f"24 more words in system as {how}", few, many)


async def _input_tokens(session: CheckSession, body: Request) -> int | None:
    limited = body | {"max_tokens": FEW_TOKENS}
    return anthropic_prompt_tokens((await send_request(session, limited, allow_marks=True)).usage)


async def probe_message_blocks(session: CheckSession) -> None:
    """A tool_result whose content is a list of blocks is the same result, as is a turn in several blocks."""
    question = dataclasses.replace(drawn := session.draw("tool_result"), tools=drawn.tools[:1])

    async def count_tokens(*turns: Request) -> int | None:
        return await _input_tokens(session, message_request(session, question, turns=[*turns]))

    first, *others = message_turns(question)
    turns = [first | {"content": f"{PADDING}\n{first['content']}"}, *others]  # lines become blocks
    as_text, as_blocks = await count_tokens(*turns), await count_tokens(*map(_as_blocks, turns))
    expect_growth(session, "tool-history", "blocks instead of strings", as_text, as_blocks, -PARTS_SLACK)
    # A second result, and words in the turn that brings results, as Claude Code sends both
    call, result = turns[-2]["content"][-1], turns[-1]["content"][-1]
    second_id = f"{call['id']}-2"
    before = [*turns[:-2], assistant_turn([call, call | {"id": second_id}])]
    second = result | {"tool_use_id": second_id}
    few = await count_tokens(*before, user_turn([result, second]))
    for what, blocks in (
        ("a second result", [second | {"content": PADDING}]),
        ("the text beside results", [second, {"type": "text", "text": PADDING}]),
    ):
        many = await count_tokens(*before, user_turn([result, *blocks]))
        expect_growth(session, "tool-history", f"24 more words in {what}", few, many)


def _as_blocks(turn: Request) -> Request:
    """The same turn with every text as a block of its own."""
    content = turn["content"]
    if isinstance(content, str):
        return turn | {"content": [{"type": "text", "text": line} for line in content.splitlines(keepends=True)]}
    blocks = []
    for block in get_objects(turn, "content"):
        text = block.get("content")
        blocks.append({**block, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else block)
    return turn | {"content": blocks}


async def probe_message_thinking(session: CheckSession) -> str | ProbeWarning:
    """Reasoning comes in blocks of its own, and the answer in text."""
    session.require_thinking()
    shown: list[bool] = []
    warning = None
    for stream in (False, True):
        question = session.draw("sums")
        plain_request = message_request(session, question, stream=stream)
        plain = await send_request(session, plain_request)
        body = plain_request | {
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "max_tokens": session.token_limit(THINKING_TOKENS, thinking=True),
            "temperature": 1,  # the API takes no other with thinking
            **session.template_arguments(thinking=True),
        }
        with skip_if_rejected("thinking is refused"):
            message = await send_request(session, body)
        shown.append(bool(message.reasoning))
        session.failures.add("reasoning", spilled_reasoning(message, plain), stream=stream)
        if message.reasoning and not stream:
            # The blocks, thinking included, as the assistant's turn: Claude Code sends them
            content = get_path(parse_strict_json(session.exchanges[-1].response), "content")
            turns = [*question.messages, assistant_turn(content), HELLO]
            try:
                await _input_tokens(session, message_request(session, question, turns=turns))
            except RequestRejected as problem:
                warning = ProbeWarning(f"a turn with its own thinking block is refused: {problem}")
    reason = "thinking blocks came in one of a whole and a streamed message only"
    session.failures.expect("reply-style", shown[0] == shown[1], reason)
    return warning or ("thinking blocks came" if all(shown) else "no thinking blocks came")


async def probe_message_choice(session: CheckSession) -> str | ProbeWarning:
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
            message = await send_request(session, body, allow_marks=True)
        ignored += filter(None, [ignored_choice(choice, [call.name for call in message.calls])])
    return ProbeWarning("; ".join(ignored)) if ignored else "any, tool and none are obeyed"


def ignored_choice(choice: Mapping[str, str], called: Sequence[str]) -> str:
    if choice["type"] == "none":
        return f"tool_choice is none, yet {called[0]} was called" if called else ""
    wanted = {choice["name"]} if "name" in choice else set(called)
    if called and set(called) == wanted:
        return ""
    return f"{' and '.join(called) or 'no tool'} was called though {choice.get('name', 'one')} was required"


async def probe_message_limits(session: CheckSession) -> None:
    """stop_sequences stop, max_tokens ends, and stop_reason names which."""
    for stream in (False, True):
        request = message_request(session, session.draw("count", start=7, end=30), stream=stream)
        stopped = await send_request(session, request | {"stop_sequences": ["12"]})
        past = "12" in stopped.content or "13" in stopped.content
        reason = f"went on past stop_sequences: {stopped.content[-40:]!r}"
        session.failures.expect("limits", not past, reason, stream=stream)
        named = past or not stopped.content or stopped.finish_reason == "stop_sequence"
        reason = f"stop_reason {stopped.finish_reason!r} at a stop sequence"
        session.failures.expect("reply-style", named, reason, stream=stream)
        cut = await send_request(session, request | {"max_tokens": FEW_TOKENS})
        made = cut.usage.get("output_tokens")
        kept = cut.finish_reason == "max_tokens" and (not isinstance(made, int) or made <= FEW_TOKENS)
        reason = f"stop_reason {cut.finish_reason!r} and {made} output_tokens with max_tokens {FEW_TOKENS}"
        session.failures.expect("limits", kept, reason, stream=stream)


async def probe_message_rejection(session: CheckSession) -> ProbeWarning | None:
    """A request without messages is rejected in this API's format."""
    body: Request = {"model": session.endpoint.model, "max_tokens": 8}
    reason = rejection_problem(await post_request(session, body, "messages"))
    return ProbeWarning(f"a request without messages: {reason}") if reason else None


async def probe_response_tools(session: CheckSession) -> Score:
    """A tool is called, whole and streamed, and the result of a call is read and used."""
    await probe_by_response(session, kind="tool-call", family="tool_call", judge=judge_calls)
    score = await probe_by_response(session, kind="answer", family="tool_result", both_modes=False)
    body = response_request(session, session.draw("tool_result"))
    empty = {"type": "reasoning", "id": "rs_1", "summary": []}  # as Codex sends back what it was given
    first, *others = get_objects(body, "input")
    with skip_if_rejected("a turn with its own reasoning item is refused", "responses"):
        await send_request(session, body | {"input": [first, empty, *others]})
    return score


async def probe_response_schema(session: CheckSession) -> str:
    """text.format binds the answer to a schema that the prompt argues against."""
    draws = draw_contradictions(session.rng, session.options.trial_share(0.13, 2))
    for number, (text, schema) in session.track(draws):
        stream = number % 2 == 1
        wanted = {"type": "json_schema", "name": "record", "strict": True, "schema": schema}
        question = session.draw("secret")
        body = response_request(session, question, stream=stream, text={"format": wanted}) | {"input": text}
        with skip_if_rejected("the server does not accept text.format"):
            answer = await send_request(session, body, allow_marks=True)
        reason = "" if answer.finish_reason == "length" else schema_violation(answer.content.strip(), schema)
        session.failures.add("schema", reason, stream=stream, where="text.format is not enforced")
    return f"{len(draws)} schemas against contradicting prompts"


async def probe_response_limit(session: CheckSession) -> None:
    """max_output_tokens ends an answer with the status `incomplete`, and `instructions` are in the prompt."""
    counts = []
    for stream in (False, True):
        request = response_request(session, session.draw("count", start=1, end=30), stream=stream)
        request |= {"max_output_tokens": LEAST_OUTPUT_TOKENS, "instructions": PADDING if stream else "Hi."}
        with skip_if_rejected("the server does not accept instructions"):
            cut = await send_request(session, request, allow_marks=True)
        made = cut.token_count("completion")
        kept = made is None or made <= LEAST_OUTPUT_TOKENS
        reason = f"{made} output_tokens with max_output_tokens {LEAST_OUTPUT_TOKENS}"
        session.failures.expect("limits", kept, reason, stream=stream)
        marked = cut.finish_reason == "length" or (made is not None and made < LEAST_OUTPUT_TOKENS)
        reason = "the status is completed although max_output_tokens cut the answer"
        session.failures.expect("finish", marked, reason, stream=stream)
        counts.append(cut.token_count("prompt"))
    expect_growth(session, "prompt", "24 words of instructions", counts[0], counts[1])


async def probe_stored_response(session: CheckSession) -> str | ProbeWarning:
    """A response that was stored is the beginning of the next one, if the server stores any."""
    with skip_if_rejected("the server stores no responses"):
        first = await send_request(session, response_request(session, session.draw("secret"), store=True))
        body = response_request(session, session.draw("secret"), previous_response_id=first.id)
        after = await send_request(session, body, allow_marks=True)
    alone = await send_request(session, drop_keys(body, "previous_response_id"))
    few, many = alone.token_count("prompt"), after.token_count("prompt")
    if few is not None and many == few:
        return ProbeWarning("previous_response_id is accepted and ignored: the prompt has as many tokens without it")
    expect_growth(session, "prompt", "previous_response_id", few, many, LEAST_OUTPUT_TOKENS)
    return "a stored response is continued"


MESSAGE_PROBES: Probes = {
    "text": partial(probe_by_message, kind="text", family="copy", judge=judge_message),
    "same words": probe_same_message,
    "tools": probe_message_tools,
    "and back": partial(probe_by_message, kind="answer", family="tool_result", judge=Question.find_fault),
    "system": probe_message_system,
    "blocks": probe_message_blocks,
    "thinking": probe_message_thinking,
    "choices": probe_message_choice,
    "limits": probe_message_limits,
    "refused": probe_message_rejection,
}
RESPONSE_PROBES: Probes = {
    "text": partial(probe_by_response, kind="text", family="copy"),
    "tools": probe_response_tools,
    "schema": probe_response_schema,
    "limit": probe_response_limit,
    "stored": probe_stored_response,
}
