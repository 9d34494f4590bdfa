"""Pools that unlike layers share: vLLM's groups of equal pages, SGLang's fixed ratios."""

from dataclasses import replace

import pytest

from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.recipe import Parallel, Recipe, Speculate
from moebox.engines import memory_budget
from moebox.engines.vllm.pages import find_cache_pages

QWEN = Recipe(
    name="qwen",
    engine="vllm",
    engine_version="0.26.0",
    model="qwen3.6-35b",
    checkpoint="bf16",
    served_name="qwen",
    context=8192,
    max_seqs=64,
    memory_utilization=0.9,
)
H200 = Box(name="1x-h200", gpus=(catalogue.find_gpu("h200"),))


def test_vllm_reports_fewer_tokens_because_states_take_pages() -> None:
    """On an H200 vLLM 0.26 had 2,950 blocks of 1,056 tokens, eleven a request of 8,192: 2,196,945 tokens."""
    model = catalogue.find_model("qwen3.6-35b")
    pages = find_cache_pages(model, QWEN, model.layers, 8192)
    memory = memory_budget(Deployment(QWEN, model, catalogue.find_checkpoint(model.name, "bf16"), H200))

    assert pages is not None
    assert (pages.block_tokens, pages.block_bytes, pages.request_blocks(8192)) == (1056, 21_626_880, 11)
    assert int(2950 / pages.request_blocks(8192) * 8192) == 2_196_945
    assert memory.kv_tokens == pytest.approx(2_196_945, rel=0.03)
    assert memory.held_sequences(8192, 8192) == memory.kv_tokens // 8192
    assert memory.held_sequences(1056, 8192) < memory.kv_tokens // 1056 * 0.4  # a short request still has three states


def test_prefix_caching_and_drafts_keep_more_states() -> None:
    """Since 0.28 a request keeps two states in each group, and one more for every draft token."""
    model = catalogue.find_model("qwen3.6-35b")
    newest = replace(QWEN, engine_version="0.32.0")
    drafting = replace(newest, speculate=Speculate(method="mtp", tokens=3))
    blocks = []
    for recipe in (newest, drafting):
        pages = find_cache_pages(model, recipe, model.layers, 8192)
        assert pages is not None
        blocks.append(pages.sequence_blocks)

    assert blocks == [3 * 2, 3 * (2 + 3)]
    nemotron = catalogue.find_model("nemotron-3-nano")
    pages = find_cache_pages(nemotron, replace(newest, model=nemotron.name), nemotron.layers, 8192)
    assert pages is not None
    assert pages.sequence_blocks == 4 * 3  # Mamba 2 keeps one of the prefill as well since 0.32


def test_nemotron_has_pages_of_4176_tokens() -> None:
    """vLLM 0.30 logs 4,176 tokens a page and eight state pages of 102.6 MB in all (fp8 cache, 6 + 23 layers)."""
    model = catalogue.find_model("nemotron-3-nano")
    recipe = replace(QWEN, engine_version="0.30.0", model=model.name, kv="fp8", context=65536)
    pages = find_cache_pages(model, recipe, model.layers, 8192)

    assert pages is not None
    assert (pages.block_tokens, pages.sequence_blocks) == (4176, 8)
    assert pages.sequence_blocks * pages.block_bytes == pytest.approx(102.6e6, rel=0.001)


def test_glm_53_flash_packs_states_behind_latents() -> None:
    """TP2 with 4,445,787,956 bytes of cache and 7 draft tokens reports 672,606 tokens at 262,144 (plain fp8 latent)."""
    model = catalogue.find_model("glm-5.3-flash")
    recipe = replace(QWEN, engine_version="0.30.0", model=model.name, context=262_144, parallel=Parallel(tp=2))
    pages = find_cache_pages(model, recipe, model.layers, 8192)

    assert pages is not None
    growing = 11 * (512 + 33) * 262_656  # bytes of a request's latents and index keys in plain fp8
    states = pages.sequence_blocks * pages.block_bytes
    assert 4_445_787_956 / (growing + states) * 262_144 == pytest.approx(672_606, rel=0.03)


def test_windows_are_charged_with_the_tokens_in_flight() -> None:
    """gpt-oss has equal pages: a window layer of 128 keeps two steps of 8,192 tokens, as vLLM admits requests."""
    model = catalogue.find_model("gpt-oss-120b")
    recipe = replace(QWEN, engine_version="0.32.0", model=model.name, context=131_072)
    pages = find_cache_pages(model, recipe, model.layers, 8192)

    assert pages is not None
    assert (pages.block_tokens, pages.context_blocks) == (16, 1)
    assert pages.sequence_blocks == -(-(127 + 2 * 8192) // 16) + 1
    assert pages.decoding_blocks * pages.block_tokens == 128 + 16  # decoding keeps the window and the next block


def test_deepseek_v4_keeps_inputs_of_the_open_compression() -> None:
    """One request of 30,000 tokens needs 6.66 GiB on two GH200 (vllm#44376); layers 0 to 3 gave 50,796 tokens a GiB.

    With a step of 8,192 tokens and no asynchronous scheduling, as the CPU build of vLLM 0.32 boots.
    """
    model = catalogue.find_model("deepseek-v4-flash")
    recipe = replace(QWEN, engine_version="0.32.0", model=model.name, kv="fp8", context=30_000)
    pages = find_cache_pages(model, recipe, model.layers, 8192)
    assert pages is not None
    assert pages.block_bytes * pages.request_blocks(30_000) == pytest.approx(6.66 * 2**30, rel=0.06)

    few = replace(
        model, layers=4, others=tuple(replace(each, count=2 - bool(at)) for at, each in enumerate(model.others))
    )
    booted = replace(recipe, context=8192, flags={"no-async-scheduling": True, "kv-cache-memory-bytes": 2**30})
    checkpoint = catalogue.published_checkpoints(model.name)[0]
    memory = memory_budget(Deployment(replace(booted, batched_tokens=8192), few, checkpoint, H200))
    assert memory.kv_tokens == 50_796


def test_models_of_one_kind_have_no_groups() -> None:
    """A model whose layers all keep the whole context is divided by tokens, as before."""
    for name in ("kimi-k2.6", "qwen3-235b", "deepseek-v3.2"):
        model = catalogue.find_model(name)
        assert find_cache_pages(model, replace(QWEN, model=name), model.layers, 8192) is None


def test_sglang_gives_states_their_ratio() -> None:
    """SGLang keeps 0.9 bytes of states for each byte of cache, however many requests may run."""
    model, checkpoint = catalogue.find_model("qwen3.6-35b"), catalogue.find_checkpoint("qwen3.6-35b", "bf16")
    recipe = replace(QWEN, engine="sglang", engine_version="0.5.23")
    usual = memory_budget(Deployment(recipe, model, checkpoint, H200))
    half = replace(recipe, flags={"mamba-full-memory-ratio": 0.45})
    more = memory_budget(Deployment(half, model, checkpoint, H200))

    assert more.kv_tokens == pytest.approx(usual.kv_tokens * 1.9 / 1.45, rel=0.001)
