"""config.json's attention fields as kinds of layer."""

from collections import Counter
from dataclasses import dataclass, replace

from moebox.checkpoint.fields import ConfigFields
from moebox.core.layer_kind import Indexer
from moebox.core.layers import Compressed, Gqa, Layers, Linear, Mla
from moebox.errors import BadInput, refuse_if

LATENT = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK2ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "KimiLinearForCausalLM",
    "KimiK3ForConditionalGeneration",
)
GROUPED = (
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Glm4MoeForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MiniMaxM3ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
    "MiMoV2FlashForCausalLM",
    "Step3p5ForCausalLM",
    "Step3p7FlashForCausalLM",
    "Step3p7ForConditionalGeneration",
    "GptOssForCausalLM",
)
COMPRESSED = ("DeepseekV4ForCausalLM",)
SUPPORTED = (*LATENT, *GROUPED, *COMPRESSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStack:
    """The kind that keeps the whole context, and the layers of other kinds."""

    mla: Mla | None = None
    gqa: Gqa | None = None
    others: tuple[Layers, ...] = ()


def attention_stack(fields: ConfigFields, architecture: str) -> AttentionStack:
    """The stack that a config of this architecture describes."""
    if architecture in COMPRESSED:
        return _compressed(fields)
    if architecture in LATENT:
        return _latent(fields)
    return _grouped(fields, architecture)


def _latent(fields: ConfigFields) -> AttentionStack:
    mla = Mla(
        heads=fields.integer("num_attention_heads", least=1),
        q_lora=fields.integer("q_lora_rank", default=0),
        kv_lora=fields.integer("kv_lora_rank", least=1),
        nope=fields.integer("qk_nope_head_dim", least=1),
        rope=fields.integer("qk_rope_head_dim", least=1),
        v=fields.integer("v_head_dim", least=1),
        output_gate=fields.is_true("mla_use_output_gate"),
        indexer=_indexer(fields),
    )
    linear = fields.values.get("linear_attn_config")
    if not isinstance(linear, dict):
        return AttentionStack(mla=mla)
    inner = ConfigFields(linear, f"{fields.where}: linear_attn_config")
    heads, dim = inner.integer("num_heads", least=1), inner.integer("head_dim", least=1)
    kind = Linear(
        heads=heads,
        key_heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv=inner.integer("short_conv_kernel_size", default=4),
        channel_decay=True,
        full_gate=inner.is_true("use_full_rank_gate"),
    )
    return AttentionStack(mla=mla, others=_some(Layers(count=len(inner.name_list("kda_layers")), linear=kind), fields))


def _indexer(fields: ConfigFields) -> Indexer | None:
    if fields.values.get("index_n_heads") is None:
        return None
    kinds = fields.name_list("indexer_types")
    own = sum(kind == "full" for kind in kinds)
    return Indexer(
        heads=fields.integer("index_n_heads", least=1),
        dim=fields.integer("index_head_dim", least=1),
        topk=fields.integer("index_topk", default=0),
        layers=own if own < len(kinds) else 0,
    )


def _grouped(fields: ConfigFields, architecture: str) -> AttentionStack:
    hidden, heads = fields.integer("hidden_size", least=1), fields.integer("num_attention_heads", least=1)
    head_dim = fields.integer("head_dim", default=hidden // heads, least=1)
    kv_heads = fields.integer("num_key_value_heads", "num_attention_groups", default=heads, least=1)
    oss, step = architecture == "GptOssForCausalLM", architecture.startswith("Step3p")
    full = Gqa(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_dim=fields.integer("v_head_dim", default=0),
        bias=fields.is_true("attention_bias"),
        output_bias=oss,
        output_gate=fields.is_true("attn_output_gate") or architecture == "Qwen3NextForCausalLM",
        head_gate=step,
        sinks=oss or fields.is_true("add_full_attention_sink_bias"),
        head_norm=_head_norm(fields, architecture, heads, kv_heads, head_dim),
        indexer=_blocks(fields),
    )
    sliding, linear = _other_layers(fields, architecture)
    others: tuple[Layers, ...] = ()
    if sliding:
        others += _some(Layers(count=sliding, gqa=_sliding(fields, full)), fields)
    if linear:
        others += _some(Layers(count=linear, linear=_delta(fields)), fields)
    if full.indexer and full.indexer.layers:
        dense = fields.integer("num_hidden_layers", least=1) - full.indexer.layers
        full = replace(full, indexer=replace(full.indexer, layers=0))
        others += (Layers(count=dense, gqa=replace(full, indexer=None)),)
    return AttentionStack(gqa=full, others=others)


def _other_layers(fields: ConfigFields, architecture: str) -> tuple[int, int]:
    """How many layers have a window, and how many linear attention."""
    if architecture.startswith("MiMo"):
        return fields.name_list("hybrid_layer_pattern").count("1"), 0
    kinds = fields.name_list("layer_types")
    return kinds.count("sliding_attention"), kinds.count("linear_attention")


def _sliding(fields: ConfigFields, full: Gqa) -> Gqa:
    """The windowed kind: as the full one, with heads of its own where the config names them (MiMo)."""
    return replace(
        full,
        heads=fields.integer("swa_num_attention_heads", default=full.heads),
        kv_heads=fields.integer("swa_num_key_value_heads", default=full.kv_heads),
        head_dim=fields.integer("swa_head_dim", default=full.head_dim),
        v_dim=fields.integer("swa_v_head_dim", default=full.v_dim),
        sinks=full.sinks or fields.is_true("add_swa_attention_sink_bias"),
        window=fields.integer("sliding_window", "sliding_window_size", least=1),
    )


def _delta(fields: ConfigFields) -> Linear:
    return Linear(
        heads=fields.integer("linear_num_value_heads", least=1),
        key_heads=fields.integer("linear_num_key_heads", least=1),
        key_dim=fields.integer("linear_key_head_dim", least=1),
        value_dim=fields.integer("linear_value_head_dim", least=1),
        conv=fields.integer("linear_conv_kernel_dim", default=4),
    )


def _blocks(fields: ConfigFields) -> Indexer | None:
    """MiniMax M3's selector of blocks; `layers` are those that have it."""
    sparse = fields.values.get("sparse_attention_config")
    if not isinstance(sparse, dict) or not sparse.get("use_sparse_attention", True):
        return None
    inner = ConfigFields(sparse, f"{fields.where}: sparse_attention_config")
    pattern = sparse.get("sparse_attention_freq")
    own = sum(map(bool, pattern)) if isinstance(pattern, list) else 0
    return Indexer(
        heads=inner.integer("sparse_num_index_heads", least=1),
        dim=inner.integer("sparse_index_dim", least=1),
        topk=inner.integer("sparse_topk_blocks", least=1) * inner.integer("sparse_block_size", least=1),
        layers=own if own < fields.integer("num_hidden_layers", least=1) else 0,
    )


def _compressed(fields: ConfigFields) -> AttentionStack:
    ratios = _ratios(fields)
    indexer = Indexer(
        heads=fields.integer("index_n_heads", least=1),
        dim=fields.integer("index_head_dim", least=1),
        topk=fields.integer("index_topk", default=0),
    )
    plain = Compressed(
        heads=fields.integer("num_attention_heads", least=1),
        head_dim=fields.integer("head_dim", least=1),
        q_lora=fields.integer("q_lora_rank", least=1),
        o_lora=fields.integer("o_lora_rank", least=1),
        o_groups=fields.integer("o_groups", least=1),
        window=fields.integer("sliding_window", least=1),
    )
    return AttentionStack(
        others=tuple(
            # Only the finely compressed layers have so many entries that they need a selector.
            Layers(count=count, compressed=replace(plain, ratio=ratio, indexer=indexer if ratio == 4 else None))
            for ratio, count in sorted(Counter(ratios).items())
        )
    )


def _ratios(fields: ConfigFields) -> list[int]:
    """By how much each layer compresses."""
    layers = fields.integer("num_hidden_layers", least=1)
    ratios = fields.values.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < layers or not all(isinstance(part, int) for part in ratios):
        raise BadInput(f"{fields.where}: compress_ratios must give a whole number for each of {layers} layers")
    return ratios[:layers]


def _head_norm(fields: ConfigFields, architecture: str, heads: int, kv_heads: int, head_dim: int) -> int:
    """Elements of the norms on q and k: per head in Qwen3, GLM and Step, over all heads in MiniMax M2."""
    if architecture == "MiniMaxM2ForCausalLM":
        return (heads + kv_heads) * head_dim if fields.is_true("use_qk_norm") else 0
    if architecture.startswith(("Qwen3", "Step3p")) or fields.is_true("use_qk_norm"):
        return 2 * head_dim
    return 0


def _some(layers: Layers, fields: ConfigFields) -> tuple[Layers, ...]:
    """`layers`, if there are any and not more than the model has."""
    most = fields.integer("num_hidden_layers", least=1)
    many = f"{fields.where}: names {layers.count} layers of one kind, but there are only {most}"
    refuse_if(layers.count > most, many)
    return (layers,) if layers.count else ()
