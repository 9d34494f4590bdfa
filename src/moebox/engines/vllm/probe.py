"""How a rehearsal starts vLLM without real weights."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag
from moebox.engines.common import layer_override

# Dummy weights send every token to the same few experts; this spreads them as real routers do on average (envs.py).
EVEN_ROUTING = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}

DUMMY_FLAGS: dict[str, Flag] = {"load-format": "dummy"}


def dummy_weight_flags(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """Flags with which it invents weights for `layers`."""
    return {**DUMMY_FLAGS, "hf-overrides": layer_override(deployment, layers)}
