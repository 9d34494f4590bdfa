"""Which component a tensor belongs to, by its name."""

import re
from collections.abc import Callable

from moebox.core.model import Component

# First match wins. Hugging Face names of the DeepSeek, Kimi, GLM, Qwen, MiniMax and gpt-oss families.
_SAFETENSORS: tuple[tuple[str, Component], ...] = (
    (r"vision|visual|mm_projector|multi_modal", "vision"),
    (r"embed_tokens|wte\.", "embed"),
    (r"lm_head", "lm_head"),
    (r"\.experts\.", "routed_experts"),
    (r"shared_expert", "shared_experts"),
    (r"(mlp|block_sparse_moe)\.(gate|router)\.|e_score_correction_bias", "router"),
    (r"self_attn|indexer|attn\.", "attention"),
    (r"norm", "norms"),
    (r"mlp\.", "dense_ffn"),
)
_GGUF: tuple[tuple[str, Component], ...] = (
    (r"^(v|mm)\.", "vision"),
    (r"^token_embd", "embed"),
    (r"^output\.", "lm_head"),
    (r"ffn_\w+_exps", "routed_experts"),
    (r"ffn_\w+_shexp|ffn_gate_inp_shexp", "shared_experts"),
    (r"ffn_gate_inp|exp_probs_b", "router"),
    (r"\.(attn_norm|ffn_norm|post_attention_norm|attn_post_norm|ffn_post_norm)|^output_norm", "norms"),
    (r"\.attn_|\.indexer", "attention"),
    (r"\.ffn_(gate|up|down)\.", "dense_ffn"),
    (r"\.nextn\.", "mtp"),
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d{1,6})\.")


def _matcher(rules: tuple[tuple[str, Component], ...]) -> Callable[[str], Component]:
    compiled = [(re.compile(pattern), component) for pattern, component in rules]

    def component_of(name: str) -> Component:
        if ".mlp.experts." in name:  # nearly all of the 200,000 tensors of a large checkpoint
            return "routed_experts"
        for pattern, component in compiled:
            if pattern.search(name):
                return component
        return "norms"  # what no rule names is small: biases, scales, rope tables

    return component_of


component_in_safetensors = _matcher(_SAFETENSORS)
component_in_gguf = _matcher(_GGUF)


def layer_number(name: str) -> int | None:
    """The layer a tensor belongs to, or None for those outside the stack."""
    match = _LAYER.search(name)
    return int(match.group(1)) if match else None
