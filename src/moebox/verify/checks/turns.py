"""Conversations, histories of tools and requests in the variants that clients send.

Prompt tokens show whether a turn reaches the model.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moebox.core import catalogue
from moebox.core.verdict import Score
from moebox.phantom import tool_questions, vocabulary
from moebox.phantom.tool_questions import ExampleTool, calls_message, draw_values
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeFailed, ProbeSkipped, ProbeWarning, RequestRejected, error_text, skip_if_rejected
from moebox.verify.statistics import KindName, ModelFailure
from moebox.verify.trials import CheckSession
from moebox.verify.violations import is_json

PADDING = "lantern orchard thimble " * 8
PADDING_TOKENS = 16  # that these 24 words are at least

LONG_WORDS = {"quick": 60, "normal": 300, "thorough": 300}  # of a result; agents read whole files
MIN_TOKENS_PER_WORD = 0.8  # no tokenizer packs two words into one token
PARTS_SLACK = 4  # tokens that templates may put around parts
MIN_LOST = 12  # tokens: half of the shortest text that may get lost; the joints of texts vary by some tokens
UNKNOWN_LIMIT = 4096
OTHER_TOKENS = 512  # of calls, tools and all else in that prompt

ChatTurn = dict[str, object]
History = list[ChatTurn]


def user_turn(content: object) -> ChatTurn:
    return {"role": "user", "content": content}


def assistant_turn(content: object) -> ChatTurn:
    return {"role": "assistant", "content": content}


HELLO = user_turn("Hello!")


def require_token_count(answer: ChatAnswer, key: str = "prompt") -> int:
    """Tokens of a prompt or a completion. Raise ProbeSkipped if the server does not count them."""
    tokens = answer.token_count(key)
    if tokens is None:
        raise ProbeSkipped("the server counts no tokens")
    return tokens


async def count_tokens(session: CheckSession, turns: Sequence[ChatTurn], **more: Any) -> int:
    """Tokens of a prompt. Raise ProbeSkipped if the server counts none."""
    return require_token_count(await session.chat(turns, allow_marks=True, **{"max_tokens": 1, **more}))


def prompt_grew(few: int | None, many: int | None, least: float) -> bool:
    """True if a prompt is `least` tokens longer than another, or the server counts none."""
    return few is None or many is None or many >= few + least


def expect_growth(
    session: CheckSession, kind: KindName, what: str, few: int | None, many: int | None, least: float = PADDING_TOKENS
) -> None:
    """Count whether `what` made a prompt `least` tokens longer."""
    reason = f"{what} took the prompt from {few} to {many} tokens only: cut or dropped"
    session.failures.expect(kind, prompt_grew(few, many, least), reason)


async def chat_or_skip(session: CheckSession, turns: Sequence[Any], **more: Any) -> ChatAnswer:
    """Ask, or raise ProbeSkipped if the server rejects the request."""
    with skip_if_rejected("refused"):
        return await session.chat(turns, allow_marks=True, **{"max_tokens": 256, **more})


async def probe_variants(session: CheckSession, *, table: str) -> str | ProbeWarning:
    """Each conversation, or field that SDKs send by themselves, is accepted; turns are in the prompt.

    A clear rejection is a warning: agents send all of them.
    """
    rejected: list[str] = []
    known: dict[str, int] = {}  # the same beginning is counted once
    rows = catalogue.load_table("check_requests")[table]
    for number, row in session.track(rows):
        title, stream = row["title"], "request" in row and number % 2 == 1
        try:
            if "request" in row:
                request = session.chat_request([HELLO], max_tokens=4, stream=stream) | json.loads(row["request"])
                session.read_answer(await session.post_chat(request), allow_marks=True)
                continue
            many = await count_tokens(session, json.loads(row["turns"].replace("PADDING", PADDING)))
            key = row["without"]
            few = known[key] = known.get(key) or await count_tokens(session, json.loads(key))
            expect_growth(session, "prompt", title, few, many, row["growth"])
        except RequestRejected as problem:
            rejected.append(f"{title} ({problem})")
        except ProbeFailed as problem:
            session.failures.add("prompt", f"{title}: {problem}", stream=stream)
    return ProbeWarning(f"refused: {'; '.join(rejected)}") if rejected else f"{len(rows)} kinds accepted"


class ToolTurn(NamedTuple):
    tool: ExampleTool
    given: dict[str, object]
    result: dict[str, object]


def calls_turn(answer: ChatAnswer) -> dict[str, object]:
    """The assistant's turn that made these calls, as clients send it back."""
    reasoning = {"reasoning_content": answer.reasoning} if answer.reasoning else {}  # Kimi wants its reasoning back
    return {**calls_message(*answer.calls), "content": answer.content or None, **reasoning}  # null, as SDKs send it


