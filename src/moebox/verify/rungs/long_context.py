"""long-context: needles at many depths of texts of the length asked, counted by the server's own tokenizer."""

from collections.abc import Sequence

from moebox.phantom.tasks import Task, haystack
from moebox.units import count as digits
from moebox.verify import tokens
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Skipped
from moebox.verify.rung import Rung
from moebox.verify.rungs.limits import BELIEVED
from moebox.verify.trials import draw, judge

UNASKED = 16384  # tokens at most, when nobody said how long
UNASKED_S = 10.0  # seconds of prefill at most, when nobody said how long
ANNOUNCED_S = 60.0  # seconds at most for one prompt of the length that is announced
SLOWER = 2.0  # times the seconds a token that a very long prompt takes
SAMPLE = 1000  # tokens, to learn how fast the server reads
LEAST = 2048
CLOSE = 0.97  # of the length that is aimed for at least
TRIES = 8  # texts drawn before the longest that fits is taken
FRAME = 160  # characters of the question around the text
RESERVE = 16  # tokens kept free beside the answer's room
SLOWEST_PREFILL = 20.0  # tokens a second that are still waited for: a hybrid box that reads its experts from RAM
FIRST_GUESS = 3.0  # characters a token, before the server has counted once; short on purpose
LEAST_CHARS, MOST_CHARS = 0.5, 12.0  # a token, whatever a server says it counted
SHORTER = 0.4  # length of the second text: what is lost at a place, and not at a share, shows there
CUT = 0.8  # of the tokens sent that a server must say it read
NEAR = 3  # leading characters of a code that nobody guesses
AGAIN = 2  # further texts with something at the depth that was missed; missed in all, it is the server's


async def needles(ask: Asker) -> str:
    """What was hidden is found at each depth; one text, many questions, as agents ask over one long history."""
    with ask.unhurried():
        return await _searched(ask, *await _length(ask))


async def _searched(ask: Asker, length: int, wanted: str) -> str:
    room = draw(ask, "needle", chars=100).max_tokens + RESERVE
    ask.client.deadline_s = max(ask.client.deadline_s, length / SLOWEST_PREFILL)
    text = _Text(ask, *await _rate(ask, length - room))
    depths = ask.options.depths
    counted = [await _text(ask, text, depths, length - room)]
    if len(depths) > 1:
        between = [(a + b) / 2 for a, b in zip(depths, [*depths[1:], 1.0], strict=True)]
        await _text(ask, text, between, max(64, round(SHORTER * (length - room))))
    ask.filled = min(counted) + room
    return f"{digits(min(counted))} tokens of {wanted} {digits(length)}, counted by {text.by}"


async def _text(ask: Asker, text: "_Text", depths: Sequence[float], target: int) -> int:
    """One text, a question for each depth; its tokens."""
    tasks, counted = await text.fitted(depths, target)
    for place, (depth, task) in enumerate(zip(depths, tasks, strict=True)):
        answer = await ask.ask(task, stream=place % 2 == 1)
        _not_cut(answer, counted)
        wrong = judge(task, answer)
        ask.tally.add("context", *(await _traced(ask, text, task, answer, depth, target, wrong) if wrong else ()))
    return counted


def _not_cut(answer: Answer, counted: int) -> None:
    told = answer.count("prompt")
    if told is not None and told < CUT * counted:
        raise Failed(f"sent {counted:,} tokens, the server read {told:,}: the prompt was cut")


async def _traced(
    ask: Asker, text: "_Text", task: Task, answer: Answer, depth: float, target: int, wrong: str
) -> tuple[str, str]:
    """Why it was missed, and whose fault that is. Failed where nothing at this depth is ever found."""
    why = f"at depth {depth:.0%} of {target:,} tokens: {wrong}"
    if _near(task, answer):
        return why, "model"  # it has read the needle, or it could not have begun it
    if not judge(task, await ask.ask(task)):
        return f"{why}; asked again, it was found", "server"
    for _ in range(AGAIN):
        (fresh, *_), _ = await text.fitted([depth], target)
        other = await ask.ask(fresh)
        if not judge(fresh, other) or _near(fresh, other):
            return why, "model"
    raise Failed(f"{why}; nor was it in {AGAIN} other texts: this part of a prompt is lost")


def _near(task: Task, answer: Answer) -> bool:
    return str(task.expect)[:NEAR] in answer.content


