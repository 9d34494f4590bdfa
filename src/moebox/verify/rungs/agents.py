"""agents: six rounds of tools in one conversation, results as parts, and a history that is kept whole."""

import json
import re
from typing import Any

from moebox.core.verdict import Attribution
from moebox.phantom.toolbox import TOOLS, ExampleTool
from moebox.units import plural
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, ProbeSkipped, skip_if_rejected
from moebox.verify.breach import parse_strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check, ProbeWarning
from moebox.verify.rungs import tool_history, tool_results
from moebox.verify.rungs.json_modes import schema_violation
from moebox.verify.rungs.thinking import mixed_reasoning, reason_thinking_stays_on, spilled_reasoning
from moebox.verify.rungs.tools import KIMI_ID
from moebox.verify.trials import draw_question

ROUNDS = 6
FEWER = 4  # without thinking, where the six are made with it
ON_OFFER = 3
LEAST_ROOM = 256  # tokens of context for an answer, without which no other round is begun


async def probe_rounds(session: CheckSession) -> str:
    """Question, call, result, answer, again and again, whole and streamed in turn."""
    talk = _Conversation(session, thinking=False)
    return await talk.through(FEWER if session.model_thinks else ROUNDS)


async def probe_rounds_with_thinking(session: CheckSession) -> str:
    """The same while thinking: reasoning stays apart after a tool's result too."""
    session.require_thinking()
    return await _Conversation(session, thinking=True).through(ROUNDS)


async def probe_one_at_a_time(session: CheckSession) -> ProbeWarning | str:
    """parallel_tool_calls false: one call, though two are wanted."""
    task = draw_question(session, "tool_parallel")
    with skip_if_rejected("the server does not take parallel_tool_calls"):
        answer = await session.ask_question(task, parallel_tool_calls=False)
    if len(answer.calls) > 1:
        return ProbeWarning(f"parallel_tool_calls is false, yet {len(answer.calls)} calls came")
    return f"{len(answer.calls)} call"


