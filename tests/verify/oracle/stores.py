"""Servers whose KV tiers are broken in the ways of bug reports, and one whose tiers work."""

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
SOUND_STORES: dict[str, Fault] = {"store-works": Fault(request=Store("").request)}
