"""Draft tokens and how many of them were accepted, as the engine itself counts them in /metrics."""

import re
from dataclasses import dataclass

from moebox import http
from moebox.core.endpoint import Endpoint

# vLLM's and llama.cpp's counters have the same name behind their prefix; SGLang has a gauge.
_COUNTER = re.compile(
    r"^\w+:spec_decode_num_(draft|accepted)_tokens(?:_total)?(?:\{[^}]*\})? ([\d.e+]+)$", re.MULTILINE
)
_GAUGE = re.compile(r"^sglang:spec_accept_rate(?:\{[^}]*\})? ([\d.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """What the counters stood at; zeros where there are none."""

    drafted: float = 0.0
    accepted: float = 0.0
    rate: float | None = None  # SGLang's own, of its last steps


def read_draft_counts(endpoint: Endpoint) -> DraftCounts:
    """Read them now."""
    page = http.get(f"{endpoint.server_url}/metrics", headers=endpoint.headers)
    return parse_draft_counts(page.text if page.ok else "")


def parse_draft_counts(text: str) -> DraftCounts:
    """The counters in a page of Prometheus metrics."""
    sums = {"draft": 0.0, "accepted": 0.0}
    for kind, value in _COUNTER.findall(text):
        sums[kind] += float(value)
    gauge = _GAUGE.search(text)
    return DraftCounts(drafted=sums["draft"], accepted=sums["accepted"], rate=float(gauge[1]) if gauge else None)


def acceptance_rate(before: DraftCounts, after: DraftCounts) -> float | None:
    """The share of draft tokens that were accepted in between; None where there were none."""
    drafted = after.drafted - before.drafted
    return (after.accepted - before.accepted) / drafted if drafted > 0 else after.rate