class _Conversation:
    """Rounds of one conversation. The server answers for form and history, the model for what it says."""

    def __init__(self, session: CheckSession, *, thinking: bool) -> None:
        self.session, self.thinking = session, thinking
        self.turns: list[Any] = []
        self.tools = session.rng.sample([tool for tool in TOOLS if tool.informs], ON_OFFER)
        self.counted = 0  # tokens of the last prompt
        self.grew = 0  # tokens by which one was longer than the one before, at most
        self.ids: set[str] = set()
        self.lost: list[str] = []

    async def through(self, rounds: int) -> str:
        """All rounds; Skipped where the model loses the thread too often to judge."""
        done = 0
        while done < rounds and self._room() >= LEAST_ROOM:
            self.session.trial_progress = (done + 1, rounds)
            await self._round(done)
            done += 1
        if len(self.lost) > done // 2:
            raise ProbeSkipped(f"model, not server: it lost the thread in {len(self.lost)} rounds ({self.lost[0]})")
        full = f", all that a context of {self.session.context_limit:,} tokens holds" if done < rounds else ""
        told = f"; {len(self.lost)} lost by the model ({self.lost[0]})" if self.lost else ""
        return f"{plural(done, 'round')}{full}{told}"

    def _room(self) -> int:
        """Tokens for the next answer, once the context has taken what a round adds to it."""
        usual = 2048 if self.thinking else 512
        if (
            not self.session.context_limit or not 0 < self.counted < self.session.context_limit
        ):  # not told, or not held to
            return usual
        return min(usual, self.session.context_limit - self.counted - 2 * self.grew)

    async def _round(self, number: int) -> None:
        tool = self.session.rng.choice(self.tools)
        given = {key: make(self.session.rng) for key, make in tool.arguments.items()}
        self.turns.append({"role": "user", "content": self.session.rng.choice(tool.prompts).format(**given)})
        stream = number % 2 == 1
        called = await self._ask(stream)
        self._called(called, tool, given, stream)
        if not called.calls:
            self.turns.append({"role": "assistant", "content": called.content})
            return
        result = {key: make(self.session.rng) for key, make in tool.result.items()}
        self.turns += [tool_history.calls_turn(called), *tool_history.result_turns(called, result)]
        answer = await self._ask(stream)
        if self.thinking and not number:
            await self._spilled(answer, stream)
        self._answered(answer, result, number)
        self.turns.append({"role": "assistant", "content": answer.content})

    async def _ask(self, stream: bool) -> ChatAnswer:
        tools = [tool.schema() for tool in self.tools]
        answer = await self.session.chat(
            self.turns, tools=tools, thinking=self.thinking, max_tokens=max(self._room(), 1), stream=stream or None
        )
        self._grown(answer)
        self._thought(answer, stream)
        return answer

    def _thought(self, answer: ChatAnswer, stream: bool) -> None:
        """Thoughts are apart from the answer where it is to think, and nowhere where it is not."""
        if self.thinking and answer.reasoning:
            self.session.failures.add("reasoning" + STREAMED * stream, mixed_reasoning(answer))
        if not self.thinking and self.session.model_thinks and not reason_thinking_stays_on(self.session):
            why = "thinking is off, yet reasoning came where there are tools"
            self.session.failures.expect("reasoning" + STREAMED * stream, not answer.reasoning.strip(), why)

    async def _spilled(self, answer: ChatAnswer, stream: bool) -> None:
        """Thoughts after a result are not told as the answer: asked not to think, it says the end of it alone."""
        tools = [tool.schema() for tool in self.tools]
        plain = await self.session.chat(self.turns, tools=tools, max_tokens=512, stream=stream or None)
        self.session.failures.add("reasoning" + STREAMED * stream, spilled_reasoning(answer.reply, plain.reply))

    def _grown(self, answer: ChatAnswer) -> None:
        """Every turn that was added is in the prompt."""
        counted = answer.token_count("prompt")
        if counted is None:
            return
        grown = counted > self.counted + 2
        why = f"the conversation grew, the prompt went from {self.counted} to {counted} tokens"
        # templates may drop old thoughts; calls and results are longer than these
        self.session.failures.expect("tool-history", grown or self.thinking, why)
        self.grew = max(self.grew, counted - self.counted if self.counted else 0)
        self.counted = counted

    def _called(self, answer: ChatAnswer, tool: ExampleTool, given: dict[str, object], stream: bool) -> None:
        if not answer.calls:
            self.lost.append(f"no call for {self.turns[-1]['content']!r}")
            return
        schemas = {known.name: known.schema()["function"]["parameters"] for known in self.tools}
        for call in answer.calls:
            why = (
                schema_violation(call.arguments, schemas[call.name])
                if call.name in schemas
                else f"called {call.name!r}"
            )
            whose: Attribution = "model" if _is_object(call.arguments) else "server"
            self.session.failures.add("tool-call" + STREAMED * stream, why, whose)
            self._identified(call.id)
        first = answer.calls[0]
        if first.name != tool.name or not _same(first.arguments, given):
            self.lost.append(f"{tool.name}({json.dumps(given)}) became {first.name}({first.arguments})")

    def _identified(self, identity: str) -> None:
        """A call's id is new, unless the model itself numbers them, as Kimi does."""
        again = identity in self.ids and not KIMI_ID.fullmatch(identity)
        self.session.failures.expect("reply-style", not again, f"the id {identity!r} stands in the history already")
        self.ids.add(identity)

    def _answered(self, answer: ChatAnswer, result: dict[str, object], number: int) -> None:
        text = re.sub(r"(?<=\d),(?=\d{3})", "", answer.content)
        missing = [str(value) for value in result.values() if str(value).lstrip("-") not in text]
        if missing and not answer.calls:
            self.lost.append(f"{missing[0]} is not in the answer of round {number + 1}: {answer.content[:60]!r}")


def _is_object(arguments: str) -> bool:
    """Whole JSON was written so by the model; half of it was lost on the way."""
    try:
        return isinstance(parse_strict_json(arguments), dict)
    except ValueError:
        return False


def _same(arguments: str, given: dict[str, object]) -> bool:
    try:
        found = parse_strict_json(arguments)
    except ValueError:
        return False
    if not isinstance(found, dict) or set(found) != set(given):
        return False
    return all(found[key] == value or str(found[key]) == str(value) for key, value in given.items())


CHECK = Check(
    name="agents",
    about="six rounds of tools in one conversation",
    probes={
        "rounds": probe_rounds,
        "rounds with thinking": probe_rounds_with_thinking,
        "long result": tool_results.probe_long_result,
        "results as parts": tool_results.probe_result_parts,
        "results by id": tool_results.probe_results_by_id,
        "one at a time": probe_one_at_a_time,
    },
    request_estimate=42,
)
