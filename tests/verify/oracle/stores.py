"""Servers whose KV tiers are broken in the ways of bug reports, and one whose tiers work."""

from typing import Any

from starlette.requests import Request

from .bend import Body, error
from .bend_store import Store
from .faults import Fault

# Found by the probe of returning conversations if there are enough of them (test_returning.py).
STORES: dict[str, Fault] = {
    "store-swaps-two-blocks": Fault(request=Store("swap").request),
    "store-returns-old-block": Fault(request=Store("old").request),
    "store-returns-another-conversation": Fault(request=Store("another").request),
    "store-loses-a-block": Fault(request=Store("hole").request),
    "store-loses-tools": Fault(request=Store("tools").request),
}


def refuse_tools(request: Request, body: Body) -> Any:
    """Answer as vLLM does without --enable-auto-tool-choice."""
    text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    return error(400, text) if body.get("tools") else None


SOUND_STORES: dict[str, Fault] = {
    "store-works": Fault(request=Store("").request),
    "store-without-tools": Fault(gate=refuse_tools),
}
