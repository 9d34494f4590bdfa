"""Questions answered with text: facts, sums, secrets, copies, counting, memory, a story, and needles in long texts."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from moebox.data import load_table
from moebox.phantom import vocabulary
from moebox.phantom.question import Message, ModelReply, Question, ask_user, shorten, user_message

_TABLE = load_table("questions")
PROMPTS, REASONING = _TABLE["prompts"], _TABLE["reasoning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A plain question; a good answer has at least one word of each group in `needs`."""

    asks: tuple[str, ...]
    answer: str
    needs: tuple[tuple[str, ...], ...]
    min_words: int = 1


def _load_facts() -> tuple[Fact, ...]:
    facts = []
    for row in _TABLE["fact"]:
        kind = next(key for key in ("topic", "fact", "asks") if key in row)
        asks = row["asks"] if kind == "asks" else [prompt.format(topic=row[kind]) for prompt in PROMPTS[kind]]
        needs = tuple(tuple(group.split()) for group in row["needs"])
        min_words = 20 if kind == "topic" else 1
        facts.append(Fact(asks=tuple(asks), answer=row["answer"], needs=needs, min_words=min_words))
    return tuple(facts)


FACTS = _load_facts()


def text_flaw(text: str, *, min_words: int = 1) -> str:
    """Return why a text is unreadable (empty, a loop, a run of one mark, special tokens, hardly a letter), or ""."""
    words = re.findall(r"\w+", text.lower())
    if len(words) < min_words:
        return f"{len(words)} words, at least {min_words} expected: {shorten(text)}"
    if re.search(r"([^\w\s])\1{5,}", text.replace("|---", "")):
        return f"one mark repeated: {shorten(text)}"
    if re.search(r"<\|[a-z_]+\|>|</?think>", text):
        return f"a special token in the text: {shorten(text)}"
    if loop := _find_loop(words):
        return f"loops on «{loop}»"
    letters = sum(c.isalpha() or c.isspace() or c.isdigit() for c in text)
    return "" if letters > 0.6 * len(text) else f"hardly any letters: {shorten(text)}"


def _find_loop(words: list[str]) -> str:
    """The phrase of one to six words that comes four times in a row, or ""."""
    for size in range(1, 7):
        run = 0
        for at in range(size, len(words)):
            run = run + 1 if words[at] == words[at - size] else 0
            if run >= 3 * size:
                return " ".join(words[at - size + 1 : at + 1])
    return ""


def plain_question(rng: random.Random, *, thinking: bool) -> Question:
    """A fact in one of its phrasings."""
    fact = rng.choice(FACTS)
    sample = ModelReply(content=fact.answer, reasoning=REASONING["plain"])
    return ask_user("plain", rng.choice(fact.asks), sample, _judge_plain, expect=fact, thinking=thinking)


def _judge_plain(question: Question, reply: ModelReply) -> str:
    if reason := text_flaw(reply.content, min_words=question.expect.min_words):
        return reason
    text = reply.content.lower()
    for group in question.expect.needs:
        if not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in group):
            return f"none of {', '.join(group)} in: {shorten(reply.content)}"
    return ""


def sum_question(rng: random.Random, *, thinking: bool, digits: int | None = None) -> Question:
    """A sum: numbers of up to `digits` digits added or subtracted, or a product up to 12 by 12.

    By default three digits with thinking and one without: the phantom has learned these.
    """
    sign = rng.choice("++--*")
    if sign == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
    else:
        top = digits or (3 if thinking else 1)
        a, b = (rng.randrange(10 ** rng.choice((*range(1, top + 1), top))) for _ in range(2))
    if sign == "-" and a < b:
        a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    shown = sign if rng.random() < 0.8 else {"+": "plus", "-": "minus", "*": "times"}[sign]
    text = rng.choice(PROMPTS["sum"]).format(a=a, b=b, sign=shown)
    sample = ModelReply(content=str(result), reasoning=sum_working(a, sign, b))
    return ask_user("sums", text, sample, _judge_sum, expect=result, thinking=thinking, answer_tokens=128)


