"""Read the config.json of an architecture that moebox does not know, by the names that its fields usually have.

The result is an estimate: `Model.assumed` states in one line what was taken for granted, and forecasts widen their
range. Rules, each on the safe side (more cache rather than less):

- `kv_lora_rank` means latent attention, else keys and values of `num_key_value_heads` × `head_dim`;
- a layer caches only its window or a state if a per-layer field names one, otherwise the whole context;
- at least one layer caches the whole context, and every window does if no other layer would;
- a field that differs between layers counts with its largest value;
- an expert has three matrices unless its activation is a squared ReLU, which has no gate.
"""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from moebox import loose
from moebox.checkpoint.stacks import AttentionStack, ConfigFields
from moebox.core.layers import FeedForward, Gqa, Indexer, Layers, Linear, Mamba, Mla
from moebox.core.model import Licence, Model, Moe
from moebox.errors import refuse_if

TEXT_PARTS = ("text_config", "llm_config", "language_config", "text", "thinker_config")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
LISTS = ("layer_types", "layers_block_type")  # the kind of each layer
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_attention_groups")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_moe_experts")
USED = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "intermediate_size")
CONTEXT = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length", "n_positions")
DEFAULT_CONTEXT = 32_768  # if a config names none: most models of 2025 and 2026 have at least that
MAX_LAYERS = 10_000
WINDOW_WORDS = ("sliding", "window", "local", "swa", "chunked")
STATE_WORDS = ("linear", "mamba", "recurrent", "delta", "kda", "ssm", "conv", "lightning")
FEED_FORWARD_WORDS = ("moe", "mlp", "ffn", "dense")
# Fields that change neither the weights nor the cache: tokens, positions, initialisation, training and routing.
HARMLESS = re.compile(
    r"token|_ids?$|version|init|rope|rotary|norm|dropout|eps$|cache|dtype|architectures|auto_map|^quant_|quantization|_act$|activation|bias|loss|coef"
    r"|position|scal|topk|top_k|group|pad|name|label|type|pattern|list$|freq|period|interval|window|vision|image|audio|video"
)
MAX_NAMED = 4  # fields that a note names


