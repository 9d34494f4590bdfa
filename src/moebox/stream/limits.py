"""The context length of a server, as the server reports it."""

from collections.abc import Iterator
from dataclasses import dataclass

from moebox import http
from moebox.core.endpoint import SIMULATION_HEADER, Endpoint
from moebox.loose import Json, get_objects, get_path

QUICK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits:
    """The tokens that one conversation may have on a server."""

    context: int | None = None  # None if the server does not report it
    source: str = ""
    problem: str = ""  # why the server did not reply
    simulation: str = ""  # the header of a twin, "" if a model replied
    models: tuple[str, ...] = ()  # that it lists


def served_limits(endpoint: Endpoint) -> ServedLimits:
    """Read the limit from /v1/models (vLLM, SGLang: max_model_len; llama.cpp: meta.n_ctx) or llama.cpp's /props.

    llama.cpp divides its context among its slots, and only /props has the share of one slot, which is what one
    conversation gets. So it is read if the list of models has no max_model_len.
    """
    listed = http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, timeout_s=QUICK_S)
    if not listed.status:
        return ServedLimits(problem=listed.text)
    simulation = listed.headers.get(SIMULATION_HEADER, "")
    models = get_objects(listed.json_if_ok(), "data")
    names = tuple(str(row["id"]) for row in models if row.get("id"))
    only: Json = models[0] if len(models) == 1 else {}
    model = next((row for row in models if row.get("id") == endpoint.model), only)
    for context, source in _read_lengths(endpoint, model):
        if isinstance(context, int) and not isinstance(context, bool) and context > 0:
            return ServedLimits(context=context, source=source, simulation=simulation, models=names)
    return ServedLimits(simulation=simulation, models=names)


def _read_lengths(endpoint: Endpoint, model: Json) -> Iterator[tuple[object, str]]:
    yield model.get("max_model_len"), "max_model_len of /v1/models"
    reply = http.get(f"{endpoint.server_url}/props", headers=endpoint.headers, timeout_s=QUICK_S)
    yield get_path(reply.json_if_ok(), "default_generation_settings.n_ctx"), "n_ctx of /props"
    yield get_path(model, "meta.n_ctx"), "n_ctx of /v1/models"
