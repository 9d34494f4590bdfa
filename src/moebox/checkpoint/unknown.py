"""Read the config.json of an architecture that moebox does not know, by the names that its fields usually have.

The result is an estimate: `Model.assumed` states in one line what was taken for granted, and forecasts widen their
range. Rules, on the safe side (more cache rather than less): `kv_lora_rank` means latent attention; a layer caches only
a window or a state if a field names it, at least one all tokens; of a field for each layer the largest value counts.
"""

import re
from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

from moebox import codec, loose
from moebox.checkpoint.stacks import AttentionStack, ConfigFields, read_indexer, read_latent, read_linear
from moebox.core import catalogue
from moebox.core.layers import FeedForward, Gqa, Layers, Mamba
from moebox.core.model import Licence, Model, Moe
from moebox.errors import BadInput, refuse_if
from moebox.units import plural

_TABLE = catalogue.load_table("weights")
NAMES: dict[str, list[str]] = _TABLE["fields"]  # meaning -> names of fields
KNOWN_NAMES = {*chain.from_iterable(NAMES.values())}
WORDS: dict[str, list[str]] = _TABLE["layer_words"]
HARMLESS = re.compile("|".join(_TABLE["harmless_fields"]))
DEFAULT_CONTEXT = 32_768  # if a config names none: most models of 2025 and 2026 have at least that
MAX_LAYERS = 10_000
MAX_NAMED = 4  # fields that a note names


