"""The kinds of fault that the ladder counts, what each means to an agent, and when a count is red.

A kind ends in `/streamed` where it was met in a stream; both share one row here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moebox.core.verdict import Attribution, Failure, Mark, wilson_score

FAIL_RATE = 0.03  # a server's fault is red when its rate is above this with 97.5% confidence, and was seen twice
MAX_EXAMPLES = 200  # further examples of a kind of fault that are kept: more than any series of trials is long
MODEL_FAIL_RATE = 0.15  # so many wrong answers are no slips of a good model any more
MODEL_WARN_RATE = 0.04
MIN_MODEL_TRIALS = 4  # fewer say nothing about a model
STREAMED = "/streamed"
MIN_CHANCES = 5  # chances, below which nothing is said about a hundred


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKind:
    """One kind of fault. `means` goes on after "about N of 100 calls would …"."""

    means: str
    never_red: bool = False
    anywhere: bool = False  # any reply can show it: the first rung that meets it answers for it, later ones only count


FAILURE_KINDS: dict[str, FailureKind] = {
    "transport": FailureKind(means="get no whole reply"),
    "reply-format": FailureKind(means="get a reply that a strict client cannot read", anywhere=True),
    "reply-style": FailureKind(means="get a reply that some clients trip over", never_red=True, anywhere=True),
    "finish": FailureKind(means="end with a wrong finish_reason", anywhere=True),
    "usage": FailureKind(means="carry wrong token counts", anywhere=True),
    "template-leak": FailureKind(means="show the reader template marks or broken characters", anywhere=True),
    "answer": FailureKind(means="be answered wrongly"),
    "text": FailureKind(means="lose or change words on the way"),
    "json": FailureKind(means="return JSON that breaks its schema"),
    "schema": FailureKind(means="break a schema that the prompt argues against", never_red=True),
    "tool-call": FailureKind(means="carry a broken or wrong tool call"),
    "tool-choice": FailureKind(means="ignore tool_choice"),
    "tool-history": FailureKind(means="lose track of earlier tool calls"),
    "reasoning": FailureKind(means="mix up reasoning and answer"),
    "prompt": FailureKind(means="lose a part of the prompt"),
    "unicode": FailureKind(means="garble characters outside ASCII"),
    "context": FailureKind(means="miss something in a long prompt"),
    "crosstalk": FailureKind(means="get another request's words", anywhere=True),
    "crowd": FailureKind(means="go wrong among other requests"),
    "cache": FailureKind(means="be answered from another prompt's cache"),
    "limits": FailureKind(means="not keep to stop strings or token limits"),
    "sampling": FailureKind(means="ignore temperature or seed", never_red=True),
    "logprobs": FailureKind(means="carry log-probabilities that are wrong"),
    "errors": FailureKind(means="be refused in a way that clients cannot read", never_red=True),
    "late": FailureKind(means="come seconds late", never_red=True),
    "vision": FailureKind(means="misread a picture"),
}


def failure_kind(name: str) -> FailureKind:
    """The row of a kind, streamed or not."""
    return FAILURE_KINDS[name.removesuffix(STREAMED)]


def failure_mark(name: str, seen: int, of: int, whose: Attribution = "server") -> Mark:
    """Green, yellow or red for a count."""
    if not seen:
        return "pass"
    low = wilson_score(seen, of).low
    if whose == "model":
        return _model_mark(low, seen, of)
    if failure_kind(name).never_red:
        return "warn"
    return "fail" if seen > 1 and low > FAIL_RATE else "warn"


def _model_mark(low: float, seen: int, of: int) -> Mark:
    if of < MIN_MODEL_TRIALS or low <= MODEL_WARN_RATE:
        return "pass"
    enough = seen == of or of >= 2 * MIN_MODEL_TRIALS
    return "fail" if enough and low > MODEL_FAIL_RATE else "warn"


def build_failure(
    name: str, seen: int, of: int, *, whose: Attribution = "server", examples: Sequence[str] = ()
) -> Failure:
    """A count with its interval and verdict."""
    score = wilson_score(seen, of)
    example, *also = dict.fromkeys(examples) or ("",)
    return Failure(
        kind=name,
        seen=seen,
        of=of,
        low=score.low,
        high=score.high,
        verdict=failure_mark(name, seen, of, whose),
        whose=whose,
        example=example,
        also=tuple(also[:MAX_EXAMPLES]),
    )


def describe_failure(found: Failure) -> str:
    """ "3 of 40 (8%, between 3 and 20%): about 8 of 100 calls would get no whole reply"."""
    whose = "" if found.whose == "server" else ", the same each time: the model's own, or a constant fault"
    if found.of < MIN_CHANCES:
        return f"seen {found.seen} of {found.of} times{whose}"
    rate = f"{found.seen} of {found.of} ({found.rate:.0%}, between {found.low:.0%} and {found.high:.0%})"
    expected = 100 * found.rate
    about = "at most 1" if expected < 1 else f"about {expected:.0f}"
    return f"{rate}: {about} of 100 calls would {failure_kind(found.kind).means}{whose}"