class LooseFields(ConfigFields):
    """Fields of which some are lists with a value for each layer; the largest value counts."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        largest: dict[str, Any] = {}
        for name, value in values.items():
            numbers = value if isinstance(value, list) and value and all(type(each) is int for each in value) else None
            largest[name] = max(numbers) if numbers else value
        super().__init__(largest, where)
        self.whole = values
        self.read: set[str] = set()

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int:
        self.read.update(names)
        return super().integer(*names, default=default, least=least)

    def unread_text(self) -> str:
        """Name the fields with sizes that were not read: there may be weights or cache behind them."""
        sizes = [name for name, value in self.whole.items() if type(value) in (int, list, dict) and value not in (0, 1)]
        left = [name for name in sizes if name not in self.read and not HARMLESS.search(name)]
        more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
        return f"; not read, and not counted: {', '.join(left[:MAX_NAMED])}{more}" if left else ""


def model_from_unknown_config(config: dict[str, Any], architecture: str, *, name: str, where: str) -> Model:
    """Return the model that a config of an unknown architecture seems to describe. Raise BadInput if it is not one."""
    text = next((config[part] for part in TEXT_PARTS if isinstance(config.get(part), dict)), config)
    text = next((text[part] for part in TEXT_PARTS if isinstance(text.get(part), dict)), text)
    fields = LooseFields(text, where)
    listed = next((text[name] for name in LISTS if isinstance(text.get(name), list) and text[name]), None)
    hidden = fields.integer(*HIDDEN, least=1)
    layers = fields.integer(*LAYERS, default=len(listed) if listed else None, least=1)
    refuse_if(layers > MAX_LAYERS, f"{where}: {layers:,} layers is not plausible")
    counts = _layer_kinds(fields, layers)
    stack = _stack(fields, hidden, counts)
    moe = _experts(fields)
    dense = _dense_layers(fields, layers, counts) if moe else 0
    refuse_if(dense > layers, f"{where}: names {dense} layers without experts, but there are only {layers}")
    wide = fields.integer("dense_intermediate_size", "intermediate_size", "ffn_hidden_size", "n_inner", default=0)
    if counts["none"]:
        wide = 0  # the layers with attention have no network of their own
    elif not moe:
        wide = wide or 4 * hidden
    context = fields.integer(*CONTEXT, default=0) or DEFAULT_CONTEXT
    model = Model(
        name=name,
        title=name,
        architecture=architecture,
        hidden=hidden,
        layers=layers,
        dense_layers=dense if moe and dense < layers else 0,
        dense_intermediate=wide if dense or not moe else 0,
        vocab=fields.integer("vocab_size", "n_vocab", least=1),
        tied=fields.is_true("tie_word_embeddings"),
        context=context,
        mla=stack.mla,
        gqa=stack.gqa,
        others=stack.others,
        moe=moe if dense < layers else None,
        mtp_layers=fields.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0),
        licence=Licence(name="see the model's own files"),
        source=where,
    )
    return replace(model, assumed=_describe(model, counts) + fields.unread_text())


def _describe(model: Model, counts: Counter[str]) -> str:
    """Describe in one line how the architecture was read."""
    assert model.mla or model.gqa
    cache = (
        f"a latent of {model.mla.kv_width}" if model.mla else f"{model.gqa.kv_width:,} elements" if model.gqa else ""
    )
    parts = [f"{counts['full']} layers cache {cache} a token"]
    parts += [f"{counts['window']} a window"] if counts["window"] else []
    parts += [f"{counts['state']} keep a state"] if counts["state"] else []
    parts += [f"{model.moe.used} of {model.moe.experts} experts are read" if model.moe else "no experts"]
    return f"{model.architecture} is an unknown architecture; assumed from config.json: {', '.join(parts)}"


def _layer_kinds(fields: LooseFields, layers: int) -> Counter[str]:
    """Count layers that cache the whole context, a window, a state, or nothing, by any of the usual fields."""
    values = fields.whole
    counts: Counter[str] = Counter()
    listed = next((values[name] for name in LISTS if values.get(name)), None)
    letters = values.get("hybrid_override_pattern")
    numbers = values.get("hybrid_layer_pattern") or values.get("attn_type_list")
    linear = loose.get_object(values, "linear_attn_config").get("kda_layers")
    every = fields.integer("full_attention_interval", "sliding_window_pattern", "attn_layer_period", default=0)
    if isinstance(listed, list):
        for word in (str(entry).lower() for entry in listed[:layers]):
            windowed = any(part in word for part in WINDOW_WORDS)
            keeps_state = any(part in word for part in STATE_WORDS)
            only_network = any(part in word for part in FEED_FORWARD_WORDS)
            counts["window" if windowed else "state" if keeps_state else "none" if only_network else "full"] += 1
    elif isinstance(letters, str) and letters:  # Nemotron: M Mamba, * attention, E experts, - a dense network
        kinds = {"M": "state", "*": "full"}
        counts.update(kinds.get(letter, "none") for letter in letters[:layers])
    elif isinstance(numbers, list):  # 1: a window in MiMo, the whole context in MiniMax-01
        other = "window" if values.get("hybrid_layer_pattern") else "full"
        rest = "full" if other == "window" else "state"
        counts.update(other if entry == 1 else rest for entry in numbers[:layers])
    elif isinstance(linear, list):
        counts["state"] = min(len(linear), layers)
    elif every > 1:
        windowed = values.get("sliding_window_pattern") is not None
        counts["window" if windowed else "state"] = layers - layers // every
    counts["full"] += layers - counts.total()
    if not fields.integer("sliding_window", "sliding_window_size", "attention_chunk_size", default=0):
        counts["full"] += counts.pop("window", 0)  # a window without a size: the whole context
    if not counts["full"]:
        kind = next(name for name in ("window", "none", "state") if counts[name])
        moved = counts[kind] if kind == "window" else 1
        counts[kind], counts["full"] = counts[kind] - moved, moved
    return counts


def _stack(fields: LooseFields, hidden: int, counts: Counter[str]) -> AttentionStack:
    heads = fields.integer(*HEADS, default=max(hidden // 128, 1), least=1)
    head_dim = fields.integer("head_dim", "attention_head_dim", default=max(hidden // heads, 1), least=1)
    indexer = None
    if fields.integer("index_n_heads", "indexer_n_heads", default=0):
        indexer = Indexer(
            heads=fields.integer("index_n_heads", "indexer_n_heads", least=1),
            dim=fields.integer("index_head_dim", "indexer_head_dim", default=128, least=1),
            topk=fields.integer("index_topk", "indexer_budget", default=0),
            pool=fields.integer("index_kpool", "indexer_compress_ratio", default=1, least=1),
        )
    mla = gqa = None
    others: list[Layers] = []
    kv_heads = fields.integer(*KV_HEADS, default=heads, least=1)
    refuse_if(kv_heads > heads, f"{fields.where}: {kv_heads} KV heads are more than the {heads} attention heads")
    plain = (
        Gqa(heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_dim=fields.integer("v_head_dim", default=0, least=1))
        if not fields.integer("kv_lora_rank", default=0)
        else None
    )
    if plain is None:
        nope = fields.integer("qk_nope_head_dim", default=head_dim, least=1)
        mla = Mla(
            heads=heads,
            q_lora=fields.integer("q_lora_rank", default=0),
            kv_lora=fields.integer("kv_lora_rank", least=1),
            nope=nope,
            rope=fields.integer("qk_rope_head_dim", default=64),
            v=fields.integer("v_head_dim", default=nope, least=1),
            indexer=indexer,
        )
    else:
        gqa = replace(plain, indexer=indexer)
    if counts["window"]:
        windowed = plain or Gqa(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        own = replace(
            windowed,
            kv_heads=fields.integer("swa_num_key_value_heads", default=windowed.kv_heads, least=1),
            window=fields.integer("sliding_window", "sliding_window_size", "attention_chunk_size", least=1),
        )
        others.append(Layers(count=counts["window"], gqa=own))
    if counts["state"]:
        others.append(_state_layers(fields, counts["state"], heads, head_dim))
    if counts["none"]:
        others.append(Layers(count=counts["none"], feed_forward=FeedForward()))
    return AttentionStack(mla=mla, gqa=gqa, others=tuple(others))


def _state_layers(fields: LooseFields, count: int, heads: int, head_dim: int) -> Layers:
    """Layers with a recurrent state: Mamba 2 if its fields are there, else linear attention."""
    state = fields.integer("ssm_state_size", "mamba_d_state", "mamba_state_dim", default=0)
    if state:
        kind = Mamba(
            heads=fields.integer("mamba_num_heads", "mamba_n_heads", default=heads, least=1),
            head_dim=fields.integer("mamba_head_dim", "mamba_d_head", default=head_dim, least=1),
            groups=fields.integer("n_groups", "mamba_n_groups", default=1, least=1),
            state=state,
            conv=fields.integer("conv_kernel", "mamba_d_conv", default=4, least=1),
        )
        return Layers(count=count, mamba=kind)
    nested = loose.get_object(fields.whole, "linear_attn_config")
    inner = LooseFields(dict(nested), f"{fields.where}: linear_attn_config") if nested else fields
    heads = inner.integer("linear_num_value_heads", *(HEADS if nested else ()), default=heads, least=1)
    dim = inner.integer("linear_key_head_dim", *(("head_dim",) if nested else ()), default=head_dim, least=1)
    linear = Linear(
        heads=heads,
        key_heads=fields.integer("linear_num_key_heads", default=heads, least=1),
        key_dim=dim,
        value_dim=fields.integer("linear_value_head_dim", default=dim, least=1),
        conv=inner.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4, least=1),
        channel_decay=bool(nested),
        full_gate=not nested or inner.is_true("use_full_rank_gate"),
    )
    return Layers(count=count, linear=linear)


def _experts(fields: LooseFields) -> Moe | None:
    experts = fields.integer(*EXPERTS, default=0)
    if experts < 2:
        return None
    used = fields.integer(*USED, default=min(8, experts), least=1)
    refuse_if(used > experts, f"{fields.where}: {used} experts per token, but there are only {experts}")
    shared_width = fields.integer("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0)
    activation = loose.get_text(fields.whole, "mlp_hidden_act", "hidden_act")
    return Moe(
        experts=experts,
        used=used,
        intermediate=fields.integer(*EXPERT_WIDTH, least=1),
        shared=fields.integer(
            "n_shared_experts", "num_shared_experts", "num_shared_expert", default=1 if shared_width else 0
        ),
        shared_intermediate=shared_width,
        latent=fields.integer("moe_latent_size", "routed_expert_hidden_size", default=0),
        matrices=2 if activation == "relu2" else 3,
    )


def _dense_layers(fields: LooseFields, layers: int, counts: Counter[str]) -> int:
    """Layers without experts."""
    values = fields.whole
    if counts["none"]:
        letters = values.get("hybrid_override_pattern") or values.get("layers_block_type") or values.get("layer_types")
        with_experts = sum(str(letter).lower() == "e" or "moe" in str(letter).lower() for letter in letters or ())
        return layers - min(with_experts or counts["none"], layers)
    for name, dense_word in (("mlp_layer_types", "dense"), ("moe_layer_freq", "0"), ("moe_layers_pattern", "0")):
        if isinstance(values.get(name), list):
            return sum(str(entry) in (dense_word, "False") for entry in values[name][:layers])
    if isinstance(values.get("mlp_only_layers"), list) and values["mlp_only_layers"]:
        return len(values["mlp_only_layers"])
    step = fields.integer("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", default=1)
    if step > 1:
        return layers - layers // step
    return fields.integer("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0)
