"""streaming: the pieces are the answer, with usage, one finish_reason and no byte of a special token."""

import difflib
from collections.abc import Sequence

from moebox.core.verdict import HttpExchange
from moebox.phantom.tasks import Question
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, ProbeFailed, ProbeSkipped
from moebox.verify.counts import CLOCK_TOKENS
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check, ProbeWarning
from moebox.verify.trials import (
    PASSED,
    TrialOutcome,
    draw_question,
    family_attempt,
    judge_answer,
    run_trials,
    server_failure,
)

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


async def probe_same_words(session: CheckSession) -> None:
    """The pieces concatenate to the answer that comes without streaming, and count as many tokens."""

    async def attempt() -> TrialOutcome:
        task = draw_question(session, FAMILIES[session.rng.randrange(len(FAMILIES))])
        whole, pieces = await session.ask_question(task), await session.ask_question(task, stream=True)
        if whole.content.rstrip() == pieces.content.rstrip():  # a line end more is no word
            session.failures.add("usage" + STREAMED, _counted_alike(whole, pieces))
            return PASSED
        return await _whose(session, task, whole, pieces)

    await run_trials(session, "text" + STREAMED, attempt)


async def _whose(session: CheckSession, task: Question, whole: ChatAnswer, pieces: ChatAnswer) -> TrialOutcome:
    """Two runs at temperature 0 may differ by numerics on a busy engine; then whole answers differ among themselves."""
    again = await session.ask_question(task)
    if again.content.rstrip() != whole.content.rstrip() and not task.grade(pieces.reply).reason:
        return PASSED
    return server_failure(first_difference(whole.content, pieces.content))


def first_difference(whole: str, pieces: str, names: tuple[str, str] = ("whole", "streamed")) -> str:
    """Where two texts begin to differ."""
    pairs = enumerate(zip(whole, pieces, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(whole), len(pieces)))
    return f"at character {at}: {names[0]} …{whole[at : at + 30]!r}, {names[1]} …{pieces[at : at + 30]!r}"


def _counted_alike(whole: ChatAnswer, pieces: ChatAnswer) -> str:
    """The same words are the same number of tokens; an end-of-turn token more or less is a matter of taste.

    A template that writes the time of day makes a prompt a little longer or shorter by itself.
    """
    for key, slack in (("prompt", CLOCK_TOKENS), ("completion", 1)):
        a, b = whole.token_count(key), pieces.token_count(key)
        if a is not None and b is not None and abs(a - b) > slack:
            return f"the same {key} is {a} tokens whole and {b} streamed"
    return ""


async def probe_usage(session: CheckSession) -> None:
    """Token counts come, in a stream and without, and grow with the prompt."""
    short, long = draw_question(session, "copy", length=3), draw_question(session, "copy", length=40)
    for stream in (False, True):
        few, many = [
            (await session.chat(task.messages, stream=stream or None, max_tokens=8)).token_count("prompt")
            for task in (short, long)
        ]
        how = "stream" if stream else "whole answer"
        if few is None or many is None:
            raise ProbeFailed(f"the {how} has no usage")
        why = f"37 words more, yet {few} and {many} prompt tokens"
        session.failures.expect("usage" + STREAMED * stream, many > few + 30, why)


async def probe_plain_stream(session: CheckSession) -> str:
    """A stream without stream_options is a stream like any other."""
    task = draw_question(session, "secret")
    body = session.chat_request(task.messages, max_tokens=task.max_tokens, stream=True)
    body.pop("stream_options")
    answer = session.read_answer(await session.post_chat(body), stream=True)
    session.failures.expect("text" + STREAMED, not answer.is_empty, "nothing came in a stream without stream_options")
    return f"{answer.chunks} pieces"