class LooseFields(ConfigFields):
    """Fields of which some are lists with a value for each layer; the largest value counts."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        listed = {name for name, value in values.items() if isinstance(value, list) and {*map(type, value)} == {int}}
        super().__init__({name: max(value) if name in listed else value for name, value in values.items()}, where)
        self.whole = values
        self.varied = {name for name in listed if len(set(values[name])) > 1}
        self.read: set[str] = set()

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int:
        self.read.update(names)
        return super().integer(*names, default=default, least=least)

    def unread_text(self) -> str:
        """Name the fields of which the largest value counts, and those with sizes that were not read."""
        sizes = {name for name, value in self.whole.items() if type(value) in (int, list, dict) and value}
        left = [name for name in sorted(sizes - self.read) if self.whole[name] != 1 and not HARMLESS.search(name)]
        more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
        varied = ", ".join(sorted(self.varied & self.read))
        text = f"; the largest value counts for every layer: {varied}" * bool(varied)
        return f"{text}; not read, and not counted: {', '.join(left[:MAX_NAMED])}{more}" if left else text


def model_from_unknown_config(config: dict[str, Any], architecture: str, *, name: str, where: str) -> Model:
    """Return the model that a config of an unknown architecture seems to describe. Raise BadInput if it is not one."""
    text: Any = loose.get_object(config, *NAMES["text_part"]) or config
    text = loose.get_object(text, *NAMES["text_part"]) or text
    for part in NAMES["parts"]:  # experts or attention in an object of their own (DBRX), where top_k is moe_top_k
        inner = loose.get_object(text, part)
        prefixed = {f"moe_{name}": value for name, value in inner.items() if f"moe_{name}" in KNOWN_NAMES}
        text = {**prefixed, **inner, **loose.drop_keys(text, part)}
    fields = LooseFields(text, where)
    listed = next((text[name] for name in NAMES["layer_list"] if isinstance(text.get(name), list) and text[name]), None)
    hidden = fields.integer(*NAMES["hidden"], least=1)
    layers = fields.integer(*NAMES["layers"], default=len(listed) if listed else None, least=1)
    refuse_if(layers > MAX_LAYERS, f"{where}: {layers:,} layers is not plausible")
    counts = _layer_kinds(fields, layers)
    stack = _stack(fields, hidden, counts)
    moe = read_experts(fields, required=False) if fields.integer(*NAMES["experts"], default=0) > 1 else None
    if moe and moe.used > moe.experts:
        raise BadInput(f"{where}: {moe.used} experts per token, but there are only {moe.experts}")
    dense = _dense_layers(fields, layers, counts) if moe else 0
    refuse_if(dense > layers, f"{where}: names {dense} layers without experts, but there are only {layers}")
    wide = fields.integer(*NAMES["dense_width"], default=0)
    if counts["none"]:  # a layer with attention has no network of its own, one of "-" has nothing else
        networks = str(text.get("hybrid_override_pattern", "")).count("-")
        wide = wide * networks * _network_matrices(fields) // (3 * max(dense if moe else layers, 1))
    elif not moe:
        wide = wide or 4 * hidden
    model = Model(
        name=name,
        title=name,
        architecture=architecture,
        tied=fields.is_true("tie_word_embeddings"),
        **codec.shared_fields(stack, Model),
        mtp_layers=fields.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0),
        licence=Licence(name="see the model's own files"),
        source=where,
        hidden=hidden,
        layers=layers,
        dense_layers=dense if moe and dense < layers else 0,
        dense_intermediate=wide if dense or not moe else 0,
        vocab=fields.integer(*NAMES["vocab"], least=1),
        context=fields.integer(*NAMES["context"], default=0) or DEFAULT_CONTEXT,
        moe=moe if dense < layers else None,
    )
    gaps = ""
    if listed and len(listed) < layers:
        rest = "ends early: the others cache the whole context" if layers % len(listed) else "is repeated"
        gaps = f"; its list of {plural(len(listed), 'layer')} {rest}"
    if not fields.integer(*NAMES["context"], default=0):
        gaps += f"; no context is named, so {DEFAULT_CONTEXT:,}"
    return replace(model, assumed=_describe(model, counts) + gaps + fields.unread_text())


def _describe(model: Model, counts: Counter[str]) -> str:
    cache = f"a latent of {model.mla.kv_width}" if model.mla else f"{model.attention.entry_width(1):,} elements"
    parts = [f"{counts['full']} layers cache {cache} a token"]
    parts += [f"{counts['window']} a window"] if counts["window"] else []
    parts += [f"{counts['state']} keep a state"] if counts["state"] else []
    parts += [f"{model.moe.used} of {model.moe.experts} experts are read" if model.moe else "no experts"]
    return f"{model.architecture} is an unknown architecture; assumed from config.json: {', '.join(parts)}"


def _layer_kinds(fields: LooseFields, layers: int) -> Counter[str]:
    """Count layers that cache the whole context, a window, a state, or nothing, by any of the usual fields."""
    values = fields.whole
    counts: Counter[str] = Counter()
    listed = next((values[name] for name in NAMES["layer_list"] if values.get(name)), None)
    letters = values.get("hybrid_override_pattern")
    numbers = values.get("hybrid_layer_pattern") or values.get("attn_type_list")
    linear = loose.get_object(values, "linear_attn_config").get("kda_layers")
    every = fields.integer("full_attention_interval", "sliding_window_pattern", "attn_layer_period", default=0)
    if isinstance(listed, list):
        whole = listed * (layers // len(listed)) if layers % len(listed) == 0 else listed[:layers]
        for word in (str(entry).lower() for entry in whole):
            counts[next((kind for kind, parts in WORDS.items() if any(part in word for part in parts)), "full")] += 1
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
    heads = fields.integer(*NAMES["heads"], default=max(hidden // 128, 1), least=1)
    head_dim = fields.integer(*NAMES["head_dim"], default=max(hidden // heads, 1), least=1)
    indexer = read_indexer(fields, 128) if fields.integer("index_n_heads", "indexer_n_heads", default=0) else None
    kv_heads = fields.integer(*NAMES["kv_heads"], default=heads, least=1)
    latent = fields.integer("kv_lora_rank", default=0)
    refuse_if(kv_heads > heads, f"{fields.where}: {kv_heads} KV heads are more than the {heads} attention heads")
    plain = Gqa(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_dim=0 if latent else fields.integer("v_head_dim", default=0),
        output_gate=fields.is_true("attn_output_gate"),
    )
    full = replace(  # layers that cache the whole context may have heads of their own (Gemma 4)
        plain,
        kv_heads=fields.integer("num_global_key_value_heads", default=kv_heads, least=1),
        head_dim=fields.integer("global_head_dim", default=head_dim, least=1),
        indexer=indexer,
    )
    others: list[Layers] = []
    if counts["window"]:
        own = replace(
            plain,
            kv_heads=fields.integer("swa_num_key_value_heads", default=kv_heads, least=1),
            window=fields.integer("sliding_window", "sliding_window_size", "attention_chunk_size", least=1),
        )
        others.append(Layers(count=counts["window"], gqa=own))
    if counts["state"]:
        state = fields.integer("ssm_state_size", "mamba_d_state", "mamba_state_dim", default=0)
        mamba = Mamba(
            heads=fields.integer("mamba_num_heads", "mamba_n_heads", default=heads, least=1),
            head_dim=fields.integer("mamba_head_dim", "mamba_d_head", default=head_dim, least=1),
            groups=fields.integer("n_groups", "mamba_n_groups", default=1, least=1),
            state=state,
            conv=fields.integer("conv_kernel", "mamba_d_conv", default=4, least=1),
        )
        linear = None if state else read_linear(fields, heads, head_dim)
        others.append(Layers(count=counts["state"], mamba=mamba if state else None, linear=linear))
    if counts["none"]:
        others.append(Layers(count=counts["none"], feed_forward=FeedForward()))
    if latent:
        return AttentionStack(mla=read_latent(fields, heads, indexer, head_dim), others=tuple(others))
    return AttentionStack(gqa=full, others=tuple(others))


def read_experts(fields: ConfigFields, *, required: bool) -> Moe:
    """Return the experts of a config; `required`: it must have their number, and how many a token uses."""
    experts = fields.integer(*NAMES["experts"], default=None if required else 0, least=int(required))
    used = fields.integer(*NAMES["used"], default=None if required else min(8, experts), least=1)
    # No field names the shared expert of Llama 4 and the dense network of Gemma 4.
    shared_width = fields.integer(*NAMES["shared_width"], default=0)
    unnamed = 1 if shared_width or "intermediate_size_mlp" in fields.values else 0
    shared = fields.integer(*NAMES["shared"], default=unnamed)
    if fields.is_true("enable_moe_block"):
        shared, shared_width = 1, fields.integer("intermediate_size", default=0)
    return Moe(
        experts=experts,
        used=used,
        intermediate=fields.integer(*NAMES["expert_width"], least=1),
        shared=shared,
        shared_intermediate=shared_width,
        latent=fields.integer("moe_latent_size", "routed_expert_hidden_size", default=0),
        matrices=_network_matrices(fields),
    )


def _network_matrices(fields: ConfigFields) -> int:
    # a squared ReLU has no gate
    return 2 if loose.get_text(fields.values, "mlp_hidden_act", "hidden_act") == "relu2" else 3


def _dense_layers(fields: LooseFields, layers: int, counts: Counter[str]) -> int:
    values = fields.whole
    if counts["none"]:
        letters = values.get("hybrid_override_pattern") or values.get("layers_block_type") or values.get("layer_types")
        with_experts = sum(str(letter).lower() == "e" or "moe" in str(letter).lower() for letter in letters or ())
        return layers - min(with_experts or counts["none"], layers)
    for name, dense_word in (("mlp_layer_types", "dense"), ("moe_layer_freq", "0"), ("moe_layers_pattern", "0")):
        if isinstance(values.get(name), list):
            return sum(str(entry) in (dense_word, "False") for entry in values[name][:layers])
    if indices := ",".join(loose.get_texts(values, *NAMES["expert_layers"])):  # a list, or Step 3's "4,5,6"
        return layers - len(indices.split(","))
    first = max(fields.integer(*NAMES["first_dense"], default=0), len(loose.get_texts(values, "mlp_only_layers")))
    return layers - -(-(layers - first) // max(fields.integer(*NAMES["expert_step"], default=1), 1))
