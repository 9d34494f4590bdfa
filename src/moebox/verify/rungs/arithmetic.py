"""arithmetic: fresh random problems each time, graded by us."""

from moebox.core.verdict import Score
from moebox.verify.ask import Asker
from moebox.verify.rung import Rung
from moebox.verify.trials import asking, most, sure

PROBLEMS = 8
SLIPS = 1  # a model that is right 99 times in 100 fails two of eight once in 370 ladders


async def sums(ask: Asker) -> Score:
    """Sums, differences and products."""
    return await most(asking(ask, "sums"), PROBLEMS, SLIPS)


async def counting(ask: Asker) -> None:
    """A run of numbers without a gap."""
    await sure(asking(ask, "count"))


RUNG = Rung(name="arithmetic", about="fresh problems, graded by us", probes={"sums": sums, "counting": counting})
