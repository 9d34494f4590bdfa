"""arithmetic: fresh random problems each time, graded by us."""

from moebox.core.verdict import Score
from moebox.verify.ask import CheckSession
from moebox.verify.rung import Check
from moebox.verify.trials import family_attempt, run_trials


async def probe_sums(session: CheckSession) -> Score:
    """Sums, differences and products."""
    return await run_trials(session, "answer", family_attempt(session, "sums"), session.options.trial_share(1.0, 8))


async def probe_counting(session: CheckSession) -> Score:
    """A run of numbers without a gap."""
    return await run_trials(session, "answer", family_attempt(session, "count"), session.options.trial_share(0.34))


CHECK = Check(
    name="arithmetic",
    about="fresh problems, graded by us",
    probes={"sums": probe_sums, "counting": probe_counting},
    request_estimate=16,
)
