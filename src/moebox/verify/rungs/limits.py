"""limits: stop strings stop, max_tokens ends, and a prompt that is too long is refused politely."""

import re
from typing import Any

from moebox.core.verdict import Exchange, Score
from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped, counted, said
from moebox.verify.breach import strict_json
from moebox.verify.rung import Rung
from moebox.verify.rungs.streaming import apart
from moebox.verify.trials import GOOD, Attempt, Trial, both, draw, judge, need_answer, right_if, wrong

LAST_SHOWN = "11"  # stands before the stop string, whatever stands between numbers
STOP = "12"
NEVER = "\n###END###"  # what no run of numbers holds
LONG_STOP = 6  # characters: two numbers and what stands between them, so several tokens
FEW = 8  # tokens, for an answer that wants many more
CLOSE = 2  # tokens of room after a stop string
BELIEVED = 16_000_000  # tokens of context; what is said beyond is a lie or a slip, and too much to send
CHARS_PER_TOKEN = 12  # more than any tokenizer packs into one token of such words, so the text is too long for certain


async def stop_string(ask: Asker) -> Score:
    """The answer ends before the stop string, in a stream and without."""
    return await both(ask, "limits", lambda stream: _stopped(ask, [STOP], stream), ask.options.share(0.5))


async def stop_as_string(ask: Asker) -> Score:
    """`stop` may be one string as well as a list."""
    return await both(ask, "limits", lambda stream: _stopped(ask, STOP, stream), ask.options.share(0.25))


def _stopped(ask: Asker, stop: Any, stream: bool) -> Attempt:
    async def attempt() -> Trial:
        task = draw(ask, "count", start=1, end=30)
        answer = await ask.ask(task, stream=stream, stop=stop)
        shown = answer.content[-40:]
        if STOP in answer.content or "13" in answer.content:
            return wrong(f"went on past the stop string {stop!r}: {shown!r}")
        if answer.finish != "stop":
            return wrong(f"finish_reason {answer.finish!r} at a stop string")
        if not re.match(r"\D*1\D+2\D+3\b", answer.content) and answer.content:
            return Trial(why=f"it does not count: {answer.content[:40]!r}", whose="model")
        ends = answer.content.rstrip(" ,.\n").endswith(LAST_SHOWN)
        return right_if(ends, f"does not end with {LAST_SHOWN} before the stop {stop!r}: {shown!r}")

    return attempt


async def stop_in_the_text(ask: Asker) -> Score:
    """A stop string of several tokens stops; others that never come change nothing."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> Trial:
            task = draw(ask, "count", start=1, end=18)
            plain = (await ask.ask(task, stream=stream)).content
            place = plain.find("14")
            if place < 0:
                return Trial(why=f"it does not count: {plain[:40]!r}", whose="model")
            stop = plain[place : place + LONG_STOP]
            cut = await ask.ask(task, stream=stream, stop=[NEVER, stop])
            if stop in cut.content or len(cut.content) > place + LONG_STOP:
                return wrong(f"went on past the stop string {stop!r}: {cut.content[-40:]!r}")
            unmet = await ask.ask(task, stream=stream, stop=[NEVER, NEVER * 2])
            if unmet.content.strip() == plain.strip():
                return wrong("")
            again = await ask.ask(task, stream=stream)
            why = f"a stop string that never comes changes the text: {apart(plain, unmet.content, ('without', 'with'))}"
            return right_if(again.content != plain, why)

        return attempt

    return await both(ask, "limits", make, ask.options.share(0.17))


async def stop_at_the_limit(ask: Asker) -> Score:
    """A stop string just before max_tokens is seen: several draft tokens may pass both in one step."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> Trial:
            task = draw(ask, "count", start=1, end=30)
            stopped = await ask.ask(task, stream=stream, stop=[STOP])
            room = counted(stopped, "completion") + CLOSE
            close = await ask.ask(task, stream=stream, stop=[STOP], max_tokens=room, exact=True)
            why = f"went on past the stop {STOP!r} just before max_tokens: {close.content[-40:]!r}"
            return right_if(STOP not in close.content, why)

        return attempt

    return await both(ask, "limits", make, ask.options.share(0.17))


