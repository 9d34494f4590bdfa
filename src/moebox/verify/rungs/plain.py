"""plain: coherent, in the language of the question, no loop, no "!!!!", and no NaN behind it."""

import unicodedata

from moebox.core.verdict import Score
from moebox.phantom.tasks import Task, flaw
from moebox.verify.answer import NOT_OFFERED, Answer, is_logprob
from moebox.verify.ask import Asker, Failed, Skipped, skipped_if_refused
from moebox.verify.rung import Rung
from moebox.verify.trials import GOOD, Questions, Trial, asking, draw, judge, trials, wrong

FOREIGN = 0.2  # share of letters outside the Latin script from which an English question was not answered in English
ENDS = ".!?…\"'”’)*`:;>"  # what a finished text may end with


async def facts(ask: Asker) -> Score:
    """Plain questions with known answers."""
    return await trials(ask, "answer", Questions(ask, lambda: draw(ask, "plain"), judge=in_english), _half(ask))


async def memory(ask: Asker) -> Score:
    """Something said earlier in the conversation is known later."""
    return await trials(ask, "answer", asking(ask, "memory"), ask.options.share(0.34))


def _half(ask: Asker) -> int:
    return ask.options.share(0.5)


async def at_length(ask: Asker) -> None:
    """A longer piece of writing stays coherent to its end: no loop, no run of one mark, no other language."""

    async def attempt() -> Trial:
        answer = await ask.ask(draw(ask, "story"), max_tokens=1024)
        if why := flaw(answer.content, min_words=40) or foreign(answer.content):
            raise Failed(why)
        ended = answer.finish != "stop" or answer.content.rstrip()[-1:] in ENDS
        return GOOD if ended else wrong(f"finish_reason stop in mid-sentence: …{answer.content[-40:]!r}")

    await trials(ask, "text", attempt, ask.options.share(0.09, 1))


async def numbers(ask: Asker) -> None:
    """Log-probabilities, where offered, are numbers: NaN in the forward pass shows here first."""
    task = draw(ask, "secret")
    exchange = await ask.send(ask.body(task.messages, max_tokens=24, logprobs=True))
    with skipped_if_refused(NOT_OFFERED):
        answer = ask.read(exchange, stream=False)
    if not all(map(is_logprob, answer.logprobs)):
        raise Failed("a log-probability is not a number below zero")
    if not answer.logprobs:
        raise Skipped("no log-probabilities came")


def in_english(task: Task, answer: Answer) -> str:
    """Right, and in the language of the question."""
    return judge(task, answer) or foreign(answer.content)


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
    cost=16,
)
