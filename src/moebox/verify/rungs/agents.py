"""agents: six rounds of tools in one conversation, results as parts, and a history that is kept whole."""

import json
import re
from typing import Any

from moebox.core.verdict import Whose
from moebox.phantom.toolbox import TOOLS, Tool
from moebox.units import plural
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Skipped, skipped_if_refused
from moebox.verify.breach import strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung, Warned
from moebox.verify.rungs import tool_history, tool_results
from moebox.verify.rungs.json_modes import misfit
from moebox.verify.rungs.thinking import kept_on, mixed, spilled
from moebox.verify.rungs.tools import KIMI_ID
from moebox.verify.trials import draw

ROUNDS = 6
FEWER = 4  # without thinking, where the six are made with it
ON_OFFER = 3
LEAST_ROOM = 256  # tokens of context for an answer, without which no other round is begun


async def rounds(ask: Asker) -> str:
    """Question, call, result, answer, again and again, whole and streamed in turn."""
    talk = _Conversation(ask, thinking=False)
    return await talk.through(FEWER if ask.thinks else ROUNDS)


async def rounds_with_thinking(ask: Asker) -> str:
    """The same while thinking: reasoning stays apart after a tool's result too."""
    ask.need_thinking()
    return await _Conversation(ask, thinking=True).through(ROUNDS)


async def one_at_a_time(ask: Asker) -> Warned | str:
    """parallel_tool_calls false: one call, though two are wanted."""
    task = draw(ask, "tool_parallel")
    with skipped_if_refused("the server does not take parallel_tool_calls"):
        answer = await ask.ask(task, parallel_tool_calls=False)
    if len(answer.calls) > 1:
        return Warned(f"parallel_tool_calls is false, yet {len(answer.calls)} calls came")
    return f"{len(answer.calls)} call"


