"""prompts: system messages, content as parts and characters outside ASCII reach the model, and come back."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from moebox.core.verdict import Score
from moebox.phantom import vocabulary as words
from moebox.phantom.tasks import Task, haystack
from moebox.phantom.toolbox import TOOLS
from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped
from moebox.verify.breach import strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung, Warned
from moebox.verify.rungs import turns
from moebox.verify.rungs.turns import GROWTH, PADDING
from moebox.verify.trials import Attempt, Questions, Trial, able, draw, judge, trials
from moebox.verify.unicode import EXACT, TEXTS, WIDE, garbled

NOTES = "Read every word of this note before you use the tool. " * 32  # of a page: agents describe at length
ROOMY = 8192  # tokens of context that hold every tool, however they are written into the prompt
MANY_TRIALS = 12  # of each kind, below which the tools on offer are half as many
LEAST_A_TOOL = 8  # tokens that a tool's name and description are at least


async def system(ask: Asker) -> Warned | None:
    """A system message changes the answer, and the prompt grows by it."""
    few, many = [await _prompt_tokens(ask, draw(ask, "secret"), turns) for turns in ([], [_system(PADDING)])]
    if few is not None and many is not None and many < few + GROWTH:
        raise Failed(f"24 words of a system message, yet {few} and {many} prompt tokens: it is dropped")
    await able(ask, _told(ask, in_system=False), "repeat a code from the prompt")
    found = [await _told(ask, in_system=True)() for _ in range(ask.options.share(0.5))]
    lost = [trial.why for trial in found if trial.why]
    if len(lost) > len(found) / 2:
        return Warned(f"a system message had no effect in {len(lost)} of {len(found)} answers: {lost[0]}")
    for trial in found:
        ask.tally.add("prompt", trial.why, trial.whose)
    return None


def _told(ask: Asker, *, in_system: bool) -> Attempt:
    async def attempt() -> Trial:
        place, code = ask.rng.choice(words.PLACES), words.code(ask.rng, 6)
        fact = f"The access code for the {place} is {code}."
        question = f"What is the access code for the {place}? Answer with the code only."
        turns = [_system(f"You are a helpful assistant. {fact}"), _user(question)]
        answer = await ask.chat(turns if in_system else [_user(f"{fact} {question}")], max_tokens=64)
        return Trial(
            why="" if code in answer.content else f"{code} expected, got {answer.content[:60]!r}", whose="model"
        )

    return attempt


async def _prompt_tokens(ask: Asker, task: Task, before: list[Any]) -> int | None:
    return (await ask.chat([*before, *task.messages], max_tokens=16)).count("prompt")


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def _user(content: Any) -> dict[str, object]:
    return {"role": "user", "content": content}


async def parts(ask: Asker) -> Score | Warned:
    """Content as a list of parts, each of them read."""
    await able(ask, Questions(ask, lambda: draw(ask, "needle", chars=200)), "find a code in a short text")
    first = await ask.send(ask.body([_user([{"type": "text", "text": "Hello!"}])], max_tokens=16))
    if first.status in REFUSALS:
        return Warned(f"HTTP {first.status} for content as parts")

    async def attempt() -> Trial:
        (task,) = haystack(ask.rng, chars=200, depths=[0.5])
        answer = await ask.chat([_user(_in_three(task))], max_tokens=task.max_tokens)
        why = judge(task, answer)
        return Trial(why=why, whose="server" if why and not judge(task, await ask.ask(task)) else "model")

    return await trials(ask, "prompt", attempt, ask.options.share(0.34))


def _in_three(task: Task) -> list[dict[str, str]]:
    """The text before the code, the text with it, and the question: none can be spared."""
    text = str(task.messages[0]["content"])
    told, asked = text.index("The access code"), text.rindex("What is the access code")
    return [{"type": "text", "text": piece} for piece in (text[:told], text[told:asked], text[asked:])]


async def characters(ask: Asker) -> str:
    """Text outside ASCII is read, and comes back as it was."""
    copied, unread = 0, ""
    texts = _some(ask)
    for number, text in enumerate(texts):
        ask.trial = (number + 1, len(texts))
        stream = number % 2 == 1
        heard = await _repeated(ask, text, stream)
        why = garbled(text, heard)
        same = text in heard
        if not (same or why) and text in await _repeated(ask, text, not stream):
            why = f"{text!r} came back as {heard[:60]!r} {_HOW[stream]}, and as it was {_HOW[not stream]}"
        ask.tally.add("unicode" + STREAMED * stream, why)
        copied += same
        unread = unread or ("" if same or why else f"{text!r} became {heard[:60]!r}")
    if not copied and unread:
        raise Skipped(f"model, not server: it cannot copy such text ({unread})")
    return f"{copied} of {len(texts)} texts copied" + (f"; {unread}" if unread else "")


_HOW = {False: "whole", True: "streamed"}


async def _repeated(ask: Asker, text: str, stream: bool) -> str:
    request = ask.body([_user(f"Repeat after me: {text}")], max_tokens=128, stream=stream or None)
    # llama.cpp writes what its grammar says whatever the model knows; others ignore the field
    exchange = await ask.send(request | {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"})
    if exchange.status in REFUSALS:
        exchange = await ask.send(request)
    return ask.read(exchange, stream=stream, odd=True).content


async def in_arguments(ask: Asker) -> str:
    """The same in the arguments of a tool whose schema allows nothing else."""
    return await _forced(ask, _called, "arguments")


async def in_json(ask: Asker) -> str:
    """The same in JSON whose schema allows nothing else."""
    return await _forced(ask, _constrained, "JSON")


async def _forced(ask: Asker, make: Callable[[Asker, str, bool], Any], where: str) -> str:
    """Texts that are the only value their schema allows; judged where the server holds to that at all."""
    plain = words.invented(ask.rng)  # a word that no server spoils shows whether schemas are held to
    texts = [plain, *(f"{text} {WIDE}" for text in _some(ask)), *EXACT]
    asked = [(text, stream) for text in texts for stream in (True, False)]
    got: list[str | None] = []
    for number, (text, stream) in enumerate(asked):
        ask.trial = (number + 1, len(asked))
        got.append(await make(ask, text, stream))
        if number == 1 and not _kept(asked, got):
            raise Skipped(f"the server does not hold {where} to a schema with one value: not judged")
    kept = _kept(asked, got)
    enforced = kept > len(asked) / 2
    for (text, stream), value in zip(asked, got, strict=True):
        ask.tally.add("unicode" + STREAMED * stream, _changed(text, value, enforced=enforced))
    return f"{kept} of {len(asked)} texts kept"


def _kept(asked: Sequence[tuple[str, bool]], got: Sequence[str | None]) -> int:
    return sum(text == value for (text, _), value in zip(asked, got, strict=False))


def _changed(text: str, got: str | None, *, enforced: bool) -> str:
    """ "" or what became of a text; of one that is enforced every change is the server's."""
    if got is None or got == text:
        return ""
    return garbled(text, got) or (f"{text!r} came as {got!r}, where the schema allows nothing else" if enforced else "")


