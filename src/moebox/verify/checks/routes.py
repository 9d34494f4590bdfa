"""routes: the same text by different routes gives the same log-probabilities.

Nothing is known about the right ones. A prompt that was cached, read in pieces, read beside others or in another slot
must get the next-token probabilities that it gets alone and fresh, within the server's own noise.
"""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from moebox.quality.texts import draw_unlearnt_text
from moebox.quality.wire import NextToken, next_token_request, parse_next_tokens
from moebox.units import format_count
from moebox.verify.session import ProbeSkipped, error_text
from moebox.verify.trials import CheckSession, Probes
from moebox.verify.violations import is_json, parse_json_or

TOPS = (20, 20, 5)  # most likely tokens asked for; some servers refuse more than 5, and a text may be at its end
TOKENS = 6  # generated and compared as long as both routes write the same
CHARS = 240  # of a text; half of it in a short context
LENGTHS = (1000, 8000, 32000)  # tokens, and near the limit
CHARS_PER_TOKEN = 1.3  # of pseudo-words and figures; the phantom, the least of all; less text does no harm
MAX_LONG_S = 10.0  # for one long prompt, unless the run is thorough
NOISE_READINGS = 2
CACHED_READINGS = 3  # of a long prompt; the first may fill the cache, and one that differs would be yellow only
NEIGHBOURS = 3  # in a crowd: batches of four take other kernels than one alone
# Share of probability on other tokens. The phantom on healthy llama.cpp moves up to 0.14 by another route (2026-11-17:
# its experts flip at near ties); what a damaged route moves is known from a toy server only.
ALLOWED = 0.35
NOISE_FACTOR = 4.0


class RouteReader:
    """Reads the next tokens of a text, and knows how much the server differs from itself.

    The probes share it: routes that read past the cache use the texts again that another route has read alone.
    """

    def __init__(self, session: CheckSession) -> None:
        self.session, self.top, self.allowed, self.problem = session, 0, 0.0, ""
        self.chars = CHARS if session.is_roomy else CHARS // 2
        self.alone: dict[str, list[NextToken]] = {}  # by text
        session.route_reader = self

    async def prepare(self) -> None:
        """Find out whether the server gives log-probabilities, and measure its noise. Raise ProbeSkipped if not."""
        if self.allowed:
            return
        if self.problem:
            raise ProbeSkipped(self.problem)
        for self.top in TOPS:
            text = draw_unlearnt_text(self.session.rng, self.chars)
            if found := await self.read(text, fresh=True):
                break
        else:
            self.problem = "no log-probabilities of more than one token at /v1/completions"
            raise ProbeSkipped(self.problem)
        noise = [apart(found, await self.read(text, fresh=True)) for _ in range(NOISE_READINGS)]
        if max(noise) > 1 / NOISE_FACTOR:
            raise ProbeSkipped(f"the same request moves {max(noise):.0%} of the probability: nothing can be compared")
        self.allowed = max(ALLOWED, NOISE_FACTOR * max(noise))
        self.alone[text] = found

    async def read(self, text: str, *, fresh: bool = False) -> list[NextToken]:
        """The next tokens after a text; with `fresh` past the prefix cache, as far as the server lets one ask."""
        session = self.session
        path, body = next_token_request("prefixes", session.endpoint.model, text, self.top, TOKENS)
        if fresh:
            body = {**body, "cache_prompt": False, "cache_salt": secrets.token_hex(8)}
        exchange = await session.post(session.endpoint.server_url + path, body)
        found = parse_next_tokens("prefixes", parse_json_or(exchange.response), 0)
        if exchange.status == 200 and found and len(found[0].top) < 2:
            raise ProbeSkipped("it gives only the most likely token")
        if is_json(exchange.response) and exchange.status >= 500 and "parse" not in error_text(exchange):
            raise ProbeSkipped(f"/v1/completions fails: {error_text(exchange)}")
        return found


def apart(left: Sequence[NextToken], right: Sequence[NextToken]) -> float:
    """Mean share of probability on other tokens, as long as both wrote the same; 0 if one has no reading."""
    shares = []
    for mine, other in zip(left, right, strict=False):
        least = [min(each.top.values()) for each in (mine, other)]  # an unknown token has at most this
        keys = mine.top.keys() | other.top.keys()
        pairs = [(mine.top.get(key, least[0]), other.top.get(key, least[1])) for key in keys]
        shares.append(math.fsum(abs(math.exp(p) - math.exp(q)) for p, q in pairs) / 2)
        if mine.token != other.token:
            break
    return math.fsum(shares) / len(shares) if shares else 0.0


Route = Callable[[RouteReader, str], Awaitable[Sequence[list[NextToken]]]]


