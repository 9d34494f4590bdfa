"""code: a function is asked for and run against cases in the sandbox."""

import asyncio

from moebox import sandbox
from moebox.phantom.tasks import Question, extract_code
from moebox.verify.ask import CheckSession, ProbeFailed, ProbeSkipped
from moebox.verify.rung import Check
from moebox.verify.trials import TrialOutcome, draw_question, judge_answer, run_trials


async def probe_functions(session: CheckSession) -> str:
    """Small functions do what was asked on every case."""
    try:
        session.sandbox = await asyncio.to_thread(sandbox.strongest_level)
    except sandbox.NoSandbox as problem:
        raise ProbeSkipped(f"code is not run here: {problem}") from None

    async def attempt() -> TrialOutcome:
        task = draw_question(session, "code")
        answer = await session.ask_question(task)
        why = judge_answer(task, answer) or await asyncio.to_thread(_run, task, answer.content)
        return TrialOutcome(
            reason=why, attributed_to="model"
        )  # a wrong function was written so; a lost word shows in other rungs

    await run_trials(session, "answer", attempt, session.options.trial_share(0.34, 3))
    return f"run behind {session.sandbox}"


def _run(task: Question, text: str) -> str:
    """ "" when every case gives what it must."""
    try:
        outcome = sandbox.run_code(extract_code(text), task.expect, [case.args for case in task.cases])
    except sandbox.NoSandbox as problem:
        raise ProbeFailed(f"the sandbox broke: {problem}") from None
    if outcome.error:
        return f"{task.expect}: {outcome.error}"
    for case, value in zip(task.cases, outcome.values, strict=False):
        if not _is_same(value, case.want):
            given = ", ".join(map(repr, case.args))
            return f"{task.expect}({given}) is {value!r}, not {case.want!r}"
    return "" if len(outcome.values) == len(task.cases) else f"{task.expect}: {len(outcome.values)} values came back"


def _is_same(value: object, wanted: object) -> bool:
    """Equal, and True is not 1."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


CHECK = Check(
    name="code",
    about="functions run against cases in a sandbox",
    probes={"functions": probe_functions},
    request_estimate=6,
)
