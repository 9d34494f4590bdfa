"""prompts: system messages, content as parts and characters outside ASCII reach the model, and come back."""

import json
from functools import partial
from typing import Any

from moebox.core.verdict import Score
from moebox.phantom import vocabulary
from moebox.phantom.text_questions import haystack_questions
from moebox.phantom.tool_questions import TOOLS
from moebox.units import plural
from moebox.verify.checks import texts, turns
from moebox.verify.checks.turns import HELLO, PADDING, PADDING_TOKENS, assistant_turn, count_tokens, user_turn
from moebox.verify.session import REJECTED_STATUSES, ProbeFailed, ProbeSkipped, ProbeWarning
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, judge_answer

LONG_SYSTEM = PADDING * 30  # 720 words: an agent's system message is pages long
NOTE = "Read every word of this note before you use the tool. "
NOTES = (NOTE * 28, NOTE * 14)  # a page about a tool and half a page about its first parameter, as agents write
TOOLS_CONTEXT = 8192  # tokens that hold every tool, however the template writes them
LAST_STEP = 4  # of those by which a conversation grows: the size of the many turns that follow
MANY_TURNS = 20  # of each side: agents work for hours
NO_PARAMETERS = {"type": "object", "properties": {}}
MAX_TOOLS = 20  # more than the sixteen after which some servers stop reading
MIN_TOOL_TOKENS = 8  # of a tool's name and description
MIN_GROWTH_RATIO = 0.6  # tokens per character of the last tools, relative to the first ones


async def probe_system(session: CheckSession) -> ProbeWarning | None:
    """A system message changes the answer, and the prompt grows by it, even by pages."""
    question = session.draw("secret")
    short = [_system_turn("Hi."), *question.messages]  # without one a template may write a message of its own
    few = (await session.chat(short, max_tokens=1)).token_count("prompt")
    for text in [PADDING, LONG_SYSTEM] if session.is_roomy else [PADDING]:
        with session.allow_slow_replies():
            long, sent = [_system_turn(text), *question.messages], len(text.split())
            many = (await session.chat(long, max_tokens=1)).token_count("prompt")
        if not turns.prompt_grew(few, many, turns.MIN_TOKENS_PER_WORD * sent):
            counts = f"{few} and {many} prompt tokens"
            raise ProbeFailed(f"{sent} words of a system message, but {counts}: it is cut or dropped")

    async def attempt(in_system: bool) -> str:
        place, code = session.rng.choice(vocabulary.PLACES), vocabulary.draw_code(session.rng, 6)
        fact = f"The access code for the {place} is {code}."
        ask = f"What is the access code for the {place}? Answer with the code only."
        apart = [_system_turn(f"You are a helpful assistant. {fact}"), user_turn(ask)]
        answer = await session.chat(apart if in_system else [user_turn(f"{fact} {ask}")], max_tokens=64)
        return "" if code in answer.content else f"{code} expected, got {answer.content[:60]!r}"

    reasons = [await attempt(True) for _ in range(session.options.trial_share(0.38))]
    lost = [*filter(None, reasons)]
    # The limits of a model prove nothing about the server
    unable = [*filter(None, [await attempt(False) for _ in range(2)])] if lost else []
    if unable:
        raise ProbeSkipped(f"model, not server: it cannot repeat a code from the prompt ({unable[0]})")
    if len(lost) > len(reasons) / 2:
        return ProbeWarning(f"a system message had no effect in {len(lost)} of {len(reasons)} answers: {lost[0]}")
    for reason in reasons:
        session.failures.add("prompt", ModelFailure(reason))
    return None


