"""errors: bad requests are rejected so that clients understand, and neither they nor disconnects do harm."""

import asyncio
from functools import partial

from moebox.core.verdict import HttpExchange
from moebox.phantom.question import Question
from moebox.verify.client import DISCONNECTED
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeFailed, error_text, raise_for_failure, transport_problem
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, judge_answer
from moebox.verify.violations import is_json, parse_json_or

BAD_REQUESTS = 4  # after each good one; they cost nothing, and clients keep a connection for hundreds
STORY_TOKENS = 1024  # of a stream that is abandoned


async def probe_bad_requests(session: CheckSession) -> str:
    """Missing messages, messages of the wrong type, cut JSON: a 4xx with an explanation."""
    model = session.endpoint.model
    bad: dict[str, object] = {
        "no messages": {"model": model, "max_tokens": 8},
        "messages that are a string": {"model": model, "messages": "Hello!", "max_tokens": 8},
        "JSON that is cut": b'{"model": "m", "messages": [{"role": "us',
    }
    for title, body in bad.items():
        exchange = await session.post(session.chat_url, body)
        if exchange.error:
            raise ProbeFailed(f"{title}: {exchange.error}")
        session.failures.add("errors", rejection_problem(exchange), where=title)
    return f"answered {', '.join(str(each.status) for each in session.exchanges)}"


def rejection_problem(exchange: HttpExchange) -> str:
    """Return "" for a 4xx (or llama.cpp's 500) that explains itself in JSON."""
    if exchange.status < 400:
        return f"accepted, with HTTP {exchange.status}"
    if not is_json(exchange.response):
        return f"HTTP {exchange.status} with something that is not JSON"
    body = parse_json_or(exchange.response)
    error = body.get("error", body) if isinstance(body, dict) else None
    explains = isinstance(error, str) or (isinstance(error, dict) and bool({"message", "detail"} & set(error)))
    return "" if explains else f"HTTP {exchange.status} without a message{error_text(exchange)}"


async def probe_keep_alive(session: CheckSession) -> str:
    """Good and bad requests in turn over one connection: each good one gets its own answer."""
    post, rounds = partial(session.post, session.chat_url, keep_alive=True), session.options.trial_share(0.25)
    for _ in session.track(range(rounds)):
        question = session.draw("secret")
        body = session.question_request(question)
        exchange = await post(body)
        if exchange.error.startswith("broken off"):  # a server may close an idle connection
            exchange = await post(body)
        session.failures.add("transport", transport_problem(exchange))
        raise_for_failure(exchange)
        reason = await _server_mistake(session, question, session.read_answer(exchange))
        session.failures.add("transport", reason, where="after an error on the same connection")
        for _ in range(BAD_REQUESTS):
            await post({"model": session.endpoint.model, "max_tokens": 8})
    return f"{rounds} good and {BAD_REQUESTS * rounds} bad requests on one connection"


async def _server_mistake(
    session: CheckSession, question: Question, answer: ChatAnswer, *, stream: bool = False
) -> str:
    """Return what is wrong with an answer that is right if asked for alone, or ""."""
    reason = judge_answer(question, answer)
    return "" if reason and judge_answer(question, await session.ask_question(question, stream=stream)) else reason


async def probe_disconnects(session: CheckSession) -> str:
    """Abandoned streams free their slot: the next requests are answered as before."""
    url, trials = session.chat_url, session.options.trial_share(0.25)
    questions = [(session.draw("secret"), number % 2 == 0) for number in range(trials)]
    before = [await session.ask_question(question, stream=stream) for question, stream in questions]
    body = session.chat_request(session.draw("story").messages, max_tokens=STORY_TOKENS, stream=True)
    streams = [session.client.post_and_disconnect(url, body) for _ in range(2 * session.options.parallel)]
    abandoned = [*map(session.keep_evidence, await asyncio.gather(*streams))]
    for exchange in abandoned:
        # Of so many at once, the server may ask some to wait
        expected = exchange.error == DISCONNECTED or exchange.status in (429, 503)
        session.failures.add("transport", "" if expected else transport_problem(exchange), stream=True)
    gone = sum(exchange.error == DISCONNECTED for exchange in abandoned)
    for (question, stream), answered in zip(questions, before, strict=True):
        # The rest of an abandoned stream must not reach the next client, which gets the same answer as before
        first, answer = answered.content.strip(), await session.ask_question(question, stream=stream)
        content = answer.content.strip()
        changed = content != first
        if changed and content not in first and first not in content:  # a model that varies does not repeat the first
            changed = (await session.ask_question(question, stream=stream)).content.strip() == first
        reason = judge_answer(question, answer) or (f"{content[:60]!r}; before that: {first[:40]!r}" if changed else "")
        reason = ModelFailure(reason) if content == first else reason
        session.failures.add("answer", reason, stream=stream, where=f"after {gone} streams were abandoned")
        session.keep_evidence(await session.client.post_and_disconnect(url, body))
    return f"{gone} streams abandoned midway"


async def probe_beside_disconnects(session: CheckSession) -> str:
    """A stream goes on to its end while others are abandoned."""
    body = session.chat_request(session.draw("story").messages, max_tokens=STORY_TOKENS, stream=True)
    parallel, rounds = session.options.parallel, session.options.trial_share(0.13, 1)
    for _ in session.track(range(rounds)):
        question = session.draw("count", start=1, end=40)
        leaving = asyncio.gather(*(session.client.post_and_disconnect(session.chat_url, body) for _ in range(parallel)))
        answer = await session.ask_question(question, stream=True)
        await leaving
        reason = await _server_mistake(session, question, answer, stream=True)
        session.failures.add("crowd", reason, where="right alone, and wrong while other streams were abandoned")
    return f"{rounds} streams beside {rounds * parallel} abandoned ones"


PROBES: Probes = {
    "refused": probe_bad_requests,
    "kept alive": probe_keep_alive,
    "hung up": probe_disconnects,
    "beside streams that are left": probe_beside_disconnects,
}
