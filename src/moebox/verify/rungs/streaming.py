"""streaming: the pieces are the answer, with usage, one finish_reason and no byte of a special token."""

from collections.abc import Sequence

from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung, Warned
from moebox.verify.trials import GOOD, Questions, Trial, able, asking, draw, trials, wrong

FAMILIES = ("copy", "secret", "count", "sums")  # answers with little freedom: the same every time at temperature 0
FEWEST_PIECES = 3
HELD_BACK = 0.9  # of a stream's time before its first byte: then it was made whole and cut up
LONG_WORDS = 2000  # more than 4,000 tokens for any tokenizer, half of the words being invented
LONG_TRIALS = 12  # below so many a fifth of it must do
ABLE_WORDS = 60  # that a model repeats if it can repeat thousands
WORD_TOKENS = 8  # of context for each word: twice two tokens, and room
UNKNOWN_LIMIT = 4096
SLOW_S = 1.0  # streams that take less say nothing about that


async def same_words(ask: Asker) -> None:
    """The pieces concatenate to the answer that comes without streaming, and count as many tokens."""

    async def attempt() -> Trial:
        task = draw(ask, FAMILIES[ask.rng.randrange(len(FAMILIES))])
        whole, pieces = await ask.ask(task), await ask.ask(task, stream=True)
        if whole.content == pieces.content:
            ask.tally.add("usage" + STREAMED, _counted_alike(whole, pieces))
            return GOOD
        return await _whose(ask, task, whole, pieces)

    await trials(ask, "text" + STREAMED, attempt)


async def _whose(ask: Asker, task: Task, whole: Answer, pieces: Answer) -> Trial:
    """Two runs at temperature 0 may differ by numerics on a busy engine; then whole answers differ among themselves."""
    again = await ask.ask(task)
    if again.content != whole.content and not task.grade(pieces.reply).why:
        return GOOD
    return wrong(_apart(whole.content, pieces.content))


def _apart(whole: str, pieces: str) -> str:
    pairs = enumerate(zip(whole, pieces, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(whole), len(pieces)))
    return f"at character {at}: whole …{whole[at : at + 30]!r}, streamed …{pieces[at : at + 30]!r}"


def _counted_alike(whole: Answer, pieces: Answer) -> str:
    """The same words are the same number of tokens; an end-of-turn token more or less is a matter of taste."""
    for key, slack in (("prompt", 0), ("completion", 1)):
        a, b = whole.count(key), pieces.count(key)
        if a is not None and b is not None and abs(a - b) > slack:
            return f"the same {key} is {a} tokens whole and {b} streamed"
    return ""


async def usage(ask: Asker) -> None:
    """Token counts come, in a stream and without, and grow with the prompt."""
    short, long = draw(ask, "copy", length=3), draw(ask, "copy", length=40)
    for stream in (False, True):
        few, many = [
            (await ask.chat(task.messages, stream=stream or None, max_tokens=8)).count("prompt")
            for task in (short, long)
        ]
        how = "stream" if stream else "whole answer"
        if few is None or many is None:
            raise Failed(f"the {how} has no usage")
        grown = many > few + 30
        ask.tally.add(
            "usage" + STREAMED * stream, "" if grown else f"37 words more, yet {few} and {many} prompt tokens"
        )


async def in_pieces(ask: Asker) -> Warned | None:
    """A long answer comes in many pieces, whole to its last number, with one finish_reason."""
    task = draw(ask, "count", start=1, end=30)
    answer = await ask.ask(task, stream=True)
    took = ask.exchanges[-1]
    if answer.chunks < FEWEST_PIECES:
        raise Failed(f"a long answer came in {answer.chunks} pieces: it is held back, not streamed")
    if answer.finish != "stop":
        raise Failed(f"finish_reason {answer.finish!r} where the answer was complete")
    await trials(ask, "answer" + STREAMED, asking(ask, "count", stream=True), ask.options.share(0.5))
    if took.seconds > SLOW_S and took.first_s > HELD_BACK * took.seconds:
        return Warned(f"the first piece came after {took.first_s:.1f} of {took.seconds:.1f} s: held back, not streamed")
    return None


async def long_answer(ask: Asker) -> str | Warned:
    """A text of thousands of words comes back whole, to its last word."""
    many = LONG_WORDS if ask.options.trials >= LONG_TRIALS else LONG_WORDS // 5
    words = min(many, (ask.limit or UNKNOWN_LIMIT) // WORD_TOKENS)
    await able(ask, asking_copy(ask, ABLE_WORDS), f"repeat {ABLE_WORDS} words", times=1)
    task = draw(ask, "copy", length=words)
    ask.patient = True
    try:
        answer = await ask.ask(task, stream=True, max_tokens=WORD_TOKENS // 2 * words)
    finally:
        ask.patient = False
    want, got = str(task.expect).split(), answer.content.split()
    made = answer.count("completion")
    if got == want:
        return f"{words:,} words, {made:,} tokens" if made else f"{words:,} words"
    kept = _alike(want, got)
    if kept == len(got) or (kept == len(got) - 1 and want[kept].startswith(got[kept])):
        why = f"{words:,} words were to come, it ended after {kept:,} with {answer.finish!r}"
        ask.tally.add("text" + STREAMED, why)
        return why
    raise Skipped(f"model, not server: it lost the thread after {kept:,} of {words:,} words")


def _alike(want: Sequence[str], got: Sequence[str]) -> int:
    """How many words are the same from the beginning."""
    pairs = enumerate(zip(want, got, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(want), len(got)))


def asking_copy(ask: Asker, words: int) -> Questions:
    """A text of so many words to be repeated."""
    return Questions(ask, lambda: draw(ask, "copy", length=words), max_tokens=8 * words)


RUNG = Rung(
    name="streaming",
    about="the pieces are the answer, with usage and one end",
    probes={"same words": same_words, "usage": usage, "in pieces": in_pieces, "long answer": long_answer},
    cost=36,
)
