"""How much faster one thing is than another."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A relative change and the interval in which the true one lies (95%); 0.1 is ten per cent more."""

    share: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """The interval leaves out zero: there is a difference."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        if not self.is_significant:
            return f"no difference seen ({self.low:+.1%} to {self.high:+.1%})"
        return f"{self.share:+.1%} ({self.low:+.1%} to {self.high:+.1%})"
