"""prompts: system messages, content as parts and characters outside ASCII reach the model, and come back."""

import json
from typing import Any

from moebox.core.verdict import Score
from moebox.phantom import vocabulary as words
from moebox.phantom.tasks import Question, haystack_questions
from moebox.phantom.toolbox import TOOLS
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, ProbeSkipped, require_token_count
from moebox.verify.rung import Check, ProbeWarning
from moebox.verify.rungs import forms as of_requests
from moebox.verify.rungs import texts
from moebox.verify.rungs.tool_results import LEAST_GROWTH
from moebox.verify.rungs.turns import (
    GROWTH,
    PADDING,
    assistant_turn,
    chat_or_skip,
    probe_conversation_forms,
    prompt_grew,
    user_turn,
)
from moebox.verify.trials import (
    Attempt,
    QuestionAttempt,
    TrialOutcome,
    draw_question,
    judge_answer,
    require_capability,
    run_trials,
)

SYSTEM = PADDING * 30  # 720 words: an agent's system message is pages long
NOTE = "Read every word of this note before you use the tool. "
NOTES = (NOTE * 28, NOTE * 14)  # of a page, on a tool and on its first parameter: agents describe at length
ROOMY = 8192  # tokens of context that hold every tool, however they are written into the prompt
MANY_TRIALS = 12  # of each kind, below which the tools on offer are half as many
LAST_STEP = 4  # of those by which a conversation grows: one such as many more follow
MANY_TURNS = 20  # of each side: agents work for hours
LEAST_A_TOOL = 8  # tokens that a tool's name and description are at least
AS_MUCH = 0.6  # of the tokens that a letter of the first tools takes, that one of the last takes at least


async def probe_system(session: CheckSession) -> ProbeWarning | None:
    """A system message changes the answer, and the prompt grows by it, be it of pages."""
    await _need_growth(
        session, [PADDING, SYSTEM] if not session.context_limit or session.context_limit >= ROOMY // 2 else [PADDING]
    )
    await require_capability(session, _told(session, in_system=False), "repeat a code from the prompt")
    found = [await _told(session, in_system=True)() for _ in range(session.options.trial_share(0.5))]
    lost = [trial.reason for trial in found if trial.reason]
    if len(lost) > len(found) / 2:
        return ProbeWarning(f"a system message had no effect in {len(lost)} of {len(found)} answers: {lost[0]}")
    for trial in found:
        session.failures.add("prompt", trial.reason, trial.attributed_to)
    return None


async def _need_growth(session: CheckSession, texts: list[str]) -> None:
    """Failed where a prompt does not grow by a system message."""
    task = draw_question(session, "secret")
    few = await _prompt_tokens(session, task, [])
    for text in texts:
        with session.allow_slow_replies():
            many, sent = await _prompt_tokens(session, task, [_system(text)]), len(text.split())
        if not prompt_grew(few, many, LEAST_GROWTH * sent):
            raise ProbeFailed(
                f"{sent} words of a system message, yet {few} and {many} prompt tokens: it is cut or dropped"
            )


def _told(session: CheckSession, *, in_system: bool) -> Attempt:
    async def attempt() -> TrialOutcome:
        place, code = session.rng.choice(words.PLACES), words.draw_code(session.rng, 6)
        fact = f"The access code for the {place} is {code}."
        question = f"What is the access code for the {place}? Answer with the code only."
        turns = [_system(f"You are a helpful assistant. {fact}"), user_turn(question)]
        answer = await session.chat(turns if in_system else [user_turn(f"{fact} {question}")], max_tokens=64)
        return TrialOutcome(
            reason="" if code in answer.content else f"{code} expected, got {answer.content[:60]!r}",
            attributed_to="model",
        )

    return attempt


async def _prompt_tokens(session: CheckSession, task: Question, before: list[Any]) -> int | None:
    return (await session.chat([*before, *task.messages], max_tokens=16)).token_count("prompt")


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


async def probe_parts(session: CheckSession) -> Score | ProbeWarning:
    """Content as a list of parts, each of them read."""
    await require_capability(
        session,
        QuestionAttempt(session, lambda: draw_question(session, "needle", chars=200)),
        "find a code in a short text",
    )
    first = await session.post_chat(
        session.chat_request([user_turn([{"type": "text", "text": "Hello!"}])], max_tokens=16)
    )
    if first.status in REJECTED_STATUSES:
        return ProbeWarning(f"HTTP {first.status} for content as parts")

    async def attempt() -> TrialOutcome:
        (task,) = haystack_questions(session.rng, chars=200, depths=[0.5])
        answer = await session.chat([user_turn(_in_three(task))], max_tokens=task.max_tokens)
        why = judge_answer(task, answer)
        return TrialOutcome(
            reason=why,
            attributed_to="server" if why and not judge_answer(task, await session.ask_question(task)) else "model",
        )

    return await run_trials(session, "prompt", attempt, session.options.trial_share(0.34))


def _in_three(task: Question) -> list[dict[str, str]]:
    """The text before the code, the text with it, and the question: none can be spared."""
    text = str(task.messages[0]["content"])
    told, asked = text.index("The access code"), text.rindex("What is the access code")
    return [{"type": "text", "text": piece} for piece in (text[:told], text[told:asked], text[asked:])]


