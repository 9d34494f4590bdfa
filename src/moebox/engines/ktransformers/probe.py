"""How a rehearsal would start KTransformers: it cannot, for kt-kernel reads real experts from disk."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag

EVEN_ROUTING: dict[str, str] = {}
DUMMY_FLAGS: dict[str, Flag] = {}


def dummy_weight_flags(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """No flags make up weights for the CPU."""
    return {}
