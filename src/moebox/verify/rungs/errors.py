"""errors: bad requests are refused so that clients understand, and neither they nor hung-up streams do harm."""

import asyncio

from moebox.core.verdict import Attribution, HttpExchange
from moebox.phantom.tasks import Question
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, ProbeFailed, error_text, raise_for_failure, transport_problem
from moebox.verify.breach import parse_strict_json
from moebox.verify.client import DISCONNECTED
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check
from moebox.verify.trials import draw_question, judge_answer

BAD_REQUESTS = 4  # requests after each good one, which cost nothing: clients keep a connection for hundreds
STORY_TOKENS = 1024  # tokens of a stream that nobody waits for


async def probe_bad_requests(session: CheckSession) -> str:
    """No messages, messages that are none, JSON that is none: a 4xx with an explanation."""
    url = f"{session.endpoint.base_url}/chat/completions"
    model = session.endpoint.model
    bad: dict[str, object] = {
        "no messages": {"model": model, "max_tokens": 8},
        "messages that are a string": {"model": model, "messages": "Hello!", "max_tokens": 8},
        "JSON that is cut": b'{"model": "m", "messages": [{"role": "us',
    }
    seen = []
    for title, body in bad.items():
        exchange = session.keep_evidence(await session.client.post(url, body))
        if exchange.error:
            raise ProbeFailed(f"{title}: {exchange.error}")
        session.failures.add("errors", rejection_problem(exchange), where=title)
        seen.append(str(exchange.status))
    return f"answered {', '.join(seen)}"


def rejection_problem(exchange: HttpExchange) -> str:
    """ "" for a 4xx (or llama.cpp's 500) that explains itself in JSON."""
    if exchange.status < 400:
        return f"taken, with HTTP {exchange.status}"
    try:
        body = parse_strict_json(exchange.response)
    except ValueError:
        return f"HTTP {exchange.status} with something that is not JSON"
    return "" if _explains(body) else f"HTTP {exchange.status} without a message{error_text(exchange)}"


def _explains(body: object) -> bool:
    """An error's body says what was wrong, in one of the places where clients look."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    return isinstance(inner, str) or (isinstance(inner, dict) and bool({"message", "detail"} & set(inner)))


async def probe_keep_alive(session: CheckSession) -> str:
    """Good and bad requests in turn over one connection: each good one gets its own answer."""
    url = f"{session.endpoint.base_url}/chat/completions"
    rounds = session.options.trial_share(0.34, 3)
    for number in range(rounds):
        session.trial_progress = (number + 1, rounds)
        task = draw_question(session, "secret")
        body = session.chat_request(task.messages, max_tokens=task.max_tokens)
        exchange = session.keep_evidence(await session.client.post(url, body, keep_alive=True))
        if exchange.error.startswith("broken off"):  # a server may close a connection that is idle
            exchange = session.keep_evidence(await session.client.post(url, body, keep_alive=True))
        session.failures.add("transport", transport_problem(exchange))
        raise_for_failure(exchange)
        why = await _not_the_models(session, task, session.read_answer(exchange, stream=False))
        session.failures.add("transport", why, where="after an error on the same connection")
        for _ in range(BAD_REQUESTS):
            session.keep_evidence(
                await session.client.post(url, {"model": session.endpoint.model, "max_tokens": 8}, keep_alive=True)
            )
    return f"{rounds} good and {BAD_REQUESTS * rounds} bad requests on one connection"


async def _not_the_models(session: CheckSession, task: Question, answer: ChatAnswer, *, stream: bool = False) -> str:
    """ "" or what is wrong with an answer that is right when it is asked for alone."""
    why = judge_answer(task, answer)
    return "" if why and judge_answer(task, await session.ask_question(task, stream=stream)) else why


async def probe_disconnects(session: CheckSession) -> str:
    """Streams that a client leaves free their slot: the next requests are answered as ever."""
    url = f"{session.endpoint.base_url}/chat/completions"
    many = 2 * session.options.parallel
    asked = [(draw_question(session, "secret"), number % 2 == 0) for number in range(session.options.trial_share(0.34))]
    before = [await session.ask_question(task, stream=stream) for task, stream in asked]
    body = session.chat_request(draw_question(session, "story").messages, max_tokens=STORY_TOKENS, stream=True)
    left = await asyncio.gather(*(session.client.post_and_disconnect(url, body) for _ in range(many)))
    for exchange in left:
        session.failures.add("transport" + STREAMED, _lost_before(session.keep_evidence(exchange)))
    gone = sum(exchange.error == DISCONNECTED for exchange in left)
    for (task, stream), first in zip(asked, before, strict=True):
        await _after(session, task, first, gone, stream=stream)
        session.keep_evidence(await session.client.post_and_disconnect(url, body))
    return f"{gone} streams left in the middle"


def _lost_before(exchange: HttpExchange) -> str:
    """ "" or why a stream ended before it was left; of so many at once some may be asked to wait."""
    expected = exchange.error == DISCONNECTED or exchange.status in (429, 503)
    return "" if expected else transport_problem(exchange)


async def probe_beside_disconnects(session: CheckSession) -> str:
    """A stream goes on to its end while others are left in the middle."""
    url = f"{session.endpoint.base_url}/chat/completions"
    left = session.chat_request(draw_question(session, "story").messages, max_tokens=STORY_TOKENS, stream=True)
    rounds = session.options.trial_share(0.17)
    for number in range(rounds):
        session.trial_progress = (number + 1, rounds)
        task = draw_question(session, "count", start=1, end=40)
        leaving = asyncio.gather(
            *(session.client.post_and_disconnect(url, left) for _ in range(session.options.parallel))
        )
        beside = await session.ask_question(task, stream=True)
        await leaving
        why = await _not_the_models(session, task, beside, stream=True)
        session.failures.add("crowd", why, where="right alone, and wrong while other streams were left")
    return f"{rounds} streams beside {rounds * session.options.parallel} that were left"


async def _after(session: CheckSession, task: Question, before: ChatAnswer, gone: int, *, stream: bool) -> None:
    """What a left stream did not say must not be said to the next client: it gets the answer that came before."""
    answer = await session.ask_question(task, stream=stream)
    said, first = answer.content.strip(), before.content.strip()
    same = said == first
    changed = not same and (said in first or first in said or await _said(session, task, stream) == first)
    why = judge_answer(task, answer) or (f"{said[:60]!r}; before that: {first[:40]!r}" if changed else "")
    whose: Attribution = "model" if same else "server"
    session.failures.add("answer" + STREAMED * stream, why, whose, where=f"after {gone} streams were left")


async def _said(session: CheckSession, task: Question, stream: bool) -> str:
    return (await session.ask_question(task, stream=stream)).content.strip()


CHECK = Check(
    name="errors",
    about="bad requests refused, connections kept, hung-up streams freed",
    probes={
        "refused": probe_bad_requests,
        "kept alive": probe_keep_alive,
        "hung up": probe_disconnects,
        "beside streams that are left": probe_beside_disconnects,
    },
    request_estimate=36,
)
