"""plain: coherent, in the language of the question, no loop, no "!!!!", and no NaN behind it."""

import math
import unicodedata

from moebox.phantom.tasks import flaw
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.rung import Rung
from moebox.verify.trials import Attempt, asking, draw, judge, no_leak, sure

FOREIGN = 0.2  # share of letters outside the Latin script from which an English question was not answered in English


async def facts(ask: Asker) -> None:
    """Plain questions with known answers."""
    for _ in range(3):
        await sure(_said_in_english(ask, "plain"))


async def memory(ask: Asker) -> None:
    """Something said earlier in the conversation is known later."""
    await sure(asking(ask, "memory"))


async def at_length(ask: Asker) -> None:
    """A longer piece of writing stays coherent: no loop, no run of one mark, no other language."""
    task = draw(ask, "story")
    answer = await ask.ask(task, max_tokens=1024)
    no_leak(answer)
    if why := flaw(answer.content, min_words=40) or foreign(answer.content):
        raise Failed(why)


async def numbers(ask: Asker) -> None:
    """Log-probabilities, where offered, are numbers: NaN in the forward pass shows here first."""
    task = draw(ask, "secret")
    request = ask.body(task.messages, max_tokens=24, logprobs=True)
    exchange = await ask.send(request)
    if exchange.status in (400, 404, 422, 501):
        raise Skipped("the server offers no log-probabilities")
    answer = ask.read(exchange, stream=False)
    if any(not math.isfinite(value) or value > 1e-3 for value in answer.logprobs):
        raise Failed("a log-probability is not a number below zero")
    if not answer.logprobs:
        raise Skipped("no log-probabilities came")


def _said_in_english(ask: Asker, family: str) -> Attempt:
    async def attempt() -> str:
        task = draw(ask, family)
        answer = await ask.ask(task)
        return judge(task, answer) or foreign(answer.content)

    return attempt


def foreign(text: str) -> str:
    """ "" or the script in which an English question was answered."""
    letters = [letter for letter in text if letter.isalpha()]
    other = [letter for letter in letters if not unicodedata.name(letter, "").startswith("LATIN")]
    if len(other) <= FOREIGN * len(letters):
        return ""
    script = unicodedata.name(other[0], "another").split()[0].lower()
    return f"answered in {script} letters: {text[:60]}"


RUNG = Rung(
    name="plain",
    about="coherent language, no loop, the right language",
    probes={"facts": facts, "memory": memory, "at length": at_length, "numbers": numbers},
    stops=(frozenset({"facts", "at length"}),),
)
