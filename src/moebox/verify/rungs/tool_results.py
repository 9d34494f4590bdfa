"""Results of tools: long ones, as parts, several at once. Whether they reach the model shows in the prompt's tokens."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

from moebox.core.verdict import Score
from moebox.phantom import vocabulary as words
from moebox.phantom.toolbox import TOOLS, ExampleTool
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, require_token_count
from moebox.verify.rung import ProbeWarning
from moebox.verify.rungs.turns import PADDING, user_turn
from moebox.verify.trials import PASSED, TrialOutcome, run_trials

LONG_WORDS = 300  # of a result; agents read whole files
MANY_TRIALS = 12  # of each kind, below which it is a fifth of that
LEAST_GROWTH = 0.8  # tokens for each word more: no tokenizer packs two words into one
SLACK = 4  # tokens that templates may put around parts, more or less
LEAST_LOST = (
    12  # tokens: half of the shortest text that may get lost; where texts meet, some are one token more or less
)
UNKNOWN_LIMIT = 4096
BESIDE = 512  # tokens of calls, tools and all else in that prompt


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolTurn:
    """A call and what it returned."""

    tool: ExampleTool
    given: dict[str, object]
    result: dict[str, object]


async def probe_long_result(session: CheckSession) -> str:
    """Long results, two in a row, and words beside the calls are read to their ends.

    The same words in the user's turn say how many tokens they are; where they are fewer as results, each is looked at.
    """
    turns = [_drawn(session), _drawn(session)]
    most = LONG_WORDS if session.options.trials >= MANY_TRIALS else LONG_WORDS // 5
    size = min(
        most, max((session.context_limit or UNKNOWN_LIMIT) - BESIDE, 0) // 8
    )  # with all else in the prompt it is to fit
    texts = [" ".join(words.draw_word(session.rng) for _ in range(many)) for many in (size, size // 2)]
    tools = list({turn.tool.name: turn.tool for turn in turns}.values())
    plain = _history(turns)
    told = [user_turn(f"{plain[0]['content']} {PADDING} {' '.join(texts)}"), *plain[1:]]
    shown = {0: PADDING, 1: texts[0], 2: texts[1]}
    with session.allow_slow_replies():
        wanted, found = [await _prompt_tokens(session, rows, tools) for rows in (told, _with(plain, shown))]
        if found >= wanted - LEAST_LOST:
            session.failures.add("tool-history")
            return f"{size + size // 2} words in two results, {found} prompt tokens"
        await _each_looked_at(session, plain, shown, tools)
    session.failures.add(
        "tool-history", f"the same words are {wanted} prompt tokens in the question and {found} in results"
    )
    return f"{wanted - found} prompt tokens lost"


async def _each_looked_at(
    session: CheckSession, plain: list[dict[str, object]], shown: Mapping[int, str], tools: list[ExampleTool]
) -> None:
    """Which of the places where words stand do not reach the model."""
    few = await _prompt_tokens(session, plain, tools)
    for place, name in enumerate(("words beside calls", "the first of two results", "the second of two results")):
        many = await _prompt_tokens(session, _with(plain, {place: shown[place]}), tools)
        more = len(shown[place].split())
        why = f"{more} words more in {name}, yet {few} and {many} prompt tokens: they are cut or dropped"
        session.failures.expect("tool-history", many >= few + LEAST_GROWTH * more, why)


def _with(history: list[dict[str, object]], texts: Mapping[int, str]) -> list[dict[str, object]]:
    """The history with words beside the calls (0) and in the results (1, 2)."""
    first, called, *results = history
    rows = [row | {"content": f"{row['content']} {texts.get(place, '')}"} for place, row in enumerate(results, 1)]
    return [first, called | {"content": texts.get(0)}, *rows]


async def probe_result_parts(session: CheckSession) -> ProbeWarning | str:
    """A result as a list of parts is the same result."""
    turn = _drawn(session)
    plain = _history([turn])
    listed = [_in_parts(row) for row in plain]
    at = "tool results as parts are"
    try:
        as_text, as_parts = [await _prompt_tokens(session, history, [turn.tool]) for history in (plain, listed)]
        at = "an empty result after a call with quotes and line ends is"
        await _prompt_tokens(session, _awkward(plain), [turn.tool])
    except ProbeFailed as problem:
        if problem.status in REJECTED_STATUSES:
            return ProbeWarning(f"{at} refused: {problem}")
        raise
    why = f"a result is {as_text} prompt tokens as a string and {as_parts} as parts: it is lost"
    session.failures.expect("tool-history", as_parts >= as_text - SLACK, why)
    return f"{as_parts} prompt tokens as parts, {as_text} as a string"


def _awkward(history: list[dict[str, object]]) -> list[dict[str, object]]:
    """A call whose arguments hold quotes, backslashes and line ends, as code does, and a result that is empty."""
    first, called, result = history
    function = {"name": result["name"], "arguments": json.dumps({"text": 'say "é 東"\n\t\\'})}
    calls = [{"id": result["tool_call_id"], "type": "function", "function": function}]
    return [first, called | {"tool_calls": calls}, result | {"content": ""}]


def _in_parts(turn: dict[str, object]) -> dict[str, object]:
    return {**turn, "content": [{"type": "text", "text": turn["content"]}]} if turn["role"] == "tool" else turn


async def probe_results_by_id(session: CheckSession) -> Score | ProbeWarning:
    """Two results go to the calls that their ids name, also where the second call was done first."""
    tool = next(tool for tool in TOOLS if tool.name == "get_time")

    async def crossed(turns: Sequence[ToolTurn], *, late: bool = False) -> bool:
        first, called, *results = _history(turns)
        history = [first, called, *(reversed(results) if late else results)]
        return _crossed(turns, await session.chat(history, tools=[tool.schema()], max_tokens=256))

    async def attempt() -> TrialOutcome:
        turns = _two(session, tool)
        if not await crossed(turns):
            return PASSED
        again = await crossed(turns)
        return TrialOutcome(
            reason="each of two results was told of the other's call", attributed_to="model" if again else "server"
        )

    score = await run_trials(session, "tool-history", attempt, session.options.trial_share(0.17))
    swapped = [await crossed(_two(session, tool), late=True) for _ in range(2)]
    if all(swapped) and score.passed == score.trials:
        return ProbeWarning("results in another order than their calls are told of the wrong call: ids are not read")
    return score


def _two(session: CheckSession, tool: ExampleTool) -> list[ToolTurn]:
    cities = session.rng.sample(["Oslo", "Lima", "Cairo", "Paris", "Quito", "Delhi"], 2)
    times = session.rng.sample(["03:17", "09:42", "14:05", "21:38"], 2)
    return [
        ToolTurn(tool=tool, given={"city": city}, result={"time": time})
        for city, time in zip(cities, times, strict=True)
    ]


def _crossed(turns: Sequence[ToolTurn], answer: ChatAnswer) -> bool:
    """Each result is told, and each beside the other's city."""
    (a, b), (x, y) = [str(turn.given["city"]) for turn in turns], [str(turn.result["time"]) for turn in turns]
    told = re.findall("|".join(map(re.escape, (a, b, x, y))), answer.content)
    return sorted(told) == sorted((a, b, x, y)) and (_beside(told, a), _beside(told, b)) == (y, x)


def _beside(told: Sequence[str], city: str) -> str:
    """What stands in the same sentence: the first two belong together, and the last two."""
    pair = told[:2] if city in told[:2] else told[2:]
    return next((word for word in pair if word != city), "")


def _drawn(session: CheckSession) -> ToolTurn:
    tool = session.rng.choice([tool for tool in TOOLS if tool.informs])
    given = {key: make(session.rng) for key, make in tool.arguments.items()}
    return ToolTurn(tool=tool, given=given, result={key: make(session.rng) for key, make in tool.result.items()})


def _history(turns: Sequence[ToolTurn]) -> list[dict[str, object]]:
    """A question for each, one turn with all calls, and the results."""
    question = " ".join(turn.tool.prompts[0].format(**turn.given) for turn in turns)
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


async def _prompt_tokens(session: CheckSession, history: list[dict[str, object]], tools: list[ExampleTool]) -> int:
    schemas = [tool.schema() for tool in tools]
    return require_token_count(await session.chat(history, tools=schemas, max_tokens=16, exact=True, allow_marks=True))
