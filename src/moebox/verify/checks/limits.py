"""limits: stop strings stop, max_tokens ends, and a prompt that is too long is rejected properly."""

import re
from collections import Counter
from functools import partial

from moebox.core.verdict import Score
from moebox.phantom.question import Question
from moebox.verify.checks.streaming import first_difference
from moebox.verify.checks.turns import user_turn
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import REJECTED_STATUSES, ProbeFailed, ProbeSkipped, Settings, error_text
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, judge_answer, probe_both_modes
from moebox.verify.violations import is_json

BEFORE_STOP = "11"  # stands before the stop string, whatever separates the numbers
STOP = "12"
NEVER = "\n###END###"  # not in any run of numbers
LONG_STOP_CHARS = 6  # two numbers and what separates them: several tokens
FEW_TOKENS = 8  # for an answer that wants many more
CUT: Settings = {"max_tokens": FEW_TOKENS, "exact": True, "allow_marks": True}
TOKENS_AFTER_STOP = 2
MAX_PLAUSIBLE_CONTEXT = 16_000_000  # tokens; a larger reported limit is wrong, and too much to send
MAX_CHARS_PER_TOKEN = 12  # of any tokenizer for such words, so that the text is surely too long


async def probe_stop(session: CheckSession) -> Score:
    """The answer ends before the stop string, a list or one string; draft tokens may pass it and max_tokens at once."""
    asked: Counter[bool] = Counter()  # by mode

    async def attempt(stream: bool) -> str:
        asked[stream] += 1
        question, stop = session.draw("count", start=7, end=30), STOP if asked[stream] % 2 else [STOP]
        answer = await session.ask_question(question, stream=stream, stop=stop)
        content, shown = answer.content, answer.content[-40:]
        if STOP in content or "13" in content:
            return f"went on past the stop string {stop!r}: {shown!r}"
        if answer.finish_reason != "stop":
            return f"finish_reason {answer.finish_reason!r} at a stop string"
        if not re.match(r"\D*7\D+8\D+9\b", content) and content:
            return ModelFailure(f"it does not count: {content[:40]!r}")
        if not content.rstrip(" ,.\n").endswith(BEFORE_STOP):
            return f"does not end with {BEFORE_STOP} before the stop {stop!r}: {shown!r}"
        made = answer.token_count("completion")
        if made and asked[stream] <= session.options.trial_share(0.13, 1):
            limit = made + TOKENS_AFTER_STOP
            close = await session.ask_question(question, stream=stream, stop=stop, max_tokens=limit, exact=True)
            if STOP in close.content:
                return f"went on past the stop {STOP!r} just before max_tokens: {close.content[-40:]!r}"
        return ""

    return await session.run_both_modes("limits", attempt, 0.5)


async def try_stop_in_text(session: CheckSession, stream: bool) -> str:
    """A stop string of several tokens stops; others that never come change nothing."""
    question = session.draw("count", start=10, end=18)
    plain = (await session.ask_question(question, stream=stream)).content
    place = plain.find("14")
    if place < 0:
        return ModelFailure(f"it does not count: {plain[:40]!r}")
    stop = plain[place : place + LONG_STOP_CHARS]
    cut = await session.ask_question(question, stream=stream, stop=[NEVER, stop])
    if stop in cut.content or len(cut.content) > place + LONG_STOP_CHARS:
        return f"went on past the stop string {stop!r}: {cut.content[-40:]!r}"
    unmet = await session.ask_question(question, stream=stream, stop=[NEVER, NEVER * 2])
    same = unmet.content.strip() == plain.strip()
    if same or (await session.ask_question(question, stream=stream)).content != plain:
        return ""
    difference = first_difference(plain, unmet.content, ("without", "with"))
    return f"a stop string that never comes changes the text: {difference}"


async def try_cut_thoughts(session: CheckSession, stream: bool) -> str:
    """Reasoning that max_tokens cuts is still reasoning."""
    session.require_thinking()
    question = session.draw("sums", thinking=True)
    reasoning = (await session.ask_question(question, stream=stream)).reasoning.strip()
    cut = await session.ask_question(question, stream=stream, **CUT)
    content = cut.content.strip()
    spilled = content and not cut.reasoning and reasoning.startswith(content)
    return f"max_tokens cut the reasoning, and it came as the answer: {content!r}" if spilled else ""


async def try_without_limit(session: CheckSession, stream: bool) -> str:
    """Without max_tokens an answer comes to its end."""
    question = session.draw("count", start=1, end=14)
    answer = await session.ask_question(question, stream=stream, max_tokens=None)
    if answer.finish_reason != "length":
        return ""
    if judge_answer(question, await session.ask_question(question)):
        return ModelFailure("it does not end with a limit either")
    made = answer.token_count("completion")
    return f"cut after {made} tokens although no max_tokens was sent: {answer.content[-40:]!r}"


