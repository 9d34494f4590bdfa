"""alive: the server is there, lists the model, and answers something."""

from moebox.core import registry
from moebox.core.verdict import HttpExchange
from moebox.verify.ask import (
    REJECTED_STATUSES,
    CheckSession,
    EndpointUnusable,
    ProbeFailed,
    ProbeSkipped,
    raise_for_failure,
)
from moebox.verify.breach import object_of, objects_of, parse_strict_json
from moebox.verify.rung import Check
from moebox.verify.trials import draw_question


async def probe_models(session: CheckSession) -> str:
    """/v1/models lists the name."""
    exchange = await session.get(f"{session.endpoint.base_url}/models")
    raise_for_failure(exchange)
    listed = _listed(exchange)
    mine = next((item for item in listed if session.endpoint.model in _names(item)), None)
    if mine is None:
        return _unlisted(session, listed)
    _learn(session, mine)
    if session.context_limit is None or _has_slots(session.engine):
        # ik_llama.cpp lists the context of all slots together; one request has that of one slot.
        known = (session.context_limit, session.endpoint.context, await _props(session))
        session.context_limit = min(filter(None, known), default=None)
    return f"context {session.context_limit:,}" if session.context_limit else ""


def _unlisted(session: CheckSession, listed: list[dict[str, object]]) -> str:
    """Unusable where the model is not in the list, unless a router stands before the server."""
    shown = ", ".join(str(item.get("id")) for item in listed[:8]) or "nothing"
    if not session.endpoint.router:
        raise EndpointUnusable(f"/v1/models does not list {session.endpoint.model!r}, but: {shown}")
    session.context_limit = session.endpoint.context or None
    return f"{session.endpoint.router} lists {shown}; name and context are the fleet's"


def _listed(exchange: HttpExchange) -> list[dict[str, object]]:
    try:
        data = object_of(parse_strict_json(exchange.response)).get("data")
    except ValueError:
        data = None
    if not isinstance(data, list):
        raise ProbeFailed("/v1/models does not answer with a list of models")
    return objects_of(data)


def _names(item: dict[str, object]) -> tuple[object, ...]:
    """The names that a model goes by."""
    aliases = item.get("aliases")
    return (item.get("id"), *(aliases if isinstance(aliases, list) else ()))


def _learn(session: CheckSession, item: dict[str, object]) -> None:
    """What the listing tells about the server: its context length and what it is."""
    limit = item.get("max_model_len") or object_of(item.get("meta")).get("n_ctx")
    session.context_limit = limit if isinstance(limit, int) and limit > 0 else None
    session.engine = session.engine or _engine(str(item.get("owned_by")))


def _has_slots(engine: str) -> bool:
    """Whether it divides its context over slots and tells of one at /props."""
    return any(traits.name == engine and traits.kv_cache_endpoint == "/props" for traits in registry.all_traits())


def _engine(owner: str) -> str:
    """The engine whose /v1/models says so under owned_by, or ""."""
    return next((traits.name for traits in registry.all_traits() if owner and traits.owned_by == owner), "")


async def _props(session: CheckSession) -> int | None:
    """The context of one slot, where llama.cpp tells it beside the API."""
    exchange = await session.client.get(f"{session.endpoint.server_url}/props")
    try:
        found = parse_strict_json(exchange.response)["default_generation_settings"]["n_ctx"]
    except (ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, int) and found > 0 else None


async def probe_health(session: CheckSession) -> None:
    """/health says yes, where there is one."""
    exchange = await session.get(f"{session.endpoint.server_url}/health")
    if exchange.status in (404, 405, 501):
        raise ProbeSkipped("the server has no /health")
    raise_for_failure(exchange)


async def probe_answers(session: CheckSession) -> None:
    """One small question gets an answer; and it is learnt which settings of ours are taken."""
    task = draw_question(session, "secret")
    exchange = await session.post_chat(session.chat_request(task.messages, max_tokens=16))
    if exchange.status in REJECTED_STATUSES and session.max_tokens_field in exchange.response:
        session.max_tokens_field = "max_completion_tokens"
        exchange = await session.post_chat(session.chat_request(task.messages, max_tokens=16))
    if exchange.status in REJECTED_STATUSES:
        session.accepts_template_arguments = False
        exchange = await session.post_chat(session.chat_request(task.messages, max_tokens=16))
    if session.read_answer(exchange, stream=False).is_empty:
        raise ProbeFailed("an empty answer")


CHECK = Check(
    name="alive",
    about="the server is there, lists the model and answers",
    probes={"models": probe_models, "health": probe_health, "answers": probe_answers},
    stop_if_failed=(frozenset({"models"}), frozenset({"answers"})),
    request_estimate=3,
)
