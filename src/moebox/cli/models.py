"""`moebox models` and `moebox models show`: the catalogue, and any model on disk."""

from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.checkpoint import resolve_model
from moebox.cli.output import print_json, stdout_console
from moebox.core import catalogue
from moebox.core.model import KV_BYTES, Checkpoint, Model
from moebox.loose import Document


def models(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """List the models that moebox knows.

    Args:
        json: Print JSON.
    """
    known = list(catalogue.models().values())
    if json:
        print_json({"models": [model_summary(model) for model in known]})
        return 0
    from moebox.cli.models_view import model_table

    stdout_console().print(model_table(known, width=stdout_console().width))
    return 0


def show(model: str, *, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Show one model: its shape, parameters by component, checkpoints, cache per token and licence.

    Args:
        model: A name from the catalogue, a folder with config.json, or a .gguf file (any of its parts).
        json: Print JSON.
    """
    found, checkpoints = resolve_model(model)
    if json:
        print_json(model_document(found, checkpoints))
        return 0
    from moebox.cli.models_view import model_page

    stdout_console().print(model_page(found, checkpoints))
    return 0


def model_summary(model: Model) -> Document:
    """One line of the catalogue."""
    return {
        "name": model.name,
        "title": model.title,
        "repo": model.repo,
        "parameters": {"total": model.total_parameters, "active": model.active_parameters},
        "context": model.context,
        "attention": _kind(model),
        "licence": model.licence.name,
        "checkpoints": [checkpoint.name for checkpoint in catalogue.published_checkpoints(model.name)],
    }


def model_document(model: Model, checkpoints: tuple[Checkpoint, ...]) -> Document:
    """Everything about one model, under the keys that scripts rely on."""
    return {
        "name": model.name,
        "title": model.title,
        "repo": model.repo,
        "architecture": model.architecture,
        "released": model.released,
        "context": model.context,
        "layers": model.layers,
        "dense_layers": model.dense_layers,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "attention": {"kind": _kind(model), **codec.to_document(model.attention)},
        "stack": [codec.to_document(layers) for layers in model.stack],
        "moe": codec.to_document(model.moe) if model.moe else None,
        "parameters": {
            "total": model.total_parameters,
            "text": model.text_parameters,
            "active": model.active_parameters,
            "by_component": model.parameters_by_component,
        },
        "kv_bytes_per_token": {kind: model.kv_bytes_per_token(kind) for kind in KV_BYTES},
        "licence": {"name": model.licence.name, "limits": model.licence.limits},
        "drafts": model.drafts,
        "source": model.source,
        "checkpoints": [
            {
                "name": form.name,
                "repo": form.repo,
                "path": form.path,
                "format": form.format,
                "quant": form.quant,
                "bytes": form.total_bytes,
                "bits_per_weight": round(form.bits_per_weight(model), 3),
                "by_component": form.bytes_by_component,
                "shards": form.shards,
                "engines": form.engines,
                "native": form.native,
                "how": form.how,
                "note": form.note,
                "source": form.source,
            }
            for form in checkpoints
        ],
    }


def _kind(model: Model) -> str:
    if model.mla:
        return "mla"
    return "gqa" if model.gqa else "compressed"
