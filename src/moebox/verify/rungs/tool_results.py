"""Results of tools: long ones, as parts, several at once. Whether they reach the model shows in the prompt's tokens."""

import dataclasses
import json
import re
from collections.abc import Sequence

from moebox.core.verdict import Score
from moebox.phantom import vocabulary as words
from moebox.phantom.toolbox import TOOLS, Tool
from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped
from moebox.verify.rung import Warned
from moebox.verify.rungs.turns import GROWTH, PADDING
from moebox.verify.trials import GOOD, Trial, trials

LONG_WORDS = 200  # of a result; agents read whole files
LEAST_GROWTH = 0.8  # tokens for each word more: no tokenizer packs two words into one
SLACK = 4  # tokens that templates may put around parts, more or less


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A call and what it returned."""

    tool: Tool
    given: dict[str, object]
    result: dict[str, object]


async def long_result(ask: Asker) -> str:
    """A long result is read to its end, and so are words beside the call: the prompt grows with them."""
    turn = _drawn(ask)
    text = " ".join(words.word(ask.rng) for _ in range(LONG_WORDS))
    histories = [_history([dataclasses.replace(turn, result=turn.result | more)]) for more in ({}, {"log": text})]
    histories.append([row | {"content": PADDING} if row["role"] == "assistant" else row for row in histories[0]])
    with ask.unhurried():
        few, many, beside = [await _prompt_tokens(ask, history, [turn.tool]) for history in histories]
    grown = many >= few + LEAST_GROWTH * LONG_WORDS
    why = f"a result of {LONG_WORDS} words more, yet {few} and {many} prompt tokens: it is cut"
    ask.tally.add("tool-history", "" if grown else why)
    why = f"24 words beside a call, yet {few} and {beside} prompt tokens: a turn's words are dropped with its calls"
    ask.tally.add("tool-history", "" if beside >= few + GROWTH else why)
    return f"{LONG_WORDS} words, {many - few} tokens"


async def parts(ask: Asker) -> Warned | str:
    """A result as a list of parts is the same result."""
    turn = _drawn(ask)
    plain = _history([turn])
    listed = [_in_parts(row) for row in plain]
    try:
        as_text, as_parts = [await _prompt_tokens(ask, history, [turn.tool]) for history in (plain, listed)]
    except Failed as problem:
        if problem.status in REFUSALS:
            return Warned(f"tool results as parts are refused: {problem}")
        raise
    kept = as_parts >= as_text - SLACK
    why = f"a result is {as_text} prompt tokens as a string and {as_parts} as parts: it is lost"
    ask.tally.add("tool-history", "" if kept else why)
    return f"{as_parts} prompt tokens as parts, {as_text} as a string"


def _in_parts(turn: dict[str, object]) -> dict[str, object]:
    return {**turn, "content": [{"type": "text", "text": turn["content"]}]} if turn["role"] == "tool" else turn


async def by_id(ask: Asker) -> Score:
    """Two results go to the calls that their ids name."""
    tool = next(tool for tool in TOOLS if tool.name == "get_time")

    async def crossed(turns: Sequence[Turn]) -> bool:
        return _crossed(turns, await ask.chat(_history(turns), tools=[tool.schema()], max_tokens=256))

    async def attempt() -> Trial:
        turns = _two(ask, tool)
        if not await crossed(turns):
            return GOOD
        again = await crossed(turns)
        return Trial(why="each of two results was told of the other's call", whose="model" if again else "server")

    return await trials(ask, "tool-history", attempt, ask.options.share(0.34))


def _two(ask: Asker, tool: Tool) -> list[Turn]:
    cities = ask.rng.sample(["Oslo", "Lima", "Cairo", "Paris", "Quito", "Delhi"], 2)
    times = ask.rng.sample(["03:17", "09:42", "14:05", "21:38"], 2)
    return [
        Turn(tool=tool, given={"city": city}, result={"time": time}) for city, time in zip(cities, times, strict=True)
    ]


def _crossed(turns: Sequence[Turn], answer: Answer) -> bool:
    """Each result is told, and each beside the other's city."""
    (a, b), (x, y) = [str(turn.given["city"]) for turn in turns], [str(turn.result["time"]) for turn in turns]
    told = re.findall("|".join(map(re.escape, (a, b, x, y))), answer.content)
    return sorted(told) == sorted((a, b, x, y)) and (_beside(told, a), _beside(told, b)) == (y, x)


def _beside(told: Sequence[str], city: str) -> str:
    """What stands in the same sentence: the first two belong together, and the last two."""
    pair = told[:2] if city in told[:2] else told[2:]
    return next((word for word in pair if word != city), "")


def _drawn(ask: Asker) -> Turn:
    tool = ask.rng.choice([tool for tool in TOOLS if tool.informs])
    given = {key: make(ask.rng) for key, make in tool.draws.items()}
    return Turn(tool=tool, given=given, result={key: make(ask.rng) for key, make in tool.result.items()})


def _history(turns: Sequence[Turn]) -> list[dict[str, object]]:
    """A question for each, one turn with all calls, and the results."""
    question = " ".join(turn.tool.asks[0].format(**turn.given) for turn in turns)
    calls = [
        {
            "id": f"functions.{turn.tool.name}:{number}",
            "type": "function",
            "function": {"name": turn.tool.name, "arguments": json.dumps(turn.given)},
        }
        for number, turn in enumerate(turns)
    ]
    results: list[dict[str, object]] = [
        {"role": "tool", "tool_call_id": call["id"], "name": turn.tool.name, "content": json.dumps(turn.result)}
        for call, turn in zip(calls, turns, strict=True)
    ]
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
    ]


async def _prompt_tokens(ask: Asker, history: list[dict[str, object]], tools: list[Tool]) -> int:
    answer = await ask.chat(history, tools=[tool.schema() for tool in tools], max_tokens=16, exact=True, odd=True)
    counted = answer.count("prompt")
    if counted is None:
        raise Skipped("the server counts no tokens")
    return counted
