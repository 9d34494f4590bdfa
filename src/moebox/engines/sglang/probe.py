"""How a rehearsal starts SGLang without real weights."""

import json

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag
from moebox.engines.common import text_config_nested

# Dummy weights send every token to the same few experts; this spreads them as real routers do on average (environ.py).
EVEN_ROUTING = {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}

INVENTED: dict[str, Flag] = {"load-format": "dummy"}


def dummy(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """Flags with which it invents weights for `layers`."""
    override: dict[str, object] = {"num_hidden_layers": layers}
    if text_config_nested(deployment):
        override = {"text_config": override}
    return {**INVENTED, "json-model-override-args": json.dumps(override, separators=(",", ":"))}
