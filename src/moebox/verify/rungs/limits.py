"""limits: stop strings stop, max_tokens ends, and a prompt that is too long is refused politely."""

import re
from typing import Any

from moebox.core.verdict import HttpExchange, Score
from moebox.phantom.tasks import Question
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import (
    REJECTED_STATUSES,
    CheckSession,
    ProbeFailed,
    ProbeSkipped,
    error_text,
    require_token_count,
)
from moebox.verify.breach import parse_strict_json
from moebox.verify.rung import Check
from moebox.verify.rungs.streaming import first_difference
from moebox.verify.trials import (
    PASSED,
    Attempt,
    TrialOutcome,
    draw_question,
    judge_answer,
    pass_if,
    require_answer,
    run_both_modes,
    server_failure,
)

LAST_SHOWN = "11"  # stands before the stop string, whatever stands between numbers
STOP = "12"
NEVER = "\n###END###"  # what no run of numbers holds
LONG_STOP = 6  # characters: two numbers and what stands between them, so several tokens
FEW = 8  # tokens, for an answer that wants many more
CLOSE = 2  # tokens of room after a stop string
MAX_PLAUSIBLE_CONTEXT = 16_000_000  # tokens of context; what is said beyond is a lie or a slip, and too much to send
CHARS_PER_TOKEN = 12  # more than any tokenizer packs into one token of such words, so the text is too long for certain


async def probe_stop_string(session: CheckSession) -> Score:
    """The answer ends before the stop string, in a stream and without."""
    return await run_both_modes(
        session, "limits", lambda stream: _stopped(session, [STOP], stream), session.options.trial_share(0.5)
    )


async def probe_stop_as_string(session: CheckSession) -> Score:
    """`stop` may be one string as well as a list."""
    return await run_both_modes(
        session, "limits", lambda stream: _stopped(session, STOP, stream), session.options.trial_share(0.25)
    )


def _stopped(session: CheckSession, stop: Any, stream: bool) -> Attempt:
    async def attempt() -> TrialOutcome:
        task = draw_question(session, "count", start=1, end=30)
        answer = await session.ask_question(task, stream=stream, stop=stop)
        shown = answer.content[-40:]
        if STOP in answer.content or "13" in answer.content:
            return server_failure(f"went on past the stop string {stop!r}: {shown!r}")
        if answer.finish_reason != "stop":
            return server_failure(f"finish_reason {answer.finish_reason!r} at a stop string")
        if not re.match(r"\D*1\D+2\D+3\b", answer.content) and answer.content:
            return TrialOutcome(reason=f"it does not count: {answer.content[:40]!r}", attributed_to="model")
        ends = answer.content.rstrip(" ,.\n").endswith(LAST_SHOWN)
        return pass_if(ends, f"does not end with {LAST_SHOWN} before the stop {stop!r}: {shown!r}")

    return attempt


async def probe_stop_in_text(session: CheckSession) -> Score:
    """A stop string of several tokens stops; others that never come change nothing."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> TrialOutcome:
            task = draw_question(session, "count", start=1, end=18)
            plain = (await session.ask_question(task, stream=stream)).content
            place = plain.find("14")
            if place < 0:
                return TrialOutcome(reason=f"it does not count: {plain[:40]!r}", attributed_to="model")
            stop = plain[place : place + LONG_STOP]
            cut = await session.ask_question(task, stream=stream, stop=[NEVER, stop])
            if stop in cut.content or len(cut.content) > place + LONG_STOP:
                return server_failure(f"went on past the stop string {stop!r}: {cut.content[-40:]!r}")
            unmet = await session.ask_question(task, stream=stream, stop=[NEVER, NEVER * 2])
            if unmet.content.strip() == plain.strip():
                return server_failure("")
            again = await session.ask_question(task, stream=stream)
            difference = first_difference(plain, unmet.content, ("without", "with"))
            why = f"a stop string that never comes changes the text: {difference}"
            return pass_if(again.content != plain, why)

        return attempt

    return await run_both_modes(session, "limits", make, session.options.trial_share(0.17))


async def probe_stop_at_limit(session: CheckSession) -> Score:
    """A stop string just before max_tokens is seen: several draft tokens may pass both in one step."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> TrialOutcome:
            task = draw_question(session, "count", start=1, end=30)
            stopped = await session.ask_question(task, stream=stream, stop=[STOP])
            room = require_token_count(stopped, "completion") + CLOSE
            close = await session.ask_question(task, stream=stream, stop=[STOP], max_tokens=room, exact=True)
            why = f"went on past the stop {STOP!r} just before max_tokens: {close.content[-40:]!r}"
            return pass_if(STOP not in close.content, why)

        return attempt

    return await run_both_modes(session, "limits", make, session.options.trial_share(0.17))


