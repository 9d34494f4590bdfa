"""Several choices of one request (`n`): as many as requested, each complete, and all of them counted."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.stream.sse import parse_events
from moebox.verify.causes import parse_chat
from moebox.verify.checks.tools import judge_calls
from moebox.verify.session import ProbeFailed, ProbeWarning, raise_for_failure, require_token_count, skip_if_rejected
from moebox.verify.trials import PASSED, CheckSession, TrialOutcome, judge_answer, model_failure, server_failure
from moebox.verify.violations import is_count, object_of, objects_of, parse_json_or

CHOICES = 2
NEAR_GREEDY = 0.01  # temperature: vLLM refuses `n` at 0, and raises what is lower to this
ALL_COUNTED = 0.75  # of the tokens of as many single answers: the end of a turn may not count


def split_choices(exchange: HttpExchange) -> dict[int, HttpExchange]:
    """One exchange for each choice, as if it had been requested alone. Raise ProbeFailed for an index given twice."""
    stream = bool(object_of(exchange.request).get("stream"))
    texts = [data for _, data in parse_events(exchange.response)] if stream else [exchange.response]
    bodies = [object_of(parse_json_or(text, {})) for text in texts]
    indexes = [choice.get("index") for body in bodies for choice in objects_of(body.get("choices"))]
    if not all(map(is_count, indexes)) or (not stream and len(set(indexes)) < len(indexes)):
        raise ProbeFailed(f"the indexes of the choices are {indexes}")
    parts: dict[int, HttpExchange] = {}
    for index in sorted({each for each in indexes if is_count(each)}):
        own = [json.dumps(_select_choice(body, index)) for body in filter(None, bodies)]
        events = "".join(f"data: {text}\n\n" for text in (*own, *["[DONE]"] * texts.count("[DONE]")))
        parts[index] = replace(exchange, response=events if stream else own[0])
    return parts


def _select_choice(body: dict[str, object], index: int) -> dict[str, object]:
    mine = [{**choice, "index": 0} for choice in objects_of(body.get("choices")) if choice.get("index") == index]
    return {**body, "choices": mine}


async def probe_choices(session: CheckSession) -> str | ProbeWarning:
    """Each choice of `n` is a right answer of its own, whole and streamed, with tools too; usage counts all."""
    ignored = False

    async def attempt(stream: bool, family: str) -> TrialOutcome:
        nonlocal ignored
        question = session.draw(family)
        settings: Mapping[str, Any] = {"temperature": NEAR_GREEDY, "max_tokens": question.max_tokens}
        settings = {**settings, "tools": list(question.tools) or None, "stream": stream}
        exchange = await session.post_chat(session.chat_request(question.messages, n=CHOICES, **settings))
        with skip_if_rejected(f"the server does not accept n {CHOICES}"):
            raise_for_failure(exchange)
        parts = split_choices(exchange)
        answers = [parse_chat(part) for part in parts.values()]
        for answer in answers:
            session.count_violations(answer.violations, stream=stream)
        ignored = list(parts) == [0]
        if sorted(parts) != list(range(CHOICES)) and not ignored:
            return server_failure(f"n is {CHOICES}, and the choices {sorted(parts)} came")
        judge = judge_calls if question.tools else judge_answer
        wrong = [
            f"choice {at} of {CHOICES}: {why}" for at, each in enumerate(answers) if (why := judge(question, each))
        ]
        if stream and not wrong:
            return PASSED
        alone = await session.ask_question(question, stream=stream, temperature=NEAR_GREEDY)
        if wrong:
            return (model_failure if judge(question, alone) else server_failure)(wrong[0])
        made, one = answers[0].token_count("completion"), require_token_count(alone, "completion")
        reason = f"one answer is {one} tokens, and {CHOICES} of them count as {made}"
        session.failures.expect("usage", ignored or not made or made >= ALL_COUNTED * CHOICES * one, reason)
        return PASSED

    for stream, family in ((False, "copy"), (True, "copy"), (True, "tool_call")):
        await session.run_trials("text", partial(attempt, family=family), 0.13, 1, stream=stream)
        if ignored:
            return ProbeWarning(f"n {CHOICES} was accepted, but one choice came")
    return f"{CHOICES} choices, whole, streamed and with tools"
