"""Failure kinds, failure counts, and the rate at which a count becomes a warning or a failure.

A kind ends in `/streamed` if it was counted in streams; both share one row of FAILURE_KINDS.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from moebox.core import catalogue
from moebox.core.verdict import Attribution, Failure, HttpExchange, Mark, wilson_score
from moebox.escape import one_line

FAIL_RATE = 0.03  # a server failure is a fail if its rate is above this with 97.5% confidence and it was seen twice
MAX_EXAMPLES = 200  # further examples kept of each kind: more than any series of trials is long
MODEL_FAIL_RATE = 0.15  # a good model does not give this many wrong answers
MODEL_WARN_RATE = 0.04
MIN_MODEL_TRIALS = 4  # fewer trials do not judge a model
STREAMED = "/streamed"
MIN_CHANCES = 5  # fewer chances are not extrapolated to 100 calls

KindName = (
    Literal["transport", "reply-format", "reply-style", "finish", "usage", "template-leak", "crosstalk", "late"]
    | Literal["answer", "text", "json", "schema", "tool-call", "tool-choice", "tool-history", "reasoning", "prompt"]
    | Literal["unicode", "context", "crowd", "cache", "limits", "sampling", "logprobs", "errors", "vision"]
    | Literal["combination", "routes", "trend"]
)


FAILURE_KINDS: Mapping[str, Mapping[str, Any]] = catalogue.load_table("failure_kinds")
if differing := {name for part in get_args(KindName) for name in get_args(part)} ^ set(FAILURE_KINDS):
    raise TypeError(f"KindName and failure_kinds.toml differ in {', '.join(sorted(differing))}")


def failure_kind(name: str) -> Mapping[str, Any]:
    """Row of a kind, streamed or not: what it means, and whether it only warns, or any reply can show it."""
    return FAILURE_KINDS[name.removesuffix(STREAMED)]


def failure_mark(name: str, seen: int, of: int, attributed_to: Attribution = "server") -> Mark:
    if not seen:
        return "pass"
    low = wilson_score(seen, of).low
    if attributed_to == "model":
        if of < MIN_MODEL_TRIALS or low <= MODEL_WARN_RATE:
            return "pass"
        enough = seen == of or of >= 2 * MIN_MODEL_TRIALS
        return "fail" if enough and low > MODEL_FAIL_RATE else "warn"
    if failure_kind(name).get("only_warns"):
        return "warn"
    return "fail" if seen > 1 and low > FAIL_RATE else "warn"


def build_failure(
    name: str, seen: int, of: int, *, attributed_to: Attribution = "server", examples: Sequence[str] = ()
) -> Failure:
    score = wilson_score(seen, of)
    example, *also = dict.fromkeys(examples) or ("",)
    return Failure(
        kind=name,
        seen=seen,
        of=of,
        low=score.low,
        high=score.high,
        verdict=failure_mark(name, seen, of, attributed_to),
        whose=attributed_to,
        example=example,
        also=tuple(also[:MAX_EXAMPLES]),
    )


def describe_failure(failure: Failure) -> str:
    """Rate and meaning: "3 of 40 (8%, between 3 and 20%): about 8 of 100 calls would get no complete reply"."""
    whose = "" if failure.whose == "server" else ", the same each time: the model's own, or a constant fault"
    if failure.of < MIN_CHANCES:
        return f"seen {failure.seen} of {failure.of} times{whose}"
    share, low, high = (f"{each:.{int(each < 0.01)}%}" for each in (failure.rate, failure.low, failure.high))
    rate = f"{failure.seen} of {failure.of} ({share}, between {low} and {high})"
    expected = 100 * failure.rate
    about = "at most 1" if expected < 1 else f"about {expected:.0f}"
    return f"{rate}: {about} of 100 calls would {failure_kind(failure.kind)['means']}{whose}"


class ModelFailure(str):
    """Reason of a failure that is the model's own, and not the server's as those in other strings; "" if it passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """An exchange that showed a failure, and how to see whether another one shows it; None if that is unknown."""

    kind: str
    reason: str
    exchange: HttpExchange
    judge: Callable[[HttpExchange], str] | None = None


class FailureCounts:
    """The outcome of each chance of a failure over a whole verify run, by kind: its reason, or ""."""

    def __init__(self) -> None:
        self._outcomes: defaultdict[str, list[str]] = defaultdict(list)
        self.on_failure: Callable[[KindName, str], None] = lambda kind, reason: None

    def add(self, kind: KindName, reason: str = "", *, stream: bool = False, where: str = "") -> None:
        """Count one chance, and a failure if there is a reason. `where` is put before the reason."""
        text = one_line(f"{where}: {reason}" if where and reason else reason)
        self._outcomes[kind + STREAMED * stream].append(type(reason)(text))
        if reason:
            self.on_failure(kind, reason)

    def expect(self, kind: KindName, good: object, reason: str, *, stream: bool = False) -> None:
        """Count one chance, and a failure unless `good`."""
        self.add(kind, "" if good else reason, stream=stream)

    def snapshot(self) -> Mapping[str, int]:
        return {name: len(outcomes) for name, outcomes in self._outcomes.items()}

    def summarize(self, since: Mapping[str, int] | None = None) -> tuple[Failure, ...]:
        """Every kind that had a chance since the snapshot, failures or not, worst first."""
        found: list[Failure] = []
        for name, outcomes in self._outcomes.items():
            new = outcomes[(since or {}).get(name, 0) :]
            model = [str(reason) for reason in new if reason and isinstance(reason, ModelFailure)]
            server = [reason for reason in new if reason and not isinstance(reason, ModelFailure)]
            if new:
                found.append(build_failure(name, len(server), len(new), examples=server))
            if model:
                found.append(build_failure(name, len(model), len(new), attributed_to="model", examples=model))
        order = ("fail", "warn", "pass", "skip")
        return tuple(sorted(found, key=lambda failure: (order.index(failure.verdict), -failure.rate, failure.kind)))
