"""agents: rounds of tools in one conversation, results as parts, and a complete history."""

import json
import re
from functools import partial
from typing import Any

from moebox.phantom.tool_questions import INFORMING_TOOLS, ExampleTool, draw_values, same_arguments
from moebox.units import plural
from moebox.verify.checks import turns
from moebox.verify.checks.schemas import schema_violation
from moebox.verify.checks.thinking import mixed_reasoning, reason_thinking_stays_on, spilled_reasoning
from moebox.verify.checks.tools import KIMI_ID
from moebox.verify.checks.turns import assistant_turn, user_turn
from moebox.verify.completions import ChatAnswer
from moebox.verify.options import LEFT_OUT
from moebox.verify.session import ProbeSkipped, ProbeWarning, Settings, skip_if_rejected
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes
from moebox.verify.violations import parse_json_or

ROUNDS = 4
FEWER_ROUNDS = 2  # in a quick run, and without thinking if the others are made with it
MIN_ANSWER_TOKENS = 256  # of context for an answer, without which no other round begins


async def probe_rounds(session: CheckSession, *, thinking: bool) -> str:
    """Question, call, result, answer, again and again, whole and streamed in turn; reasoning stays apart."""
    if thinking:
        session.require_thinking()
    elif session.options.brief and session.model_thinks:
        raise ProbeSkipped(LEFT_OUT)
    fewer = session.options.brief or (session.model_thinks and not thinking)
    return await _Conversation(session, thinking=thinking).run_rounds(FEWER_ROUNDS if fewer else ROUNDS)


async def probe_one_at_a_time(session: CheckSession) -> ProbeWarning | str:
    """parallel_tool_calls false: one call, though two are wanted."""
    with skip_if_rejected("the server does not accept parallel_tool_calls"):
        answer = await session.ask_question(session.draw("tool_parallel"), parallel_tool_calls=False)
    if len(answer.calls) > 1:
        return ProbeWarning(f"{len(answer.calls)} calls came though parallel_tool_calls is false")
    return f"{len(answer.calls)} call"


