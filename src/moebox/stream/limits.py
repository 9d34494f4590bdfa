"""What a server really has: its context, asked of the server itself."""

from dataclasses import dataclass

from moebox import http
from moebox.core.endpoint import SIMULATION_HEADER, Endpoint
from moebox.loose import Json, as_object, get_objects, get_path

QUICK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits:
    """Tokens one conversation may have on this server, and who says so."""

    context: int | None = None  # None where the server does not say
    source: str = ""
    problem: str = ""  # why no answer came at all
    simulation: bool = False  # a twin answers, and no model


def served_limits(endpoint: Endpoint) -> ServedLimits:
    """From /v1/models (vLLM, SGLang: max_model_len; llama.cpp: meta.n_ctx), or llama.cpp's /props."""
    listed = http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, timeout_s=QUICK_S)
    if not listed.status:
        return ServedLimits(problem=listed.text)
    models = get_objects(_json(listed), "data")
    only: Json = models[0] if len(models) == 1 else {}
    model = next((row for row in models if row.get("id") == endpoint.model), only)
    context, source = _context(endpoint, model)
    return ServedLimits(context=context, source=source, simulation=SIMULATION_HEADER in listed.header_names)


def _context(endpoint: Endpoint, model: Json) -> tuple[int | None, str]:
    """llama.cpp divides its context among its slots: /props tells a slot's share, which is what one conversation gets,
    so it is asked wherever the model list gives no max_model_len.
    """
    if limit := _whole(model.get("max_model_len")):
        return limit, "max_model_len of /v1/models"
    props = _json(http.get(f"{endpoint.server_url}/props", headers=endpoint.headers, timeout_s=QUICK_S))
    if limit := _whole(get_path(props, "default_generation_settings.n_ctx")):
        return limit, "n_ctx of /props"
    if limit := _whole(get_path(model, "meta.n_ctx")):
        return limit, "n_ctx of /v1/models"
    return None, ""


def is_twin(endpoint: Endpoint) -> bool:
    """Whether a twin answers there, and no model."""
    return (
        SIMULATION_HEADER
        in http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, timeout_s=QUICK_S).header_names
    )


def _json(reply: http.HttpReply) -> Json:
    return as_object(reply.json() if reply.ok else None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