class _Conversation:
    """Rounds of one conversation. The server answers for form and history, the model for what it says."""

    def __init__(self, ask: Asker, *, thinking: bool) -> None:
        self.ask, self.thinking = ask, thinking
        self.turns: list[Any] = []
        self.tools = ask.rng.sample([tool for tool in TOOLS if tool.informs], ON_OFFER)
        self.counted = 0  # tokens of the last prompt
        self.grew = 0  # tokens by which one was longer than the one before, at most
        self.ids: set[str] = set()
        self.lost: list[str] = []

    async def through(self, rounds: int) -> str:
        """All rounds; Skipped where the model loses the thread too often to judge."""
        done = 0
        while done < rounds and self._room() >= LEAST_ROOM:
            self.ask.trial = (done + 1, rounds)
            await self._round(done)
            done += 1
        if len(self.lost) > done // 2:
            raise Skipped(f"model, not server: it lost the thread in {len(self.lost)} rounds ({self.lost[0]})")
        full = f", all that a context of {self.ask.limit:,} tokens holds" if done < rounds else ""
        told = f"; {len(self.lost)} lost by the model ({self.lost[0]})" if self.lost else ""
        return f"{plural(done, 'round')}{full}{told}"

    def _room(self) -> int:
        """Tokens for the next answer, once the context has taken what a round adds to it."""
        usual = 2048 if self.thinking else 512
        if not self.ask.limit or not 0 < self.counted < self.ask.limit:  # not told, or not held to
            return usual
        return min(usual, self.ask.limit - self.counted - 2 * self.grew)

    async def _round(self, number: int) -> None:
        tool = self.ask.rng.choice(self.tools)
        given = {key: make(self.ask.rng) for key, make in tool.draws.items()}
        self.turns.append({"role": "user", "content": self.ask.rng.choice(tool.asks).format(**given)})
        stream = number % 2 == 1
        called = await self._ask(stream)
        self._called(called, tool, given, stream)
        if not called.calls:
            self.turns.append({"role": "assistant", "content": called.content})
            return
        result = {key: make(self.ask.rng) for key, make in tool.result.items()}
        self.turns += [tool_history.turn(called), *tool_history.results(called, result)]
        answer = await self._ask(stream)
        if self.thinking and not number:
            await self._spilled(answer, stream)
        self._answered(answer, result, number)
        self.turns.append({"role": "assistant", "content": answer.content})

    async def _ask(self, stream: bool) -> Answer:
        tools = [tool.schema() for tool in self.tools]
        answer = await self.ask.chat(
            self.turns, tools=tools, thinking=self.thinking, max_tokens=max(self._room(), 1), stream=stream or None
        )
        self._grown(answer)
        self._thought(answer, stream)
        return answer

    def _thought(self, answer: Answer, stream: bool) -> None:
        """Thoughts are apart from the answer where it is to think, and nowhere where it is not."""
        if self.thinking and answer.reasoning:
            self.ask.tally.add("reasoning" + STREAMED * stream, mixed(answer))
        if not self.thinking and self.ask.thinks and not kept_on(self.ask):
            why = "thinking is off, yet reasoning came where there are tools"
            self.ask.tally.need("reasoning" + STREAMED * stream, not answer.reasoning.strip(), why)

    async def _spilled(self, answer: Answer, stream: bool) -> None:
        """Thoughts after a result are not told as the answer: asked not to think, it says the end of it alone."""
        tools = [tool.schema() for tool in self.tools]
        plain = await self.ask.chat(self.turns, tools=tools, max_tokens=512, stream=stream or None)
        self.ask.tally.add("reasoning" + STREAMED * stream, spilled(answer.reply, plain.reply))

    def _grown(self, answer: Answer) -> None:
        """Every turn that was added is in the prompt."""
        counted = answer.count("prompt")
        if counted is None:
            return
        grown = counted > self.counted + 2
        why = f"the conversation grew, the prompt went from {self.counted} to {counted} tokens"
        # templates may drop old thoughts; calls and results are longer than these
        self.ask.tally.need("tool-history", grown or self.thinking, why)
        self.grew = max(self.grew, counted - self.counted if self.counted else 0)
        self.counted = counted

    def _called(self, answer: Answer, tool: Tool, given: dict[str, object], stream: bool) -> None:
        if not answer.calls:
            self.lost.append(f"no call for {self.turns[-1]['content']!r}")
            return
        schemas = {known.name: known.schema()["function"]["parameters"] for known in self.tools}
        for call in answer.calls:
            why = misfit(call.arguments, schemas[call.name]) if call.name in schemas else f"called {call.name!r}"
            whose: Whose = "model" if _is_object(call.arguments) else "server"
            self.ask.tally.add("tool-call" + STREAMED * stream, why, whose)
            self._identified(call.id)
        first = answer.calls[0]
        if first.name != tool.name or not _same(first.arguments, given):
            self.lost.append(f"{tool.name}({json.dumps(given)}) became {first.name}({first.arguments})")

    def _identified(self, identity: str) -> None:
        """A call's id is new, unless the model itself numbers them, as Kimi does."""
        again = identity in self.ids and not KIMI_ID.fullmatch(identity)
        self.ask.tally.need("reply-style", not again, f"the id {identity!r} stands in the history already")
        self.ids.add(identity)

    def _answered(self, answer: Answer, result: dict[str, object], number: int) -> None:
        text = re.sub(r"(?<=\d),(?=\d{3})", "", answer.content)
        missing = [str(value) for value in result.values() if str(value).lstrip("-") not in text]
        if missing and not answer.calls:
            self.lost.append(f"{missing[0]} is not in the answer of round {number + 1}: {answer.content[:60]!r}")


def _is_object(arguments: str) -> bool:
    """Whole JSON was written so by the model; half of it was lost on the way."""
    try:
        return isinstance(strict_json(arguments), dict)
    except ValueError:
        return False


def _same(arguments: str, given: dict[str, object]) -> bool:
    try:
        found = strict_json(arguments)
    except ValueError:
        return False
    if not isinstance(found, dict) or set(found) != set(given):
        return False
    return all(found[key] == value or str(found[key]) == str(value) for key, value in given.items())


RUNG = Rung(
    name="agents",
    about="six rounds of tools in one conversation",
    probes={
        "rounds": rounds,
        "rounds with thinking": rounds_with_thinking,
        "long result": tool_results.long_result,
        "results as parts": tool_results.parts,
        "results by id": tool_results.by_id,
        "one at a time": one_at_a_time,
    },
    cost=42,
)
