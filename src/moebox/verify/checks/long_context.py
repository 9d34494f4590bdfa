"""long-context: needles at many depths of long texts, whose length the server's own tokenizer counts."""

from collections.abc import Sequence

from moebox.phantom.question import Question
from moebox.phantom.text_questions import haystack_questions
from moebox.units import format_count
from moebox.verify.checks.limits import MAX_PLAUSIBLE_CONTEXT
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeFailed, ProbeSkipped
from moebox.verify.statistics import ModelFailure
from moebox.verify.tokens import count_prompt_tokens
from moebox.verify.trials import CheckSession, Probes, judge_answer

UNASKED_TOKENS = 16384  # at most, if the user gave no length
BRIEF_TOKENS = 768  # at most, in a quick run
UNASKED_S = 10.0  # of prefill at most, if the user gave no length
ANNOUNCED_S = 60.0  # at most for one prompt of the announced length
SLOWER_FACTOR = 2.0  # times the seconds per token that a very long prompt takes
SAMPLE_TOKENS = 600  # to measure how fast the server reads
MIN_TOKENS = 2048
MIN_FILL = 0.97  # of the target length
MAX_TRIES = 8  # texts drawn before the longest that fits is used
FRAME_CHARS = 160  # of the question around the text
RESERVE_TOKENS = 16  # kept free beside the answer
MIN_PREFILL_TOK_S = 20.0  # still waited for: a hybrid box that reads its experts from RAM
FIRST_CHARS_PER_TOKEN = 3.0  # before the server has counted once; short on purpose
MIN_CHARS_PER_TOKEN, MAX_CHARS_PER_TOKEN = 0.5, 12.0  # whatever a server reports
SECOND_TEXT = 0.4  # length of the second text: shows losses at an absolute position
MIN_READ_SHARE = 0.8  # of the sent tokens that a server must report as read
NEAR_CHARS = 3  # leading characters of a code that a model does not produce by chance
OTHER_TEXTS = 2  # with a needle at the depth that was missed; missed in all, it is the server's fault


async def probe_needles(session: CheckSession) -> str:
    """Needles are found at each depth; one text, many questions, as agents ask over one long history."""
    with session.allow_slow_replies():
        length, source = await _choose_length(session)
        room = session.draw("needle", chars=100).max_tokens + RESERVE_TOKENS
        session.client.deadline_s = max(session.client.deadline_s, length / MIN_PREFILL_TOK_S)
        maker = _TextMaker(session)
        depths = session.options.depths
        count = await _ask_needles(session, maker, depths, length - room)
        if len(depths) > 1 and length > MIN_TOKENS:
            between = [(a + b) / 2 for a, b in zip(depths, [*depths[1:], 1.0], strict=True)]
            await _ask_needles(session, maker, between, max(64, round(SECOND_TEXT * (length - room))))
        session.tried_context = count + room
        return f"{format_count(count)} tokens of {source} {format_count(length)}, counted by {maker.source}"


async def _choose_length(session: CheckSession) -> tuple[int, str]:
    """Tokens to fill, prompt and answer together, and where that number comes from."""
    wanted, limit = session.options.context, session.context_limit
    if wanted:
        if limit and wanted > limit:
            raise ProbeFailed(f"{wanted:,} tokens were requested, the server accepts {limit:,}")
        return wanted, "the requested"
    if session.options.brief:
        return min(limit or BRIEF_TOKENS, BRIEF_TOKENS), "a quick run's"
    if not limit:
        return 4096, "a default"
    if limit <= MIN_TOKENS:
        return limit, "the server's"
    question = session.draw("needle", chars=round(SAMPLE_TOKENS * FIRST_CHARS_PER_TOKEN))
    count = (await session.ask_question(question, max_tokens=1, exact=True)).token_count("prompt") or SAMPLE_TOKENS
    session.prefill_tok_s = count / max(0.001, session.exchanges[-1].seconds)
    most = max(MIN_TOKENS, min(UNASKED_TOKENS, round(session.prefill_tok_s * UNASKED_S)))
    return min(limit, most), "the server's" if limit <= most else "a default"