async def probe_pieces(session: CheckSession) -> ProbeWarning | None:
    """A long answer comes in many pieces, whole to its last number, with one finish_reason."""
    task = draw_question(session, "count", start=1, end=30)
    answer = await session.ask_question(task, stream=True)
    took = session.exchanges[-1]
    if answer.chunks < FEWEST_PIECES:
        raise ProbeFailed(f"a long answer came in {answer.chunks} pieces: it is held back, not streamed")
    if answer.finish_reason != "stop":
        raise ProbeFailed(f"finish_reason {answer.finish_reason!r} where the answer was complete")
    await run_trials(
        session, "answer" + STREAMED, family_attempt(session, "count", stream=True), session.options.trial_share(0.5)
    )
    why = _held_back(took)
    return ProbeWarning(why) if why else None


def _held_back(took: HttpExchange) -> str:
    """ "" or how late the first piece of a stream came that took long enough to tell."""
    if took.seconds <= SLOW_S or took.first_s <= HELD_BACK * took.seconds:
        return ""
    return f"the first piece came after {took.first_s:.1f} of {took.seconds:.1f} s: held back, not streamed"


async def probe_long_answer(session: CheckSession) -> str | ProbeWarning:
    """A text of thousands of words comes back whole, to its last word."""
    words, tokens = await _size(session)
    task = draw_question(session, "copy", length=words)
    with session.allow_slow_replies():
        answer = await session.ask_question(task, stream=True, max_tokens=tokens)
    if why := _held_back(session.exchanges[-1]):
        return ProbeWarning(why)
    want, got = str(task.expect).split(), answer.content.split()
    if got == want:
        made = answer.token_count("completion")
        return f"{words:,} words, {made:,} tokens" if made else f"{words:,} words"
    kept = _alike(want, got)
    if kept == len(got) or (kept == len(got) - 1 and want[kept].startswith(got[kept])):
        return _ended(session, answer, kept, words, tokens)
    if held := _thread_kept(want, got):
        return ProbeWarning(
            f"of {words:,} words {kept:,} came as they were, then: {held}; the model's fault or the server's"
        )
    raise ProbeSkipped(f"model, not server: it lost the thread after {kept:,} of {words:,} words")


def _ended(session: CheckSession, answer: ChatAnswer, kept: int, words: int, tokens: int) -> str:
    """Why an answer ended before its last word: at a limit, or it was cut, which is counted."""
    made = answer.token_count("completion")
    if answer.finish_reason == "length" and (made is None or made >= tokens - ABLE_WORDS):
        return f"{kept:,} of {words:,} words, then the limit of {tokens:,} tokens that was asked for"
    if answer.finish_reason == "length" and _context_is_full(session, answer):
        return f"{kept:,} of {words:,} words, then the end of the context"
    why = f"{words:,} words were to come, it ended after {kept:,} with {answer.finish_reason!r}"
    session.failures.add("text" + STREAMED, why)
    return why


def _context_is_full(session: CheckSession, answer: ChatAnswer) -> bool:
    """Prompt and answer take all that the server says it has; one that ends earlier has a limit of its own."""
    used = answer.token_count("total")
    return bool(session.context_limit and used) and (used or 0) >= (session.context_limit or 0) - WORD_TOKENS


async def _size(session: CheckSession) -> tuple[int, int]:
    """Words of an answer as long as is wanted, or as the context allows with the question before it; tokens for it."""
    task = draw_question(session, "copy", length=ABLE_WORDS)
    answer = await session.ask_question(task, max_tokens=WORD_TOKENS * ABLE_WORDS)
    if why := judge_answer(task, answer):
        raise ProbeSkipped(f"model, not server: it cannot repeat {ABLE_WORDS} words ({why})")
    per_word = max(0.5, (answer.token_count("completion") or 2 * ABLE_WORDS) / ABLE_WORDS)
    wanted = LONG_TOKENS if session.options.trials >= LONG_TRIALS else LONG_TOKENS // 10
    room = ROOM * (session.context_limit or UNKNOWN_LIMIT) / 2
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


CHECK = Check(
    name="streaming",
    about="the pieces are the answer, with usage and one end",
    probes={
        "same words": probe_same_words,
        "usage": probe_usage,
        "without options": probe_plain_stream,
        "in pieces": probe_pieces,
        "long answer": probe_long_answer,
    },
    request_estimate=36,
)