async def _length(ask: Asker) -> tuple[int, str]:
    """Tokens to fill, prompt and answer together, and where that number comes from."""
    if ask.options.context:
        if ask.limit and ask.options.context > ask.limit:
            raise Failed(f"{ask.options.context:,} tokens were asked for, the server takes {ask.limit:,}")
        return ask.options.context, "the asked"
    if not ask.limit:
        return 4096, "a cautious"
    most = max(LEAST, min(UNASKED, round(await _tokens_a_second(ask) * UNASKED_S)))
    return min(ask.limit, most), "the server's" if ask.limit <= most else "an unasked"


async def _tokens_a_second(ask: Asker) -> float:
    """How fast the server reads a prompt."""
    task = draw(ask, "needle", chars=round(SAMPLE * FIRST_GUESS))
    answer = await ask.ask(task, max_tokens=1, exact=True)
    ask.prefill = (answer.count("prompt") or SAMPLE) / max(0.001, ask.exchanges[-1].seconds)
    return ask.prefill


async def _rate(ask: Asker, target: int) -> tuple[float, str]:
    """Characters a token in this kind of text, measured on a sample."""
    chars = round(min(target, 2000) * FIRST_GUESS / 2)
    task = draw(ask, "needle", chars=chars)
    found, by = await tokens.count(ask, task.messages)
    if found <= 0:
        raise Skipped("the server counts no tokens: neither /tokenize nor usage")
    rate = len(str(task.messages[0]["content"])) / found
    return min(MOST_CHARS, max(LEAST_CHARS, rate)), by


class _Text:
    """Makes texts that fill a number of tokens, and learns how many characters that takes."""

    def __init__(self, ask: Asker, rate: float, by: str) -> None:
        self.ask, self.rate, self.by = ask, rate, by

    async def fitted(self, depths: Sequence[float], target: int) -> tuple[list[Task], int]:
        """Needles in a text that fills `target` tokens closely without passing it."""
        if target < 64:
            raise Skipped(f"{target} tokens are too few to hide something in")
        fits: list[tuple[int, list[Task]]] = []
        middle = (1 + CLOSE) / 2
        aim = middle
        for _ in range(TRIES):
            chars = max(64, round(aim * target * self.rate) - FRAME)
            tasks = haystack(self.ask.rng, chars=chars, depths=depths)
            counted, _ = await tokens.count(self.ask, tasks[0].messages)
            if counted <= 0:
                break
            if counted <= target:
                fits.append((counted, tasks))
            if CLOSE * target <= counted <= target:
                break
            aim *= min(1.2, max(0.8, middle * target / counted))  # what is drawn varies; the aim follows it
        if not fits:
            raise Failed(f"no text of {target:,} tokens could be made: the server's counts jump about")
        self.rate *= aim / middle
        counted, tasks = max(fits, key=lambda pair: pair[0])
        return tasks, counted


async def announced(ask: Asker) -> str:
    """The server takes a prompt of the length that it announces; asked where that is no matter of minutes."""
    limit = ask.limit
    if not limit or limit > BELIEVED:
        raise Skipped("the server does not say how long a prompt may be")
    if ask.filled >= CLOSE * CLOSE * limit - FRAME:
        return f"{digits(ask.filled)} of {digits(limit)} tokens announced"
    needs_s = SLOWER * limit / max(1.0, ask.prefill)
    if ask.options.context or not ask.prefill or needs_s > min(ANNOUNCED_S, ask.left_s / 4):
        ask.notes.append(f"{digits(limit)} tokens announced, {digits(ask.filled)} tried (--context {limit} tries all)")
        return ask.notes[-1]
    with ask.unhurried():
        return await _filled(ask, limit)


async def _filled(ask: Asker, limit: int) -> str:
    room = draw(ask, "needle", chars=100).max_tokens + RESERVE
    text = _Text(ask, *await _rate(ask, limit - room))
    (task, *_), counted = await text.fitted([0.5], limit - room)
    try:
        answer = await ask.ask(task)
    except Failed as problem:
        raise Failed(f"{limit:,} tokens announced, {counted:,} refused: {problem}") from None
    _not_cut(answer, counted)
    wrong = judge(task, answer)
    ask.tally.add("context", wrong, "model", where=f"in the middle of {counted:,} tokens")
    return f"{digits(counted)} of {digits(limit)} tokens announced"


RUNG = Rung(
    name="long-context",
    about="needles at many depths of a long text",
    probes={"needles": needles, "announced": announced},
    cost=60,
)
