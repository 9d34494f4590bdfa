"""streaming: the pieces are the answer, with usage, one finish_reason and no byte of a special token."""

from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed
from moebox.verify.rung import Rung
from moebox.verify.trials import asking, draw, no_leak, sure

FAMILIES = ("copy", "secret", "count", "sums")  # answers with little freedom: the same every time at temperature 0
AGAIN = 3  # pairs asked after one that differed


async def same_words(ask: Asker) -> None:
    """The pieces concatenate to the answer that comes without streaming."""
    for family in FAMILIES:
        task = draw(ask, family)
        if not (why := await _differs(ask, task)):
            continue
        # Two runs at temperature 0 may differ by numerics on a busy engine; a broken stream differs again.
        for _ in range(AGAIN):
            if await _differs(ask, task):
                raise Failed(why)


async def _differs(ask: Asker, task: Task) -> str:
    whole, pieces = await ask.ask(task), await ask.ask(task, stream=True)
    for answer in (whole, pieces):
        no_leak(answer)
    if whole.content == pieces.content:
        return ""
    at = next(
        (i for i, (a, b) in enumerate(zip(whole.content, pieces.content, strict=False)) if a != b),
        min(len(whole.content), len(pieces.content)),
    )
    return f"at character {at}: whole …{whole.content[at : at + 30]!r}, streamed …{pieces.content[at : at + 30]!r}"


async def usage(ask: Asker) -> None:
    """Token counts come, in a stream and without, and add up."""
    task = draw(ask, "copy")
    for stream in (False, True):
        _counts(await ask.ask(task, stream=stream), "stream" if stream else "whole answer")


def _counts(answer: Answer, where: str) -> None:
    if not answer.usage:
        raise Failed(f"the {where} has no usage")
    prompt, made, total = (answer.usage.get(f"{key}_tokens") for key in ("prompt", "completion", "total"))
    if not (isinstance(prompt, int) and isinstance(made, int) and prompt > 0 and made > 0):
        raise Failed(f"the {where}'s usage does not count: {answer.usage}")
    if total is not None and total != prompt + made:
        raise Failed(f"the {where}'s usage does not add up: {answer.usage}")


async def in_pieces(ask: Asker) -> None:
    """A long answer comes in many pieces, whole to its last number, with one finish_reason."""
    task = draw(ask, "count", start=1, end=30)
    answer = await ask.ask(task, stream=True)
    no_leak(answer)
    if answer.chunks < 3:
        raise Failed(f"a long answer came in {answer.chunks} pieces: it is held back, not streamed")
    if answer.finish != "stop":
        raise Failed(f"finish_reason {answer.finish!r} where the answer was complete")
    await sure(asking(ask, "count", stream=True))


RUNG = Rung(
    name="streaming",
    about="the pieces are the answer, with usage and one end",
    probes={"same words": same_words, "usage": usage, "in pieces": in_pieces},
)
