"""thinking: reasoning apart from the answer, on and off, streamed and not; a schema holds after it too."""

import itertools
from functools import partial

from moebox.phantom.question import Question
from moebox.verify.checks.schemas import judge_json
from moebox.verify.checks.streaming import compare_modes
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeFailed, ProbeSkipped, ProbeWarning
from moebox.verify.trials import CheckSession, Probes, QuestionAttempt, judge_answer

MIN_SHARED_CHARS = 30  # of reasoning in the answer too, before that is a leak


async def probe_separation(session: CheckSession, *, stream: bool) -> str:
    """Asked to think, the model thinks, and the answer is separate; in a stream the reasoning comes first."""
    lengths: list[int] = []

    def judge(question: Question, answer: ChatAnswer) -> str:
        if not answer.reasoning.strip():
            if session.options.thinking == "no":
                raise ProbeSkipped("this model is not expected to think")
            if answer.hidden_tokens:
                raise ProbeSkipped("reasoning is counted and not shown")
            if session.options.thinking == "yes" or session.model_thinks:
                raise ProbeFailed("asked to think, but no reasoning came")
            cause = "the model does not think, or the reasoning parser is missing"
            raise ProbeSkipped(f"no reasoning came when asked for: {cause}")
        session.model_thinks = True
        lengths.append(len(answer.reasoning))
        mixed = mixed_reasoning(answer)
        session.failures.add("reasoning", mixed, stream=stream)
        return "" if mixed else judge_answer(question, answer)

    attempt = QuestionAttempt(session, partial(session.draw, "sums", thinking=True), judge)
    await session.run_trials("answer", attempt, 0.38 if stream else 0.5, stream=stream)

    async def attempt_both(stream: bool) -> str:
        return await compare_modes(session, session.draw("sums", thinking=True))

    if stream:
        await session.run_trials("reasoning", attempt_both, 0.13, 1, stream=True)
    return f"{lengths[-1]} characters of reasoning"


def mixed_reasoning(answer: ChatAnswer) -> str:
    """Describe how reasoning and answer are mixed up, or return ""."""
    reasoning, content = answer.reasoning.strip(), answer.content.strip()
    if not content and not answer.calls and answer.finish_reason == "stop":
        return f"only reasoning came, no answer: …{reasoning[-60:]!r}"
    if len(reasoning) >= MIN_SHARED_CHARS and reasoning[:MIN_SHARED_CHARS] in content:
        return f"the reasoning is in the answer too: {content[:80]!r}"
    return "" if answer.reasoning_first else "reasoning and content alternate in the stream"


def spilled_reasoning(thinking: ChatAnswer, plain: ChatAnswer) -> str:
    """Describe reasoning at the start of an answer, found by comparing with the answer without thinking, or ""."""
    long, end = thinking.content.strip(), plain.content.strip()
    if thinking.reasoning or not end or len(long) - len(end) < MIN_SHARED_CHARS:
        return ""
    return f"reasoning is in the answer, and none apart from it: {long[:60]!r}" if long.endswith(end) else ""


def reason_thinking_stays_on(session: CheckSession) -> str:
    """Return why thinking cannot be turned off by a request, or ""."""
    if not session.accepts_template_arguments:
        return "the server does not accept chat_template_kwargs, so a request cannot turn thinking off"
    if session.options.thinking == "no":
        return "this model is not expected to think"
    return "this model always thinks" if session.always_thinks else ""


async def probe_thinking_off(session: CheckSession) -> ProbeWarning | None:
    """Asked not to think, the model does not, streamed or not, though it was asked to just before.

    One that thinks each time may be unable to stop: that is learned here, and no more than a warning.
    """
    if reason := reason_thinking_stays_on(session):
        raise ProbeSkipped(reason)
    tries = [await session.ask_question(session.draw("sums"), stream=stream) for stream in (False, True, False)]
    thinks_each_time = all(answer.reasoning.strip() and answer.content.strip() for answer in tries)
    if session.always_thinks or (thinks_each_time and not session.answered_without_thinking):
        session.always_thinks = True
        cause = "the model cannot turn thinking off, or the server does not pass chat_template_kwargs on"
        return ProbeWarning(f"asked not to think, it thinks each time: {cause}")

    turns = itertools.count()

    async def attempt(stream: bool) -> str:
        if session.model_thinks and next(turns) % 2 == 0:
            await session.ask_question(session.draw("sums", thinking=True), stream=stream)
        answer = await session.ask_question(session.draw("sums"), stream=stream)
        whole = "" if answer.content.strip() else ", and the whole answer is in it"
        return f"thinking is off, yet reasoning came{whole}" if answer.reasoning.strip() else ""

    await session.run_both_modes("reasoning", attempt, 0.25)
    return None


async def probe_schema_after_thinking(session: CheckSession) -> ProbeWarning | None:
    """A JSON schema binds the answer that follows the reasoning, and reasoning comes."""
    session.require_thinking()
    thought: list[bool] = []

    def judge(question: Question, answer: ChatAnswer) -> str:
        thought.append(bool(answer.reasoning.strip()))
        return judge_json(question, answer)

    attempt = QuestionAttempt(session, partial(session.draw, "json_schema", thinking=True), judge)
    await session.run_both_modes("json", attempt, 0.13, 1)
    text = f"asked to think under a JSON schema, it did not in {len(thought)} of {len(thought)} answers"
    return None if any(thought) else ProbeWarning(f"{text}: the schema binds from the first token on")


PROBES: Probes = {
    "apart": partial(probe_separation, stream=False),
    "apart in a stream": partial(probe_separation, stream=True),
    "off": probe_thinking_off,
    "schema after thinking": probe_schema_after_thinking,
}