async def try_cut_call(session: CheckSession, stream: bool) -> str:
    """A tool call that max_tokens cuts in half is marked as cut: clients must not run it."""
    answer = await session.ask_question(session.draw("tool_call"), stream=stream, **CUT)
    broken = [call.arguments for call in answer.calls if not is_json(call.arguments)]
    marked = not broken or answer.finish_reason == "length"
    return "" if marked else f"max_tokens cut a call to {broken[0]!r}, finish_reason is {answer.finish_reason!r}"


async def probe_token_limit(session: CheckSession) -> Score:
    """Stories end at the limit, under either of its names, with the right finish_reason; both modes end alike."""
    fields = [session.max_tokens_field]
    request = session.chat_request(session.draw("story").messages, max_tokens=None, max_completion_tokens=FEW_TOKENS)
    if fields == ["max_tokens"] and (await session.post_chat(request)).status not in REJECTED_STATUSES:
        fields.append("max_completion_tokens")
    asked: Counter[bool] = Counter()  # by mode
    cut_whole: list[tuple[Question, str]] = []  # each story and how it was cut when it came whole

    async def ask_cut(question: Question, stream: bool, field: str) -> ChatAnswer:
        request = session.chat_request(question.messages, max_tokens=None, stream=stream)
        return session.read_answer(await session.post_chat({**request, field: FEW_TOKENS}))

    async def attempt(stream: bool) -> str:
        question, before = cut_whole.pop() if stream and cut_whole else (session.draw("story"), "")
        asked[stream] += 1
        field = fields[asked[stream] % len(fields)]
        answer = await ask_cut(question, stream, field)
        finish, made, text = answer.finish_reason, answer.token_count("completion"), answer.content + answer.reasoning
        if finish == "stop" and made is not None and made < FEW_TOKENS:
            return ModelFailure(f"a story of {made} tokens: {answer.content!r}")
        if finish != "length":
            return f"finish_reason {finish!r} after {field} {FEW_TOKENS} of a story"
        words = len(text.split())
        if words > FEW_TOKENS + 1 or (made is not None and made > FEW_TOKENS):
            return f"{made} tokens and {words} words although {field} was {FEW_TOKENS}"
        if not stream:
            cut_whole.append((question, text))
        shown = text.rstrip()
        if not before.startswith(shown) or shown == before.rstrip():
            return ""
        # The stream ended before the whole answer did; whole answers that differ among themselves prove nothing
        again = await ask_cut(question, False, field)
        lost = before.removeprefix(shown) if again.content + again.reasoning == before else ""
        return f"{field} {FEW_TOKENS} cuts a stream before {lost!r}, which comes whole" if lost else ""

    return await session.run_both_modes("limits", attempt, 0.5)


async def probe_too_long_prompt(session: CheckSession) -> str:
    """A prompt beyond the context gets a 4xx with a message, and the server goes on answering."""
    limit = session.context_limit or session.options.context
    if not limit:
        raise ProbeSkipped("the server does not report how long a prompt may be")
    if limit > MAX_PLAUSIBLE_CONTEXT:
        raise ProbeFailed(f"the server reports a context of {limit:,} tokens, which no model has")
    text = "lantern orchard thimble " * (limit * MAX_CHARS_PER_TOKEN // 24)
    exchange = await session.post(session.chat_url, session.chat_request([user_turn(text)], max_tokens=8))
    if exchange.status == 200 and not exchange.error:
        counts = f"more than {limit:,} tokens, of which it counts {session.read_answer(exchange).token_count('prompt')}"
        raise ProbeFailed(f"the server silently truncated a prompt that is too long ({counts})")
    if exchange.error or not 400 <= exchange.status < 500:
        problem = exchange.error or f"HTTP {exchange.status}{error_text(exchange)}"
        raise ProbeFailed(f"a prompt beyond {limit:,} tokens: {problem}")
    if not is_json(exchange.response):
        raise ProbeFailed(f"HTTP {exchange.status} without an explanation in JSON")
    await session.require_answer("after the refusal, an ordinary question got an empty answer")
    return f"HTTP {exchange.status}{error_text(exchange)}"


PROBES: Probes = {
    "stop string": probe_stop,
    "stop in the text": partial(probe_both_modes, attempt=try_stop_in_text, kind="limits", share=0.13, least=1),
    "no limit": partial(probe_both_modes, attempt=try_without_limit, kind="limits", share=0, least=1),
    "thoughts cut": partial(probe_both_modes, attempt=try_cut_thoughts, kind="reasoning", share=0.13, least=1),
    "call cut": partial(probe_both_modes, attempt=try_cut_call, kind="limits", share=0.13, least=1),
    "max_tokens": probe_token_limit,
    "too long": probe_too_long_prompt,
}
