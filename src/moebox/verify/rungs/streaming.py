"""streaming: the pieces are the answer, with usage, one finish_reason and no byte of a special token."""

import difflib
from collections.abc import Sequence

from moebox.core.verdict import Exchange
from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.counts import CLOCK
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung, Warned
from moebox.verify.trials import GOOD, Trial, asking, draw, judge, trials, wrong

FAMILIES = ("copy", "secret", "count", "sums")  # answers with little freedom: the same every time at temperature 0
FEWEST_PIECES = 3
HELD_BACK = 0.9  # of a stream's time before its first byte: then it was made whole and cut up
LONG_TOKENS = 4400  # of a long answer, so that more than 4,000 come
LONG_TRIALS = 12  # below so many a tenth of it must do
ABLE_WORDS = 60  # that a model repeats if it can repeat thousands
WORD_TOKENS = 8  # that a word is at most
ROOM = 0.75  # of the context that question and answer fill; room is asked for beyond that, and words differ in length
SPARE = 1.3  # of the tokens that such an answer takes by the first one's count
UNKNOWN_LIMIT = 4096
LONGEST_LOOP = 64  # words that may repeat
THREAD = 0.8  # of the words right and in order: the thread was kept
SLOW_S = 1.0  # streams that take less say nothing about that


async def same_words(ask: Asker) -> None:
    """The pieces concatenate to the answer that comes without streaming, and count as many tokens."""

    async def attempt() -> Trial:
        task = draw(ask, FAMILIES[ask.rng.randrange(len(FAMILIES))])
        whole, pieces = await ask.ask(task), await ask.ask(task, stream=True)
        if whole.content.rstrip() == pieces.content.rstrip():  # a line end more is no word
            ask.tally.add("usage" + STREAMED, _counted_alike(whole, pieces))
            return GOOD
        return await _whose(ask, task, whole, pieces)

    await trials(ask, "text" + STREAMED, attempt)


async def _whose(ask: Asker, task: Task, whole: Answer, pieces: Answer) -> Trial:
    """Two runs at temperature 0 may differ by numerics on a busy engine; then whole answers differ among themselves."""
    again = await ask.ask(task)
    if again.content.rstrip() != whole.content.rstrip() and not task.grade(pieces.reply).why:
        return GOOD
    return wrong(apart(whole.content, pieces.content))


def apart(whole: str, pieces: str, names: tuple[str, str] = ("whole", "streamed")) -> str:
    """Where two texts begin to differ."""
    pairs = enumerate(zip(whole, pieces, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(whole), len(pieces)))
    return f"at character {at}: {names[0]} …{whole[at : at + 30]!r}, {names[1]} …{pieces[at : at + 30]!r}"


def _counted_alike(whole: Answer, pieces: Answer) -> str:
    """The same words are the same number of tokens; an end-of-turn token more or less is a matter of taste.

    A template that writes the time of day makes a prompt a little longer or shorter by itself.
    """
    for key, slack in (("prompt", CLOCK), ("completion", 1)):
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
        why = f"37 words more, yet {few} and {many} prompt tokens"
        ask.tally.need("usage" + STREAMED * stream, many > few + 30, why)


async def plain_stream(ask: Asker) -> str:
    """A stream without stream_options is a stream like any other."""
    task = draw(ask, "secret")
    body = ask.body(task.messages, max_tokens=task.max_tokens, stream=True)
    body.pop("stream_options")
    answer = ask.read(await ask.send(body), stream=True)
    ask.tally.need("text" + STREAMED, not answer.is_empty, "nothing came in a stream without stream_options")
    return f"{answer.chunks} pieces"


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
    why = _held_back(took)
    return Warned(why) if why else None


def _held_back(took: Exchange) -> str:
    """ "" or how late the first piece of a stream came that took long enough to tell."""
    if took.seconds <= SLOW_S or took.first_s <= HELD_BACK * took.seconds:
        return ""
    return f"the first piece came after {took.first_s:.1f} of {took.seconds:.1f} s: held back, not streamed"


