"""Mainline llama.cpp: its server's command line and what it refuses. Flags by the help of b11669."""

import re
from pathlib import PurePosixPath

from moebox.core.calibration import gpu_expert_layers
from moebox.core.deployment import Deployment
from moebox.core.plan import Memory, PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument
from moebox.engines.ggml.engine import UNLOCKED, GgmlEngine
from moebox.engines.llama_cpp import memory
from moebox.engines.llama_cpp.traits import TRAITS
from moebox.engines.support import engines_for_format, plan_warning, quantization_of

UNMAPPED = ("none", "mlock", "dio")  # load modes that read the file instead of mapping it
LOOKUP = "ngram-simple"  # lookup in the prompt is the simplest of its n-gram kinds
VERBOSITY = "4"  # the lowest that prints buffer sizes
IK_QUANT = re.compile(r"IQ\d_K|IQ\d_KS|IQ\d_KL|IQ\d_KT|IQ\d_KSS|Q8_KV|IQ\d_S_R4|\w+_R[48]$", re.IGNORECASE)


class LlamaCppEngine(GgmlEngine):
    """llama-server, over several nodes with RPC servers."""

    traits = TRAITS
    memory_budget = staticmethod(memory.memory_budget)
    cache_flags = ("-ctk", "-ctv")  # MLA's one cache is read as both: they must be the same

    def hub_arguments(self, deployment: Deployment) -> list[Argument]:
        """Return the repository with its quantisation, which may be that of several files."""
        weights, checkpoint = deployment.weights_path, deployment.known_checkpoint
        if not checkpoint or checkpoint.path:
            return [("-hf", weights)]
        if checkpoint.file and checkpoint.how == "read":
            return [("-hf", weights), ("--hf-file", checkpoint.file)]
        return [("-hf", f"{weights}:{checkpoint.name.rpartition(':')[2]}")]

    def more_arguments(self, deployment: Deployment, node: LaunchNode | None) -> list[Argument]:
        """Return the drafts, and RPC servers of the other nodes; placeholders until addresses are known."""
        recipe = deployment.recipe
        out, others = self.draft_arguments(recipe), range(1, recipe.parallel.nodes)
        if others and "rpc" not in recipe.flags:
            addresses, port = node.addresses if node else (), recipe.listen.port + TRAITS.worker_port
            servers = (f"{addresses[rank] if addresses else f'node{rank}'}:{port}" for rank in others)
            out.append(("--rpc", ",".join(servers)))
        return [*out, ("-lv", VERBOSITY)]

    def draft_arguments(self, recipe: Recipe) -> list[Argument]:
        draft = recipe.speculate
        if draft is None:
            return []
        kind = draft.method if draft.method.startswith(("draft-", "ngram-")) else f"draft-{draft.method}"
        out: list[Argument] = [("--spec-type", LOOKUP if draft.method == "ngram" else kind)]
        if draft.draft:
            out.append(("--spec-draft-model", draft.draft))
        return [*out, ("--spec-draft-n-max", str(draft.tokens))]

    def worker_command(self, deployment: Deployment, node: LaunchNode) -> tuple[str, ...]:
        """The RPC server of a node: it offers that node's GPUs, or its CPU, at an address the first node can reach.

        It serves any client that connects, so it binds to the address the nodes use and never to all addresses.
        """
        recipe, rank = deployment.recipe, int(node.rank)
        address = node.addresses[rank] if node.addresses else f"node{rank}"
        threads = recipe.hybrid.threads if recipe.hybrid else None
        program = str(PurePosixPath(self.entry_command(recipe)[0]).with_name(TRAITS.worker_programs[0]))
        port = recipe.listen.port + TRAITS.worker_port
        return (program, "-H", address, "-p", str(port), *(("-t", str(threads)) if threads else ()))

    def locks_weights(self, recipe: Recipe) -> bool:
        """Only if the file is not mapped (llama-model.cpp); GGML_CUDA_REGISTER_HOST does nothing here."""
        mode = next((recipe.flags[name] for name in ("load-mode", "-lm", "lm") if name in recipe.flags), "auto")
        return (mode in UNMAPPED or bool(recipe.flags.get("no-mmap"))) and UNLOCKED not in recipe.env

    def setting_reasons(self, deployment: Deployment, memory: Memory) -> list[str]:
        recipe, model = deployment.recipe, deployment.model
        copies = recipe.hybrid and deployment.required_box.gpus and gpu_expert_layers(recipe) < model.moe_layers
        if not copies or self.locks_weights(recipe):
            return []
        return ['the file is mapped: GPUs copy experts from RAM slowly; flags.load-mode = "none" reads prompts faster']

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        return python_entry(recipe, program=("llama-server",), module=("-m", "xllamacpp.server"))

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, flags, found = deployment.recipe, deployment.recipe.flags, super().find_refusals(deployment)
        quant, hybrid = quantization_of(deployment), recipe.placement
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
