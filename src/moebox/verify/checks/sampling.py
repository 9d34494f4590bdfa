"""sampling: temperature and seed have their effect, log-probabilities belong to the text, and `n` gives n answers."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from moebox.core.verdict import HttpExchange, Score
from moebox.loose import as_object, get_objects, get_path, is_count
from moebox.stream.sse import parse_events
from moebox.verify.checks.tools import judge_calls
from moebox.verify.checks.turns import require_token_count, user_turn
from moebox.verify.completions import NO_LOGPROBS, ChatAnswer, TokenLogprob, is_logprob, parse_chat
from moebox.verify.session import ProbeFailed, ProbeSkipped, ProbeWarning, raise_for_failure, skip_if_rejected
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, judge_answer
from moebox.verify.violations import parse_json_or

HOT = 1.8
MOST_PROBABILITY = 1.01  # of all tokens in one place, but for rounding
MODES = (False, True, False, True, False, True)  # streamed or not, three of each
SURE_NATS = 0.05  # per token, below which a model hardly ever writes anything else
CHOICES = 2
NEAR_GREEDY = 0.01  # temperature: vLLM refuses `n` at 0, and raises what is lower to this
ALL_COUNTED = 0.75  # of the tokens of as many single answers: the end of a turn may not count
STOP = "12"
WIDE = "Repeat after me: naïve 東京 🦜"
# An open question to large models, and characters that a small one has never seen: it is not sure of one of them.
OPEN_QUESTIONS = ("Make up three names, four colours and a sound.", "Repeat after me: 🦜🚀 東京 𝒳𝒴 привет")


async def probe_temperature(session: CheckSession) -> str | ProbeWarning:
    """Answers at a high temperature differ from each other, streamed and whole."""
    sure = True
    for question in OPEN_QUESTIONS:
        answers = [await _ask_hot(session, question, stream=stream) for stream in MODES]
        if not any(_differ(answers, stream) for stream in (False, True)):
            surprise = [-logprob for logprob in answers[0].logprobs]
            sure = sure and bool(surprise) and sum(surprise) / len(surprise) < SURE_NATS
            continue
        for stream, title in ((False, "those that are not streamed"), (True, "those in streams")):
            if _differ(answers, stream):
                continue
            # Chance, or a mode in which temperature is not read
            more = [await _ask_hot(session, question, stream=stream) for _ in MODES]
            if not _differ([*answers, *more], stream):
                return ProbeWarning(f"answers at temperature {HOT} differ, but {title} are identical")
        certain = all(answer.logprobs and not any(answer.logprobs) for answer in answers)
        session.failures.expect("logprobs", not certain, "every token of answers that differ has the probability 1")
        return f"{len(MODES)} answers at temperature {HOT} differ"
    if sure:
        raise ProbeSkipped("model, not server: too certain of its words for a temperature to show")
    text = f"{len(MODES)} answers at temperature {HOT} are identical"
    return ProbeWarning(f"{text}: it is ignored, or the model is too certain")


def _differ(answers: Sequence[ChatAnswer], stream: bool) -> bool:
    return len({answer.content + answer.reasoning for answer in answers if answer.stream == stream}) > 1


async def probe_seed(session: CheckSession) -> str | ProbeWarning:
    for question in OPEN_QUESTIONS:
        a, b = [await _ask_hot(session, question, seed=7) for _ in range(2)]
        if a.content + a.reasoning != b.content + b.reasoning:
            return ProbeWarning(f"the same seed gave two answers: {a.content[:40]!r} and {b.content[:40]!r}")
    return "the same seed gave the same answer"


async def _ask_hot(session: CheckSession, question: str, **more: Any) -> ChatAnswer:
    """Ask at a high temperature, with log-probabilities if the server offers them."""
    body = session.chat_request([user_turn(question)], max_tokens=16, temperature=HOT, top_p=1, **more)
    exchange = await session.post_chat_with(body, logprobs=True)
    with skip_if_rejected("refused"):
        return session.read_answer(exchange, allow_marks=True)


async def probe_logprobs(session: CheckSession) -> Score | ProbeWarning:
    """Log-probabilities, whole and streamed, are numbers below zero that belong to the text."""
    request = session.chat_request(session.draw("copy").messages, max_tokens=24, logprobs=True, top_logprobs=2)
    with skip_if_rejected(NO_LOGPROBS):
        tokens = session.read_answer(await session.post_chat(request)).tokens
    if not any(token.top for token in tokens):
        return ProbeWarning(f"{'top_' if tokens else ''}logprobs was accepted, but none came")

    async def attempt(stream: bool) -> str:
        question = session.draw("copy")
        return logprob_problem(await session.ask_question(question, stream=stream, logprobs=True, top_logprobs=2))

    return await session.run_both_modes("logprobs", attempt, 0.25)


async def probe_logprobs_at_stop(session: CheckSession) -> str | ProbeWarning:
    """Log-probabilities end where a stop string ends the text, and spell letters outside ASCII by their bytes."""
    messages = session.draw("count", start=7, end=30).messages
    request = session.chat_request(messages, max_tokens=256, logprobs=True, stop=[STOP])
    with skip_if_rejected(NO_LOGPROBS):
        stopped = session.read_answer(await session.post_chat(request))
    session.failures.add("logprobs", tokens_after_stop(stopped, STOP))
    wide = await session.chat([user_turn(WIDE)], max_tokens=64, logprobs=True, allow_marks=True)
    spelled, text = _spell_tokens(wide.tokens), wide.content.strip()
    if wide.tokens and text not in spelled:
        return ProbeWarning(f"log-probabilities of letters outside ASCII spell {spelled[:40]!r}, not {text[:40]!r}")
    return "log-probabilities end with the text"


def tokens_after_stop(answer: ChatAnswer, stop: str) -> str:
    """Describe the first token after the stop string, or return ""; the one that completes it may be longer."""
    end = len(answer.content.rstrip())
    spelled = ""
    for token in answer.tokens:
        if stop in spelled[end:]:
            return f"log-probabilities go on after the stop string {stop!r}: {token.text!r}"
        spelled += token.text
    return ""


def logprob_problem(answer: ChatAnswer) -> str:
    """Describe how tokens and text disagree, or return ""."""
    if not answer.tokens:
        return "no log-probabilities came this time"
    if not all(map(is_logprob, answer.logprobs)):
        return "a log-probability is not a number below zero"
    spelled = _spell_tokens(answer.tokens)
    if answer.content.strip() not in spelled:
        return f"the tokens spell {spelled[:60]!r}, the text is {answer.content[:60]!r}"
    for token in answer.tokens:
        if token.top and (problem := _ranking_problem(token)):
            return problem
    made = answer.token_count("completion")
    if made is not None and len(answer.tokens) > made + 1:
        return f"{len(answer.tokens)} tokens have log-probabilities, usage counts {made}"
    return ""


def _ranking_problem(token: TokenLogprob) -> str:
    """Describe what is wrong with the most likely tokens in this place, or ""; at temperature 0 it is the first."""
    if any(later > earlier + 1e-3 for earlier, later in pairwise(token.top)):
        return f"the likeliest tokens beside {token.text!r} are not in order: {token.top}"
    if sum(map(math.exp, token.top)) > MOST_PROBABILITY:
        return f"the probabilities beside {token.text!r} add up to more than 1: {token.top}"
    if token.logprob > token.top[-1] + 1e-3 and token.text not in token.likely:
        return f"{token.text!r} was taken at {token.logprob}, and is not among the likeliest: {token.likely}"
    if token.logprob < token.top[-1] - 1e-3 and len(token.top) > 1:
        return f"{token.text!r} was taken at {token.logprob}, below all of the likeliest: {token.top}"
    return ""


def _spell_tokens(tokens: Sequence[TokenLogprob]) -> str:
    """Text of the tokens, by their bytes if the server sent them."""
    raw = b""
    for token in tokens:
        has_bytes = bool(token.data) and all(0 <= part < 256 for part in token.data)
        raw += bytes(token.data) if has_bytes else token.text.encode(errors="replace")
    return raw.decode(errors="replace")


def split_choices(exchange: HttpExchange) -> dict[int, HttpExchange]:
    """One exchange for each choice, as if it had been requested alone. Raise ProbeFailed for an index given twice."""
    stream = bool(get_path(exchange.request, "stream"))
    texts = [data for _, data in parse_events(exchange.response)] if stream else [exchange.response]
    bodies = [as_object(parse_json_or(text, {})) for text in texts]
    indexes = [choice.get("index") for body in bodies for choice in get_objects(body, "choices")]
    if not all(map(is_count, indexes)) or (not stream and len(set(indexes)) < len(indexes)):
        raise ProbeFailed(f"the indexes of the choices are {indexes}")
    parts: dict[int, HttpExchange] = {}
    for index in sorted(set(filter(is_count, indexes))):
        own = []
        for body in filter(None, bodies):
            mine = [choice for choice in get_objects(body, "choices") if choice.get("index") == index]
            own.append(json.dumps({**body, "choices": [{**choice, "index": 0} for choice in mine]}))
        events = "".join(f"data: {text}\n\n" for text in (*own, *["[DONE]"] * texts.count("[DONE]")))
        parts[index] = replace(exchange, response=events if stream else own[0])
    return parts


async def probe_choices(session: CheckSession) -> str | ProbeWarning:
    """Each choice of `n` is a right answer of its own, whole and streamed, with tools too; usage counts all."""
    ignored = False

    async def attempt(stream: bool, family: str) -> str:
        nonlocal ignored
        question = session.draw(family)
        request = session.question_request(question, temperature=NEAR_GREEDY, n=CHOICES, stream=stream)
        exchange = await session.post_chat(request)
        with skip_if_rejected(f"the server does not accept n {CHOICES}"):
            raise_for_failure(exchange)
        parts = split_choices(exchange)
        answers = [*map(parse_chat, parts.values())]
        for answer in answers:
            session.count_violations(answer, stream=stream)
        ignored = list(parts) == [0]
        if sorted(parts) != list(range(CHOICES)) and not ignored:
            return f"n is {CHOICES}, and the choices {sorted(parts)} came"
        judge = judge_calls if question.tools else judge_answer
        reasons = [judge(question, answer) for answer in answers]
        wrong = [f"choice {at} of {CHOICES}: {reason}" for at, reason in enumerate(reasons) if reason]
        if stream and not wrong:
            return ""
        alone = await session.ask_question(question, stream=stream, temperature=NEAR_GREEDY)
        if wrong:
            return ModelFailure(wrong[0]) if judge(question, alone) else wrong[0]
        made, one = answers[0].token_count("completion"), require_token_count(alone, "completion")
        reason = f"one answer is {one} tokens, and {CHOICES} of them count as {made}"
        session.failures.expect("usage", ignored or not made or made >= ALL_COUNTED * CHOICES * one, reason)
        return ""

    for stream, family in ((False, "copy"), (True, "copy"), (True, "tool_call")):
        await session.run_trials("text", partial(attempt, family=family), 0.13, 1, stream=stream)
        if ignored:
            return ProbeWarning(f"n {CHOICES} was accepted, but one choice came")
    return f"{CHOICES} choices, whole, streamed and with tools"


PROBES: Probes = {
    "temperature": probe_temperature,
    "seed": probe_seed,
    "logprobs": probe_logprobs,
    "logprobs at a stop": probe_logprobs_at_stop,
    "several choices": probe_choices,
}