def result_turns(answer: ChatAnswer, result: Any, *, named: bool = True) -> History:
    """The same result for each call; some templates want a name, OpenAI's SDKs send none."""
    turns: History = []
    for call in answer.calls:
        name = {"name": call.name} if named else {}
        turns.append({"role": "tool", "tool_call_id": call.id, **name, "content": json.dumps(result)})
    return turns


def _draw_turn(session: CheckSession) -> ToolTurn:
    """A call of a random tool, with random arguments and a random result."""
    tool = session.rng.choice(tool_questions.INFORMING_TOOLS)
    given = draw_values(session.rng, tool.arguments)
    return ToolTurn(tool=tool, given=given, result=draw_values(session.rng, tool.result))


def _build_history(turns: Sequence[ToolTurn]) -> History:
    """A question for each call, one turn with all calls, and the results."""
    question = " ".join(turn.tool.prompts[0].format(**turn.given) for turn in turns)
    calls = [tool_questions.tool_call(turn.tool.name, turn.given, number) for number, turn in enumerate(turns)]
    results = [dict(tool_questions.result_message(call, turn.result)) for call, turn in zip(calls, turns, strict=True)]
    return [user_turn(question), {**calls_message(*calls), "content": None}, *results]


async def _prompt_tokens(session: CheckSession, history: History, tools: Iterable[ExampleTool]) -> int:
    return await count_tokens(session, history, tools=[tool.schema() for tool in tools], max_tokens=8, exact=True)


