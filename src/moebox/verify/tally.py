"""Every slip is counted here, with the chances it had: nothing is forgiven without a trace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from moebox.core.verdict import Slip, Whose
from moebox.escape import one_line
from moebox.verify.kinds import slip

_ORDER = {"fail": 0, "warn": 1, "pass": 2, "skip": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Of `of` chances, the slips of the server's and those of the model's, each in words."""

    of: int = 0
    server: tuple[str, ...] = ()
    model: tuple[str, ...] = ()

    def added(self, why: str, whose: Whose) -> "Count":
        """One chance more, and a slip where there is a `why`."""
        if not why:
            return replace(self, of=self.of + 1)
        if whose == "model":
            return replace(self, of=self.of + 1, model=(*self.model, why))
        return replace(self, of=self.of + 1, server=(*self.server, why))


NONE = Count()


class Tally:
    """Counts by kind of fault over a whole ladder."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}

    def add(self, kind: str, why: str = "", whose: Whose = "server", *, where: str = "") -> None:
        """One chance for `kind`; a slip where there is a `why`, which is told after `where` it was met."""
        told = f"{where}: {why}" if where and why else why
        self._counts[kind] = self._counts.get(kind, NONE).added(one_line(told), whose)

    def need(self, kind: str, good: object, why: str) -> None:
        """One chance for `kind`; a slip unless it is `good`."""
        self.add(kind, "" if good else why)

    def snapshot(self) -> Mapping[str, Count]:
        """The counts as they are now."""
        return dict(self._counts)

    def slips(self, since: Mapping[str, Count] | None = None) -> tuple[Slip, ...]:
        """Every kind that had a chance since `since`, slips or not, worst first."""
        found = [slip for kind in self._counts for slip in self._of(kind, since or {})]
        return tuple(sorted(found, key=lambda slip: (_ORDER[slip.verdict], -slip.rate, slip.kind)))

    def _of(self, kind: str, since: Mapping[str, Count]) -> Iterator[Slip]:
        now, before = self._counts[kind], since.get(kind, NONE)
        of, server, model = now.of - before.of, now.server[len(before.server) :], now.model[len(before.model) :]
        if of:
            yield slip(kind, len(server), of, examples=server)
        if model:
            yield slip(kind, len(model), of, whose="model", examples=model)