async def thoughts_cut(ask: Asker) -> Score:
    """Thoughts that max_tokens cuts are still thoughts."""
    ask.need_thinking()

    def make(stream: bool) -> Attempt:
        async def attempt() -> Trial:
            task = draw(ask, "sums", thinking=True)
            thought = (await ask.ask(task, stream=stream)).reasoning.strip()
            cut = await ask.ask(task, stream=stream, max_tokens=FEW, exact=True, odd=True)
            said = cut.content.strip()
            spilled = bool(said) and not cut.reasoning and thought.startswith(said)
            return right_if(not spilled, f"max_tokens cut the thoughts, and they came as the answer: {said!r}")

        return attempt

    return await both(ask, "reasoning", make, ask.options.share(0.17))


async def no_limit(ask: Asker) -> Score:
    """Without max_tokens an answer comes to its end."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> Trial:
            task = draw(ask, "count", start=1, end=30)
            answer = await ask.ask(task, stream=stream, max_tokens=None)
            if answer.finish != "length":
                return wrong("")
            if judge(task, await ask.ask(task)):
                return Trial(why="it does not come to an end with a limit either", whose="model")
            return wrong(f"no max_tokens, yet cut after {answer.count('completion')} tokens: {answer.content[-40:]!r}")

        return attempt

    return await both(ask, "limits", make, 1)


async def call_cut(ask: Asker) -> Score:
    """A tool call that max_tokens cuts in half says so: nobody may run it."""

    def make(stream: bool) -> Attempt:
        async def attempt() -> Trial:
            task = draw(ask, "tool_call")
            answer = await ask.ask(task, stream=stream, max_tokens=FEW, exact=True, odd=True)
            broken = [call.arguments for call in answer.calls if not _is_json(call.arguments)]
            if broken and answer.finish != "length":
                return wrong(f"max_tokens cut a call to {broken[0]!r}, finish_reason is {answer.finish!r}")
            return wrong("")

        return attempt

    return await both(ask, "limits", make, ask.options.share(0.17))


def _is_json(text: str) -> bool:
    try:
        strict_json(text)
    except ValueError:
        return False
    return True


async def max_tokens(ask: Asker) -> Score:
    """The answer ends at max_tokens and says so."""
    if ask.limit_name != "max_tokens":
        raise Skipped("the server refuses max_tokens, and takes max_completion_tokens")
    cuts = _Cuts(ask, "max_tokens")
    return await both(ask, "limits", cuts.made, ask.options.share(0.67))


async def max_completion_tokens(ask: Asker) -> Score:
    """The newer name of the same limit."""
    probe = await ask.send(ask.body(draw(ask, "story").messages, max_tokens=None, max_completion_tokens=FEW))
    if probe.status in REFUSALS:
        raise Skipped("the server does not take max_completion_tokens")
    cuts = _Cuts(ask, "max_completion_tokens")
    return await both(ask, "limits", cuts.made, ask.options.share(0.25))


class _Cuts:
    """Stories that a limit cuts, the same ones whole and then streamed: both end at the same token."""

    def __init__(self, ask: Asker, name: str) -> None:
        self.ask, self.name = ask, name
        self.whole: list[tuple[Task, str]] = []  # how each was cut when it came whole

    def made(self, stream: bool) -> Attempt:
        """Attempts in one of the two ways."""

        async def attempt() -> Trial:
            task, before = self.whole.pop() if stream and self.whole else (draw(self.ask, "story"), "")
            answer = await self._cut(task, stream)
            said = answer.content + answer.reasoning
            trial = self._unfinished(answer) or self._beyond(answer)
            if trial == GOOD and not stream:
                self.whole.append((task, said))
            if trial.why or not before or not _is_part(said, before):
                return trial
            return await self._shorter(task, said, before)

        return attempt

    async def _shorter(self, task: Task, said: str, before: str) -> Trial:
        """A stream ended before the whole answer did; whole ones that differ among themselves prove nothing."""
        again = await self._cut(task, stream=False)
        same = again.content + again.reasoning == before
        lost = before.removeprefix(said.rstrip())
        return right_if(not (same and lost), f"{self.name} {FEW} cuts a stream before {lost!r}, which comes whole")

    async def _cut(self, task: Task, stream: bool) -> Answer:
        limit = {"max_tokens": None, "max_completion_tokens": None, self.name: FEW}
        request = self.ask.body(task.messages, stream=stream or None)
        request = {key: value for key, value in {**request, **limit}.items() if value is not None}
        return self.ask.read(await self.ask.send(request), stream=stream)

    def _unfinished(self, answer: Answer) -> Trial | None:
        made = answer.count("completion")
        if answer.finish == "stop" and made is not None and made < FEW:
            return Trial(why=f"a story of {made} tokens: {answer.content!r}", whose="model")
        if answer.finish != "length":
            return wrong(f"finish_reason {answer.finish!r} after {self.name} {FEW} of a story")
        return None

    def _beyond(self, answer: Answer) -> Trial:
        made, words = answer.count("completion"), len((answer.content + answer.reasoning).split())
        over = words > FEW + 1 or (made is not None and made > FEW)
        return right_if(not over, f"{made} tokens and {words} words although {self.name} was {FEW}")


def _is_part(said: str, whole: str) -> bool:
    """The beginning of it, and not all."""
    return whole.startswith(said.rstrip()) and said.rstrip() != whole.rstrip()


async def too_long(ask: Asker) -> str:
    """A prompt beyond the context gets a 4xx with a message, and the server lives on."""
    limit = ask.limit or ask.options.context
    if not limit:
        raise Skipped("the server does not say how long a prompt may be")
    if limit > BELIEVED:
        raise Failed(f"the server says that it takes {limit:,} tokens, which no model does")
    text = "lantern orchard thimble " * (limit * CHARS_PER_TOKEN // 24)
    url = f"{ask.endpoint.base_url}/chat/completions"
    exchange = ask.keep(await ask.client.post(url, ask.body([{"role": "user", "content": text}], max_tokens=8)))
    if exchange.status == 200 and not exchange.error:
        told = ask.read(exchange, stream=False).usage.get("prompt_tokens")
        raise Failed(f"a prompt far beyond {limit:,} tokens was taken (the server says it read {told}): cut in silence")
    _need_refusal(exchange, f"a prompt beyond {limit:,} tokens")
    await need_answer(ask, "after the refusal, an ordinary question got an empty answer")
    return f"HTTP {exchange.status}{said(exchange)}"


def _need_refusal(exchange: Exchange, what: str) -> None:
    """Failed unless `what` was refused with a 4xx that explains itself in JSON."""
    if exchange.error:
        raise Failed(f"{what}: {exchange.error}")
    if not 400 <= exchange.status < 500:
        raise Failed(f"{what}: HTTP {exchange.status}{said(exchange)}")
    if not _is_json(exchange.response):
        raise Failed(f"HTTP {exchange.status} without an explanation in JSON")


RUNG = Rung(
    name="limits",
    about="stop strings, max_tokens, over-long prompts",
    probes={
        "stop string": stop_string,
        "stop as a string": stop_as_string,
        "stop in the text": stop_in_the_text,
        "stop at the limit": stop_at_the_limit,
        "no limit": no_limit,
        "thoughts cut": thoughts_cut,
        "call cut": call_cut,
        "max_tokens": max_tokens,
        "max_completion_tokens": max_completion_tokens,
        "too long": too_long,
    },
    cost=56,
)
