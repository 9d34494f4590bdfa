"""thinking: reasoning apart from content, on and off, in a stream and not; a schema holds after it too."""

from moebox.phantom.tasks import ModelReply
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, ProbeFailed, ProbeSkipped
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check
from moebox.verify.rungs.json_modes import json_attempt
from moebox.verify.trials import QuestionAttempt, TrialOutcome, draw_question, pass_if, run_trials, server_failure

LEAST_SHARED = 30  # characters of reasoning that stand in the answer too before they are a leak


async def probe_separation(session: CheckSession) -> str:
    """Asked to think, it thinks, and the answer stands apart from that."""
    return await _apart(session, stream=False)


async def probe_separation_in_stream(session: CheckSession) -> str:
    """The same in a stream: first the thoughts, then the answer."""
    return await _apart(session, stream=True)


async def _apart(session: CheckSession, *, stream: bool) -> str:
    lengths: list[int] = []

    async def attempt() -> TrialOutcome:
        task = draw_question(session, "sums", thinking=True)
        answer = await session.ask_question(task, stream=stream)
        _thought(session, answer)
        lengths.append(len(answer.reasoning))
        return server_failure(mixed_reasoning(answer))

    await run_trials(session, "reasoning" + STREAMED * stream, attempt, session.options.trial_share(0.67))
    asked = QuestionAttempt(session, lambda: draw_question(session, "sums", thinking=True), stream=stream)
    await run_trials(session, "answer" + STREAMED * stream, asked, session.options.trial_share(0.34))
    return f"{lengths[-1]} characters of reasoning"


def mixed_reasoning(answer: ChatAnswer) -> str:
    """ "" or how reasoning and answer run into each other."""
    thought, said = answer.reasoning.strip(), answer.content.strip()
    if not said and not answer.calls and answer.finish_reason == "stop":
        return f"only reasoning came, no answer: …{thought[-60:]!r}"
    if len(thought) >= LEAST_SHARED and thought[:LEAST_SHARED] in said:
        return f"the reasoning stands in the answer too: {said[:80]!r}"
    return "" if answer.reasoning_first else "reasoning and content alternate in the stream"


def spilled_reasoning(thinking: ModelReply, plain: ModelReply) -> str:
    """ "" or how an answer begins with thoughts that belong apart, by what is said to the same without thinking."""
    long, end = thinking.content.strip(), plain.content.strip()
    more = len(long) - len(end)
    if thinking.reasoning or not end or more < LEAST_SHARED:
        return ""
    return f"thoughts stand in the answer, with no reasoning apart: {long[:60]!r}" if long.endswith(end) else ""


def reason_thinking_stays_on(session: CheckSession) -> str:
    """ "" or why thinking cannot be turned off from here."""
    if not session.accepts_template_arguments:
        return "the server takes no chat_template_kwargs, so thinking cannot be turned off from here"
    if session.options.thinking == "no":
        return "this model is not expected to think"
    return "this model always thinks" if "thinking" in session.endpoint.model.lower() else ""


async def probe_thinking_off(session: CheckSession) -> None:
    """Asked not to think, it does not, in a stream and without, though it was asked to just before."""
    if why := reason_thinking_stays_on(session):
        raise ProbeSkipped(why)
    for stream in (False, True):

        async def attempt(stream: bool = stream) -> TrialOutcome:
            if session.model_thinks:
                await session.ask_question(draw_question(session, "sums", thinking=True), stream=stream)
            answer = await session.ask_question(draw_question(session, "sums"), stream=stream)
            if answer.reasoning.strip() and not answer.content.strip():
                return server_failure("thinking is off, and the whole answer lands in the reasoning field")
            return pass_if(not answer.reasoning.strip(), "thinking is off, yet reasoning came")

        await run_trials(session, "reasoning" + STREAMED * stream, attempt, session.options.trial_share(0.34))
        asked = QuestionAttempt(session, lambda: draw_question(session, "sums"), stream=stream)
        await run_trials(session, "answer" + STREAMED * stream, asked, session.options.trial_share(0.17))


async def probe_schema_after_thinking(session: CheckSession) -> None:
    """A JSON schema binds the answer that follows the thoughts."""
    session.require_thinking()
    for stream in (False, True):
        asked = json_attempt(session, "json_schema", thinking=True, stream=stream)
        await run_trials(session, "json" + STREAMED * stream, asked, session.options.trial_share(0.34))


def _thought(session: CheckSession, answer: ChatAnswer) -> None:
    """Failed or Skipped when no reasoning came."""
    if answer.reasoning.strip():
        session.model_thinks = True
        return
    if session.options.thinking == "no":
        raise ProbeSkipped("this model is not expected to think")
    if session.options.thinking == "yes" or session.model_thinks:
        raise ProbeFailed("asked to think, but no reasoning came")
    raise ProbeSkipped("no reasoning came when asked for: a model that does not think, or a missing reasoning parser")


CHECK = Check(
    name="thinking",
    about="reasoning apart from the answer, on and off",
    probes={
        "apart": probe_separation,
        "apart in a stream": probe_separation_in_stream,
        "off": probe_thinking_off,
        "schema after thinking": probe_schema_after_thinking,
    },
    request_estimate=52,
)
