"""errors: bad requests are refused so that clients understand, and neither they nor hung-up streams do harm."""

import asyncio

from moebox.core.verdict import Exchange, Whose
from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, lost, refuse, said
from moebox.verify.breach import strict_json
from moebox.verify.client import HUNG_UP
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung
from moebox.verify.trials import draw, judge

BAD = 4  # requests after each good one, which cost nothing: clients keep a connection for hundreds
STORY = 1024  # tokens of a stream that nobody waits for


async def refused(ask: Asker) -> str:
    """No messages, messages that are none, JSON that is none: a 4xx with an explanation."""
    url = f"{ask.endpoint.base_url}/chat/completions"
    model = ask.endpoint.model
    bad: dict[str, object] = {
        "no messages": {"model": model, "max_tokens": 8},
        "messages that are a string": {"model": model, "messages": "Hello!", "max_tokens": 8},
        "JSON that is cut": b'{"model": "m", "messages": [{"role": "us',
    }
    seen = []
    for title, body in bad.items():
        exchange = ask.keep(await ask.client.post(url, body))
        if exchange.error:
            raise Failed(f"{title}: {exchange.error}")
        ask.tally.add("errors", rude(exchange), where=title)
        seen.append(str(exchange.status))
    return f"answered {', '.join(seen)}"


def rude(exchange: Exchange) -> str:
    """ "" for a 4xx (or llama.cpp's 500) that explains itself in JSON."""
    if exchange.status < 400:
        return f"taken, with HTTP {exchange.status}"
    try:
        body = strict_json(exchange.response)
    except ValueError:
        return f"HTTP {exchange.status} with something that is not JSON"
    return "" if _explains(body) else f"HTTP {exchange.status} without a message{said(exchange)}"


def _explains(body: object) -> bool:
    """An error's body says what was wrong, in one of the places where clients look."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    return isinstance(inner, str) or (isinstance(inner, dict) and bool({"message", "detail"} & set(inner)))


async def kept_alive(ask: Asker) -> str:
    """Good and bad requests in turn over one connection: each good one gets its own answer."""
    url = f"{ask.endpoint.base_url}/chat/completions"
    rounds = ask.options.share(0.34, 3)
    for number in range(rounds):
        ask.trial = (number + 1, rounds)
        task = draw(ask, "secret")
        body = ask.body(task.messages, max_tokens=task.max_tokens)
        exchange = ask.keep(await ask.client.post(url, body, kept=True))
        if exchange.error.startswith("broken off"):  # a server may close a connection that is idle
            exchange = ask.keep(await ask.client.post(url, body, kept=True))
        ask.tally.add("transport", lost(exchange))
        refuse(exchange)
        why = await _not_the_models(ask, task, ask.read(exchange, stream=False))
        ask.tally.add("transport", why, where="after an error on the same connection")
        for _ in range(BAD):
            ask.keep(await ask.client.post(url, {"model": ask.endpoint.model, "max_tokens": 8}, kept=True))
    return f"{rounds} good and {BAD * rounds} bad requests on one connection"


async def _not_the_models(ask: Asker, task: Task, answer: Answer, *, stream: bool = False) -> str:
    """ "" or what is wrong with an answer that is right when it is asked for alone."""
    why = judge(task, answer)
    return "" if why and judge(task, await ask.ask(task, stream=stream)) else why


async def hung_up(ask: Asker) -> str:
    """Streams that a client leaves free their slot: the next requests are answered as ever."""
    url = f"{ask.endpoint.base_url}/chat/completions"
    many = 2 * ask.options.parallel
    asked = [(draw(ask, "secret"), number % 2 == 0) for number in range(ask.options.share(0.34))]
    before = [await ask.ask(task, stream=stream) for task, stream in asked]
    body = ask.body(draw(ask, "story").messages, max_tokens=STORY, stream=True)
    left = await asyncio.gather(*(ask.client.cancelled(url, body) for _ in range(many)))
    for exchange in left:
        ask.tally.add("transport" + STREAMED, _lost_before(ask.keep(exchange)))
    gone = sum(exchange.error == HUNG_UP for exchange in left)
    for (task, stream), first in zip(asked, before, strict=True):
        await _after(ask, task, first, gone, stream=stream)
        ask.keep(await ask.client.cancelled(url, body))
    return f"{gone} streams left in the middle"


def _lost_before(exchange: Exchange) -> str:
    """ "" or why a stream ended before it was left; of so many at once some may be asked to wait."""
    expected = exchange.error == HUNG_UP or exchange.status in (429, 503)
    return "" if expected else lost(exchange)


async def beside_the_left(ask: Asker) -> str:
    """A stream goes on to its end while others are left in the middle."""
    url = f"{ask.endpoint.base_url}/chat/completions"
    left = ask.body(draw(ask, "story").messages, max_tokens=STORY, stream=True)
    rounds = ask.options.share(0.17)
    for number in range(rounds):
        ask.trial = (number + 1, rounds)
        task = draw(ask, "count", start=1, end=40)
        leaving = asyncio.gather(*(ask.client.cancelled(url, left) for _ in range(ask.options.parallel)))
        beside = await ask.ask(task, stream=True)
        await leaving
        why = await _not_the_models(ask, task, beside, stream=True)
        ask.tally.add("crowd", why, where="right alone, and wrong while other streams were left")
    return f"{rounds} streams beside {rounds * ask.options.parallel} that were left"


async def _after(ask: Asker, task: Task, before: Answer, gone: int, *, stream: bool) -> None:
    """What a left stream did not say must not be said to the next client: it gets the answer that came before."""
    answer = await ask.ask(task, stream=stream)
    said, first = answer.content.strip(), before.content.strip()
    same = said == first
    changed = not same and (said in first or first in said or await _said(ask, task, stream) == first)
    why = judge(task, answer) or (f"{said[:60]!r}; before that: {first[:40]!r}" if changed else "")
    whose: Whose = "model" if same else "server"
    ask.tally.add("answer" + STREAMED * stream, why, whose, where=f"after {gone} streams were left")


async def _said(ask: Asker, task: Task, stream: bool) -> str:
    return (await ask.ask(task, stream=stream)).content.strip()


RUNG = Rung(
    name="errors",
    about="bad requests refused, connections kept, hung-up streams freed",
    probes={
        "refused": refused,
        "kept alive": kept_alive,
        "hung up": hung_up,
        "beside streams that are left": beside_the_left,
    },
    cost=36,
)
