"""llama.cpp: its log, what it refuses, and the object that moebox uses."""

import re

from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Hybrid
from moebox.engines.ggml.engine import GgmlEngine
from moebox.engines.llama_cpp import argv, memory
from moebox.engines.llama_cpp.traits import TRAITS
from moebox.engines.refusals import engines_for_format, plan_warning, quantization_of

IK_QUANT = re.compile(r"IQ\d_K|IQ\d_KS|IQ\d_KL|IQ\d_KT|IQ\d_KSS|Q8_KV|IQ\d_S_R4|\w+_R[48]$", re.IGNORECASE)


class LlamaCppEngine(GgmlEngine):
    """llama-server, over several nodes with RPC servers."""

    traits = TRAITS
    arguments = staticmethod(argv.arguments)
    draft_arguments = staticmethod(argv.draft_arguments)
    worker_command = staticmethod(argv.worker_command)
    entry_command = staticmethod(argv.entry_command)
    memory_budget = staticmethod(memory.memory_budget)

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, flags, found = deployment.recipe, deployment.recipe.flags, super().find_refusals(deployment)
        quant, hybrid = quantization_of(deployment), recipe.hybrid or Hybrid()
        if IK_QUANT.search(quant):
            text = f"llama.cpp cannot read {quant}: «invalid ggml type»; only ik_llama.cpp has it"
            source = "type tables of both, November 2026"
            found.append(plan_warning("fatal", text, engines_for_format(deployment), source))
        if flags.get("ctk", flags.get("cache-type-k")) != flags.get("ctv", flags.get("cache-type-v")):
            text = "MLA has one cache: -ctk and -ctv must be the same type"
            found.append(plan_warning("fatal", text, 'kv = "q8_0"'))
        if recipe.parallel.nodes > 1:
            text = "llama.cpp's RPC servers need no key: any client that reaches their port can use and read them"
            remedy = f"keep port {recipe.listen.port + deployment.engine.worker_port} inside the nodes' own network"
            found.append(plan_warning("warning", text, remedy, "llama.cpp tools/rpc/README.md"))
        if (hybrid.mla, hybrid.attention_buffer) != (None, None):
            text = "only ik_llama.cpp has hybrid.mla and hybrid.attention_buffer"
            found.append(plan_warning("fatal", text))
        return found


ENGINE = LlamaCppEngine()
