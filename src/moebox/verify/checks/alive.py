"""alive: the server is reachable, lists the model, and answers."""

from moebox.core import registry
from moebox.verify.session import REJECTED_STATUSES, EndpointUnusable, ProbeFailed, ProbeSkipped, raise_for_failure
from moebox.verify.trials import Check, CheckSession
from moebox.verify.violations import object_of, objects_of, parse_strict_json


async def probe_models(session: CheckSession) -> str:
    """/v1/models lists the model. Learn the context length and the engine from it."""
    endpoint = session.endpoint
    exchange = await session.get(f"{endpoint.base_url}/models")
    raise_for_failure(exchange)
    try:
        data = object_of(parse_strict_json(exchange.response)).get("data")
    except ValueError:
        data = None
    if not isinstance(data, list):
        raise ProbeFailed("/v1/models does not answer with a list of models")
    mine = _find_model(objects_of(data), endpoint.model)
    if mine is None:
        shown = ", ".join(str(item.get("id")) for item in objects_of(data)[:8]) or "nothing"
        if not endpoint.router:
            raise EndpointUnusable(f"/v1/models does not list {endpoint.model!r}, but: {shown}")
        session.context_limit = endpoint.context or None
        return f"{endpoint.router} lists {shown}; name and context are the fleet's"
    limit, owner = mine.get("max_model_len") or object_of(mine.get("meta")).get("n_ctx"), str(mine.get("owned_by"))
    session.context_limit = limit if isinstance(limit, int) and limit > 0 else None
    known = registry.all_traits()
    session.engine = session.engine or next((traits.name for traits in known if owner and traits.owned_by == owner), "")
    # ik_llama.cpp lists the context of all slots together; one request has that of one slot, which /props reports.
    has_slots = any(traits.name == session.engine and traits.has_slots for traits in known)
    if session.context_limit is None or has_slots:
        limits = (session.context_limit, endpoint.context, await _slot_context(session))
        session.context_limit = min(filter(None, limits), default=None)
    return f"context {session.context_limit:,}" if session.context_limit else ""


def _find_model(listed: list[dict[str, object]], name: str) -> dict[str, object] | None:
    for item in listed:
        aliases = item.get("aliases")
        if name in (item.get("id"), *(aliases if isinstance(aliases, list) else ())):
            return item
    return None


async def _slot_context(session: CheckSession) -> int | None:
    """Context of one slot, if the server reports it at /props as llama.cpp does."""
    exchange = await session.client.get(f"{session.endpoint.server_url}/props")
    try:
        context = parse_strict_json(exchange.response)["default_generation_settings"]["n_ctx"]
    except (ValueError, LookupError, TypeError):
        return None
    return context if isinstance(context, int) and context > 0 else None


async def probe_health(session: CheckSession) -> None:
    """/health, if there is one, answers with success."""
    exchange = await session.get(f"{session.endpoint.server_url}/health")
    if 300 <= exchange.status < 500:  # a gateway may guard what is not part of the API
        raise ProbeSkipped(f"the server has no /health for clients: HTTP {exchange.status}")
    raise_for_failure(exchange)


async def probe_answers(session: CheckSession) -> None:
    """One small question gets an answer. Learn which settings the server accepts."""
    question = session.draw("secret")
    exchange = await session.post_chat(session.chat_request(question.messages, max_tokens=16))
    if exchange.status in REJECTED_STATUSES and session.max_tokens_field in exchange.response:
        session.max_tokens_field = "max_completion_tokens"
        exchange = await session.post_chat(session.chat_request(question.messages, max_tokens=16))
    if exchange.status in REJECTED_STATUSES:
        session.accepts_template_arguments = False
        exchange = await session.post_chat(session.chat_request(question.messages, max_tokens=16))
    if session.read_answer(exchange, stream=False).is_empty:
        raise ProbeFailed("an empty answer")


CHECK = Check(
    name="alive",
    probes={"models": probe_models, "health": probe_health, "answers": probe_answers},
    stop_if_failed=(frozenset({"models"}), frozenset({"answers"})),
)
