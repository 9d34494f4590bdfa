"""The kinds of fault that the ladder counts, what each means to an agent, and when a count is red.

A kind ends in `/streamed` where it was met in a stream; both share one row here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moebox.core.verdict import Mark, Slip, Whose, wilson

RED = 0.03  # a server's fault is red when its rate is above this with 97.5% confidence, and was seen twice
ALSO = 200  # further examples of a kind of fault that are kept: more than any series of trials is long
MODEL_RED = 0.15  # so many wrong answers are no slips of a good model any more
MODEL_WARN = 0.04
MODEL_TRIALS = 4  # fewer say nothing about a model
STREAMED = "/streamed"
FEW = 5  # chances, below which nothing is said about a hundred


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault. `means` goes on after "about N of 100 calls would …"."""

    means: str
    never_red: bool = False
    anywhere: bool = False  # any reply can show it: the first rung that meets it answers for it, later ones only count


KINDS: dict[str, Kind] = {
    "transport": Kind(means="get no whole reply"),
    "reply-format": Kind(means="get a reply that a strict client cannot read", anywhere=True),
    "reply-style": Kind(means="get a reply that some clients trip over", never_red=True, anywhere=True),
    "finish": Kind(means="end with a wrong finish_reason", anywhere=True),
    "usage": Kind(means="carry wrong token counts", anywhere=True),
    "template-leak": Kind(means="show the reader template marks or broken characters", anywhere=True),
    "answer": Kind(means="be answered wrongly"),
    "text": Kind(means="lose or change words on the way"),
    "json": Kind(means="return JSON that breaks its schema"),
    "schema": Kind(means="break a schema that the prompt argues against", never_red=True),
    "tool-call": Kind(means="carry a broken or wrong tool call"),
    "tool-choice": Kind(means="ignore tool_choice"),
    "tool-history": Kind(means="lose track of earlier tool calls"),
    "reasoning": Kind(means="mix up reasoning and answer"),
    "prompt": Kind(means="lose a part of the prompt"),
    "unicode": Kind(means="garble characters outside ASCII"),
    "context": Kind(means="miss something in a long prompt"),
    "crosstalk": Kind(means="get another request's words", anywhere=True),
    "crowd": Kind(means="go wrong among other requests"),
    "cache": Kind(means="be answered from another prompt's cache"),
    "limits": Kind(means="not keep to stop strings or token limits"),
    "sampling": Kind(means="ignore temperature or seed", never_red=True),
    "logprobs": Kind(means="carry log-probabilities that are wrong"),
    "errors": Kind(means="be refused in a way that clients cannot read", never_red=True),
    "late": Kind(means="come seconds late", never_red=True),
    "vision": Kind(means="misread a picture"),
}


def kind_of(name: str) -> Kind:
    """The row of a kind, streamed or not."""
    return KINDS[name.removesuffix(STREAMED)]


def mark_of(name: str, seen: int, of: int, whose: Whose = "server") -> Mark:
    """Green, yellow or red for a count."""
    if not seen:
        return "pass"
    low = wilson(seen, of).low
    if whose == "model":
        return _model_mark(low, seen, of)
    if kind_of(name).never_red:
        return "warn"
    return "fail" if seen > 1 and low > RED else "warn"


def _model_mark(low: float, seen: int, of: int) -> Mark:
    if of < MODEL_TRIALS or low <= MODEL_WARN:
        return "pass"
    enough = seen == of or of >= 2 * MODEL_TRIALS
    return "fail" if enough and low > MODEL_RED else "warn"


def slip(name: str, seen: int, of: int, *, whose: Whose = "server", examples: Sequence[str] = ()) -> Slip:
    """A count with its interval and verdict."""
    score = wilson(seen, of)
    example, *also = dict.fromkeys(examples) or ("",)
    return Slip(
        kind=name,
        seen=seen,
        of=of,
        low=score.low,
        high=score.high,
        verdict=mark_of(name, seen, of, whose),
        whose=whose,
        example=example,
        also=tuple(also[:ALSO]),
    )


def in_words(found: Slip) -> str:
    """ "3 of 40 (8%, between 3 and 20%): about 8 of 100 calls would get no whole reply"."""
    whose = "" if found.whose == "server" else ", the same each time: the model's own, or a constant fault"
    if found.of < FEW:
        return f"seen {found.seen} of {found.of} times{whose}"
    rate = f"{found.seen} of {found.of} ({found.rate:.0%}, between {found.low:.0%} and {found.high:.0%})"
    expected = 100 * found.rate
    about = "at most 1" if expected < 1 else f"about {expected:.0f}"
    return f"{rate}: {about} of 100 calls would {kind_of(found.kind).means}{whose}"
