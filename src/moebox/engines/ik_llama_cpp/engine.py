"""ik_llama.cpp: its command line and what it refuses. Flags by the help of the sources of April and August 2026."""

import re

from moebox.core.calibration import gpu_expert_layers
from moebox.core.deployment import Deployment
from moebox.core.plan import Memory, PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, is_at_least
from moebox.engines.ggml.engine import UNLOCKED, GgmlEngine
from moebox.engines.ggml.memory import memory_budget, offload_threshold
from moebox.engines.ik_llama_cpp.traits import TRAITS
from moebox.engines.support import engines_for_format, plan_warning, quantization_of
from moebox.units import format_count

# The fork takes keys from argv or a file; bash makes a file out of the variable that is not on disk.
ENTER_WITH_KEY = 'exec "$@" --api-key-file <(printf "%s\\n" "$LLAMA_API_KEY")'
MAINLINE_QUANT = re.compile(r"NVFP4|^T?Q[12]_0$", re.IGNORECASE)  # UD-TQ1_0 is a mix without that type
WITH_BUDGET = "2026-08"  # the first version that has a budget of thinking


class IkLlamaCppEngine(GgmlEngine):
    """The fork's llama-server, with its own modes of latent attention."""

    traits = TRAITS
    memory_budget = staticmethod(memory_budget)
    cache_flags = ("-ctk",)  # MLA has one cache: only the type of K matters

    def hub_arguments(self, deployment: Deployment) -> list[Argument]:
        """Return the repository and the file in it, without which the fork does not start."""
        checkpoint = deployment.known_checkpoint
        file = [("--hf-file", checkpoint.file)] if checkpoint and checkpoint.file else []
        return [("--hf-repo", deployment.weights_path), *file]

    def thinking_off(self, deployment: Deployment) -> Argument:
        """From August 2026 on the template's switch puts the answer into reasoning_content; a budget of 0 does not."""
        has_budget = is_at_least(deployment.recipe, WITH_BUDGET)
        return ("--reasoning-budget", "0") if has_budget else super().thinking_off(deployment)

    def locks_weights(self, recipe: Recipe) -> bool:
        """Tensors that -ot names are page-locked, unless a variable forbids it (llama-load-tensors.cpp)."""
        return not any(name.startswith(UNLOCKED) for name in recipe.env)

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        return python_entry(recipe, program=("llama-server",), module=("-m", "ik_llama_cpp.server"))

    def hide_api_key(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Pass the API key in a file made by bash instead of in argv."""
        return ("bash", "-c", ENTER_WITH_KEY, "engine", *argv)

    def setting_reasons(self, deployment: Deployment, memory: Memory) -> list[str]:
        """Return from which micro-batch on the GPUs compute the experts in RAM, if there are any.

        From a number of tokens on, experts in RAM are copied to the GPUs, which then compute them: each expert is used
        often enough to pay for its copy. Below that the CPU reads prompts with them.
        """
        recipe, model, hybrid = deployment.recipe, deployment.model, deployment.recipe.hybrid
        all_on_gpus = gpu_expert_layers(recipe) >= model.moe_layers
        if hybrid is None or not deployment.required_box.gpus or all_on_gpus:
            return []
        least = offload_threshold(model)
        on = f"from {format_count(least)} tokens a batch on"
        if hybrid.ubatch >= least:
            return [f"-ub {hybrid.ubatch}: {on}, the GPUs read prompts, with experts in RAM too"]
        return [f"-ub {hybrid.ubatch}: the CPU reads prompts with experts in RAM; {on} the GPUs would"]

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, checkpoint, found = deployment.recipe, deployment.known_checkpoint, super().find_refusals(deployment)
        quant = quantization_of(deployment)
        if checkpoint and checkpoint.repo and not (checkpoint.path or checkpoint.file):
            repo, name = checkpoint.repo, checkpoint.name
            text = f"which file of {repo} holds {name} is not known, and ik_llama.cpp starts only with its name"
            remedy = f"hf download {repo} --include '*{name}*', then name the file"
            found.append(plan_warning("warning", text, remedy))
        if MAINLINE_QUANT.search(quant):
            found.append(plan_warning("fatal", f"ik_llama.cpp cannot read {quant}", engines_for_format(deployment)))
        if recipe.speculate:
            text = f"moebox does not launch ik_llama.cpp with {recipe.speculate.method} drafts"
            found.append(plan_warning("fatal", text, "leave speculate out"))
        if not recipe.flags.keys().isdisjoint(("ger", "-ger")):
            found.append(plan_warning("note", "-ger does nothing for Kimi: its experts are one group"))
        if recipe.vision:
            text = "Kimi's vision tower is not served by ik_llama.cpp"
            found.append(plan_warning("warning", text, "vision = false"))
        if not recipe.thinking and is_at_least(recipe, WITH_BUDGET):
            text = "thinking is turned off by a budget of 0"
            why = "the template's switch would put answers in reasoning_content"
            found.append(plan_warning("note", f"{text}; {why}", source="ik_llama.cpp of August 2026, tried"))
        return found


ENGINE = IkLlamaCppEngine()