async def _ask_needles(session: CheckSession, maker: "_TextMaker", depths: Sequence[float], target: int) -> int:
    """Ask for the needle at each depth of one text; return its tokens."""
    questions, count = await maker.fit_text(depths, target)
    for place, (depth, question) in enumerate(zip(depths, questions, strict=True)):
        answer = await session.ask_question(question, stream=place % 2 == 1)
        session.prefill_tok_s = session.prefill_tok_s or count / max(0.001, session.exchanges[-1].seconds)
        _require_whole_prompt(answer, count)
        wrong = judge_answer(question, answer)
        if not wrong:
            session.failures.add("context")
            continue
        reason = f"at depth {depth:.0%} of {target:,} tokens: {wrong}"
        if _is_near(question, answer):  # the model read the needle, or it could not have begun it
            session.failures.add("context", ModelFailure(reason))
        elif not judge_answer(question, await session.ask_question(question)):
            session.failures.add("context", f"{reason}; asked again, it was found")
        else:
            for _ in range(OTHER_TEXTS):
                (other, *_), _ = await maker.fit_text([depth], target)
                answer = await session.ask_question(other)
                if not judge_answer(other, answer) or _is_near(other, answer):
                    session.failures.add("context", ModelFailure(reason))
                    break
            else:
                raise ProbeFailed(f"{reason}; nor was it in {OTHER_TEXTS} other texts: this part of a prompt is lost")
    return count


def _require_whole_prompt(answer: ChatAnswer, sent: int) -> None:
    read = answer.token_count("prompt")
    if read is not None and read < MIN_READ_SHARE * sent:
        raise ProbeFailed(f"sent {sent:,} tokens, the server read {read:,}: the prompt was cut")


def _is_near(question: Question, answer: ChatAnswer) -> bool:
    return str(question.expect)[:NEAR_CHARS] in answer.content


class _TextMaker:
    """Makes texts that fill a number of tokens, and learns how many characters that takes."""

    def __init__(self, session: CheckSession) -> None:
        self.session, self.chars_per_token, self.source = session, 0.0, ""

    async def fit_text(self, depths: Sequence[float], target: int) -> tuple[list[Question], int]:
        """Needles in a text that nearly fills `target` tokens without exceeding it; its tokens."""
        if not self.source:  # measured on a sample
            sample = self.session.draw("needle", chars=round(min(target, 2000) * FIRST_CHARS_PER_TOKEN / 2))
            count, self.source = await count_prompt_tokens(self.session, sample.messages)
            if count <= 0:
                raise ProbeSkipped("the server counts no tokens: neither /tokenize nor usage")
            rate = len(str(sample.messages[0]["content"])) / count
            self.chars_per_token = min(MAX_CHARS_PER_TOKEN, max(MIN_CHARS_PER_TOKEN, rate))
        if target < 64:
            raise ProbeSkipped(f"{target} tokens are too few to hide something in")
        fits: list[tuple[int, list[Question]]] = []
        aim = middle = (1 + MIN_FILL) / 2
        for _ in range(MAX_TRIES):
            chars = max(64, round(aim * target * self.chars_per_token) - FRAME_CHARS)
            questions = haystack_questions(self.session.rng, chars=chars, depths=depths)
            count, _ = await count_prompt_tokens(self.session, questions[0].messages)
            if count <= 0:
                break
            if count <= target:
                fits.append((count, questions))
            if MIN_FILL * target <= count <= target:
                break
            aim *= min(1.2, max(0.8, middle * target / count))  # drawn words vary in length; the aim follows
        if not fits:
            raise ProbeFailed(f"no text of {target:,} tokens could be made: the server's counts vary too much")
        self.chars_per_token *= aim / middle
        count, questions = max(fits, key=lambda pair: pair[0])
        return questions, count


async def probe_announced_length(session: CheckSession) -> str:
    """The server takes a prompt of the length that it announces; tried unless that takes minutes."""
    limit = session.context_limit
    if not limit or limit > MAX_PLAUSIBLE_CONTEXT:
        raise ProbeSkipped("the server does not report how long a prompt may be")
    if session.tried_context >= MIN_FILL * MIN_FILL * limit - FRAME_CHARS:
        return f"{format_count(session.tried_context)} of {format_count(limit)} tokens announced"
    needs_s = SLOWER_FACTOR * limit / max(1.0, session.prefill_tok_s)
    too_slow = not session.prefill_tok_s or needs_s > min(ANNOUNCED_S, session.seconds_left / 4)
    if session.options.context or session.options.brief or too_slow:
        tried = f"{format_count(session.tried_context)} tried (--context {limit} tries all)"
        session.notes.append(f"{format_count(limit)} tokens announced, {tried}")
        return session.notes[-1]
    with session.allow_slow_replies():
        room = session.draw("needle", chars=100).max_tokens + RESERVE_TOKENS
        (question, *_), count = await _TextMaker(session).fit_text([0.5], limit - room)
        try:
            answer = await session.ask_question(question)
        except ProbeFailed as problem:
            raise ProbeFailed(f"{limit:,} tokens announced, {count:,} refused: {problem}") from None
        _require_whole_prompt(answer, count)
        wrong = judge_answer(question, answer)
        session.failures.add("context", ModelFailure(wrong), where=f"in the middle of {count:,} tokens")
        return f"{format_count(count)} of {format_count(limit)} tokens announced"


PROBES: Probes = {"needles": probe_needles, "announced": probe_announced_length}
