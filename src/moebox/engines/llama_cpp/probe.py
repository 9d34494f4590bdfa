"""How a rehearsal starts llama.cpp without real weights: from a sparse GGUF that it writes (serve/dummy.py)."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag

EVEN_ROUTING: dict[str, str] = {}  # zero weights give every expert the same score
DUMMY_FLAGS: dict[str, Flag] = {}


def dummy_weight_flags(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """Nothing: a file is written for it."""
    return {}
