"""Models as tables for the terminal."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moebox.cli.tables import make_grid
from moebox.core import catalogue, registry
from moebox.core.layers import Compressed, Gqa, Layers, Linear, Mla
from moebox.core.model import COMPONENTS, Checkpoint, Component, Model
from moebox.units import format_count, format_gb, format_gib, format_params, format_percent

WIDE = 96  # columns
_HOW = {"computed": "computed", "published": "as published", "read": "read from headers"}


def model_table(models: list[Model], *, width: int = 80) -> RenderableType:
    """The catalogue, a row a model; the kind of attention only where the terminal is wide enough for it."""
    figures = FIGURES if width >= WIDE else {name: show for name, show in FIGURES.items() if name != "attention"}
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("native checkpoint", no_wrap=True)
    for model in models:
        table.add_row(model.name, *(show(model) for show in figures.values()), _native(model))
    note = "\nKV/token: bytes of bf16 cache. `moebox models show NAME` shows one of them, or a\nfolder or .gguf file."
    return Group(table, Text(note, style="dim"))


def _native(model: Model) -> str:
    """The form in which its makers published it."""
    native = next((form for form in catalogue.published_checkpoints(model.name) if form.native), None)
    return f"{format_gb(native.total_bytes):>8} {native.name}" if native else "-"


def model_page(model: Model, checkpoints: tuple[Checkpoint, ...]) -> RenderableType:
    """Everything about one model."""
    head = Text.assemble((model.title, "bold"), f"  {model.architecture}", f"  {model.repo}" if model.repo else "")
    return Group(
        head,
        Text(),
        shape_table(model),
        Text(),
        component_table(model, checkpoints),
        Text(),
        checkpoint_table(model, checkpoints),
    )


def shape_table(model: Model) -> RenderableType:
    """The shape in a few lines."""
    return make_grid(_facts(model), gap=2)


def _facts(model: Model) -> Iterator[tuple[str, str]]:
    yield (
        "parameters",
        f"{format_params(model.total_parameters)} in all, {format_params(model.active_parameters)} active for a token",
    )
    yield "layers", f"{model.layers}{_dense(model)}; hidden {model.hidden:,}, vocabulary {model.vocab:,}"
    if model.moe:
        shared = f" + {model.moe.shared} shared" if model.moe.shared else ""
        each = format_params(model.expert_parameters)
        yield "experts", f"{model.moe.used} of {model.moe.experts}{shared} a token, {each} each"
    for layers in model.stack:
        many = f"{layers.count} × " if len(model.stack) > 1 else ""
        yield "attention", f"{many}{attention_text(layers)}"
    cache = ", ".join(f"{model.kv_bytes_per_token(kind):,} B {kind}" for kind in ("fp8", "bf16"))
    yield "KV per token", f"{cache}; {format_gib(model.kv_bytes_per_token('bf16') * model.context)} at full context"
    yield "context", format_count(model.context)
    yield "licence", f"{model.licence.name}. {model.licence.limits}".strip()


def _dense(model: Model) -> str:
    """The layers without experts, where there are some."""
    if not model.dense_layers:
        return ""
    return ", the first dense" if model.dense_layers == 1 else f", the first {format_count(model.dense_layers)} dense"


def kind_name(layers: Layers) -> str:
    """What people call such attention."""
    if layers.mla:
        return "MLA"
    if layers.linear:
        return "linear"
    if layers.gqa:
        return "window" if layers.gqa.window else "GQA"
    return "compressed"


def attention_text(layers: Layers) -> str:
    """One kind of layer in a line."""
    kind = layers.kind
    return ATTENTIONS[type(kind)](kind)


def _mla(kind: Mla) -> str:
    chosen = f", {kind.indexer.topk:,} tokens chosen" if kind.indexer else ""
    return f"MLA: {kind.heads} heads, latent {kind.kv_lora} + {kind.rope} rope = {kind.kv_width} a token{chosen}"


def _linear(kind: Linear) -> str:
    state = f"{kind.state_bytes(1) / 1e6:.1f} MB of state a sequence"
    return f"linear: {kind.heads} heads of {kind.key_dim} × {kind.value_dim}, {state}"


def _gqa(kind: Gqa) -> str:
    window = f", sees {kind.window} tokens" if kind.window else ""
    chosen = f", {kind.indexer.topk:,} tokens chosen" if kind.indexer else ""
    return f"GQA: {kind.heads} heads over {kind.kv_heads} KV heads of {kind.head_dim}{window}{chosen}"


def _compressed(kind: Compressed) -> str:
    entries = f", one entry for {kind.ratio} tokens" if kind.ratio else ""
    return f"compressed: {kind.heads} heads of {kind.head_dim}, window {kind.window}{entries}"


# Columns of the catalogue.
FIGURES: dict[str, Callable[[Model], str]] = {
    "params": lambda model: f"{model.total_parameters / 1e9:,.0f} B",
    "active": lambda model: format_params(model.active_parameters),
    "attention": lambda model: " + ".join(dict.fromkeys(map(kind_name, model.stack))),
    "context": lambda model: format_count(model.context),
    "KV/token": lambda model: format_count(model.kv_bytes_per_token("bf16")),
}
ATTENTIONS: dict[type, Callable[[Any], str]] = {Mla: _mla, Linear: _linear, Gqa: _gqa, Compressed: _compressed}


def component_table(model: Model, checkpoints: tuple[Checkpoint, ...]) -> RenderableType:
    """Parameters by component, and bytes in each form (the first four)."""
    shown = checkpoints[:4]
    table = Table(box=None, pad_edge=False)
    table.add_column("component")
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    for form in shown:
        table.add_column(form.name if len(form.name) < 16 else form.quant, justify="right", overflow="fold")
    for name in _there(model, shown):
        number = model.parameters_by_component.get(name, 0)
        sizes = (_size(form, name) for form in shown)
        table.add_row(
            name.replace("_", " "), format_params(number), format_percent(number / model.total_parameters), *sizes
        )
    table.add_row(
        "total",
        format_params(model.total_parameters),
        "",
        *(format_gb(form.total_bytes) for form in shown),
        style="bold",
    )
    return table


def _there(model: Model, shown: tuple[Checkpoint, ...]) -> list[Component]:
    """The components that the model or one of its forms has."""
    there = set(model.parameters_by_component).union(*(form.bytes_by_component for form in shown))
    return [name for name in COMPONENTS if name in there]


def _size(form: Checkpoint, component: str) -> str:
    """Bytes of a component in one form; a dash where it has none."""
    return format_gb(form.bytes_by_component[component]) if component in form.bytes_by_component else "-"


def checkpoint_table(model: Model, checkpoints: tuple[Checkpoint, ...]) -> RenderableType:
    """The checkpoints."""
    table = Table(box=None, pad_edge=False)
    table.add_column("checkpoint", no_wrap=True, min_width=13)
    for name, width in (("size", 8), ("bits/w", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("where", overflow="fold")
    for form in checkpoints:
        native = " (native)" if form.native and not form.path else ""
        table.add_row(
            form.name + native, format_gb(form.total_bytes), f"{form.bits_per_weight(model):.2f}", _where(form)
        )
    return table


def _where(form: Checkpoint) -> str:
    """Where it is, how its size is known, and who reads it."""
    readers = form.engines or tuple(engine.name for engine in registry.all_traits() if form.format in engine.formats)
    known = "unverified" if form.unverified else _HOW[form.how]
    return f"{form.repo or form.path or '-'}, {known}; {', '.join(readers)}"
