"""long-context: needles at several depths in a text of the length asked, counted by the server's own tokenizer."""

from moebox.phantom.tasks import Task
from moebox.units import count as digits
from moebox.verify import tokens
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.rung import Rung
from moebox.verify.trials import draw, judge, sure

UNASKED = 16384  # tokens, when nobody said how long and the server allows more: seconds, not minutes, to prefill
CLOSE = 0.97  # of the length that is aimed for at least
TRIES = 8  # texts drawn before the longest that fits is taken
FRAME = 160  # characters of the question around the text
RESERVE = 16  # tokens kept free beside the answer's room
SLOWEST_PREFILL = 20.0  # tokens a second that are still waited for: a hybrid box that reads its experts from RAM
FIRST_GUESS = 3.0  # characters a token, before the server has counted once; short on purpose


async def needles(ask: Asker) -> str:
    """The needle is found at each depth."""
    length, wanted = _length(ask)
    room = draw(ask, "needle", chars=100).max_tokens + RESERVE
    ask.client.deadline_s = max(ask.client.deadline_s, length / SLOWEST_PREFILL)
    rate, by = await _rate(ask, length - room)
    counts = []
    for depth in ask.options.depths:

        async def attempt(depth: float = depth) -> str:
            nonlocal rate
            task, counted, rate = await _fitted(ask, depth, length - room, rate)
            counts.append(counted)
            answer = await ask.ask(task)
            told = answer.usage.get("prompt_tokens")
            if isinstance(told, int) and told < 0.8 * counted:
                raise Failed(f"sent {counted:,} tokens, the server read {told:,}: the prompt was cut")
            wrong = judge(task, answer)
            return f"at depth {depth:.0%} of {counted:,} tokens: {wrong}" if wrong else ""

        await sure(attempt)
    return f"{digits(min(counts))} tokens of {wanted} {digits(length)}, counted by {by}"


def _length(ask: Asker) -> tuple[int, str]:
    """Tokens to fill, prompt and answer together, and where that number comes from."""
    if ask.options.context:
        if ask.limit and ask.options.context > ask.limit:
            raise Failed(f"{ask.options.context:,} tokens were asked for, the server takes {ask.limit:,}")
        return ask.options.context, "the asked"
    if ask.limit:
        return min(ask.limit, UNASKED), "the server's" if ask.limit <= UNASKED else "an unasked"
    return 4096, "a cautious"


async def _rate(ask: Asker, target: int) -> tuple[float, str]:
    """Characters a token in this kind of text, measured on a sample."""
    chars = round(min(target, 2000) * FIRST_GUESS / 2)
    task = draw(ask, "needle", chars=chars)
    found, by = await tokens.count(ask, task.messages)
    if found <= 0:
        raise Skipped("the server counts no tokens: neither /tokenize nor usage")
    return len(str(task.messages[0]["content"])) / found, by


async def _fitted(ask: Asker, depth: float, target: int, rate: float) -> tuple[Task, int, float]:
    """A needle in a text that fills `target` tokens closely without passing it."""
    if target < 64:
        raise Skipped(f"{target} tokens are too few to hide something in")
    fits: list[tuple[int, Task]] = []
    aim = (1 + CLOSE) / 2
    for _ in range(TRIES):
        task = draw(ask, "needle", chars=max(64, round(aim * target * rate) - FRAME), depth=depth)
        counted, _ = await tokens.count(ask, task.messages)
        if counted <= 0:
            break
        if counted <= target:
            fits.append((counted, task))
        if CLOSE * target <= counted <= target:
            break
        aim *= min(1.2, max(0.8, (1 + CLOSE) / 2 * target / counted))  # what is drawn varies; the aim follows it
    if not fits:
        raise Failed(f"no text of {target:,} tokens could be made: the server's counts jump about")
    counted, task = max(fits, key=lambda pair: pair[0])
    return task, counted, rate * aim / ((1 + CLOSE) / 2)


RUNG = Rung(name="long-context", about="needles at several depths of a long text", probes={"needles": needles})