def _system_turn(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


async def probe_parts(session: CheckSession) -> Score | ProbeWarning:
    """Every part of content that is a list of parts is read."""
    hello = [user_turn([{"type": "text", "text": "Hello!"}])]
    first = await session.post_chat(session.chat_request(hello, max_tokens=16))
    if first.status in REJECTED_STATUSES:
        return ProbeWarning(f"HTTP {first.status} for content as parts")

    async def attempt(stream: bool) -> str:
        (question,) = haystack_questions(session.rng, chars=120, depths=[0.5])
        # The text before the code, the text with it, and the question: each is needed
        text = str(question.messages[0]["content"])
        code_at, ask_at = text.index("The access code"), text.rindex("What is the access code")
        parts = [{"type": "text", "text": piece} for piece in (text[:code_at], text[code_at:ask_at], text[ask_at:])]
        answer = await session.chat([user_turn(parts)], max_tokens=question.max_tokens)
        reason = judge_answer(question, answer)
        if reason and judge_answer(question, await session.ask_question(question)):
            raise ProbeSkipped(f"model, not server: it cannot find a code in a short text ({reason})")
        return reason

    return await session.run_trials("prompt", attempt, 0.25)


async def probe_whole_history(session: CheckSession) -> None:
    """Every turn of a long conversation reaches the model: the prompt grows with each."""
    history: list[Any] = []
    if not session.refusals.get("system messages"):
        history.append(_system_turn(PADDING * 3))  # longer than a step: if it is dropped, that step does not grow
    last = pair = 0
    for step, answer in enumerate(("I will.", "I will.", PADDING, PADDING, "I will.")):
        ask = "Go on." if step == LAST_STEP else f"Remember: {vocabulary.draw_sentence(session.rng)}"
        history += [user_turn(ask), assistant_turn(answer)]
        now = await count_tokens(session, [*history, HELLO])
        least = 5 + (PADDING_TOKENS if answer == PADDING else 1)
        turns.expect_growth(session, "prompt", "two more turns", last, now, least)
        last, pair = now, now - last
    many = MANY_TURNS if session.is_roomy else MANY_TURNS // 2
    history += [user_turn("Go on."), assistant_turn("I will.")] * many
    with session.allow_slow_replies():
        count = await count_tokens(session, [*history, HELLO])
    wanted = last + many * pair  # the last step shows what such a pair of turns takes
    reason = f"{2 * many} more turns make {count} prompt tokens, not {wanted}: old ones are dropped"
    slack = PADDING_TOKENS // 2 + many  # a clock in the template may have made that pair a token longer
    session.failures.expect("prompt", count >= wanted - slack, reason)


async def probe_many_tools(session: CheckSession) -> str | ProbeWarning:
    """Every offered tool is in the prompt: it grows with each."""
    names = [tool.name for tool in TOOLS]
    if session.options.effort != "quick":  # each a second time under another name
        names += [f"{name}_again" for name in names]
    functions = [{"name": name, "description": f"{name}, as asked.", "parameters": NO_PARAMETERS} for name in names]
    tools: list[Any] = [{"type": "function", "function": function} for function in functions[:MAX_TOOLS]]
    with session.allow_slow_replies():
        tools = await tools_that_fit(session, tools)
        middle = len(tools) // 2
        # In this order a prefix cache with one entry knows the tools before
        sizes = (middle, len(tools), 1)
        half, most, few = [await count_tokens(session, [HELLO], tools=tools[:size], exact=True) for size in sizes]
    if few == most:
        return ProbeWarning(f"1 tool and {len(tools)} are {few} prompt tokens: tools are not counted, or not read")
    first, second = (len(json.dumps(part)) for part in (tools[1:middle], tools[middle:]))
    first_half, second_half = half - few, most - half
    grown = first_half > MIN_TOOL_TOKENS * (middle - 1) and second_half / second > MIN_GROWTH_RATIO * first_half / first
    reason = f"1, {middle} and {len(tools)} tools make {few}, {half} and {most} prompt tokens: some are lost"
    session.failures.expect("prompt", grown, reason)
    return f"{len(tools)} tools, {most} prompt tokens"


async def tools_that_fit(session: CheckSession, tools: list[Any]) -> list[Any]:
    """As many tools as a short context holds, judged by the first three."""
    if not session.context_limit or session.context_limit >= TOOLS_CONTEXT:
        return tools
    tokens = await count_tokens(session, [HELLO], tools=tools[:3], exact=True)
    number = int(0.45 * session.context_limit / (tokens / 3))
    if number < 4:
        raise ProbeSkipped(f"a context of {session.context_limit:,} tokens holds {plural(number, 'tool')}")
    return tools[:number]


async def probe_long_descriptions(session: CheckSession) -> str:
    """A tool with a description of a page, as agents bring them, is read, and the question answered."""
    question = session.draw("tool_call")
    needed = [tool for tool in question.tools if tool["function"]["name"] == question.expect[0][0]]
    (tool,) = needed[:1] or question.tools[:1]
    function = tool["function"]
    (name, first), *rest = function["parameters"]["properties"].items()
    notes = [note[: len(note) // (1 if session.is_roomy else 3)] for note in NOTES]
    properties = {name: {**first, "description": notes[1]}, **dict(rest)}
    description = f"{function['description']} {notes[0]}"
    changed = {"description": description, "parameters": {**function["parameters"], "properties": properties}}
    long = [{**tool, "function": {**function, **changed}}]
    with session.allow_slow_replies():
        plain = await session.ask_question(question, tools=[tool])
        answer = await turns.chat_or_skip(session, list(question.messages), tools=long)
    answered = answer.calls or not answer.is_empty
    session.failures.expect("tool-call", answered, "an empty answer to a tool with a long description")
    few, many = plain.token_count("prompt"), answer.token_count("prompt")
    if few is None or many is None:
        return "answered"
    more = len(" ".join(notes).split()) - 1
    least = turns.MIN_TOKENS_PER_WORD * more if many != few else 0  # equal: the server does not count tools
    turns.expect_growth(session, "prompt", f"{more} more words in descriptions of a tool", few, many, least)
    return f"{many - few} more prompt tokens for a long description"


PROBES: Probes = {
    "system": probe_system,
    "parts": probe_parts,
    "whole history": probe_whole_history,
    "forms of turns": partial(turns.probe_variants, table="conversation"),
    "forms of requests": partial(turns.probe_variants, table="fields"),
    "many tools": probe_many_tools,
    "long descriptions": probe_long_descriptions,
    "characters": texts.probe_characters,
    "in arguments": partial(texts.probe_forced_characters, where="arguments"),
    "in JSON": partial(texts.probe_forced_characters, where="JSON"),
}