class _Conversation:
    """Rounds of one conversation. Format and history are the server's, the content is the model's."""

    def __init__(self, session: CheckSession, *, thinking: bool) -> None:
        self.session, self.thinking = session, thinking
        self.turns: list[Any] = []
        if not session.offered_tools:  # kept for the other probes: a prefix cache then knows them
            city = session.rng.choice([tool for tool in INFORMING_TOOLS if set(tool.params) == {"city"}])
            other = session.rng.choice([tool for tool in INFORMING_TOOLS if tool != city])
            session.offered_tools = (city.schema(), other.schema())
        self.tools = [tool for tool in INFORMING_TOOLS if tool.schema() in session.offered_tools]
        self.prompt_tokens = 0  # of the last request
        self.max_growth = 0  # tokens by which a prompt was longer than the one before
        self.ids: set[str] = set()
        self.lost: list[str] = []  # rounds in which the model lost the thread

    async def run_rounds(self, rounds: int) -> str:
        """Run all rounds. Raise ProbeSkipped if the model loses the thread too often to judge."""
        done = 0
        while done < rounds and self._answer_tokens() >= MIN_ANSWER_TOKENS:
            self.session.trial_progress = (done + 1, rounds)
            await self._run_round(done)
            done += 1
        if len(self.lost) > done // 2:
            raise ProbeSkipped(f"model, not server: it lost the thread in {len(self.lost)} rounds ({self.lost[0]})")
        full = f", all that a context of {self.session.context_limit:,} tokens holds" if done < rounds else ""
        lost = f"; {len(self.lost)} lost by the model ({self.lost[0]})" if self.lost else ""
        return f"{plural(done, 'round')}{full}{lost}"

    def _answer_tokens(self) -> int:
        """Tokens for the next answer, after the context has taken what a round adds to it."""
        usual, limit = 2048 if self.thinking else 512, self.session.context_limit
        if not limit or not 0 < self.prompt_tokens < limit:  # not reported, or not kept to
            return usual
        return min(usual, limit - self.prompt_tokens - 2 * self.max_growth)

    async def _run_round(self, number: int) -> None:
        rng, stream = self.session.rng, number % 2 == 1
        tool = rng.choice(self.tools)
        given = draw_values(rng, tool.arguments)
        self.turns.append(user_turn(rng.choice(tool.prompts).format(**given)))
        called = await self._ask(stream)
        self._check_calls(called, tool, given, stream)
        if not called.calls:
            self.turns.append(assistant_turn(called.content))
            return
        result = draw_values(rng, tool.result)
        self.turns += [turns.calls_turn(called), *turns.result_turns(called, result)]
        answer = await self._ask(stream)
        if self.thinking and not number:
            # Asked not to think, the model gives the end of the answer alone
            tools = list(self.session.offered_tools)
            plain = await self.session.chat(self.turns, tools=tools, max_tokens=512, stream=stream)
            self.session.failures.add("reasoning", spilled_reasoning(answer, plain), stream=stream)
        text = re.sub(r"(?<=\d),(?=\d{3})", "", answer.content)
        missing = [str(value) for value in result.values() if str(value).lstrip("-") not in text]
        if missing and not answer.calls:
            self.lost.append(f"{missing[0]} is not in the answer of round {number + 1}: {answer.content[:60]!r}")
        self.turns.append(assistant_turn(answer.content))

    async def _ask(self, stream: bool) -> ChatAnswer:
        """Send the conversation, and check that the prompt grew and that reasoning is apart, or absent."""
        session = self.session
        settings: Settings = {"thinking": self.thinking, "max_tokens": max(self._answer_tokens(), 1), "stream": stream}
        answer = await session.chat(self.turns, tools=list(session.offered_tools), **settings)
        count = answer.token_count("prompt")
        if count is not None:
            reason = f"the conversation grew, the prompt went from {self.prompt_tokens} to {count} tokens"
            # Templates may drop old reasoning, which can be longer than calls and results
            session.failures.expect("tool-history", count > self.prompt_tokens + 2 or self.thinking, reason)
            self.max_growth = max(self.max_growth, count - self.prompt_tokens if self.prompt_tokens else 0)
            self.prompt_tokens = count
        if self.thinking and answer.reasoning:
            session.failures.add("reasoning", mixed_reasoning(answer), stream=stream)
        if not self.thinking and session.model_thinks and not reason_thinking_stays_on(session):
            reason = "thinking is off, yet reasoning came with tools on offer"
            session.failures.expect("reasoning", not answer.reasoning.strip(), reason, stream=stream)
        return answer

    def _check_calls(self, answer: ChatAnswer, tool: ExampleTool, given: dict[str, object], stream: bool) -> None:
        if not answer.calls:
            self.lost.append(f"no call for {self.turns[-1]['content']!r}")
            return
        failures = self.session.failures
        schemas = {known.name: known.schema()["function"]["parameters"] for known in self.tools}
        for call in answer.calls:
            known = call.name in schemas
            reason = schema_violation(call.arguments, schemas[call.name]) if known else f"called {call.name!r}"
            # A complete object was written so by the model; half of one was lost on the way
            is_whole = isinstance(parse_json_or(call.arguments), dict)
            failures.add("tool-call", ModelFailure(reason) if is_whole else reason, stream=stream)
            repeated = call.id in self.ids and not KIMI_ID.fullmatch(call.id)  # Kimi numbers its calls itself
            failures.expect("reply-style", not repeated, f"the id {call.id!r} is in the history already")
            self.ids.add(call.id)
        first = answer.calls[0]
        if first.name != tool.name or not same_arguments(parse_json_or(first.arguments), given):
            self.lost.append(f"{tool.name}({json.dumps(given)}) became {first.name}({first.arguments})")


PROBES: Probes = {
    "rounds": partial(probe_rounds, thinking=False),
    "rounds with thinking": partial(probe_rounds, thinking=True),
    "long result": turns.probe_long_result,
    "results as parts": turns.probe_result_parts,
    "results by id": turns.probe_results_by_id,
    "one at a time": probe_one_at_a_time,
}
