"""The component and layer that a tensor belongs to, by its name."""

import re

from moebox.core.model import Component

# The first match counts. Hugging Face names of the DeepSeek, Kimi, GLM, Qwen, MiniMax and gpt-oss families, and such
# names of other architectures as leave no doubt.
_SAFETENSORS: tuple[tuple[re.Pattern[str], Component], ...] = (
    (re.compile(r"vision|visual|mm_projector|multi_modal"), "vision"),
    (re.compile(r"ngram|engram"), "ngram"),
    (re.compile(r"embed_tokens|wte\.|word_embeddings|tok_embeddings|embeddings?\.weight"), "embed"),
    (re.compile(r"lm_head|^output\.weight"), "lm_head"),
    (re.compile(r"\.experts[._]"), "routed_experts"),
    (re.compile(r"shared_expert|shared_mlp"), "shared_experts"),
    (re.compile(r"(mlp|block_sparse_moe)\.(gate|router)\.|e_score_correction_bias"), "router"),
    (re.compile(r"self_attn|indexer|attn\.|mamba|ssm"), "attention"),
    (re.compile(r"norm"), "norms"),
    (re.compile(r"mlp\.|feed_forward|ffn"), "dense_ffn"),
    (re.compile(r"attention\.|mixer\.|_proj\."), "attention"),
)
_GGUF: tuple[tuple[re.Pattern[str], Component], ...] = (
    (re.compile(r"^(v|mm)\."), "vision"),
    (re.compile(r"^token_embd"), "embed"),
    (re.compile(r"^output\."), "lm_head"),
    (re.compile(r"ffn_\w+_exps"), "routed_experts"),
    (re.compile(r"ffn_\w+_shexp|ffn_gate_inp_shexp"), "shared_experts"),
    (re.compile(r"ffn_gate_inp|exp_probs_b"), "router"),
    (re.compile(r"\.(attn_norm|ffn_norm|post_attention_norm|attn_post_norm|ffn_post_norm)|^output_norm"), "norms"),
    (re.compile(r"\.attn_|\.indexer"), "attention"),
    (re.compile(r"\.ffn_(gate|up|down)\."), "dense_ffn"),
    (re.compile(r"\.nextn\."), "mtp"),
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d{1,6})\.")


def component_in_safetensors(name: str) -> Component:
    if ".mlp.experts." in name:  # nearly all of the 200,000 tensors of a large checkpoint
        return "routed_experts"
    # Tensors that no rule names are small: biases, scales, rope tables.
    return next((component for pattern, component in _SAFETENSORS if pattern.search(name)), "norms")


def component_in_gguf(name: str) -> Component:
    return next((component for pattern, component in _GGUF if pattern.search(name)), "norms")


def layer_number(name: str) -> int | None:
    """The layer of a tensor, None if it is outside the layers."""
    match = _LAYER.search(name)
    return int(match.group(1)) if match else None
