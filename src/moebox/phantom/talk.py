"""Plain talk: questions from the bank, secrets, repeating, counting, a memory across turns, a long story."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from moebox.phantom import vocabulary as words
from moebox.phantom.bank import FACTS
from moebox.phantom.task import (
    Grade,
    Message,
    ModelReply,
    Question,
    accept,
    reject,
    shorten,
    token_budget,
    user_message,
)


def text_flaw(text: str, *, min_words: int = 1) -> str:
    """What makes a text unfit to read: empty, a loop, a run of one mark, special tokens, hardly a letter."""
    tokens = re.findall(r"\w+", text.lower())
    if len(tokens) < min_words:
        return f"{len(tokens)} words, at least {min_words} expected: {shorten(text)}"
    if re.search(r"([^\w\s])\1{5,}", text.replace("|---", "")):
        return f"one mark repeated: {shorten(text)}"
    if re.search(r"<\|[a-z_]+\|>|</?think>", text):
        return f"a special token in the text: {shorten(text)}"
    if loop := _loop(tokens):
        return f"loops on «{loop}»"
    letters = sum(c.isalpha() or c.isspace() or c.isdigit() for c in text)
    return "" if letters > 0.6 * len(text) else f"hardly any letters: {shorten(text)}"


def _loop(tokens: list[str], times: int = 4) -> str:
    """The phrase of one to six words that stands `times` times in a row, or nothing."""
    for size in range(1, 7):
        run = 0
        for at in range(size, len(tokens)):
            run = run + 1 if tokens[at] == tokens[at - size] else 0
            if run >= size * (times - 1):
                return " ".join(tokens[at - size + 1 : at + 1])
    return ""


def plain(rng: random.Random, *, thinking: bool) -> Question:
    """A question from the bank in one of its phrasings."""
    fact = rng.choice(FACTS)
    ask = rng.choice(fact.asks)
    return Question(
        family="plain",
        messages=(user_message(ask),),
        expect=fact,
        sample=ModelReply(content=fact.answer, reasoning="The user asks a plain question. I know the answer."),
        judge=_judge_plain,
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def _judge_plain(task: Question, reply: ModelReply) -> Grade:
    if why := text_flaw(reply.content, min_words=task.expect.min_words):
        return reject(why)
    text = reply.content.lower()
    for group in task.expect.needs:
        if not any(re.search(rf"(?<!\w){re.escape(w)}(?!\w)", text) for w in group):
            return reject(f"none of {', '.join(group)} in: {shorten(reply.content)}")
    return accept()


_SECRETS = (
    "The secret is {code}. Repeat the secret.",
    "The secret is {code}. What is the secret?",
    "Remember this code: {code}. Now tell me the code.",
    "My code word is {code}. Repeat my code word and nothing else.",
)


def secret(rng: random.Random, *, thinking: bool) -> Question:
    """A fresh code to be repeated; distinct per draw, so answers that cross between requests show."""
    code = words.draw_code(rng)
    return Question(
        family="secret",
        messages=(user_message(rng.choice(_SECRETS).format(code=code)),),
        expect=code,
        sample=ModelReply(content=code, reasoning=f"The user wants the code back. It is {code}."),
        judge=_judge_secret,
        thinking=thinking,
        max_tokens=token_budget(thinking, 128),
    )


def _judge_secret(task: Question, reply: ModelReply) -> Grade:
    seen = set(re.findall(r"\b(?:[A-Z]\d){2,}[A-Z]?\b", reply.content))
    if task.expect not in seen:
        return reject(f"{task.expect} is not in: {shorten(reply.content)}")
    return accept() if seen == {task.expect} else reject(f"another secret too: {shorten(reply.content)}")


REPEATS = (
    "Repeat after me: {text}",
    "Repeat the following text exactly: {text}",
    "Copy this text word for word: {text}",
    "Say exactly this: {text}",
)


def copy(rng: random.Random, *, thinking: bool, length: int | None = None) -> Question:
    """Words or a sentence to be repeated exactly; `length` loose words where it is given (the phantom learned ten)."""
    loose = " ".join(words.draw_word(rng) for _ in range(length or rng.randint(3, 10)))
    text = words.draw_sentence(rng) if not length and rng.random() < 0.3 else loose
    return Question(
        family="copy",
        messages=(user_message(rng.choice(REPEATS).format(text=text)),),
        expect=text,
        sample=ModelReply(content=text, reasoning="The user wants me to repeat the text."),
        judge=_judge_copy,
        thinking=thinking,
        max_tokens=token_budget(thinking, 256),
    )


def _judge_copy(task: Question, reply: ModelReply) -> Grade:
    want, got = (" ".join(t.split()).rstrip(".").lower() for t in (task.expect, reply.content))
    return accept() if want in got else reject(f"«{shorten(task.expect)}» became «{shorten(reply.content)}»")


_COUNTS = (
    "Count from {a} to {b}.",
    "Count from {a} to {b}, separated by commas.",
    "Please count from {a} up to {b}.",
    "List the numbers from {a} to {b}, separated by commas.",
)


def count(rng: random.Random, *, thinking: bool, start: int | None = None, end: int | None = None) -> Question:
    """A run of numbers; `start` and `end` may be given, for stop strings and token limits."""
    first = start if start is not None else rng.choice((1, 1, 1, rng.randint(2, 60)))
    last = end if end is not None else first + rng.randint(4, 39)
    return Question(
        family="count",
        messages=(user_message(rng.choice(_COUNTS).format(a=first, b=last)),),
        expect=list(range(first, last + 1)),
        sample=ModelReply(
            content=", ".join(map(str, range(first, last + 1))),
            reasoning=f"The user wants the numbers from {first} to {last}.",
        ),
        judge=_judge_count,
        thinking=thinking,
        max_tokens=token_budget(thinking, 1024),
    )


def _judge_count(task: Question, reply: ModelReply) -> Grade:
    got = [int(n) for n in re.findall(r"\d+", reply.content)]
    want: list[int] = task.expect
    at = next((i for i in range(len(got)) if got[i : i + len(want)] == want), None)
    return accept() if at is not None else reject(f"{want[0]} to {want[-1]} is not in: {shorten(reply.content)}")


_THINGS = (
    ("My name is {v}.", "Nice to meet you, {v}.", "What is my name?", "Your name is {v}.", "name"),
    ("I live in {v}.", "{v} sounds like a nice place.", "Where do I live?", "You live in {v}.", "city"),
    ("My favourite colour is {v}.", "I like {v} too.", "What is my favourite colour?", "It is {v}.", "colour"),
    ("I have a {v}.", "A {v} is a good friend.", "Which animal do I have?", "You have a {v}.", "animal"),
)
_SOURCES: dict[str, Callable[[random.Random], str]] = {
    "name": words.draw_name,
    "city": words.draw_city,
    "colour": lambda rng: rng.choice(words.COLOURS),
    "animal": lambda rng: rng.choice(words.ANIMALS),
}


def memory(rng: random.Random, *, thinking: bool) -> Question:
    """Something said in an earlier turn is asked for later, with other turns between."""
    picked = rng.sample(_THINGS, rng.choice((1, 2, 3)))
    values = [_SOURCES[thing[4]](rng) for thing in picked]
    turns: list[Message] = []
    for thing, value in zip(picked, values, strict=True):
        turns += [user_message(thing[0].format(v=value)), {"role": "assistant", "content": thing[1].format(v=value)}]
    asked = rng.randrange(len(picked))
    turns.append(user_message(picked[asked][2]))
    value = values[asked]
    return Question(
        family="memory",
        messages=tuple(turns),
        expect=value,
        sample=ModelReply(
            content=picked[asked][3].format(v=value), reasoning=f"The user told me before. It is {value}."
        ),
        judge=_judge_memory,
        thinking=thinking,
        max_tokens=token_budget(thinking, 256),
    )


def _judge_memory(task: Question, reply: ModelReply) -> Grade:
    held = re.search(rf"\b{re.escape(task.expect)}\b", reply.content, re.IGNORECASE)
    return accept() if held else reject(f"{task.expect} is not in: {shorten(reply.content)}")


_STORY = (
    "Once upon a time there was {who} who lived in {city}.",
    "Every morning {name} looked out of the window and saw the {place} far away.",
    "One day a letter arrived, and in the letter there was a small map.",
    "{name} packed a bag with bread, a lantern and a warm blanket.",
    "The road went through a forest, over a bridge and along a quiet river.",
    "In the forest {name} met a fox who knew the way.",
    "The fox asked for a piece of bread, and {name} gave it gladly.",
    "Together they walked until the evening, and the stars came out one by one.",
    "At night they slept under a tall tree, and the wind sang in the leaves.",
    "In the morning they saw the {place} on the hill, bright in the sun.",
    "The door was closed, but the key was hidden under a round stone.",
    "Inside the {place} there was a long table with a single candle.",
    "Beside the candle sat an old woman who smiled at {name}.",
    "She said that she had waited for a very long time.",
    "She told a tale of the sea, of ships and of distant islands.",
    "{name} listened until the candle was almost gone.",
    "Then the old woman gave {name} a little box made of wood.",
    "Do not open it before you are home again, she said.",
    "{name} thanked her, and the fox showed the way back through the forest.",
    "When {name} came home to {city}, the whole town was waiting.",
    "The box was opened, and a warm light filled every street.",
    "From that day on nobody in {city} was afraid of the dark.",
    "And on quiet evenings {name} still tells the story of the {place} and the fox.",
)
_STORIES = (
    "Write a long story about {who} called {name}, the town of {city} and a {place}.",
    "Tell me a long story about {who} called {name} who lives in {city} and travels to a {place}.",
)


def story(rng: random.Random, *, thinking: bool) -> Question:
    """A long piece of writing, for token limits and load."""
    slots = {
        "who": f"a {rng.choice(words.PEOPLE)}",
        "name": words.draw_name(rng),
        "city": words.draw_city(rng),
        "place": rng.choice(words.PLACES),
    }
    return Question(
        family="story",
        messages=(user_message(rng.choice(_STORIES).format(**slots)),),
        expect=slots,
        sample=ModelReply(
            content=" ".join(_STORY).format(**slots), reasoning="The user wants a long story. I will tell one."
        ),
        judge=_judge_story,
        thinking=thinking,
        max_tokens=token_budget(thinking, 2048),
    )


def _judge_story(task: Question, reply: ModelReply) -> Grade:
    if why := text_flaw(reply.content, min_words=100):
        return reject(why)
    missing = [task.expect[k] for k in ("name", "city", "place") if task.expect[k].lower() not in reply.content.lower()]
    return reject(f"the story never mentions {missing[0]}") if missing else accept()