def _some(ask: Asker) -> list[str]:
    """All texts, or some of them where little is to be asked."""
    return ask.rng.sample(TEXTS, min(len(TEXTS), ask.options.share(1.0)))


async def _called(ask: Asker, text: str, stream: bool) -> str | None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": [text]}}, "required": ["city"]}
    about = "Get the current weather in a city."
    tool = {"type": "function", "function": {"name": "get_weather", "description": about, "parameters": schema}}
    turns = [_user("What is the weather in the only city that there is?")]
    answer = await _or_skipped(ask, turns, tools=[tool], tool_choice="required", stream=stream or None)
    return _city(answer.calls[0].arguments) if answer.calls else None


async def _constrained(ask: Asker, text: str, stream: bool) -> str | None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": [text]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}
    turns = [_user("Reply with a JSON object with the key city. There is one city only.")]
    answer = await _or_skipped(ask, turns, response_format=form, stream=stream or None)
    return _city(answer.content)


async def _or_skipped(ask: Asker, turns: list[Any], **more: Any) -> Answer:
    try:
        return await ask.chat(turns, odd=True, max_tokens=256, **more)
    except Failed as problem:
        if problem.status in REFUSALS:
            raise Skipped(f"refused: {problem}") from None
        raise


def _city(text: str) -> str | None:
    try:
        found = strict_json(text)
    except ValueError:
        return None
    value = found.get("city") if isinstance(found, dict) else None
    return value if isinstance(value, str) else None


