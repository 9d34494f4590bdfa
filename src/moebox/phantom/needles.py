"""Needles: one sentence with a fresh code somewhere in a long text, and the question for it at the end."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from moebox.phantom import vocabulary as words
from moebox.phantom.task import Grade, ModelReply, Question, accept, reject, shorten, token_budget, user_message


def needle(
    rng: random.Random,
    *,
    thinking: bool,
    chars: int | None = None,
    depth: float | None = None,
    decoys: int | None = None,
) -> Question:
    """A text of about `chars` characters with the needle at `depth` (0 start, 1 end) and other places' codes around.

    The phantom counts about 2.7 characters a token here, a large model about 4.5.
    """
    size = chars if chars is not None else round(600 * 2 ** rng.uniform(0, 4))
    places = rng.sample(words.PLACES, 1 + (decoys if decoys is not None else rng.choice((0, 1, 2, 3))))
    codes = [words.draw_code(rng, 6) for _ in places]
    text = _filler(rng, size)
    for place, code in list(zip(places, codes, strict=True))[1:]:
        text.insert(rng.randint(0, len(text)), _tell(place, code))
    where = depth if depth is not None else rng.random()
    text.insert(round(where * len(text)), _tell(places[0], codes[0]))
    return _task(" ".join(text), places[0], codes[0], thinking=thinking)


def haystack_questions(rng: random.Random, *, chars: int, depths: Sequence[float]) -> list[Question]:
    """One text of about `chars` characters with a code at each depth, and the question for each of them."""
    places = rng.sample(words.PLACES, len(depths))
    codes = [words.draw_code(rng, 6) for _ in places]
    text = _filler(rng, chars)
    told = sorted(zip(depths, places, codes, strict=True), reverse=True)
    for depth, place, code in told:  # from the end, so that earlier ones stay where they are put
        text.insert(round(depth * len(text)), _tell(place, code))
    return [_task(" ".join(text), place, code, thinking=False) for place, code in zip(places, codes, strict=True)]


def _tell(place: str, code: str) -> str:
    return f"The access code for the {place} is {code}."


def _task(text: str, place: str, code: str, *, thinking: bool) -> Question:
    ask = f"What is the access code for the {place}? Answer with the code only."
    return Question(
        family="needle",
        messages=(user_message(f"Read this text.\n\n{text}\n\n{ask}"),),
        expect=code,
        sample=ModelReply(content=code, reasoning=f"The text says the code for the {place} is {code}."),
        judge=_judge,
        thinking=thinking,
        max_tokens=token_budget(thinking, 128),
    )


def _filler(rng: random.Random, chars: int) -> list[str]:
    text: list[str] = []
    have = 0
    while have < chars:
        text.append(words.draw_sentence(rng))
        have += len(text[-1]) + 1
    return text


def _judge(task: Question, reply: ModelReply) -> Grade:
    seen = set(re.findall(r"\b(?:[A-Z]\d){3}\b", reply.content))
    return accept() if seen == {task.expect} else reject(f"{task.expect} expected, got: {shorten(reply.content)}")
