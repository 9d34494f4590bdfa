"""What both llama.cpp servers share. Rehearsals write a sparse GGUF for them (serve/dummy.py)."""

from collections.abc import Sequence

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines.engine import Engine
from moebox.engines.ggml import argv, memory
from moebox.engines.refusals import plan_warning
from moebox.sizing.kv import keeps_all_heads, token_bytes
from moebox.units import format_gib

NOTICED = 2**30  # bytes of cache that are worth a warning


class GgmlEngine(Engine):
    """One slot unless the recipe has more; slots share one micro-batch of prompts at a time."""

    fields = argv.FIELDS
    hybrid_fields = argv.HYBRID_FIELDS
    variables = argv.VARIABLES
    memory_lines = staticmethod(memory.memory_lines)
    default_max_seqs = 1

    def build_commands(self, source: str, folder: str, gpus: Sequence[Gpu], jobs: int) -> list[tuple[str, ...]]:
        """Configure for the GPUs of this machine alone, build the server statically and copy it.

        Options by docs/build.md of llama.cpp; ik_llama.cpp has the same names. The web page needs npm or a download.
        """
        options = ["CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF"]
        options += [f"LLAMA_{name}=OFF" for name in ("CURL", "BUILD_TESTS", "BUILD_UI")]
        options += ["LLAMA_BUILD_COMMIT=moebox", "GIT_EXE=OFF"]  # a macro of every file: each commit would compile all
        kinds = sorted({gpu.sm for gpu in gpus})
        if kinds and kinds[0].startswith("gfx"):
            options += ["GGML_HIP=ON", f"AMDGPU_TARGETS={';'.join(kinds)}"]
        elif kinds:
            numbers = ";".join(sm.replace(".", "") for sm in kinds)
            options += ["GGML_CUDA=ON", f"CMAKE_CUDA_ARCHITECTURES={numbers}"]
        build = f"{folder}/build"
        return [
            ("cmake", "-S", source, "-B", build, *(f"-D{option}" for option in options)),
            ("cmake", "--build", build, "--config", "Release", "-j", str(jobs), "--target", "llama-server"),
            ("cp", f"{build}/bin/llama-server", f"{folder}/bin/llama-server"),
        ]

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        usual = recipe.hybrid.ubatch if recipe.hybrid else self.traits.step_tokens
        return recipe.batched_tokens or usual

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, model, found = deployment.recipe, deployment.known_model, super().find_refusals(deployment)
        if "special" in recipe.flags and recipe.flags.get("jinja", True):
            text = "--special with --jinja breaks tool calls: the markers reach the parser as text"
            source = "tried on b11669 and ik of August 2026"
            found.append(plan_warning("warning", text, "leave flags.special out", source))
        if {"ncmoe", "n-cpu-moe"} & set(recipe.flags):
            text = "-ncmoe counts the first layers in llama.cpp and the last, or a share per GPU, in ik_llama.cpp"
            found.append(plan_warning("warning", text, "hybrid.experts names the layers", "tried, November 2026"))
        if recipe.kv == "fp8":
            found.append(plan_warning("fatal", f"{deployment.engine.title} has no fp8 cache", 'kv = "q8_0"'))
            return found
        if model is None or model.mla is None or not keeps_all_heads(model.mla, recipe):
            return found
        held = token_bytes(model, recipe) * memory.cache_tokens(recipe)
        latent = held * model.mla.kv_width / model.mla.heads_width
        if held - latent < NOTICED:
            return found
        cost = f"{format_gib(held)} of cache at {recipe.context:,} tokens; the latent takes {format_gib(latent)}"
        if recipe.hybrid and recipe.hybrid.mla == 0:
            text = f"-mla 0 keeps every head's keys and values: {cost}"
            found.append(plan_warning("warning", text, "hybrid.mla = 3"))
        else:
            text = f"the file has keys and values in one matrix, so llama.cpp keeps them for every head: {cost}"
            remedy = "a GGUF made since April 2025 has them apart; ik_llama.cpp separates them"
            source = "llama.cpp b21e4de deepseek2.cpp: without attention.key_length_mla there is no latent cache"
            found.append(plan_warning("warning", text, remedy, source))
        return found