async def long_answer(ask: Asker) -> str | Warned:
    """A text of thousands of words comes back whole, to its last word."""
    words, tokens = await _size(ask)
    task = draw(ask, "copy", length=words)
    with ask.unhurried():
        answer = await ask.ask(task, stream=True, max_tokens=tokens)
    if why := _held_back(ask.exchanges[-1]):
        return Warned(why)
    want, got = str(task.expect).split(), answer.content.split()
    if got == want:
        made = answer.count("completion")
        return f"{words:,} words, {made:,} tokens" if made else f"{words:,} words"
    kept = _alike(want, got)
    if kept == len(got) or (kept == len(got) - 1 and want[kept].startswith(got[kept])):
        return _ended(ask, answer, kept, words, tokens)
    if held := _thread_kept(want, got):
        return Warned(f"of {words:,} words {kept:,} came as they were, then: {held}; the model's fault or the server's")
    raise Skipped(f"model, not server: it lost the thread after {kept:,} of {words:,} words")


def _ended(ask: Asker, answer: Answer, kept: int, words: int, tokens: int) -> str:
    """Why an answer ended before its last word: at a limit, or it was cut, which is counted."""
    made = answer.count("completion")
    if answer.finish == "length" and (made is None or made >= tokens - ABLE_WORDS):
        return f"{kept:,} of {words:,} words, then the limit of {tokens:,} tokens that was asked for"
    if answer.finish == "length" and _context_is_full(ask, answer):
        return f"{kept:,} of {words:,} words, then the end of the context"
    why = f"{words:,} words were to come, it ended after {kept:,} with {answer.finish!r}"
    ask.tally.add("text" + STREAMED, why)
    return why


def _context_is_full(ask: Asker, answer: Answer) -> bool:
    """Prompt and answer take all that the server says it has; one that ends earlier has a limit of its own."""
    used = answer.count("total")
    return bool(ask.limit and used) and (used or 0) >= (ask.limit or 0) - WORD_TOKENS


async def _size(ask: Asker) -> tuple[int, int]:
    """Words of an answer as long as is wanted, or as the context allows with the question before it; tokens for it."""
    task = draw(ask, "copy", length=ABLE_WORDS)
    answer = await ask.ask(task, max_tokens=WORD_TOKENS * ABLE_WORDS)
    if why := judge(task, answer):
        raise Skipped(f"model, not server: it cannot repeat {ABLE_WORDS} words ({why})")
    per_word = max(0.5, (answer.count("completion") or 2 * ABLE_WORDS) / ABLE_WORDS)
    wanted = LONG_TOKENS if ask.options.trials >= LONG_TRIALS else LONG_TOKENS // 10
    room = ROOM * (ask.limit or UNKNOWN_LIMIT) / 2
    words = max(ABLE_WORDS, round(min(wanted, room) / per_word))
    return words, round(SPARE * words * per_word) + ABLE_WORDS


def _thread_kept(want: Sequence[str], got: Sequence[str]) -> str:
    """How a long text was damaged without losing the thread: a model that errs seldom finds its way back."""
    blocks = difflib.SequenceMatcher(None, want, got, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    if same >= THREAD * len(want):
        return f"{len(want) - same} lost or changed, the rest right again"
    period = next((size for size in range(1, LONGEST_LOOP) if _loops(got[:-1], size)), 0)  # the last may be half a word
    return f"the last {period} come again and again" if period else ""


def _loops(got: Sequence[str], size: int) -> bool:
    return len(got) > 3 * size and got[-size:] == got[-2 * size : -size] == got[-3 * size : -2 * size]


def _alike(want: Sequence[str], got: Sequence[str]) -> int:
    """How many words are the same from the beginning."""
    pairs = enumerate(zip(want, got, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(want), len(got)))


RUNG = Rung(
    name="streaming",
    about="the pieces are the answer, with usage and one end",
    probes={
        "same words": same_words,
        "usage": usage,
        "without options": plain_stream,
        "in pieces": in_pieces,
        "long answer": long_answer,
    },
    cost=36,
)
