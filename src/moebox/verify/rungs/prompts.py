"""prompts: system messages, content as parts and characters outside ASCII reach the model, and come back."""

import json
from typing import Any

from moebox.core.verdict import Score
from moebox.phantom import vocabulary as words
from moebox.phantom.tasks import Task, haystack
from moebox.phantom.toolbox import TOOLS
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped, counted
from moebox.verify.rung import Rung, Warned
from moebox.verify.rungs import forms as of_requests
from moebox.verify.rungs import texts
from moebox.verify.rungs.tool_results import LEAST_GROWTH
from moebox.verify.rungs.turns import GROWTH, PADDING, assistant, forms, grew, or_skipped, user
from moebox.verify.trials import Attempt, Questions, Trial, able, draw, judge, trials

SYSTEM = PADDING * 30  # 720 words: an agent's system message is pages long
NOTE = "Read every word of this note before you use the tool. "
NOTES = (NOTE * 28, NOTE * 14)  # of a page, on a tool and on its first parameter: agents describe at length
ROOMY = 8192  # tokens of context that hold every tool, however they are written into the prompt
MANY_TRIALS = 12  # of each kind, below which the tools on offer are half as many
LAST_STEP = 4  # of those by which a conversation grows: one such as many more follow
MANY_TURNS = 20  # of each side: agents work for hours
LEAST_A_TOOL = 8  # tokens that a tool's name and description are at least
AS_MUCH = 0.6  # of the tokens that a letter of the first tools takes, that one of the last takes at least


