"""Print rows of the support matrix from the history of InferenceX's configurations.

    python scripts/import_sweeps.py /path/to/InferenceX.git

Each configuration on the main branch was benchmarked with its image before it was merged. A released image of vLLM or
SGLang on one node makes a row "runs": engine, version, GPU generation, architecture and precision, with the pull
request as evidence. Versions between two that ran are included. Nightly and patched images are left out.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PATHS = [f"{folder}configs/{maker}-master.yaml" for folder in ("", ".github/") for maker in ("nvidia", "amd")]
URL = "https://github.com/SemiAnalysisAI/InferenceX/pull/"
IMAGE = re.compile(
    r"(?:vllm/vllm-openai(?:-rocm)?|lmsysorg/sglang(?:-rocm)?|rocm/sgl-dev)"
    r":v(\d+\.\d+\.\d+(?:\.post\d+)?)(?:-(?:cu1\d+|rocm\d+|amd64|mi3\dx|ubuntu\d+|\d{8})+)*$"
)
GPUS = {"h100": "sm90", "h200": "sm90", "b200": "sm100", "b300": "sm103", "gb200": "sm100", "gb300": "sm103"}
GPUS |= {"mi300x": "gfx942", "mi325x": "gfx942", "mi355x": "gfx950"}
ARCHITECTURES = {
    "dsr1": "DeepseekV3ForCausalLM",
    "dsv4": "DeepseekV4ForCausalLM",
    "gptoss": "GptOssForCausalLM",
    "qwen3.5": "Qwen3_5MoeForConditionalGeneration",
    "kimik2.5": "KimiK25ForConditionalGeneration",
    "kimik2.6": "KimiK25ForConditionalGeneration",
    "minimaxm2.5": "MiniMaxM2ForCausalLM",
    "minimaxm2.7": "MiniMaxM2ForCausalLM",
    "minimaxm3": "MiniMaxM3SparseForConditionalGeneration",
    "glm5": "GlmMoeDsaForCausalLM",
    "glm5.1": "GlmMoeDsaForCausalLM",
    "glm5.2": "GlmMoeDsaForCausalLM",
}


def quantisation(prefix: str, precision: str, gpu: str) -> str:
    """The format of the experts by the matrix's names: "fp4" is MXFP4 on AMD and in what the makers published so."""
    if prefix in ("dsv4", "gptoss") or (precision == "fp4" and gpu.startswith("gfx")):
        return "mxfp4"
    if precision == "fp4":
        return "nvfp4"
    return precision


def released_runs(repository: Path) -> dict[tuple[str, ...], dict[tuple[int, ...], tuple[str, str, str]]]:
    """Runs by engine, GPU, architecture and format: version numbers to version, date and pull request."""
    found: dict[tuple[str, ...], dict[tuple[int, ...], tuple[str, str, str]]] = defaultdict(dict)
    for path in PATHS:
        for line in git(repository, "log", "--reverse", "--format=%H %cs %s", "--", path).splitlines():
            commit, date, subject = line.split(" ", 2)
            pull = re.search(r"\(#(\d+)\)", subject)
            if not pull or "evert" in subject:
                continue
            for block in re.split(r"\n(?=\S+:\n)", git(repository, "show", f"{commit}:{path}")):
                fields = dict(re.findall(r"^  ([\w-]+): *['\"]?([^'\"\n#]+)", block, re.MULTILINE))
                image, prefix = IMAGE.match(fields.get("image", "").strip()), fields.get("model-prefix", "").strip()
                engine, runner = fields.get("framework", "").strip(), fields.get("runner", "").strip().split("-")[0]
                if not image or engine not in ("vllm", "sglang") or "true" in fields.get("multinode", ""):
                    continue
                if runner not in GPUS or prefix not in ARCHITECTURES:
                    continue
                gpu = GPUS[runner]
                quant = quantisation(prefix, fields.get("precision", "").strip(), gpu)
                numbers = tuple(map(int, re.findall(r"\d+", image[1])))
                key = (engine, gpu, ARCHITECTURES[prefix], quant)
                found[key].setdefault(numbers, (image[1], date, pull[1]))
    return found


def git(repository: Path, *words: str) -> str:
    made = subprocess.run(["git", "-C", repository, *words], capture_output=True, text=True, check=False)
    return made.stdout


def main() -> int:
    for (engine, gpu, architecture, quant), runs in sorted(released_runs(Path(sys.argv[1])).items()):
        versions = [runs[numbers] for numbers in sorted(runs)]
        (first, _, _), (last, date, pull) = versions[0], max(versions, key=lambda run: run[1])
        last = versions[-1][0]
        bounds = f"=={first}" if first == last else f">={first},<={last}"
        name = re.sub(r"For\w+$", "", architecture).lower().replace("_", "")
        listed = ", ".join(version for version, _, _ in versions)
        print(f'\n[[row]]\nid = "sweep-{engine}-{name}-{quant}-{gpu}"\nengine = "{engine}"\nversions = "{bounds}"')
        print(f'gpu = ["{gpu}"]\narchitecture = ["{architecture}"]\nquant = ["{quant}"]')
        if engine == "sglang" and gpu.startswith("gfx") and "Qwen3_5" in architecture:
            print('settings = { prefix_caching = "false" }')  # its launches turn it off; with it SGLang refuses
        print('state = "runs"')
        print(f'text = "InferenceX benchmarked it on one node with {listed}."\nevidence = [')
        print(f'    {{ url = "{URL}{pull}", date = "{date}", by = "measured" }},\n]')
    return 0


if __name__ == "__main__":
    sys.exit(main())
