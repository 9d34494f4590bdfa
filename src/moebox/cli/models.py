"""`moebox models`: the catalogue, models that were read from the Hub, and any model on disk."""

from collections.abc import Iterator, Sequence

from moebox import codec
from moebox.checkpoint import ResolvedModel, look_up_model, remote
from moebox.cli.display import make_grid, make_table
from moebox.cli.flags import All, AsJson
from moebox.cli.output import Part, print_lines, print_parts, print_result, stdout_console, to_view
from moebox.core import registry
from moebox.core.layers import Compressed, FeedForward, Gqa, LayerKind, Layers, Linear, Mamba, Mla
from moebox.core.model import COMPONENTS, KV_BYTES, Checkpoint, Model
from moebox.errors import BadInput, refuse_if, refuse_out_of_range
from moebox.hub.client import search_repositories
from moebox.hub.names import RepoName, parse_repo_name
from moebox.loose import Document
from moebox.units import format_count, format_gb, format_gib, format_params, format_percent, plural

WIDE = 96  # columns
SCREEN_ROWS = 18  # models or lines about one on a terminal of 24 lines, beside headings, notes and the prompt
MODEL_KEYS = ["name", "title", "repo", "architecture", "released", "context", "layers", "dense_layers", "hidden"]
CHECKPOINT_KEYS = ["name", "repo", "path", "format", "quant", "shards", "engines", "native", "how", "note", "source"]
SIZE_SOURCES = {"computed": "computed", "published": "as published", "read": "read from headers"}


def models(*, everything: All = False, json: AsJson = False) -> int:
    """List the models that moebox knows, newest first.

    Args:
        everything: List all of them, not only as many as a screen shows; JSON always has all.
    """
    from moebox.flows import recipes

    known = sorted(recipes.known_models(), key=lambda known: known.model.released, reverse=True)
    document = {
        "models": [
            {
                **codec.pick_fields(model, ("name", "title", "repo", "context")),
                "parameters": {"total": model.total_parameters, "active": model.active_parameters},
                "attention": _attention_key(model),
                "licence": model.licence.name,
                "checkpoints": [checkpoint.name for checkpoint in each.checkpoints],
            }
            for each in known
            for model in (each.model,)
        ],
        "kept": list(map(kept_document, remote.kept_models())),
    }

    def show() -> None:
        rows = []
        for each in remote.kept_models():
            name, first = str(RepoName(each.repo, each.revision)), each.checkpoints[0]
            rows.append((name, format_gb(first.total_bytes), first.quant, each.read_on, each.commit[:12]))
        shown = known if everything else known[:SCREEN_ROWS]
        print_parts(*model_table(shown, width=stdout_console().width))
        if not everything:
            kept = f", and {plural(len(rows), 'model')} read from the Hub" * bool(rows)
            print_parts(f"{len(known) - len(shown)} older or without a date{kept}: --all")
        elif rows:
            print_parts("", make_table(("read from the Hub", "size", "format", "on", "commit"), rows))

    return print_result(json, document, show)


def add(repo: str, *, json: AsJson = False) -> int:
    """Read a repository of the Hub and keep its row: shape, bytes by component, files, revision and date.

    Only config.json, the index and the headers of weights are read. Code of the repository is never run.

    Args:
        repo: ORG/REPO[@REVISION], or ORG/REPO:QUANT to show one GGUF file of it.
    """
    parsed = parse_repo_name(repo)
    if parsed is None:
        raise BadInput(f"{repo}: not a repository of the Hub", hint="write it as ORG/REPO[@REVISION][:QUANT]")
    kept = remote.keep_model(parsed.repo, parsed.revision)
    known = kept.resolve(parsed)
    parts = [*model_page(known.model, known.checkpoints), "", *known.notes]
    return print_result(json, kept_document(kept), lambda: print_parts(*parts))


def search(*words: str, limit: int = 20, json: AsJson = False) -> int:
    """Search the Hub for models by words of their names.

    Args:
        words: Such as GLM 5.3 NVFP4.
        limit: The number of repositories to list, the most downloaded first.
    """
    refuse_if(not words, "no words to search for", hint="such as `moebox models search GLM-5.3 NVFP4`")
    refuse_out_of_range("--limit", limit, 1, 1000)
    found = search_repositories(limit, search=" ".join(words))
    rows = [(repo, format_count(downloads), remote.name_format(repo, tags)) for repo, downloads, tags in found]
    document = [{"repo": repo, "downloads": downloads, "tags": tags} for repo, downloads, tags in found]
    heads = ("repository", "downloads a month", "format")
    table = make_table(heads, rows, left_columns=heads[:1])
    return print_result(json, {"repositories": document}, lambda: print_parts(table), good=found)


def kept_document(kept: remote.KeptModel) -> Document:
    """Return a row that was read from the Hub under the keys that scripts rely on."""
    origin = {"repo": kept.repo, "revision": kept.revision, "commit": kept.commit, "read_on": kept.read_on}
    sizes: Document = {"formats": kept.formats, "notes": kept.notes, "files": len(kept.files)}
    return {**origin, **sizes, "model": model_document(kept.model, kept.checkpoints)}