async def probe_cut_thoughts(session: CheckSession) -> Score:
    """Thoughts that max_tokens cuts are still thoughts."""
    session.require_thinking()

    def make(stream: bool) -> Attempt:
        async def attempt() -> TrialOutcome:
            task = draw_question(session, "sums", thinking=True)
            thought = (await session.ask_question(task, stream=stream)).reasoning.strip()
            cut = await session.ask_question(task, stream=stream, max_tokens=FEW, exact=True, allow_marks=True)
            said = cut.content.strip()
            spilled = bool(said) and not cut.reasoning and thought.startswith(said)
            return pass_if(not spilled, f"max_tokens cut the thoughts, and they came as the answer: {said!r}")

        return attempt

    return await run_both_modes(session, "reasoning", make, session.options.trial_share(0.17))


async def probe_no_limit(session: CheckSession) -> Score:
    """Without max_tokens an answer comes to its end."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> TrialOutcome:
            task = draw_question(session, "count", start=1, end=30)
            answer = await session.ask_question(task, stream=stream, max_tokens=None)
            if answer.finish_reason != "length":
                return server_failure("")
            if judge_answer(task, await session.ask_question(task)):
                return TrialOutcome(reason="it does not come to an end with a limit either", attributed_to="model")
            return server_failure(
                f"no max_tokens, yet cut after {answer.token_count('completion')} tokens: {answer.content[-40:]!r}"
            )

        return attempt

    return await run_both_modes(session, "limits", make, 1)


async def probe_cut_call(session: CheckSession) -> Score:
    """A tool call that max_tokens cuts in half says so: nobody may run it."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> TrialOutcome:
            task = draw_question(session, "tool_call")
            answer = await session.ask_question(task, stream=stream, max_tokens=FEW, exact=True, allow_marks=True)
            broken = [call.arguments for call in answer.calls if not _is_json(call.arguments)]
            if broken and answer.finish_reason != "length":
                return server_failure(
                    f"max_tokens cut a call to {broken[0]!r}, finish_reason is {answer.finish_reason!r}"
                )
            return server_failure("")

        return attempt

    return await run_both_modes(session, "limits", make, session.options.trial_share(0.17))


def _is_json(text: str) -> bool:
    try:
        parse_strict_json(text)
    except ValueError:
        return False
    return True


async def probe_max_tokens(session: CheckSession) -> Score:
    """The answer ends at max_tokens and says so."""
    if session.max_tokens_field != "max_tokens":
        raise ProbeSkipped("the server refuses max_tokens, and takes max_completion_tokens")
    cuts = _CutTrials(session, "max_tokens")
    return await run_both_modes(session, "limits", cuts.make_attempt, session.options.trial_share(0.67))


async def probe_max_completion_tokens(session: CheckSession) -> Score:
    """The newer name of the same limit."""
    probe = await session.post_chat(
        session.chat_request(draw_question(session, "story").messages, max_tokens=None, max_completion_tokens=FEW)
    )
    if probe.status in REJECTED_STATUSES:
        raise ProbeSkipped("the server does not take max_completion_tokens")
    cuts = _CutTrials(session, "max_completion_tokens")
    return await run_both_modes(session, "limits", cuts.make_attempt, session.options.trial_share(0.25))


