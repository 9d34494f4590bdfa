"""Every slip is counted here, with the chances it had: nothing is forgiven without a trace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from moebox.core.verdict import Attribution, Failure
from moebox.escape import one_line
from moebox.verify.kinds import build_failure

_ORDER = {"fail": 0, "warn": 1, "pass": 2, "skip": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Of `of` chances, the slips of the server's and those of the model's, each in words."""

    of: int = 0
    server: tuple[str, ...] = ()
    model: tuple[str, ...] = ()

    def add_chance(self, reason: str, attributed_to: Attribution) -> "FailureCount":
        """One chance more, and a slip where there is a `why`."""
        if not reason:
            return replace(self, of=self.of + 1)
        if attributed_to == "model":
            return replace(self, of=self.of + 1, model=(*self.model, reason))
        return replace(self, of=self.of + 1, server=(*self.server, reason))


NONE = FailureCount()


class FailureCounts:
    """Counts by kind of fault over a whole ladder."""

    def __init__(self) -> None:
        self._counts: dict[str, FailureCount] = {}

    def add(self, kind: str, reason: str = "", attributed_to: Attribution = "server", *, where: str = "") -> None:
        """One chance for `kind`; a slip where there is a `why`, which is told after `where` it was met."""
        told = f"{where}: {reason}" if where and reason else reason
        self._counts[kind] = self._counts.get(kind, NONE).add_chance(one_line(told), attributed_to)

    def expect(self, kind: str, good: object, reason: str) -> None:
        """One chance for `kind`; a slip unless it is `good`."""
        self.add(kind, "" if good else reason)

    def snapshot(self) -> Mapping[str, FailureCount]:
        """The counts as they are now."""
        return dict(self._counts)

    def summarize(self, since: Mapping[str, FailureCount] | None = None) -> tuple[Failure, ...]:
        """Every kind that had a chance since `since`, slips or not, worst first."""
        found = [slip for kind in self._counts for slip in self._of(kind, since or {})]
        return tuple(sorted(found, key=lambda slip: (_ORDER[slip.verdict], -slip.rate, slip.kind)))

    def _of(self, kind: str, since: Mapping[str, FailureCount]) -> Iterator[Failure]:
        now, before = self._counts[kind], since.get(kind, NONE)
        of, server, model = now.of - before.of, now.server[len(before.server) :], now.model[len(before.model) :]
        if of:
            yield build_failure(kind, len(server), of, examples=server)
        if model:
            yield build_failure(kind, len(model), of, whose="model", examples=model)