def show(model: str, *, everything: All = False, json: AsJson = False) -> int:
    """Show one model: its shape, checkpoints, cache per token and licence.

    Args:
        model: A catalogue name, ORG/REPO[@REVISION][:QUANT] of the Hub, a folder with config.json or a .gguf file
            (any of its parts).
        everything: Show parameters by component, every checkpoint, and the engines that read it; JSON always has all.
    """
    if model == "phantom":
        from moebox.flows import recipes  # loads the planner, which the other models do not need

        known = recipes.find_model(model)
    else:
        known = look_up_model(model)
    found, checkpoints = known.model, known.checkpoints

    def show_page() -> None:
        print_parts(*(model_page if everything else model_screen)(found, checkpoints))
        print_lines(f"note: {note}" for note in known.notes)

    return print_result(json, {**model_document(found, checkpoints), "notes": known.notes}, show_page)


def model_document(model: Model, checkpoints: tuple[Checkpoint, ...]) -> Document:
    """Return a model under the keys that scripts rely on."""
    return {
        **{name: getattr(model, name) for name in (*MODEL_KEYS, "vocab")},
        "attention": {"kind": _attention_key(model), **codec.to_document(model.attention)},
        "stack": list(map(codec.to_document, model.stack)),
        "moe": codec.to_document(model.moe) if model.moe else None,
        "parameters": {
            **{name: getattr(model, f"{name}_parameters") for name in ("total", "text", "active")},
            "by_component": model.parameters_by_component,
        },
        "kv_bytes_per_token": {kind: model.kv_bytes_per_token(kind) for kind in KV_BYTES},
        "licence": {"name": model.licence.name, "limits": model.licence.limits},
        "drafts": model.drafts,
        "source": model.source,
        "checkpoints": [
            {
                **codec.pick_fields(checkpoint, CHECKPOINT_KEYS),
                "bytes": checkpoint.total_bytes,
                "bits_per_weight": round(checkpoint.bits_per_weight(model), 3),
                "by_component": checkpoint.bytes_by_component,
            }
            for checkpoint in checkpoints
        ],
    }


def _attention_key(model: Model) -> str:
    if model.mla:
        return "mla"
    return "gqa" if model.gqa else "compressed"


def model_table(models: list[ResolvedModel], *, width: int = 80) -> list[Part]:
    """Return the catalogue, one model a row; the kind of attention only if the terminal is wide enough."""
    wide, rows = width >= WIDE, []
    for known in models:
        model, native = known.model, next((each for each in known.checkpoints if each.native), None)
        total, active = model.total_parameters / 1e9, model.active_parameters / 1e9
        sizes = (f"{total:,.{0 if total >= 1 else 2}f}B", f"{active:.{1 if active >= 1 else 2}f}B")
        kinds = " + ".join(dict.fromkeys(map(attention_name, model.stack)))
        tokens = (format_count(model.context), format_count(model.kv_bytes_per_token("bf16")))
        last = "unknown"
        if native:
            last = f"{format_gb(native.total_bytes):>8} {native.name if len(native.name) < 12 else native.quant}"
        rows.append((model.name, *sizes, *[kinds] * wide, *tokens, last))
    heads = ("model", "params", "active", *["attention"] * wide, "context", "KV/token", "as published")
    note = "\nKV/token: bytes of bf16 cache. `moebox models show NAME` shows one of them, or a\nfolder or .gguf file."
    return [make_table(heads, rows, left_columns=("model", "as published"), gap=1), (note, "dim")]


def attention_name(layers: Layers) -> str:
    """Return the common name of such attention."""
    if layers.gqa:
        return "window" if layers.gqa.window else "GQA"
    names = {"MLA": layers.mla, "linear": layers.linear, "Mamba": layers.mamba, "compressed": layers.compressed}
    return next((name for name, kind in names.items() if kind), "none")


def model_screen(model: Model, checkpoints: tuple[Checkpoint, ...]) -> list[Part]:
    """Return one model on a terminal of 24 lines: its shape, and the checkpoints that there is room for."""
    console, shape = stdout_console(), make_grid(_shape_facts(model), gap=2)
    room = SCREEN_ROWS - len(console.render_lines(shape))
    ordered = sorted(checkpoints, key=lambda each: not each.native)
    tables = [checkpoint_table(model, ordered[:count], readers=False) for count in range(1, len(ordered) + 1)]
    shown = [table for table in tables if len(console.render_lines(to_view(table))) <= max(room, 3)]
    more = f"{plural(len(tables) - len(shown), 'more checkpoint')}, " * (len(shown) < len(tables))
    return [_title_line(model), shape, *shown[-1:], (f"{more}parameters by component, engines: --all", "dim")]


def _title_line(model: Model) -> Part:
    return [(model.title, "bold"), f"  {model.architecture}", f"  {model.repo}" * bool(model.repo)]


