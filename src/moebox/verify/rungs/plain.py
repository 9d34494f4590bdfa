"""plain: coherent, in the language of the question, no loop, no "!!!!", and no NaN behind it."""

import unicodedata

from moebox.core.verdict import Score
from moebox.phantom.tasks import Question, text_flaw
from moebox.verify.answer import NOT_OFFERED, ChatAnswer, is_logprob
from moebox.verify.ask import CheckSession, ProbeFailed, ProbeSkipped, skip_if_rejected
from moebox.verify.rung import Check
from moebox.verify.trials import (
    PASSED,
    QuestionAttempt,
    TrialOutcome,
    draw_question,
    family_attempt,
    judge_answer,
    run_trials,
    server_failure,
)

FOREIGN = 0.2  # share of letters outside the Latin script from which an English question was not answered in English
ENDS = ".!?…\"'”’)*`:;>"  # what a finished text may end with


async def probe_facts(session: CheckSession) -> Score:
    """Plain questions with known answers."""
    return await run_trials(
        session,
        "answer",
        QuestionAttempt(session, lambda: draw_question(session, "plain"), judge=judge_in_english),
        _half(session),
    )


async def probe_memory(session: CheckSession) -> Score:
    """Something said earlier in the conversation is known later."""
    return await run_trials(session, "answer", family_attempt(session, "memory"), session.options.trial_share(0.34))


def _half(session: CheckSession) -> int:
    return session.options.trial_share(0.5)


async def probe_long_text(session: CheckSession) -> None:
    """A longer piece of writing stays coherent to its end: no loop, no run of one mark, no other language."""

    async def attempt() -> TrialOutcome:
        answer = await session.ask_question(draw_question(session, "story"), max_tokens=1024)
        if why := text_flaw(answer.content, min_words=40) or foreign_script(answer.content):
            raise ProbeFailed(why)
        ended = answer.finish_reason != "stop" or answer.content.rstrip()[-1:] in ENDS
        return PASSED if ended else server_failure(f"finish_reason stop in mid-sentence: …{answer.content[-40:]!r}")

    await run_trials(session, "text", attempt, session.options.trial_share(0.09, 1))


async def probe_logprob_numbers(session: CheckSession) -> None:
    """Log-probabilities, where offered, are numbers: NaN in the forward pass shows here first."""
    task = draw_question(session, "secret")
    exchange = await session.post_chat(session.chat_request(task.messages, max_tokens=24, logprobs=True))
    with skip_if_rejected(NOT_OFFERED):
        answer = session.read_answer(exchange, stream=False)
    if not all(map(is_logprob, answer.logprobs)):
        raise ProbeFailed("a log-probability is not a number below zero")
    if not answer.logprobs:
        raise ProbeSkipped("no log-probabilities came")


def judge_in_english(task: Question, answer: ChatAnswer) -> str:
    """Right, and in the language of the question."""
    return judge_answer(task, answer) or foreign_script(answer.content)


def foreign_script(text: str) -> str:
    """ "" or the script in which an English question was answered."""
    letters = [letter for letter in text if letter.isalpha()]
    other = [letter for letter in letters if not unicodedata.name(letter, "").startswith("LATIN")]
    if len(other) <= FOREIGN * len(letters):
        return ""
    script = unicodedata.name(other[0], "another").split()[0].lower()
    return f"answered in {script} letters: {text[:60]}"


CHECK = Check(
    name="plain",
    about="coherent language, no loop, the right language",
    probes={
        "facts": probe_facts,
        "memory": probe_memory,
        "at length": probe_long_text,
        "numbers": probe_logprob_numbers,
    },
    stop_if_failed=(frozenset({"facts", "at length"}),),
    request_estimate=16,
)
