"""What llama.cpp will not run, and why."""

import re

from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Hybrid
from moebox.engines.common import engines_for_format, plan_warning, quantization_of
from moebox.engines.ggml import refuse as ggml

IK_QUANT = re.compile(r"IQ\d_K|IQ\d_KS|IQ\d_KL|IQ\d_KT|IQ\d_KSS|Q8_KV|IQ\d_S_R4|\w+_R[48]$", re.IGNORECASE)


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Known reasons why this will not start, or will disappoint."""
    recipe, found = deployment.recipe, ggml.find_refusals(deployment)
    quant = quantization_of(deployment)
    if IK_QUANT.search(quant):
        text = f"llama.cpp cannot read {quant}: «invalid ggml type»; only ik_llama.cpp has it"
        found.append(plan_warning("fatal", text, engines_for_format(deployment), "type tables of both, November 2026"))
    flags = recipe.flags
    if flags.get("ctk", flags.get("cache-type-k")) != flags.get("ctv", flags.get("cache-type-v")):
        found.append(plan_warning("fatal", "MLA's cache is one: -ctk and -ctv must be the same type", 'kv = "q8_0"'))
    if recipe.parallel.nodes > 1:
        text = "llama.cpp's RPC servers ask nobody for a key: whoever reaches their port can use and read them"
        fix = f"keep port {recipe.listen.port + deployment.engine.worker_port} inside the nodes' own network"
        found.append(plan_warning("warning", text, fix, "llama.cpp tools/rpc/README.md"))
    hybrid = recipe.hybrid or Hybrid()
    if (hybrid.mla, hybrid.attention_buffer) != (None, None):
        found.append(plan_warning("fatal", "hybrid.mla and hybrid.attention_buffer are ik_llama.cpp's alone"))
    return found
