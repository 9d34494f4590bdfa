"""code: a function is asked for and run against cases in the sandbox."""

import asyncio

from moebox import sandbox
from moebox.phantom.tasks import Task, code_in
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.rung import Rung
from moebox.verify.trials import Trial, draw, judge, trials


async def functions(ask: Asker) -> str:
    """Small functions do what was asked on every case."""
    try:
        ask.sandbox = await asyncio.to_thread(sandbox.strongest)
    except sandbox.NoSandbox as problem:
        raise Skipped(f"code is not run here: {problem}") from None

    async def attempt() -> Trial:
        task = draw(ask, "code")
        answer = await ask.ask(task)
        why = judge(task, answer) or await asyncio.to_thread(_run, task, answer.content)
        return Trial(why=why, whose="model")  # a wrong function was written so; a lost word shows in other rungs

    await trials(ask, "answer", attempt, ask.options.share(0.34, 3))
    return f"run behind {ask.sandbox}"


def _run(task: Task, text: str) -> str:
    """ "" when every case gives what it must."""
    try:
        outcome = sandbox.run(code_in(text), task.expect, [case.args for case in task.cases])
    except sandbox.NoSandbox as problem:
        raise Failed(f"the sandbox broke: {problem}") from None
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


RUNG = Rung(name="code", about="functions run against cases in a sandbox", probes={"functions": functions}, cost=6)
