"""responses: OpenAI's responses API, if it is served, since Codex uses it."""

from moebox.core.verdict import Score
from moebox.phantom.question import Question
from moebox.verify.checks.schemas import draw_contradictions, schema_violation
from moebox.verify.checks.tools import judge_calls
from moebox.verify.checks.turns import PADDING, expect_growth
from moebox.verify.completions import ChatAnswer
from moebox.verify.other_apis import input_items, response_request, send_request
from moebox.verify.session import ProbeWarning, skip_if_rejected
from moebox.verify.trials import CheckSession, Probes, QuestionAttempt, judge_answer

FEW_TOKENS = 16  # for an answer that wants many more; OpenAI takes no lower limit


def _attempt(session: CheckSession, family: str) -> QuestionAttempt:
    """Attempts that ask a question over this API."""

    async def send(question: Question, stream: bool) -> ChatAnswer:
        return await send_request(session, response_request(session, question, stream=stream))

    return QuestionAttempt(session, family, judge_calls if family == "tool_call" else judge_answer, send=send)


async def probe_text(session: CheckSession) -> Score:
    """A question is answered, whole and in events that come in order and add up to the answer."""
    return await session.run_both_modes("text", _attempt(session, "copy"), 0.13, 1)


async def probe_tools(session: CheckSession) -> Score:
    """A tool is called, whole and streamed, and the result of a call is read and used."""
    await session.run_both_modes("tool-call", _attempt(session, "tool_call"), 0.13, 1)
    score = await session.run_trials("answer", _attempt(session, "tool_result"), 0.13, 1)
    question = session.draw("tool_result")
    empty = {"type": "reasoning", "id": "rs_1", "summary": []}  # as Codex sends back what it was given
    first, *others = input_items(question)
    with skip_if_rejected("a turn with its own reasoning item is refused", "responses"):
        await send_request(session, response_request(session, question) | {"input": [first, empty, *others]})
    return score


async def probe_schema(session: CheckSession) -> str:
    """text.format binds the answer to a schema that the prompt argues against."""
    draws = draw_contradictions(session.rng, session.options.trial_share(0.13, 2))
    for number, (text, schema) in session.track(draws):
        stream = number % 2 == 1
        wanted = {"type": "json_schema", "name": "record", "strict": True, "schema": schema}
        question = session.draw("secret")
        body = response_request(session, question, stream=stream, text={"format": wanted}) | {"input": text}
        with skip_if_rejected("the server does not accept text.format"):
            answer = await send_request(session, body, allow_marks=True)
        reason = "" if answer.finish_reason == "length" else schema_violation(answer.content.strip(), schema)
        session.failures.add("schema", reason, stream=stream, where="text.format is not enforced")
    return f"{len(draws)} schemas against contradicting prompts"


async def probe_limit(session: CheckSession) -> None:
    """max_output_tokens ends an answer with the status `incomplete`, and `instructions` are in the prompt."""
    counts = []
    for stream in (False, True):
        request = response_request(session, session.draw("count", start=1, end=30), stream=stream)
        request |= {"max_output_tokens": FEW_TOKENS, "instructions": PADDING if stream else "Hi."}
        with skip_if_rejected("the server does not accept instructions"):
            cut = await send_request(session, request, allow_marks=True)
        made = cut.token_count("completion")
        kept = made is None or made <= FEW_TOKENS
        reason = f"{made} output_tokens with max_output_tokens {FEW_TOKENS}"
        session.failures.expect("limits", kept, reason, stream=stream)
        marked = cut.finish_reason == "length" or (made is not None and made < FEW_TOKENS)
        reason = "the status is completed although max_output_tokens cut the answer"
        session.failures.expect("finish", marked, reason, stream=stream)
        counts.append(cut.token_count("prompt"))
    expect_growth(session, "prompt", "24 words of instructions", counts[0], counts[1])


async def probe_stored(session: CheckSession) -> str | ProbeWarning:
    """A response that was stored is the beginning of the next one, if the server stores any."""
    question = session.draw("secret")
    with skip_if_rejected("the server stores no responses"):
        first = await send_request(session, response_request(session, question, store=True))
        body = response_request(session, session.draw("secret"), previous_response_id=first.id)
        after = await send_request(session, body, allow_marks=True)
    alone = await send_request(session, {key: body[key] for key in body if key != "previous_response_id"})
    few, many = alone.token_count("prompt"), after.token_count("prompt")
    if few is not None and many == few:
        return ProbeWarning("previous_response_id is accepted and ignored: the prompt has as many tokens without it")
    expect_growth(session, "prompt", "previous_response_id", few, many, FEW_TOKENS)
    return "a stored response is continued"


PROBES: Probes = {
    "text": probe_text,
    "tools": probe_tools,
    "schema": probe_schema,
    "limit": probe_limit,
    "stored": probe_stored,
}
