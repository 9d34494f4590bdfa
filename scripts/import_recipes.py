"""Print rows of the support matrix from vLLM's recipes.

    python scripts/import_recipes.py /path/to/recipes.git

A recipe names the first release that runs a model and the GPUs it was verified on, not the checkpoint: a row covers
the formats that the recipe offers for these GPUs. Its range begins with the release of the day on which the GPU was
marked, and ends with that of the recipe's last change. Recipes that ask for a nightly build, and marks of 2026-04-17,
when all guides were converted, are left out.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

URL = "https://github.com/vllm-project/recipes/blob/"
GENERATIONS = {
    "sm90": ("h100", "h200", "h20"),
    "sm100": ("b200", "gb200"),
    "sm103": ("b300", "gb300", "dgx_station_gb300"),
    "sm120": ("rtx_pro_6000", "rtx_5090"),
    "sm121": ("dgx_spark_gb10",),
}
FORMATS = {"sm90": ("bf16", "fp8", "int4", "mxfp4"), "": ("bf16", "fp8", "int4", "mxfp4", "nvfp4", "mxfp8")}
BULK = "2026-04-17"  # all older guides were converted into recipes on that day
# Releases by the first day on which the matrix's reports show them.
RELEASES = {
    "2026-04-01": "0.18.0",
    "2026-04-16": "0.19.0",
    "2026-04-27": "0.20.0",
    "2026-05-11": "0.20.2",
    "2026-05-17": "0.21.0",
    "2026-05-29": "0.22.0",
    "2026-06-09": "0.22.1",
    "2026-06-18": "0.23.0",
    "2026-06-29": "0.24.0",
    "2026-07-14": "0.25.0",
    "2026-07-29": "0.26.0",
    "2026-08-11": "0.27.0",
    "2026-08-17": "0.27.1",
}
ARCHITECTURES = {
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxM2ForCausalLM",
    "MiniMaxAI/MiniMax-M3": "MiniMaxM3SparseForConditionalGeneration",
    "Qwen/Qwen3.5-397B-A17B": "Qwen3_5MoeForConditionalGeneration",
    "Qwen/Qwen3.6-35B-A3B": "Qwen3_5MoeForConditionalGeneration",
    "deepseek-ai/DeepSeek-V3.2": "DeepseekV32ForCausalLM",
    "deepseek-ai/DeepSeek-V4-Pro": "DeepseekV4ForCausalLM",
    "moonshotai/Kimi-K2.5": "KimiK25ForConditionalGeneration",
    "moonshotai/Kimi-K2.6": "KimiK25ForConditionalGeneration",
    "moonshotai/Kimi-K3": "KimiK3ForConditionalGeneration",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": "NemotronHForCausalLM",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "NemotronHForCausalLM",
    "openai/gpt-oss-120b": "GptOssForCausalLM",
    "poolside/Laguna-S-2.1": "LagunaForCausalLM",
    "stepfun-ai/Step-3.7-Flash": "Step3p7ForConditionalGeneration",
    "zai-org/GLM-5": "GlmMoeDsaForCausalLM",
    "zai-org/GLM-5.1": "GlmMoeDsaForCausalLM",
    "zai-org/GLM-5.2": "GlmMoeDsaForCausalLM",
}


def git(repository: Path, *words: str, check: bool = True) -> str:
    made = subprocess.run(["git", "--git-dir", repository, *words], capture_output=True, text=True, check=check)
    return made.stdout


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def release_at(day: str) -> str:
    """The newest release on a day."""
    return max((release for start, release in RELEASES.items() if start <= day), key=numbers, default="0")


def verification_days(repository: Path, path: str) -> dict[str, str]:
    """The day on which each GPU was first marked as verified."""
    found: dict[str, str] = {}
    for line in git(repository, "log", "--reverse", "--format=%H %cs", "--", path).splitlines():
        commit, day = line.split()
        text = git(repository, "show", f"{commit}:{path}", check=False)
        for gpu in re.findall(r"^    (\w+): verified", text.partition("\nmodel:")[0], re.MULTILINE):
            found.setdefault(gpu, day)
    return found


def offered_formats(recipe: dict[str, Any], generation: str) -> tuple[str, ...]:
    """The formats of a recipe's variants that are offered for a generation of NVIDIA's GPUs."""
    found = set()
    for variant in recipe["variants"].values():
        gpus, brand = (
            variant.get("supported_hardware"),
            (variant.get("precision_hardware") or {}).get("brand", "NVIDIA"),
        )
        if brand == "NVIDIA" and (not gpus or {*gpus}.intersection(GENERATIONS[generation])):
            found.add(variant["precision"])
    if recipe["model"]["model_id"].startswith("deepseek-ai/DeepSeek-V4") and "fp8" in found:
        found.add("mxfp4")  # "fp8" is the checkpoint with MXFP4 experts
    return tuple(sorted(found.intersection(FORMATS.get(generation, FORMATS[""]))))


def main() -> int:
    repository = Path(sys.argv[1])
    head = git(repository, "rev-parse", "HEAD").strip()
    for name, architecture in ARCHITECTURES.items():
        path = f"models/{name}.yaml"
        recipe = yaml.safe_load(git(repository, "show", f"HEAD:{path}"))
        if recipe["model"].get("nightly_required"):
            continue
        date, days = str(recipe["meta"]["date_updated"]), verification_days(repository, path)
        states = recipe["meta"].get("hardware", {})
        rows: dict[tuple[str, tuple[str, ...], str], list[str]] = defaultdict(list)
        for generation, gpus in GENERATIONS.items():
            marked = [days[gpu] for gpu in gpus if states.get(gpu) == "verified" and days.get(gpu, BULK) != BULK]
            formats = offered_formats(recipe, generation)
            if marked and formats:
                first = max(recipe["model"]["min_vllm_version"], release_at(min(marked)), key=numbers)
                last = max(first, release_at(max(date, min(marked))), key=numbers)
                bounds = f"=={first}" if first == last else f">={first},<={last}"
                rows[bounds, formats, min(marked)].append(generation)
        for (bounds, formats, day), generations in rows.items():
            slug = re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower())
            print(f'\n[[row]]\nid = "recipe-vllm-{slug}-{generations[0]}"\nengine = "vllm"\nversions = "{bounds}"')
            print(f"gpu = {generations}\narchitecture = {[architecture]}\nquant = {[*formats]}".replace("'", '"'))
            print(f'state = "runs"\ntext = "vLLM\'s recipe of {recipe["meta"]["title"]} marks these GPUs as verified."')
            print(f'evidence = [\n    {{ url = "{URL}{head}/{path}", date = "{day}", by = "maintainer" }},\n]')
    return 0


if __name__ == "__main__":
    sys.exit(main())
