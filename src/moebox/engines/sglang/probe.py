"""How a rehearsal starts SGLang without real weights."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag
from moebox.engines.common import layer_override

# Dummy weights send every token to the same few experts; this spreads them as real routers do on average (environ.py).
EVEN_ROUTING = {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}

DUMMY_FLAGS: dict[str, Flag] = {"load-format": "dummy"}


def dummy_weight_flags(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """Flags with which it invents weights for `layers`."""
    return {**DUMMY_FLAGS, "json-model-override-args": layer_override(deployment, layers)}