async def system(ask: Asker) -> Warned | None:
    """A system message changes the answer, and the prompt grows by it, be it of pages."""
    await _need_growth(ask, [PADDING, SYSTEM] if not ask.limit or ask.limit >= ROOMY // 2 else [PADDING])
    await able(ask, _told(ask, in_system=False), "repeat a code from the prompt")
    found = [await _told(ask, in_system=True)() for _ in range(ask.options.share(0.5))]
    lost = [trial.why for trial in found if trial.why]
    if len(lost) > len(found) / 2:
        return Warned(f"a system message had no effect in {len(lost)} of {len(found)} answers: {lost[0]}")
    for trial in found:
        ask.tally.add("prompt", trial.why, trial.whose)
    return None


async def _need_growth(ask: Asker, texts: list[str]) -> None:
    """Failed where a prompt does not grow by a system message."""
    task = draw(ask, "secret")
    few = await _prompt_tokens(ask, task, [])
    for text in texts:
        with ask.unhurried():
            many, sent = await _prompt_tokens(ask, task, [_system(text)]), len(text.split())
        if not grew(few, many, LEAST_GROWTH * sent):
            raise Failed(f"{sent} words of a system message, yet {few} and {many} prompt tokens: it is cut or dropped")


def _told(ask: Asker, *, in_system: bool) -> Attempt:
    async def attempt() -> Trial:
        place, code = ask.rng.choice(words.PLACES), words.code(ask.rng, 6)
        fact = f"The access code for the {place} is {code}."
        question = f"What is the access code for the {place}? Answer with the code only."
        turns = [_system(f"You are a helpful assistant. {fact}"), user(question)]
        answer = await ask.chat(turns if in_system else [user(f"{fact} {question}")], max_tokens=64)
        return Trial(
            why="" if code in answer.content else f"{code} expected, got {answer.content[:60]!r}", whose="model"
        )

    return attempt


async def _prompt_tokens(ask: Asker, task: Task, before: list[Any]) -> int | None:
    return (await ask.chat([*before, *task.messages], max_tokens=16)).count("prompt")


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


async def parts(ask: Asker) -> Score | Warned:
    """Content as a list of parts, each of them read."""
    await able(ask, Questions(ask, lambda: draw(ask, "needle", chars=200)), "find a code in a short text")
    first = await ask.send(ask.body([user([{"type": "text", "text": "Hello!"}])], max_tokens=16))
    if first.status in REFUSALS:
        return Warned(f"HTTP {first.status} for content as parts")

    async def attempt() -> Trial:
        (task,) = haystack(ask.rng, chars=200, depths=[0.5])
        answer = await ask.chat([user(_in_three(task))], max_tokens=task.max_tokens)
        why = judge(task, answer)
        return Trial(why=why, whose="server" if why and not judge(task, await ask.ask(task)) else "model")

    return await trials(ask, "prompt", attempt, ask.options.share(0.34))


def _in_three(task: Task) -> list[dict[str, str]]:
    """The text before the code, the text with it, and the question: none can be spared."""
    text = str(task.messages[0]["content"])
    told, asked = text.index("The access code"), text.rindex("What is the access code")
    return [{"type": "text", "text": piece} for piece in (text[:told], text[told:asked], text[asked:])]


async def whole_history(ask: Asker) -> None:
    """Every turn of a long conversation is sent on: the prompt grows with each."""
    turns: list[Any] = [_system(PADDING * 3)]  # more than a step adds: one at which it is dropped does not grow
    last = pair = 0
    for step, answered in enumerate(("I will.", "I will.", PADDING, PADDING, "I will.")):
        asked = "Go on." if step == LAST_STEP else f"Remember: {words.sentence(ask.rng)}"
        turns += [user(asked), assistant(answered)]
        now = counted(await ask.chat([*turns, user("Hello!")], max_tokens=8))
        last, pair = now, now - last
        grown = pair > 4 + (GROWTH if answered == PADDING else 1)
        ask.tally.need("prompt", grown, f"two turns more, yet {last - pair} and {last} prompt tokens")
    turns += [user("Go on."), assistant("I will.")] * MANY_TURNS
    with ask.unhurried():
        told = (await ask.chat([*turns, user("Hello!")], max_tokens=8)).count("prompt") or 0
    wanted = last + MANY_TURNS * pair  # the last step said what such a pair of turns takes
    why = f"{2 * MANY_TURNS} turns more should be {wanted} prompt tokens, and are {told}: old ones are dropped"
    slack = GROWTH // 2 + MANY_TURNS  # a clock in the template may have made that pair a token more
    ask.tally.need("prompt", told >= wanted - slack, why)


async def many_tools(ask: Asker) -> str | Warned:
    """Every tool on offer is in the prompt: it grows with each."""
    with ask.unhurried():
        offered = await _fitting(ask, _offer(many=ask.options.trials >= MANY_TRIALS))
        middle = len(offered) // 2
        few, half, most = [await _tokens_of(ask, offered[:many]) for many in (1, middle, len(offered))]
    if few == most:
        return Warned(f"1 tool and {len(offered)} are {few} prompt tokens: tools are not counted, or not read")
    size = [len(json.dumps(tools)) for tools in (offered[1:middle], offered[middle:])]
    grown = half - few > LEAST_A_TOOL * (middle - 1) and (most - half) / size[1] > AS_MUCH * (half - few) / size[0]
    why = f"1, {middle} and {len(offered)} tools, yet {few}, {half} and {most} prompt tokens: some are lost"
    ask.tally.need("prompt", grown, why)
    return f"{len(offered)} tools, {most} prompt tokens"


def _offer(*, many: bool) -> list[Any]:
    """Every tool, and where `many` are wanted each under a second name too."""
    once = [tool.schema() for tool in TOOLS]
    again = [_renamed(schema, f"{schema['function']['name']}_again") for schema in once]
    return [*once, *again] if many else once


async def _fitting(ask: Asker, tools: list[Any]) -> list[Any]:
    """As many tools as a short context holds, by what the first three take."""
    if not ask.limit or ask.limit >= ROOMY:
        return tools
    many = int(0.7 * ask.limit / (await _tokens_of(ask, tools[:3]) / 3))
    if many < 4:
        raise Skipped(f"a context of {ask.limit:,} tokens holds {many} tools")
    return tools[:many]


async def _tokens_of(ask: Asker, tools: list[Any]) -> int:
    return counted(await ask.chat([user("Hello!")], tools=tools, max_tokens=1, exact=True, odd=True))


async def long_descriptions(ask: Asker) -> str:
    """A tool with a description of a page, as agents bring them: it is read, and something is answered."""
    task = draw(ask, "tool_call")
    *others, last = task.tools  # the last: what stands before it is in the cache by then
    long = [*others, _described(last, f"{last['function']['description']} {NOTES[0]}", NOTES[1])]
    with ask.unhurried():
        plain, answer = await ask.ask(task), await or_skipped(ask, list(task.messages), tools=long)
    ask.tally.need(
        "tool-call", answer.calls or not answer.is_empty, "an empty answer where a tool has a long description"
    )
    few, many = plain.count("prompt"), answer.count("prompt")
    if few is None or many is None:
        return "answered"
    more = len("".join(NOTES).split())
    grown = many > few + LEAST_GROWTH * more or many == few  # where tools are not counted, none is
    why = f"{more} words more in descriptions of a tool and of its parameter, yet {few} and {many} prompt tokens"
    ask.tally.need("prompt", grown, why)
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


RUNG = Rung(
    name="prompts",
    about="system messages, parts and characters outside ASCII, both ways",
    probes={
        "system": system,
        "parts": parts,
        "whole history": whole_history,
        "forms of turns": forms,
        "forms of requests": of_requests.requests,
        "many tools": many_tools,
        "long descriptions": long_descriptions,
        "characters": texts.characters,
        "in arguments": texts.in_arguments,
        "in JSON": texts.in_json,
    },
    cost=48,
)
