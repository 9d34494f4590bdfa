"""arithmetic: fresh random problems each time, graded by us."""

from moebox.core.verdict import Score
from moebox.verify.ask import Asker
from moebox.verify.rung import Rung
from moebox.verify.trials import asking, trials


async def sums(ask: Asker) -> Score:
    """Sums, differences and products."""
    return await trials(ask, "answer", asking(ask, "sums"), ask.options.share(1.0, 8))


async def counting(ask: Asker) -> Score:
    """A run of numbers without a gap."""
    return await trials(ask, "answer", asking(ask, "count"), ask.options.share(0.34))


RUNG = Rung(
    name="arithmetic", about="fresh problems, graded by us", probes={"sums": sums, "counting": counting}, cost=16
)