async def _shared_reader(session: CheckSession) -> RouteReader:
    reader = session.route_reader if isinstance(session.route_reader, RouteReader) else RouteReader(session)
    await reader.prepare()
    return reader


async def probe_route(session: CheckSession, name: str, route: Route, *, again: bool = False, part: float = 1.0) -> str:
    """Read texts alone and by a route; with `again` texts of other routes, as this one does not use the cache."""
    reader = await _shared_reader(session)
    known = list(reader.alone) if again else []
    worst = 0.0

    async def attempt(stream: bool) -> str:
        nonlocal worst
        for _ in TOPS:
            text = known.pop() if known else draw_unlearnt_text(session.rng, round(part * reader.chars))
            if text not in reader.alone:
                reader.alone[text] = await reader.read(text, fresh=True)
            if reader.alone[text]:
                break
        share = max((apart(reader.alone[text], reading) for reading in await route(reader, text)), default=0.0)
        worst = max(worst, share)
        return "" if share <= reader.allowed else f"{name} differ: {share:.0%} of the probability is on other tokens"

    with session.allow_slow_replies():
        await session.run_trials("routes", attempt, 0.17, 2)
    return f"at most {worst:.1%} of the probability moved, {reader.allowed:.0%} allowed"


async def read_cached(reader: RouteReader, text: str) -> list[list[NextToken]]:
    """A prompt that was sent before, and one whose beginning was."""
    await reader.read(text)
    return [await reader.read(text), await reader.read(text)]


async def read_in_pieces(reader: RouteReader, text: str) -> list[list[NextToken]]:
    """A prompt that is read in pieces of uneven length, each beginning with the one before."""
    for part in (0.13, 0.5, 0.81):
        await reader.read(text[: round(part * len(text))])
    return [await reader.read(text)]


async def read_in_crowd(reader: RouteReader, text: str) -> list[list[NextToken]]:
    """A prompt among others of many lengths that are read and written at the same time."""
    count = min(NEIGHBOURS, reader.session.options.parallel - 1)
    sizes = [round(reader.chars * (0.2 + 0.4 * number)) for number in range(count)]
    others = [reader.read(draw_unlearnt_text(reader.session.rng, size), fresh=True) for size in sizes]
    return (await asyncio.gather(reader.read(text, fresh=True), *others))[:1]


async def read_in_slots(reader: RouteReader, text: str) -> list[list[NextToken]]:
    """The same prompt many times at once: in the first slot and in the last."""
    copies = min(NEIGHBOURS + 1, reader.session.options.parallel)
    return list(await asyncio.gather(*(reader.read(text, fresh=True) for _ in range(copies))))


async def read_beside_long(reader: RouteReader, text: str) -> list[list[NextToken]]:
    """A short prompt beside much longer ones."""
    long = [reader.read(draw_unlearnt_text(reader.session.rng, size * reader.chars), fresh=True) for size in (1, 2)]
    return (await asyncio.gather(reader.read(text, fresh=True), *long))[:1]


async def probe_long(session: CheckSession) -> str:
    """Prompts of 1k, 8k and 32k tokens and near the limit, from the cache."""
    reader = await _shared_reader(session)
    limit = (session.options.context or session.context_limit or 0) - 64
    seconds_per_char = 0.0
    tried = []
    for length in sorted({*(size for size in LENGTHS if size < limit), *([limit] if limit > 2 * LENGTHS[0] else [])}):
        chars = round(length * CHARS_PER_TOKEN)
        if chars * seconds_per_char > MAX_LONG_S and session.options.effort != "thorough":
            break
        text = draw_unlearnt_text(session.rng, chars)
        alone = await reader.read(text, fresh=True)
        seconds_per_char = session.exchanges[-1].seconds / chars
        if not alone:
            break  # the server refuses a prompt of this length
        shares = [apart(alone, await reader.read(text)) for _ in range(CACHED_READINGS)]
        wrong = f"cached prefixes differ at {format_count(length)} tokens: {max(shares):.0%} of the probability moved"
        for share in shares:
            session.failures.expect("routes", share <= reader.allowed, wrong)
        tried.append(format_count(length))
    if not tried:
        raise ProbeSkipped("its context is shorter than 1,000 tokens, or unknown")
    return f"{', '.join(tried)} tokens"


PROBES: Probes = {
    "cached": partial(probe_route, name="cached prefixes", route=read_cached),
    "in pieces": partial(probe_route, name="prompts read in pieces", route=read_in_pieces),
    "crowd": partial(probe_route, name="prompts in a crowd", route=read_in_crowd, again=True),
    "slots": partial(probe_route, name="slots", route=read_in_slots, again=True),
    "padded": partial(probe_route, name="short prompts beside long ones", route=read_beside_long, part=0.25),
    "long": probe_long,
}