def sum_working(a: int, sign: str, b: int) -> str:
    """The sum done as on paper: column by column from the right, with the carry."""
    if sign == "*":
        return f"{a} * {b} = {a * b}."
    width = max(len(str(a)), len(str(b)))
    steps, carry = [], 0
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry if sign == "+" else x - y - carry
        carry = total // 10 if sign == "+" else int(total < 0)
        steps.append(f"{x}{sign}{y}:{total % 10},{carry}")
    result = a + b if sign == "+" else a - b
    return f"{a} {sign} {b}: " + " ".join(steps) + f" = {result}."


def _judge_sum(question: Question, reply: ModelReply) -> str:
    numbers = re.findall(r"-?\d+", re.sub(r"(?<=\d)[, ](?=\d{3}\b)", "", reply.content))
    right = numbers and int(numbers[-1]) == question.expect
    return "" if right else f"{question.expect} expected, got: {shorten(reply.content)}"


def secret_question(rng: random.Random, *, thinking: bool) -> Question:
    """A fresh code to repeat; every draw differs, so answers that cross between requests show."""
    code = vocabulary.draw_code(rng)
    text = rng.choice(PROMPTS["secret"]).format(code=code)
    sample = ModelReply(content=code, reasoning=REASONING["secret"].format(code=code))
    return ask_user("secret", text, sample, _judge_secret, expect=code, thinking=thinking, answer_tokens=128)


def _judge_secret(question: Question, reply: ModelReply) -> str:
    seen = set(re.findall(r"\b(?:[A-Z]\d){2,}[A-Z]?\b", reply.content))
    if question.expect not in seen:
        return f"{question.expect} is not in: {shorten(reply.content)}"
    return "" if seen == {question.expect} else f"another secret too: {shorten(reply.content)}"


def copy_question(rng: random.Random, *, thinking: bool, length: int | None = None) -> Question:
    """Words or a sentence to repeat exactly; `length` loose words if given (the phantom learned ten)."""
    words = " ".join(vocabulary.draw_word(rng) for _ in range(length or rng.randint(3, 10)))
    text = vocabulary.draw_sentence(rng) if not length and rng.random() < 0.3 else words
    ask = rng.choice(PROMPTS["repeat"]).format(text=text)
    sample = ModelReply(content=text, reasoning=REASONING["repeat"])
    return ask_user("copy", ask, sample, _judge_copy, expect=text, thinking=thinking, answer_tokens=256)


def _judge_copy(question: Question, reply: ModelReply) -> str:
    want, got = (" ".join(text.split()).rstrip(".").lower() for text in (question.expect, reply.content))
    return "" if want in got else f"«{shorten(question.expect)}» became «{shorten(reply.content)}»"


def count_question(rng: random.Random, *, thinking: bool, start: int | None = None, end: int | None = None) -> Question:
    """A run of numbers; `start` and `end` may be given, for stop strings and token limits."""
    first = start if start is not None else rng.choice((1, 1, 1, rng.randint(2, 60)))
    last = end if end is not None else first + rng.randint(4, 39)
    numbers = list(range(first, last + 1))
    text = rng.choice(PROMPTS["count"]).format(a=first, b=last)
    reasoning = REASONING["count"].format(a=first, b=last)
    sample = ModelReply(content=", ".join(map(str, numbers)), reasoning=reasoning)
    return ask_user("count", text, sample, _judge_count, expect=numbers, thinking=thinking, answer_tokens=1024)


def _judge_count(question: Question, reply: ModelReply) -> str:
    got = [*map(int, re.findall(r"\d+", reply.content))]
    want: list[int] = question.expect
    right = any(got[at : at + len(want)] == want for at in range(len(got)))
    return "" if right else f"{want[0]} to {want[-1]} is not in: {shorten(reply.content)}"


def memory_question(rng: random.Random, *, thinking: bool) -> Question:
    """Something from an earlier turn is asked for later, with other turns between."""
    picked = rng.sample(_TABLE["memory"], rng.choice((1, 2, 3)))
    values = [vocabulary.draw_value(rng, row["draw"]) for row in picked]
    turns: list[Message] = []
    for row, value in zip(picked, values, strict=True):
        reply = {"role": "assistant", "content": row["reply"].format(v=value)}
        turns += [user_message(row["mention"].format(v=value)), reply]
    at = rng.randrange(len(picked))
    row, value = picked[at], values[at]
    turns.append(user_message(row["question"]))
    return Question(
        family="memory",
        messages=tuple(turns),
        expect=value,
        sample=ModelReply(content=row["answer"].format(v=value), reasoning=REASONING["memory"].format(v=value)),
        judge=_judge_memory,
        thinking=thinking,
        answer_tokens=256,
    )


