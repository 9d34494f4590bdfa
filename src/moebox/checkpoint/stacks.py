"""Read config.json's attention fields as kinds of layer."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from moebox import loose
from moebox.core import catalogue
from moebox.core.layers import Compressed, Gqa, Indexer, Layers, Linear, Mla
from moebox.errors import BadInput, refuse_if
from moebox.loose import is_int_list

MAX_NUMBER = 2**40  # no field of a config is larger
_TABLE = catalogue.load_table("weights")
LATENT: list[str] = _TABLE["latent"]
COMPRESSED: list[str] = _TABLE["compressed"]
SUPPORTED = (*LATENT, *_TABLE["grouped"], *COMPRESSED)


class ConfigFields:
    """The fields of a config, each checked when it is read; errors name the file and the field."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """The first of `names` that is set, as an integer of at least `least`."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if (isinstance(value, str) and value.isdecimal()) or (isinstance(value, float) and value.is_integer()):
                value = int(value)  # a few converters write "8" or 8.0
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MAX_NUMBER:
                text = f"{name} is {str(value)[:60]!r}; it must be an integer of at least {least}"
                raise BadInput(f"{self.where}: {text}")
            return value
        if default is None:
            raise BadInput(f"{self.where}: {names[0]} is missing")
        return default

    def is_true(self, name: str) -> bool:
        return bool(self.values.get(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStack:
    """The kind of layer that caches the whole context, and the layers of other kinds."""

    mla: Mla | None = None
    gqa: Gqa | None = None
    others: tuple[Layers, ...] = ()


def attention_stack(fields: ConfigFields, architecture: str) -> AttentionStack:
    if architecture in COMPRESSED:
        return _compressed_stack(fields)
    stack = _latent_stack(fields) if architecture in LATENT else _grouped_stack(fields, architecture)
    most = fields.integer("num_hidden_layers", least=1)
    for layers in stack.others:
        text = f"{fields.where}: names {layers.count} layers of one kind, but there are only {most}"
        refuse_if(layers.count > most, text)
    return replace(stack, others=tuple(layers for layers in stack.others if layers.count))


def _latent_stack(fields: ConfigFields) -> AttentionStack:
    indexer = None
    if fields.values.get("index_n_heads") is not None:
        kinds = loose.get_texts(fields.values, "indexer_types")
        own = kinds.count("full")
        indexer = replace(read_indexer(fields), layers=own if own < len(kinds) else 0)
    mla = read_latent(fields, fields.integer("num_attention_heads", least=1), indexer)
    if not isinstance(fields.values.get("linear_attn_config"), dict):
        return AttentionStack(mla=mla)
    count = len(loose.get_texts(fields.values, "linear_attn_config.kda_layers"))
    return AttentionStack(mla=mla, others=(Layers(count=count, linear=read_linear(fields)),))


def read_latent(fields: ConfigFields, heads: int, indexer: Indexer | None, head_dim: int | None = None) -> Mla:
    """Return the latent attention of a config; `head_dim` stands for sizes that it may leave out."""
    nope = fields.integer("qk_nope_head_dim", default=head_dim, least=1)
    return Mla(
        heads=heads,
        q_lora=fields.integer("q_lora_rank", default=0),
        kv_lora=fields.integer("kv_lora_rank", least=1),
        nope=nope,
        rope=fields.integer("qk_rope_head_dim", default=64 if head_dim else None, least=0 if head_dim else 1),
        v=fields.integer("v_head_dim", default=nope if head_dim else None, least=1),
        output_gate=fields.is_true("mla_use_output_gate"),
        indexer=indexer,
    )


def read_linear(fields: ConfigFields, usual_heads: int | None = None, usual_dim: int | None = None) -> Linear:
    """Return Kimi's linear attention or a gated delta net, with `usual` sizes for fields that may be left out."""
    nested = fields.values.get("linear_attn_config")
    kimi = isinstance(nested, dict)
    inner = type(fields)(nested or {}, f"{fields.where}: linear_attn_config") if kimi else fields
    heads = inner.integer("num_heads" if kimi else "linear_num_value_heads", default=usual_heads, least=1)
    dim = inner.integer("head_dim" if kimi else "linear_key_head_dim", default=usual_dim, least=1)
    return Linear(
        heads=heads,
        key_heads=heads if kimi else inner.integer("linear_num_key_heads", default=usual_heads, least=1),
        key_dim=dim,
        value_dim=dim if kimi else inner.integer("linear_value_head_dim", default=usual_dim, least=1),
        conv=inner.integer("short_conv_kernel_size" if kimi else "linear_conv_kernel_dim", default=4),
        channel_decay=kimi,
        full_gate=not kimi or inner.is_true("use_full_rank_gate"),
    )


def read_indexer(fields: ConfigFields, usual_dim: int | None = None) -> Indexer:
    """Return DeepSeek's token selector or one like it, with `usual_dim` if the config may leave its size out."""
    return Indexer(
        heads=fields.integer("index_n_heads", "indexer_n_heads", least=1),
        dim=fields.integer("index_head_dim", "indexer_head_dim", default=usual_dim, least=1),
        topk=fields.integer("index_topk", "indexer_budget", default=0),
        pool=fields.integer("index_kpool", "indexer_compress_ratio", default=1, least=1),
    )


def _grouped_stack(fields: ConfigFields, architecture: str) -> AttentionStack:
    hidden, heads = fields.integer("hidden_size", least=1), fields.integer("num_attention_heads", least=1)
    head_dim = fields.integer("head_dim", default=hidden // heads, least=1)
    kv_heads = fields.integer("num_key_value_heads", "num_attention_groups", default=heads, least=1)
    oss = architecture == "GptOssForCausalLM"
    # Elements of the norms on q and k: per head in Qwen3, GLM and Step, over all heads in MiniMax M2.
    head_norm = 0
    if architecture == "MiniMaxM2ForCausalLM":
        head_norm = (heads + kv_heads) * head_dim if fields.is_true("use_qk_norm") else 0
    elif architecture.startswith(("Qwen3", "Step3p")) or fields.is_true("use_qk_norm"):
        head_norm = 2 * head_dim
    indexer = _block_indexer(fields)
    full = Gqa(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_dim=fields.integer("v_head_dim", default=0),
        bias=fields.is_true("attention_bias"),
        output_bias=oss,
        output_gate=fields.is_true("attn_output_gate") or architecture == "Qwen3NextForCausalLM",
        head_gate=architecture.startswith("Step3p"),
        sinks=oss or fields.is_true("add_full_attention_sink_bias"),
        head_norm=head_norm,
        indexer=replace(indexer, layers=0) if indexer else None,
    )
    kinds = loose.get_texts(fields.values, "layer_types")
    every, layers = fields.integer("full_attention_interval", default=0), fields.integer("num_hidden_layers", least=1)
    sliding, linear = kinds.count("sliding_attention"), kinds.count("linear_attention")
    linear = linear if kinds or every < 2 else layers - layers // every
    if architecture.startswith("MiMo"):
        sliding, linear = loose.get_texts(fields.values, "hybrid_layer_pattern").count("1"), 0
    others: list[Layers] = []
    if sliding:
        windowed = replace(  # with its own heads if the config has them (MiMo)
            full,
            heads=fields.integer("swa_num_attention_heads", default=heads),
            kv_heads=fields.integer("swa_num_key_value_heads", default=kv_heads),
            head_dim=fields.integer("swa_head_dim", default=head_dim),
            v_dim=fields.integer("swa_v_head_dim", default=full.v_dim),
            sinks=full.sinks or fields.is_true("add_swa_attention_sink_bias"),
            window=fields.integer("sliding_window", "sliding_window_size", least=1),
        )
        others.append(Layers(count=sliding, gqa=windowed))
    if linear:
        # Qwen3-Next's config has no mamba_ssm_dtype
        delta = replace(read_linear(fields), bf16_state=architecture == "Qwen3NextForCausalLM")
        others.append(Layers(count=linear, linear=delta))
    if indexer and indexer.layers:
        dense = fields.integer("num_hidden_layers", least=1) - indexer.layers
        others.append(Layers(count=dense, gqa=replace(full, indexer=None)))
    return AttentionStack(gqa=full, others=tuple(others))


def _block_indexer(fields: ConfigFields) -> Indexer | None:
    """MiniMax M3's selector of blocks; `layers` is the number of layers that have it, 0 if all do."""
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


def _compressed_stack(fields: ConfigFields) -> AttentionStack:
    layers = fields.integer("num_hidden_layers", least=1)
    ratios = fields.values.get("compress_ratios")  # of each layer
    if not is_int_list(ratios) or len(ratios) < layers:
        raise BadInput(f"{fields.where}: compress_ratios must have an integer for each of {layers} layers")
    indexer = read_indexer(fields)
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
            # Only the layers with ratio 4 have so many entries that they need an indexer.
            Layers(count=count, compressed=replace(plain, ratio=ratio, indexer=indexer if ratio == 4 else None))
            for ratio, count in sorted(Counter(ratios[:layers]).items())
        )
    )
