"""plain, arithmetic and code: fresh questions with known answers."""

import asyncio
import unicodedata
from functools import partial

from moebox.core.verdict import Score
from moebox.phantom.format_questions import extract_code
from moebox.phantom.question import Question
from moebox.phantom.text_questions import text_flaw
from moebox.sandbox import start as sandbox
from moebox.verify.client import THIS_MACHINE
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeFailed, ProbeSkipped
from moebox.verify.trials import Check, CheckSession, Judge, QuestionAttempt, TrialOutcome, judge_answer, model_failure

FOREIGN_SHARE = 0.2  # of the letters outside the Latin script, from which an answer is not in English
STORY_TOKENS = 240  # several times the loops that are looked for
SENTENCE_ENDS = ".!?…\"'”’)*`:;>"  # how a complete text may end


def judge_in_english(question: Question, answer: ChatAnswer) -> str:
    return judge_answer(question, answer) or foreign_script(answer.content)


async def probe_family(
    session: CheckSession, *, family: str, share: float, least: int = 2, judge: Judge = judge_answer
) -> Score:
    """Questions of one family are answered right."""
    return await session.run_trials("answer", QuestionAttempt(session, family, judge=judge), share, least)


async def probe_long_text(session: CheckSession) -> None:
    """A longer text stays coherent to its end: no loop, no run of one mark, no other language."""

    async def attempt(stream: bool) -> TrialOutcome:
        answer = await session.ask_question(session.draw("story"), max_tokens=STORY_TOKENS)
        if reason := text_flaw(answer.content, min_words=40) or foreign_script(answer.content):
            raise ProbeFailed(reason)
        ended = answer.finish_reason != "stop" or answer.content.rstrip()[-1:] in SENTENCE_ENDS
        return TrialOutcome(reason="" if ended else f"finish_reason stop in mid-sentence: …{answer.content[-40:]!r}")

    await session.run_trials("text", attempt, 0.09, 1)


def foreign_script(text: str) -> str:
    """Return the script in which an English question was answered, or ""."""
    letters = [letter for letter in text if letter.isalpha()]
    other = [letter for letter in letters if not unicodedata.name(letter, "").startswith("LATIN")]
    if len(other) <= FOREIGN_SHARE * len(letters):
        return ""
    script = unicodedata.name(other[0], "another").split()[0].lower()
    return f"answered in {script} letters: {text[:60]}"


async def probe_functions(session: CheckSession) -> str:
    """Small functions return the right value for every case. They run in the sandbox only."""
    try:
        session.sandbox = await asyncio.to_thread(sandbox.strongest_level)
    except sandbox.NoSandbox as problem:
        raise ProbeSkipped(f"{THIS_MACHINE}: code is not run here: {problem}") from None

    async def attempt(stream: bool) -> TrialOutcome:
        question = session.draw("code")
        answer = await session.ask_question(question)
        reason = judge_answer(question, answer) or await asyncio.to_thread(_run_cases, question, answer.content)
        return model_failure(reason)  # other checks find words that a server lost

    await session.run_trials("answer", attempt, 0.25)
    return f"run behind {session.sandbox}"


def _run_cases(question: Question, text: str) -> str:
    """Run the function in the sandbox. Return "" if every case gives the right value."""
    name, cases = question.expect, question.cases
    try:
        outcome = sandbox.run_code(extract_code(text), name, [case.args for case in cases])
    except OSError as problem:  # NoSandbox, or no descriptor or process for it
        raise ProbeSkipped(f"{THIS_MACHINE}: code could not be run: {problem}") from None
    if outcome.error:
        return f"{name}: {outcome.error}"
    for case, value in zip(cases, outcome.values, strict=False):
        same = value == case.want and isinstance(value, bool) == isinstance(case.want, bool)  # True is not 1
        if not same:
            return f"{name}({', '.join(map(repr, case.args))}) is {value!r}, not {case.want!r}"
    return "" if len(outcome.values) == len(cases) else f"{name}: {len(outcome.values)} values came back"


PLAIN = Check(
    name="plain",
    probes={
        "facts": partial(probe_family, family="plain", share=0.38, judge=judge_in_english),
        "memory": partial(probe_family, family="memory", share=0.25),
        "at length": probe_long_text,
    },
    stop_if_failed=(frozenset({"facts", "at length"}),),
)
ARITHMETIC = Check(
    name="arithmetic",
    probes={
        "sums": partial(probe_family, family="sums", share=1.0, least=8),
        "counting": partial(probe_family, family="count", share=0.17, least=1),
    },
)
CODE = Check(name="code", probes={"functions": probe_functions})