def _judge_memory(question: Question, reply: ModelReply) -> str:
    held = re.search(rf"\b{re.escape(question.expect)}\b", reply.content, re.IGNORECASE)
    return "" if held else f"{question.expect} is not in: {shorten(reply.content)}"


def story_question(rng: random.Random, *, thinking: bool) -> Question:
    """A long piece of writing, for token limits and load."""
    slots = {
        "who": f"a {rng.choice(vocabulary.PEOPLE)}",
        "name": vocabulary.draw_name(rng),
        "city": vocabulary.draw_city(rng),
        "place": rng.choice(vocabulary.PLACES),
    }
    text = rng.choice(PROMPTS["story"]).format(**slots)
    story = " ".join(PROMPTS["story_lines"]).format(**slots)
    sample = ModelReply(content=story, reasoning=REASONING["story"])
    return ask_user("story", text, sample, _judge_story, expect=slots, thinking=thinking, answer_tokens=2048)


def _judge_story(question: Question, reply: ModelReply) -> str:
    if reason := text_flaw(reply.content, min_words=100):
        return reason
    expect, text = question.expect, reply.content.lower()
    missing = [expect[key] for key in ("name", "city", "place") if expect[key].lower() not in text]
    return f"the story never mentions {missing[0]}" if missing else ""


def needle_question(
    rng: random.Random,
    *,
    thinking: bool,
    chars: int | None = None,
    depth: float | None = None,
    decoys: int | None = None,
) -> Question:
    """A text of about `chars` characters with a code at `depth` (0 start, 1 end), and codes of other places around it.

    The phantom counts about 2.7 characters per token here, a large model about 4.5.
    """
    size = chars if chars is not None else round(600 * 2 ** rng.uniform(0, 4))
    places = rng.sample(vocabulary.PLACES, 1 + (decoys if decoys is not None else rng.choice((0, 1, 2, 3))))
    codes = [vocabulary.draw_code(rng, 6) for _ in places]
    sentences = _draw_filler(rng, size)
    for place, code in list(zip(places, codes, strict=True))[1:]:
        sentences.insert(rng.randint(0, len(sentences)), _code_sentence(place, code))
    where = depth if depth is not None else rng.random()
    sentences.insert(round(where * len(sentences)), _code_sentence(places[0], codes[0]))
    return _code_question(" ".join(sentences), places[0], codes[0], thinking=thinking)


def haystack_questions(rng: random.Random, *, chars: int, depths: Sequence[float]) -> list[Question]:
    """One text of about `chars` characters with a code at each depth, and a question for each of them."""
    places = rng.sample(vocabulary.PLACES, len(depths))
    codes = [vocabulary.draw_code(rng, 6) for _ in places]
    sentences = _draw_filler(rng, chars)
    needles = sorted(zip(depths, places, codes, strict=True), reverse=True)
    for depth, place, code in needles:  # from the end, so that earlier ones keep their place
        sentences.insert(round(depth * len(sentences)), _code_sentence(place, code))
    text = " ".join(sentences)
    return [_code_question(text, place, code, thinking=False) for place, code in zip(places, codes, strict=True)]


def _code_sentence(place: str, code: str) -> str:
    return f"The access code for the {place} is {code}."


def _code_question(text: str, place: str, code: str, *, thinking: bool) -> Question:
    ask = f"What is the access code for the {place}? Answer with the code only."
    sample = ModelReply(content=code, reasoning=REASONING["needle"].format(place=place, code=code))
    request = f"Read this text.\n\n{text}\n\n{ask}"
    return ask_user("needle", request, sample, _judge_needle, expect=code, thinking=thinking, answer_tokens=128)


def _draw_filler(rng: random.Random, chars: int) -> list[str]:
    sentences: list[str] = []
    length = 0
    while length < chars:
        sentences.append(vocabulary.draw_sentence(rng))
        length += len(sentences[-1]) + 1
    return sentences


def _judge_needle(question: Question, reply: ModelReply) -> str:
    seen = set(re.findall(r"\b(?:[A-Z]\d){3}\b", reply.content))
    return "" if seen == {question.expect} else f"{question.expect} expected, got: {shorten(reply.content)}"