def model_page(model: Model, checkpoints: tuple[Checkpoint, ...]) -> list[Part]:
    """Return the whole model; bytes by component for the first checkpoints."""
    tables = [component_table(model, checkpoints[:4]), "", checkpoint_table(model, checkpoints, readers=True)]
    return [_title_line(model), "", make_grid(_shape_facts(model), gap=2), "", *tables]


def _shape_facts(model: Model) -> Iterator[tuple[str, str]]:
    total, active = format_params(model.total_parameters), format_params(model.active_parameters)
    yield "parameters", f"{total} in all, {active} active for a token"
    experts = f", {format_count(model.moe_layers)} with experts" * (0 < model.moe_layers < model.layers)
    yield "layers", f"{model.layers}{experts}; hidden {model.hidden:,}, vocabulary {model.vocab:,}"
    if model.moe:
        shared = f" + {model.moe.shared} shared" if model.moe.shared else ""
        each = format_params(model.expert_parameters)
        yield "experts", f"{model.moe.used} of {model.moe.experts}{shared} a token, {each} each"
    for layers in model.stack:
        many = f"{layers.count} × " if len(model.stack) > 1 else ""
        yield "attention", f"{many}{attention_text(layers.kind)}"
    cache = ", ".join(f"{model.kv_bytes_per_token(kind):,} B {kind}" for kind in ("fp8", "bf16"))
    yield "KV per token", f"{cache}; {format_gib(model.kv_bytes_per_token('bf16') * model.context)} at full context"
    yield "context", format_count(model.context)
    yield "licence", f"{model.licence.name}. {model.licence.limits}".strip()


def attention_text(kind: LayerKind) -> str:
    """Return one kind of layer in a line."""
    if isinstance(kind, Linear):
        state = f"{kind.state_bytes(1) / 1e6:.1f} MB of state a sequence"
        return f"linear: {kind.heads} heads of {kind.key_dim} × {kind.value_dim}, {state}"
    if isinstance(kind, Compressed):
        entries = f", one entry for {kind.ratio} tokens" * bool(kind.ratio)
        return f"compressed: {kind.heads} heads of {kind.head_dim}, window {kind.window}{entries}"
    if isinstance(kind, Mamba):
        state = f"{kind.state_bytes(1) / 1e6:.1f} MB of state a sequence"
        return f"Mamba 2: {kind.heads} heads of {kind.head_dim} × {kind.state}, {state}"
    if isinstance(kind, FeedForward):
        return "none: only experts or a dense network"
    assert isinstance(kind, Mla | Gqa)
    selected = f", {kind.indexer.topk:,} tokens selected" if kind.indexer else ""
    if isinstance(kind, Mla):
        latent = f"latent {kind.kv_lora} + {kind.rope} rope = {kind.kv_width} a token"
        return f"MLA: {kind.heads} heads, {latent}{selected}"
    window = f", sees {kind.window} tokens" * bool(kind.window)
    return f"GQA: {kind.heads} heads over {kind.kv_heads} KV heads of {kind.head_dim}{window}{selected}"


def component_table(model: Model, checkpoints: tuple[Checkpoint, ...]) -> Part:
    """Return parameters by component, and their bytes in each checkpoint."""
    present = set(model.parameters_by_component).union(*(each.bytes_by_component for each in checkpoints))
    rows: list[list[Part]] = []
    for name in (each for each in COMPONENTS if each in present):
        number = model.parameters_by_component.get(name, 0)
        sizes = [each.bytes_by_component.get(name) for each in checkpoints]
        cells = ("none" if size is None else format_gb(size) for size in sizes)
        share = format_percent(number / model.total_parameters)
        rows.append([name.replace("_", " "), format_params(number), share, *cells])
    sums = (format_gb(checkpoint.total_bytes) for checkpoint in checkpoints)
    rows.append([(text, "bold") for text in ("total", format_params(model.total_parameters), "", *sums)])
    names = (each.name if len(each.name) < 16 else each.quant for each in checkpoints)
    return make_table(("component", "parameters", "share", *names), rows, left_columns=("component",))


def checkpoint_table(model: Model, checkpoints: Sequence[Checkpoint], *, readers: bool) -> Part:
    """Return the checkpoints: size and place; with `readers` also how the size is known and which engines read them."""
    rows = []
    for checkpoint in checkpoints:
        where = str(checkpoint.repo or checkpoint.path or "unknown")
        if readers:
            all_readers = (engine.name for engine in registry.all_traits() if checkpoint.format in engine.formats)
            source = "unverified" if checkpoint.unverified else SIZE_SOURCES[checkpoint.how]
            where += f", {source}; {', '.join(checkpoint.engines or all_readers)}"
        name = checkpoint.name + (" (native)" if checkpoint.native and not checkpoint.path else "")
        rows.append((name, format_gb(checkpoint.total_bytes), f"{checkpoint.bits_per_weight(model):.2f}", where))
    heads = ("checkpoint", "size", "bits/w", "where")
    return make_table(heads, rows, left_columns=("checkpoint",), wrapped=("where",))