class _CutTrials:
    """Stories that a limit cuts, the same ones whole and then streamed: both end at the same token."""

    def __init__(self, session: CheckSession, name: str) -> None:
        self.session, self.name = session, name
        self.whole: list[tuple[Question, str]] = []  # how each was cut when it came whole

    def make_attempt(self, stream: bool) -> Attempt:
        """Attempts in one of the two ways."""

        async def attempt() -> TrialOutcome:
            task, before = self.whole.pop() if stream and self.whole else (draw_question(self.session, "story"), "")
            answer = await self._cut(task, stream)
            said = answer.content + answer.reasoning
            trial = self._unfinished(answer) or self._beyond(answer)
            if trial == PASSED and not stream:
                self.whole.append((task, said))
            if trial.reason or not before or not _is_part(said, before):
                return trial
            return await self._shorter(task, said, before)

        return attempt

    async def _shorter(self, task: Question, said: str, before: str) -> TrialOutcome:
        """A stream ended before the whole answer did; whole ones that differ among themselves prove nothing."""
        again = await self._cut(task, stream=False)
        same = again.content + again.reasoning == before
        lost = before.removeprefix(said.rstrip())
        return pass_if(not (same and lost), f"{self.name} {FEW} cuts a stream before {lost!r}, which comes whole")

    async def _cut(self, task: Question, stream: bool) -> ChatAnswer:
        limit = {"max_tokens": None, "max_completion_tokens": None, self.name: FEW}
        request = self.session.chat_request(task.messages, stream=stream or None)
        request = {key: value for key, value in {**request, **limit}.items() if value is not None}
        return self.session.read_answer(await self.session.post_chat(request), stream=stream)

    def _unfinished(self, answer: ChatAnswer) -> TrialOutcome | None:
        made = answer.token_count("completion")
        if answer.finish_reason == "stop" and made is not None and made < FEW:
            return TrialOutcome(reason=f"a story of {made} tokens: {answer.content!r}", attributed_to="model")
        if answer.finish_reason != "length":
            return server_failure(f"finish_reason {answer.finish_reason!r} after {self.name} {FEW} of a story")
        return None

    def _beyond(self, answer: ChatAnswer) -> TrialOutcome:
        made, words = answer.token_count("completion"), len((answer.content + answer.reasoning).split())
        over = words > FEW + 1 or (made is not None and made > FEW)
        return pass_if(not over, f"{made} tokens and {words} words although {self.name} was {FEW}")


def _is_part(said: str, whole: str) -> bool:
    """The beginning of it, and not all."""
    return whole.startswith(said.rstrip()) and said.rstrip() != whole.rstrip()


async def probe_too_long_prompt(session: CheckSession) -> str:
    """A prompt beyond the context gets a 4xx with a message, and the server lives on."""
    limit = session.context_limit or session.options.context
    if not limit:
        raise ProbeSkipped("the server does not say how long a prompt may be")
    if limit > MAX_PLAUSIBLE_CONTEXT:
        raise ProbeFailed(f"the server says that it takes {limit:,} tokens, which no model does")
    text = "lantern orchard thimble " * (limit * CHARS_PER_TOKEN // 24)
    url = f"{session.endpoint.base_url}/chat/completions"
    exchange = session.keep_evidence(
        await session.client.post(url, session.chat_request([{"role": "user", "content": text}], max_tokens=8))
    )
    if exchange.status == 200 and not exchange.error:
        told = session.read_answer(exchange, stream=False).usage.get("prompt_tokens")
        raise ProbeFailed(
            f"a prompt far beyond {limit:,} tokens was taken (the server says it read {told}): cut in silence"
        )
    _need_refusal(exchange, f"a prompt beyond {limit:,} tokens")
    await require_answer(session, "after the refusal, an ordinary question got an empty answer")
    return f"HTTP {exchange.status}{error_text(exchange)}"


def _need_refusal(exchange: HttpExchange, what: str) -> None:
    """Failed unless `what` was refused with a 4xx that explains itself in JSON."""
    if exchange.error:
        raise ProbeFailed(f"{what}: {exchange.error}")
    if not 400 <= exchange.status < 500:
        raise ProbeFailed(f"{what}: HTTP {exchange.status}{error_text(exchange)}")
    if not _is_json(exchange.response):
        raise ProbeFailed(f"HTTP {exchange.status} without an explanation in JSON")


CHECK = Check(
    name="limits",
    about="stop strings, max_tokens, over-long prompts",
    probes={
        "stop string": probe_stop_string,
        "stop as a string": probe_stop_as_string,
        "stop in the text": probe_stop_in_text,
        "stop at the limit": probe_stop_at_limit,
        "no limit": probe_no_limit,
        "thoughts cut": probe_cut_thoughts,
        "call cut": probe_cut_call,
        "max_tokens": probe_max_tokens,
        "max_completion_tokens": probe_max_completion_tokens,
        "too long": probe_too_long_prompt,
    },
    request_estimate=56,
)
