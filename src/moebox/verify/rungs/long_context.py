"""long-context: needles at many depths of texts of the length asked, counted by the server's own tokenizer."""

from collections.abc import Sequence

from moebox.phantom.tasks import Question, haystack_questions
from moebox.units import format_count as digits
from moebox.verify import tokens
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, ProbeFailed, ProbeSkipped
from moebox.verify.rung import Check
from moebox.verify.rungs.limits import MAX_PLAUSIBLE_CONTEXT
from moebox.verify.trials import draw_question, judge_answer

UNASKED = 16384  # tokens at most, when nobody said how long
UNASKED_S = 10.0  # seconds of prefill at most, when nobody said how long
ANNOUNCED_S = 60.0  # seconds at most for one prompt of the length that is announced
SLOWER = 2.0  # times the seconds a token that a very long prompt takes
SAMPLE = 1000  # tokens, to learn how fast the server reads
LEAST = 2048
CLOSE = 0.97  # of the length that is aimed for at least
TRIES = 8  # texts drawn before the longest that fits is taken
FRAME = 160  # characters of the question around the text
RESERVE = 16  # tokens kept free beside the answer's room
SLOWEST_PREFILL = 20.0  # tokens a second that are still waited for: a hybrid box that reads its experts from RAM
FIRST_CHARS_PER_TOKEN = 3.0  # characters a token, before the server has counted once; short on purpose
LEAST_CHARS, MOST_CHARS = 0.5, 12.0  # a token, whatever a server says it counted
SHORTER = 0.4  # length of the second text: what is lost at a place, and not at a share, shows there
CUT = 0.8  # of the tokens sent that a server must say it read
NEAR = 3  # leading characters of a code that nobody guesses
AGAIN = 2  # further texts with something at the depth that was missed; missed in all, it is the server's


async def probe_needles(session: CheckSession) -> str:
    """What was hidden is found at each depth; one text, many questions, as agents ask over one long history."""
    with session.allow_slow_replies():
        return await _searched(session, *await _length(session))


async def _searched(session: CheckSession, length: int, wanted: str) -> str:
    room = draw_question(session, "needle", chars=100).max_tokens + RESERVE
    session.client.deadline_s = max(session.client.deadline_s, length / SLOWEST_PREFILL)
    text = _TextMaker(session, *await _rate(session, length - room))
    depths = session.options.depths
    counted = [await _text(session, text, depths, length - room)]
    if len(depths) > 1:
        between = [(a + b) / 2 for a, b in zip(depths, [*depths[1:], 1.0], strict=True)]
        await _text(session, text, between, max(64, round(SHORTER * (length - room))))
    session.tried_context = min(counted) + room
    return f"{digits(min(counted))} tokens of {wanted} {digits(length)}, counted by {text.by}"


async def _text(session: CheckSession, text: "_TextMaker", depths: Sequence[float], target: int) -> int:
    """One text, a question for each depth; its tokens."""
    tasks, counted = await text.fit_text(depths, target)
    for place, (depth, task) in enumerate(zip(depths, tasks, strict=True)):
        answer = await session.ask_question(task, stream=place % 2 == 1)
        _not_cut(answer, counted)
        wrong = judge_answer(task, answer)
        session.failures.add(
            "context", *(await _traced(session, text, task, answer, depth, target, wrong) if wrong else ())
        )
    return counted


def _not_cut(answer: ChatAnswer, counted: int) -> None:
    told = answer.token_count("prompt")
    if told is not None and told < CUT * counted:
        raise ProbeFailed(f"sent {counted:,} tokens, the server read {told:,}: the prompt was cut")


async def _traced(
    session: CheckSession, text: "_TextMaker", task: Question, answer: ChatAnswer, depth: float, target: int, wrong: str
) -> tuple[str, str]:
    """Why it was missed, and whose fault that is. Failed where nothing at this depth is ever found."""
    why = f"at depth {depth:.0%} of {target:,} tokens: {wrong}"
    if _near(task, answer):
        return why, "model"  # it has read the needle, or it could not have begun it
    if not judge_answer(task, await session.ask_question(task)):
        return f"{why}; asked again, it was found", "server"
    for _ in range(AGAIN):
        (fresh, *_), _ = await text.fit_text([depth], target)
        other = await session.ask_question(fresh)
        if not judge_answer(fresh, other) or _near(fresh, other):
            return why, "model"
    raise ProbeFailed(f"{why}; nor was it in {AGAIN} other texts: this part of a prompt is lost")


def _near(task: Question, answer: ChatAnswer) -> bool:
    return str(task.expect)[:NEAR] in answer.content


