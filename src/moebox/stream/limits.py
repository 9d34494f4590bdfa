"""What a server really has: its context, asked of the server itself."""

from dataclasses import dataclass
from typing import Any

from moebox import http
from moebox.core.endpoint import Endpoint

QUICK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits:
    """Tokens one conversation may have on this server, and who says so."""

    context: int | None = None  # None where the server does not say
    source: str = ""


def served_limits(endpoint: Endpoint) -> ServedLimits:
    """From /v1/models (vLLM, SGLang: max_model_len; llama.cpp: meta.n_ctx), or llama.cpp's /props.

    llama.cpp divides its context among its slots: /props tells a slot's share, which is what one conversation gets,
    so it is asked wherever the model list gives no max_model_len.
    """
    document = _get(f"{endpoint.base_url}/models", endpoint)
    rows = document.get("data")
    models = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    model = next((row for row in models if row.get("id") == endpoint.model), models[0] if len(models) == 1 else {})
    if limit := _whole(model.get("max_model_len")):
        return ServedLimits(context=limit, source="max_model_len of /v1/models")
    settings = _get(f"{endpoint.root}/props", endpoint).get("default_generation_settings")
    if isinstance(settings, dict) and (limit := _whole(settings.get("n_ctx"))):
        return ServedLimits(context=limit, source="n_ctx of /props")
    meta = model.get("meta")
    if isinstance(meta, dict) and (limit := _whole(meta.get("n_ctx"))):
        return ServedLimits(context=limit, source="n_ctx of /v1/models")
    return ServedLimits()


def _get(url: str, endpoint: Endpoint) -> dict[str, Any]:
    reply = http.get(url, headers=endpoint.headers, timeout_s=QUICK_S)
    document = reply.json() if reply.ok else None
    return document if isinstance(document, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