async def probe_whole_history(session: CheckSession) -> None:
    """Every turn of a long conversation is sent on: the prompt grows with each."""
    turns: list[Any] = [_system(PADDING * 3)]  # more than a step adds: one at which it is dropped does not grow
    last = pair = 0
    for step, answered in enumerate(("I will.", "I will.", PADDING, PADDING, "I will.")):
        asked = "Go on." if step == LAST_STEP else f"Remember: {words.draw_sentence(session.rng)}"
        turns += [user_turn(asked), assistant_turn(answered)]
        now = require_token_count(await session.chat([*turns, user_turn("Hello!")], max_tokens=8))
        last, pair = now, now - last
        grown = pair > 4 + (GROWTH if answered == PADDING else 1)
        session.failures.expect("prompt", grown, f"two turns more, yet {last - pair} and {last} prompt tokens")
    turns += [user_turn("Go on."), assistant_turn("I will.")] * MANY_TURNS
    with session.allow_slow_replies():
        told = (await session.chat([*turns, user_turn("Hello!")], max_tokens=8)).token_count("prompt") or 0
    wanted = last + MANY_TURNS * pair  # the last step said what such a pair of turns takes
    why = f"{2 * MANY_TURNS} turns more should be {wanted} prompt tokens, and are {told}: old ones are dropped"
    slack = GROWTH // 2 + MANY_TURNS  # a clock in the template may have made that pair a token more
    session.failures.expect("prompt", told >= wanted - slack, why)


async def probe_many_tools(session: CheckSession) -> str | ProbeWarning:
    """Every tool on offer is in the prompt: it grows with each."""
    with session.allow_slow_replies():
        offered = await _fitting(session, _offer(many=session.options.trials >= MANY_TRIALS))
        middle = len(offered) // 2
        few, half, most = [await _tokens_of(session, offered[:many]) for many in (1, middle, len(offered))]
    if few == most:
        return ProbeWarning(f"1 tool and {len(offered)} are {few} prompt tokens: tools are not counted, or not read")
    size = [len(json.dumps(tools)) for tools in (offered[1:middle], offered[middle:])]
    grown = half - few > LEAST_A_TOOL * (middle - 1) and (most - half) / size[1] > AS_MUCH * (half - few) / size[0]
    why = f"1, {middle} and {len(offered)} tools, yet {few}, {half} and {most} prompt tokens: some are lost"
    session.failures.expect("prompt", grown, why)
    return f"{len(offered)} tools, {most} prompt tokens"


def _offer(*, many: bool) -> list[Any]:
    """Every tool, and where `many` are wanted each under a second name too."""
    once = [tool.schema() for tool in TOOLS]
    again = [_renamed(schema, f"{schema['function']['name']}_again") for schema in once]
    return [*once, *again] if many else once


async def _fitting(session: CheckSession, tools: list[Any]) -> list[Any]:
    """As many tools as a short context holds, by what the first three take."""
    if not session.context_limit or session.context_limit >= ROOMY:
        return tools
    many = int(0.7 * session.context_limit / (await _tokens_of(session, tools[:3]) / 3))
    if many < 4:
        raise ProbeSkipped(f"a context of {session.context_limit:,} tokens holds {many} tools")
    return tools[:many]


async def _tokens_of(session: CheckSession, tools: list[Any]) -> int:
    return require_token_count(
        await session.chat([user_turn("Hello!")], tools=tools, max_tokens=1, exact=True, allow_marks=True)
    )


async def probe_long_descriptions(session: CheckSession) -> str:
    """A tool with a description of a page, as agents bring them: it is read, and something is answered."""
    task = draw_question(session, "tool_call")
    *others, last = task.tools  # the last: what stands before it is in the cache by then
    long = [*others, _described(last, f"{last['function']['description']} {NOTES[0]}", NOTES[1])]
    with session.allow_slow_replies():
        plain, answer = await session.ask_question(task), await chat_or_skip(session, list(task.messages), tools=long)
    session.failures.expect(
        "tool-call", answer.calls or not answer.is_empty, "an empty answer where a tool has a long description"
    )
    few, many = plain.token_count("prompt"), answer.token_count("prompt")
    if few is None or many is None:
        return "answered"
    more = len("".join(NOTES).split())
    grown = many > few + LEAST_GROWTH * more or many == few  # where tools are not counted, none is
    why = f"{more} words more in descriptions of a tool and of its parameter, yet {few} and {many} prompt tokens"
    session.failures.expect("prompt", grown, why)
    return f"{many - few} prompt tokens more for a long description"


def _described(schema: Any, about: str, about_first: str) -> Any:
    """The tool with these descriptions, of itself and of its first parameter."""
    function = schema["function"]
    (name, first), *others = function["parameters"]["properties"].items()
    known = {name: {**first, "description": about_first}, **dict(others)}
    parameters = {**function["parameters"], "properties": known}
    return {**schema, "function": {**function, "description": about, "parameters": parameters}}


def _renamed(schema: Any, name: str) -> Any:
    return {**schema, "function": {**schema["function"], "name": name}}


CHECK = Check(
    name="prompts",
    about="system messages, parts and characters outside ASCII, both ways",
    probes={
        "system": probe_system,
        "parts": probe_parts,
        "whole history": probe_whole_history,
        "forms of turns": probe_conversation_forms,
        "forms of requests": of_requests.probe_request_fields,
        "many tools": probe_many_tools,
        "long descriptions": probe_long_descriptions,
        "characters": texts.probe_characters,
        "in arguments": texts.probe_characters_in_arguments,
        "in JSON": texts.probe_characters_in_json,
    },
    request_estimate=48,
)