async def whole_history(ask: Asker) -> None:
    """Every turn of a long conversation is sent on: the prompt grows with each."""
    turns: list[Any] = []
    last = 0
    for added in (1, 1, 1, GROWTH, GROWTH):
        answered = PADDING if added == GROWTH else "I will."
        turns += [_user(f"Remember: {words.sentence(ask.rng)}"), {"role": "assistant", "content": answered}]
        counted = (await ask.chat([*turns, _user("Hello!")], max_tokens=8)).count("prompt")
        if counted is None:
            raise Skipped("the server counts no tokens")
        grown = counted > last + 4 + added
        ask.tally.add("prompt", "" if grown else f"two turns more, yet {last} and {counted} prompt tokens")
        last = counted


async def many_tools(ask: Asker) -> str:
    """Every tool on offer is in the prompt: it grows with each."""
    once = [tool.schema() for tool in TOOLS]
    again = [_renamed(schema, f"{schema['function']['name']}_again") for schema in once]
    offered = [*once, *again] if ask.options.trials >= MANY_TRIALS else once
    ask.patient = True  # a long prompt is not late
    try:
        offered = await _fitting(ask, offered)
        middle = len(offered) // 2
        few, half, most = [await _tokens_of(ask, offered[:many]) for many in (1, middle, len(offered))]
    finally:
        ask.patient = False
    grown = min(half - few, most - half) > LEAST_A_TOOL * (middle - 1)
    why = f"1, {middle} and {len(offered)} tools, yet {few}, {half} and {most} prompt tokens: some are lost"
    ask.tally.add("prompt", "" if grown or few == most else why)  # where none counts, none may be counted
    return f"{len(offered)} tools, {most} prompt tokens"


async def _fitting(ask: Asker, tools: list[Any]) -> list[Any]:
    """As many tools as a short context holds, by what the first three take."""
    if not ask.limit or ask.limit >= ROOMY:
        return tools
    many = int(0.7 * ask.limit / (await _tokens_of(ask, tools[:3]) / 3))
    if many < 4:
        raise Skipped(f"a context of {ask.limit:,} tokens holds {many} tools")
    return tools[:many]


async def _tokens_of(ask: Asker, tools: list[Any]) -> int:
    counted = (await ask.chat([_user("Hello!")], tools=tools, max_tokens=1, exact=True, odd=True)).count("prompt")
    if counted is None:
        raise Skipped("the server counts no tokens")
    return counted


async def long_descriptions(ask: Asker) -> str:
    """A tool with a description of a page, as agents bring them: it is read, and something is answered."""
    task = draw(ask, "tool_call")
    first, *others = task.tools
    long = [_described(first, f"{first['function']['description']} {NOTES}"), *others]
    ask.patient = True  # a long prompt is not late
    try:
        plain, answer = await ask.ask(task), await _or_skipped(ask, list(task.messages), tools=long)
    finally:
        ask.patient = False
    empty = not (answer.content or answer.reasoning or answer.calls)
    ask.tally.add("tool-call", "an empty answer where a tool has a long description" if empty else "")
    few, many = plain.count("prompt"), answer.count("prompt")
    if few is None or many is None:
        return "answered"
    grown = many > few + len(NOTES.split()) // 2 or many == few  # where tools are not counted, none is
    why = f"{len(NOTES.split())} words more in a description, yet {few} and {many} prompt tokens: it is cut"
    ask.tally.add("prompt", "" if grown else why)
    return f"{many - few} prompt tokens more for a long description"


def _described(schema: Any, about: str) -> Any:
    return {**schema, "function": {**schema["function"], "description": about}}


def _renamed(schema: Any, name: str) -> Any:
    return {**schema, "function": {**schema["function"], "name": name}}


RUNG = Rung(
    name="prompts",
    about="system messages, parts and characters outside ASCII, both ways",
    probes={
        "system": system,
        "parts": parts,
        "whole history": whole_history,
        "forms of turns": turns.forms,
        "many tools": many_tools,
        "long descriptions": long_descriptions,
        "characters": characters,
        "in arguments": in_arguments,
        "in JSON": in_json,
    },
    cost=48,
)