async def probe_long_result(session: CheckSession) -> str:
    """Long results, two in a row, and words beside the calls are read to their ends.

    The same words in the user's turn show how many tokens they are. If results have fewer, each place is tried alone.
    """
    turns = [_draw_turn(session), _draw_turn(session)]
    room = max((session.context_limit or UNKNOWN_LIMIT) - OTHER_TOKENS, 0)
    size = min(LONG_WORDS[session.options.effort], room // (18 if session.is_roomy else 60))
    texts = [" ".join(vocabulary.draw_word(session.rng) for _ in range(words)) for words in (size, size // 2)]
    tools = {turn.tool.name: turn.tool for turn in turns}.values()
    plain = _build_history(turns)
    in_question = [user_turn(f"{plain[0]['content']} {PADDING} {' '.join(texts)}"), *plain[1:]]
    added = {0: PADDING, 1: texts[0], 2: texts[1]}
    with session.allow_slow_replies():
        wanted = await _prompt_tokens(session, in_question, tools)
        found = await _prompt_tokens(session, _with_texts(plain, added), tools)
        if found >= wanted - MIN_LOST:
            session.failures.add("tool-history")
            return f"{size + size // 2} words in two results, {found} prompt tokens"
        few = await _prompt_tokens(session, plain, tools)
        for place, name in enumerate(("words beside calls", "the first of two results", "the second of two results")):
            many = await _prompt_tokens(session, _with_texts(plain, {place: added[place]}), tools)
            more = len(added[place].split())
            what, least = f"{more} more words in {name}", MIN_TOKENS_PER_WORD * more
            expect_growth(session, "tool-history", what, few, many, least)
    reason = f"the same words are {wanted} prompt tokens in the question and {found} in results"
    session.failures.add("tool-history", reason)
    return f"{wanted - found} prompt tokens lost"


def _with_texts(history: History, texts: Mapping[int, str]) -> History:
    """The history with words beside the calls (0) and in the results (1, 2)."""
    first, called, *results = history
    rows = [row | {"content": f"{row['content']} {texts.get(place, '')}"} for place, row in enumerate(results, 1)]
    return [first, called | {"content": texts.get(0)}, *rows]


async def probe_result_parts(session: CheckSession) -> str:
    """A result as a list of parts is the same result."""
    turn = _draw_turn(session)
    plain = _build_history([turn])
    first, called, result = plain
    parts = [first, called, result | {"content": [{"type": "text", "text": result["content"]}]}]
    # A call whose arguments hold quotes, backslashes and line ends, as code does, and a result that is empty
    function = {"name": result["name"], "arguments": json.dumps({"text": 'print "é 東"\n\t\\'})}
    calls = [{"id": result["tool_call_id"], "type": "function", "function": function}]
    awkward = [first, called | {"tool_calls": calls}, result | {"content": ""}]
    with skip_if_rejected("tool results as parts are refused", "agents"):
        as_text, as_parts = [await _prompt_tokens(session, history, [turn.tool]) for history in (plain, parts)]
    with skip_if_rejected("an empty result after a call with quotes and line ends is refused", "agents"):
        await _prompt_tokens(session, awkward, [turn.tool])
    reason = f"a result is {as_text} prompt tokens as a string and {as_parts} as parts: it is lost"
    session.failures.expect("tool-history", as_parts >= as_text - PARTS_SLACK, reason)
    return f"{as_parts} prompt tokens as parts, {as_text} as a string"


async def probe_results_by_id(session: CheckSession) -> Score | ProbeWarning:
    """Two results belong to the calls that their ids name, also if the second call was done first."""
    tool = next(tool for tool in tool_questions.TOOLS if tool.name == "get_time")

    def draw_two() -> list[ToolTurn]:
        cities = session.rng.sample(["Oslo", "Lima", "Cairo", "Paris", "Quito", "Delhi"], 2)
        times = session.rng.sample(["03:17", "09:42", "14:05", "21:38"], 2)
        pairs = zip(cities, times, strict=True)
        return [ToolTurn(tool=tool, given={"city": city}, result={"time": time}) for city, time in pairs]

    async def are_swapped(turns: Sequence[ToolTurn], *, reverse: bool = False) -> bool:
        first, called, *results = _build_history(turns)
        history = [first, called, *(reversed(results) if reverse else results)]
        answer = await session.chat(history, tools=[tool.schema()], max_tokens=256)
        (a, b), (x, y) = [str(turn.given["city"]) for turn in turns], [str(turn.result["time"]) for turn in turns]
        named = re.findall("|".join(map(re.escape, (a, b, x, y))), answer.content)
        # The first two belong together, and the last two: each time stands beside the other's city
        swapped = ({a, y}, {b, x})
        return sorted(named) == sorted((a, b, x, y)) and {*named[:2]} in swapped and {*named[2:]} in swapped

    async def attempt(stream: bool) -> str:
        turns = draw_two()
        if not await are_swapped(turns):
            return ""
        reason = "each of two results was attributed to the other's call"
        return ModelFailure(reason) if await are_swapped(turns) else reason

    score = await session.run_trials("tool-history", attempt, 0.17)
    swapped = await are_swapped(draw_two(), reverse=True) and await are_swapped(draw_two(), reverse=True)
    if not swapped or score.passed < score.trials:
        return score
    return ProbeWarning("results in another order than their calls are attributed to the wrong call: ids are not read")


async def probe_malformed_history(session: CheckSession) -> str:
    """Cut arguments, a result without its call, a call without a name: each gets some answer."""
    statuses = []
    for row in catalogue.load_table("check_requests")["malformed"]:
        title, history, question = row["title"], json.loads(row["turns"]), session.draw("tool_call")
        request = session.chat_request([*history, *question.messages], tools=list(question.tools), max_tokens=16)
        exchange = await session.post(session.chat_url, request)
        if exchange.error:
            raise ProbeFailed(f"{title}: {exchange.error}")
        if not is_json(exchange.response):
            raise ProbeFailed(f"{title}: HTTP {exchange.status} with something that is not JSON")
        reason = f"{title}: HTTP {exchange.status} for a client's mistake{error_text(exchange)}"
        session.failures.expect("errors", exchange.status < 500, reason)
        statuses.append(str(exchange.status))
        await session.require_answer(f"{title}: the next, ordinary question got an empty answer")
    return f"answered {', '.join(statuses)}"
