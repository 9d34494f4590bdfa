"""Known reasons why a recipe will not start on a box, or will disappoint there.

"fatal": it does not start, or fails at the first long prompt; "warning": it runs, worse than it seems; "note": good
to know. Every reason carries its source. What is pinned by a person is still honoured; these only speak.
"""

import re
from typing import Literal

from moebox.core.box import Box
from moebox.core.model import Checkpoint, Mla, Model
from moebox.core.plan import Caution
from moebox.core.recipe import Recipe
from moebox.core.symptom import in_range
from moebox.engines.flags import newest, order
from moebox.engines.words import checkpoint_of
from moebox.units import gib

Severity = Literal["note", "warning", "fatal"]
# Decode backends for dense MLA by compute capability's major number (vLLM 0.32 platforms/cuda.py; SGLang 0.5.23
# arg_groups/attention_hook.py). Consumer Blackwell (12) has none of the big-shared-memory ones.
VLLM_MLA = {
    "8": ("TRITON_MLA",),
    "9": ("FLASHMLA", "FLASH_ATTN_MLA", "TRITON_MLA"),
    "10": ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA", "TOKENSPEED_MLA"),
    "12": ("TRITON_MLA",),
}
SGLANG_NOT_12 = ("flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "fa3", "fa4", "trtllm_mha")
IK_QUANT = re.compile(r"IQ\d_K|IQ\d_KS|IQ\d_KL|IQ\d_KT|IQ\d_KSS|Q8_KV|IQ\d_S_R4|\w+_R[48]$", re.IGNORECASE)
MAINLINE_QUANT = re.compile(r"NVFP4|Q1_0|Q2_0$", re.IGNORECASE)


MLA_FP8 = "smem-vllm-mla-fp8"  # the symptom of a kernel that a patch mends


def caution(severity: Severity, text: str, remedy: str = "", source: str = "", symptom: str = "") -> Caution:
    """A Caution, written shortly."""
    return Caution(symptom=symptom, text=text, remedy=remedy, severity=severity, source=source)


def major(box: Box | None) -> str:
    """The first number of the deciding card's compute capability; "" without one."""
    gpu = box.gpu if box else None
    return gpu.sm.split(".")[0] if gpu and "." in gpu.sm else ""


def everywhere(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """What holds for every engine."""
    found = shapes(recipe, model) if model else []
    known = checkpoint_of(recipe)
    gguf = recipe.checkpoint.endswith(".gguf") or (known is not None and known.format == "gguf")
    if gguf and recipe.engine in ("vllm", "sglang"):
        found.append(caution("fatal", f"{recipe.engine} does not serve GGUF files", 'engine = "llama.cpp"'))
    if known and known.format == "safetensors" and recipe.engine in ("llama.cpp", "ik_llama.cpp"):
        found.append(caution("fatal", f"{recipe.engine} reads GGUF, not safetensors", "a GGUF checkpoint"))
    if known and known.engines and recipe.engine not in known.engines:
        found.append(caution("fatal", f"{known.name} loads in {', '.join(known.engines)} only", source=known.source))
    if box and box.gpus and recipe.parallel.gpus > len(box.gpus) * box.nodes:
        have = len(box.gpus) * box.nodes
        found.append(caution("fatal", f"it spreads over {recipe.parallel.gpus} GPUs and {box.name} has {have}"))
    return found


def shapes(recipe: Recipe, model: Model) -> list[Caution]:
    """What cannot be divided."""
    spread, found = recipe.parallel, []
    if model.attention.heads % spread.tp:
        text = f"{model.title} has {model.attention.heads} attention heads, which tp = {spread.tp} does not divide"
        found.append(caution("fatal", text, "parallel.tp = 1, 2, 4 or 8"))
    if spread.tp % spread.dcp:
        found.append(caution("fatal", f"dcp = {spread.dcp} does not divide tp = {spread.tp}"))
    if spread.pp > model.layers:
        found.append(caution("fatal", f"pp = {spread.pp} is more than the model's {model.layers} layers"))
    if model.moe and spread.ep and model.moe.experts % (spread.tp * spread.dp):
        found.append(caution("fatal", f"{model.moe.experts} experts do not divide over {spread.tp * spread.dp} ranks"))
    if recipe.context > model.context:
        found.append(caution("warning", f"context {recipe.context:,} is beyond the model's own {model.context:,}"))
    return found


def vllm(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """vLLM's own."""
    found = everywhere(recipe, box, model)
    sm, stock = major(box), recipe.runtime.preset != "community"
    version = recipe.engine_version or newest("vllm")
    # Dense latent attention: models with an indexer (DSA) decode with other kernels, whose cache is fp8 by nature.
    mla = isinstance(model.attention, Mla) and model.attention.indexer is None if model else False
    backend = str(recipe.flags.get("attention-backend", "")).upper()
    if mla and sm == "12" and recipe.kv == "fp8" and stock and in_range(version, ">=0.24,<=0.32.99"):
        found.append(
            caution(
                "fatal",
                "TRITON_MLA with an fp8 cache needs 102,400 bytes of shared memory in its two-stage decode tile, "
                "and SM120 has 101,376: it does not start",
                'kv = "bf16", or runtime.preset = "community", or patch vLLM: '
                "`moebox doctor kernels --engine vllm --kv fp8 --fix --apply`",
                "https://github.com/vllm-project/vllm/issues/53748; compiled again for 0.32.0 in November 2026",
                symptom=MLA_FP8,
            )
        )
    if mla and backend and sm in VLLM_MLA and backend not in VLLM_MLA[sm]:
        usable = " or ".join(VLLM_MLA[sm])
        found.append(caution("fatal", f"{backend} has no kernel for SM {sm}.x; dense MLA decodes with {usable} there"))
    found += _workspace(recipe, box, model) if mla and (sm in ("8", "12") or backend == "TRITON_MLA") else []
    if recipe.parallel.dcp > 1 and recipe.speculate and stock:
        found.append(
            caution(
                "warning",
                "speculative decoding under DCP takes the prefill path, and acceptance collapses after the first guess",
                "parallel.dcp = 1, or speculate.tokens = 1",
                "https://github.com/vllm-project/vllm/issues/50391",
            )
        )
    return found + _cards(recipe, box) + _pcie(recipe, box, stock=stock)


def _workspace(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """TRITON_MLA's decode workspace, which nobody plans for (v1/attention/backends/mla/triton_mla.py of 0.32)."""
    gpu = box.gpu if box else None
    if gpu is None or model is None or recipe.max_seqs is not None:
        return []
    context = recipe.context or model.context
    splits = min(2 ** max(0, (context // 512 - 1).bit_length()), 2 * gpu.sms)
    heads = model.attention.heads // recipe.parallel.tp * recipe.parallel.dcp
    size = 1024 * heads * splits * 513 * 4  # 1,024 sequences is the default on cards of 70 GiB and more
    if size < 2**30:
        return []
    text = f"without max_seqs, TRITON_MLA sets {gib(size)} a card aside for 1,024 sequences, after memory was planned"
    return [caution("warning", text, "max_seqs = 64", "vLLM 0.32.0 source")]


def _cards(recipe: Recipe, box: Box | None) -> list[Caution]:
    """Weight formats that want a newer card."""
    known, sm, found = checkpoint_of(recipe), major(box), []
    quant = known.quant if known else recipe.checkpoint.lower()
    if "nvfp4" in quant.lower() and sm and int(sm) < 10:
        text = (
            "NVFP4 weights want Blackwell; older cards unpack them through Marlin: the memory is saved, the speed not"
        )
        found.append(caution("warning", text, 'flags.moe-backend = "marlin"' if recipe.engine == "vllm" else ""))
    if "fp8" in quant and sm == "8":
        found.append(caution("warning", "fp8 weights run through Marlin, weight-only, below compute capability 8.9"))
    if sm and int(sm) < 8:
        found.append(caution("fatal", f"compute capability {sm}.x is too old: Marlin's INT4 kernels begin at 8.0"))
    return found


def _pcie(recipe: Recipe, box: Box | None, *, stock: bool) -> list[Caution]:
    gpu = box.gpu if box else None
    if gpu is None or gpu.nvlink or recipe.parallel.tp <= 2 or not stock:
        return []
    text = "custom all-reduce is off above two PCIe cards: NCCL carries every layer"
    return [caution("note", text, "env.VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC = 1 to try", "vLLM custom_all_reduce.py")]


def sglang(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """SGLang's own."""
    found = everywhere(recipe, box, model) + _cards(recipe, box)
    sm, backend = major(box), str(recipe.flags.get("attention-backend", ""))
    if sm == "12" and backend in SGLANG_NOT_12:
        found.append(caution("fatal", f"{backend} has no kernel for SM 12.x", 'flags.attention-backend = "flashinfer"'))
    old = bool(recipe.engine_version) and order(recipe.engine_version) < order("0.5.7")
    if sm == "12" and old and backend in ("", "triton"):
        found.append(
            caution(
                "fatal",
                "its extend attention kernel wants 106,496 bytes of shared memory and SM120 has 101,376: "
                "short prompts work, the first long one crashes",
                'engine_version = "0.5.23", or flags.attention-backend = "flashinfer"',
                "SM120 deployment report, 29 January 2026; https://github.com/sgl-project/sglang/pull/14311",
            )
        )
    if sm == "12" and recipe.kv == "fp8":
        text = "fp8 cache on SM120 gave 16 tok/s where bf16 gave 90 (March 2026); not measured since"
        found.append(caution("warning", text, 'kv = "bf16"', "rtx6kpro wiki, kimi-k25"))
    if recipe.memory_utilization is None and model is not None and model.total > 500e9:
        text = "its own memory fraction left 4,578 tokens of cache on 8×96 GB: it is lowered for vision models"
        found.append(caution("warning", text, "memory_utilization = 0.93", "SM120 deployment report, 29 January 2026"))
    if recipe.speculate and recipe.parallel.dcp > 1:
        found.append(caution("warning", "speculative decoding under DCP is not proven in SGLang", "parallel.dcp = 1"))
    return found


def llama_cpp(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """llama.cpp's own."""
    found = everywhere(recipe, box, model) + _both(recipe)
    quant = _quant(recipe)
    if IK_QUANT.search(quant):
        text = f"llama.cpp cannot read {quant}: «invalid ggml type»; only ik_llama.cpp has it"
        found.append(caution("fatal", text, 'engine = "ik_llama.cpp"', "type tables of both, November 2026"))
    flags = recipe.flags
    if flags.get("ctk", flags.get("cache-type-k")) != flags.get("ctv", flags.get("cache-type-v")):
        found.append(caution("fatal", "MLA's cache is one: -ctk and -ctv must be the same type", 'kv = "q8_0"'))
    if recipe.hybrid and (recipe.hybrid.mla is not None or recipe.hybrid.attention_buffer is not None):
        found.append(caution("fatal", "hybrid.mla and hybrid.attention_buffer are ik_llama.cpp's alone"))
    return found


def ik_llama(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """ik_llama.cpp's own."""
    found = everywhere(recipe, box, model) + _both(recipe)
    quant = _quant(recipe)
    if MAINLINE_QUANT.search(quant):
        found.append(caution("fatal", f"ik_llama.cpp cannot read {quant}", 'engine = "llama.cpp"'))
    if recipe.speculate:
        found.append(caution("fatal", f"ik_llama.cpp has no {recipe.speculate.method} drafts", "leave speculate out"))
    if recipe.hybrid and recipe.hybrid.mla == 0:
        found.append(caution("warning", "-mla 0 keeps 2.5 MB of cache a token: 305 GiB at 131,072", "hybrid.mla = 3"))
    if "ger" in recipe.flags or "-ger" in recipe.flags:
        found.append(caution("note", "-ger does nothing for Kimi: its experts are one group"))
    if recipe.vision:
        found.append(caution("warning", "Kimi's vision tower is not served by ik_llama.cpp", "vision = false"))
    if not recipe.thinking and order(recipe.engine_version or newest("ik_llama.cpp")) >= order("2026-08"):
        text = "thinking is turned off by a budget of 0; the template's switch would send answers to reasoning_content"
        found.append(caution("note", text, source="ik_llama.cpp of August 2026, tried"))
    return found


def _both(recipe: Recipe) -> list[Caution]:
    """What the two llama.cpp servers share."""
    found = []
    if "special" in recipe.flags and recipe.flags.get("jinja", True):
        text = "--special with --jinja breaks tool calls: the markers reach the parser as text"
        found.append(caution("warning", text, "leave flags.special out", "tried on b11669 and ik of August 2026"))
    if {"ncmoe", "n-cpu-moe"} & set(recipe.flags):
        text = "-ncmoe counts the first layers in llama.cpp and the last, or a share per card, in ik_llama.cpp"
        found.append(caution("warning", text, "hybrid.experts names the layers", "tried, November 2026"))
    if recipe.kv == "fp8":
        found.append(caution("fatal", f"{recipe.engine} has no fp8 cache", 'kv = "q8_0"'))
    return found


def _quant(recipe: Recipe) -> str:
    """The checkpoint's quantisation: from the catalogue, or out of the file's name."""
    known: Checkpoint | None = checkpoint_of(recipe)
    if known:
        return known.quant
    named = re.search(r"(?:UD-)?(?:I?Q\d\w*|NVFP4|MXFP4|BF16|F16)", recipe.checkpoint.rpartition("/")[2], re.IGNORECASE)
    return named.group(0) if named else ""