async def _length(session: CheckSession) -> tuple[int, str]:
    """Tokens to fill, prompt and answer together, and where that number comes from."""
    if session.options.context:
        if session.context_limit and session.options.context > session.context_limit:
            raise ProbeFailed(
                f"{session.options.context:,} tokens were asked for, the server takes {session.context_limit:,}"
            )
        return session.options.context, "the asked"
    if not session.context_limit:
        return 4096, "a cautious"
    most = max(LEAST, min(UNASKED, round(await _tokens_a_second(session) * UNASKED_S)))
    return min(session.context_limit, most), "the server's" if session.context_limit <= most else "an unasked"


async def _tokens_a_second(session: CheckSession) -> float:
    """How fast the server reads a prompt."""
    task = draw_question(session, "needle", chars=round(SAMPLE * FIRST_CHARS_PER_TOKEN))
    answer = await session.ask_question(task, max_tokens=1, exact=True)
    session.prefill_tok_s = (answer.token_count("prompt") or SAMPLE) / max(0.001, session.exchanges[-1].seconds)
    return session.prefill_tok_s


async def _rate(session: CheckSession, target: int) -> tuple[float, str]:
    """Characters a token in this kind of text, measured on a sample."""
    chars = round(min(target, 2000) * FIRST_CHARS_PER_TOKEN / 2)
    task = draw_question(session, "needle", chars=chars)
    found, by = await tokens.count_prompt_tokens(session, task.messages)
    if found <= 0:
        raise ProbeSkipped("the server counts no tokens: neither /tokenize nor usage")
    rate = len(str(task.messages[0]["content"])) / found
    return min(MOST_CHARS, max(LEAST_CHARS, rate)), by


class _TextMaker:
    """Makes texts that fill a number of tokens, and learns how many characters that takes."""

    def __init__(self, session: CheckSession, rate: float, by: str) -> None:
        self.session, self.rate, self.by = session, rate, by

    async def fit_text(self, depths: Sequence[float], target: int) -> tuple[list[Question], int]:
        """Needles in a text that fills `target` tokens closely without passing it."""
        if target < 64:
            raise ProbeSkipped(f"{target} tokens are too few to hide something in")
        fits: list[tuple[int, list[Question]]] = []
        middle = (1 + CLOSE) / 2
        aim = middle
        for _ in range(TRIES):
            chars = max(64, round(aim * target * self.rate) - FRAME)
            tasks = haystack_questions(self.session.rng, chars=chars, depths=depths)
            counted, _ = await tokens.count_prompt_tokens(self.session, tasks[0].messages)
            if counted <= 0:
                break
            if counted <= target:
                fits.append((counted, tasks))
            if CLOSE * target <= counted <= target:
                break
            aim *= min(1.2, max(0.8, middle * target / counted))  # what is drawn varies; the aim follows it
        if not fits:
            raise ProbeFailed(f"no text of {target:,} tokens could be made: the server's counts jump about")
        self.rate *= aim / middle
        counted, tasks = max(fits, key=lambda pair: pair[0])
        return tasks, counted


async def probe_announced_length(session: CheckSession) -> str:
    """The server takes a prompt of the length that it announces; asked where that is no matter of minutes."""
    limit = session.context_limit
    if not limit or limit > MAX_PLAUSIBLE_CONTEXT:
        raise ProbeSkipped("the server does not say how long a prompt may be")
    if session.tried_context >= CLOSE * CLOSE * limit - FRAME:
        return f"{digits(session.tried_context)} of {digits(limit)} tokens announced"
    needs_s = SLOWER * limit / max(1.0, session.prefill_tok_s)
    if session.options.context or not session.prefill_tok_s or needs_s > min(ANNOUNCED_S, session.seconds_left / 4):
        session.notes.append(
            f"{digits(limit)} tokens announced, {digits(session.tried_context)} tried (--context {limit} tries all)"
        )
        return session.notes[-1]
    with session.allow_slow_replies():
        return await _filled(session, limit)


async def _filled(session: CheckSession, limit: int) -> str:
    room = draw_question(session, "needle", chars=100).max_tokens + RESERVE
    text = _TextMaker(session, *await _rate(session, limit - room))
    (task, *_), counted = await text.fit_text([0.5], limit - room)
    try:
        answer = await session.ask_question(task)
    except ProbeFailed as problem:
        raise ProbeFailed(f"{limit:,} tokens announced, {counted:,} refused: {problem}") from None
    _not_cut(answer, counted)
    wrong = judge_answer(task, answer)
    session.failures.add("context", wrong, "model", where=f"in the middle of {counted:,} tokens")
    return f"{digits(counted)} of {digits(limit)} tokens announced"


CHECK = Check(
    name="long-context",
    about="needles at many depths of a long text",
    probes={"needles": probe_needles, "announced": probe_announced_length},
    request_estimate=60,
)
