"""alive: the server is there, lists the model, and answers something."""

from moebox.core import registry
from moebox.core.verdict import Exchange
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped, Unusable, refuse
from moebox.verify.breach import object_of, objects_of, strict_json
from moebox.verify.rung import Rung
from moebox.verify.trials import draw


async def models(ask: Asker) -> str:
    """/v1/models lists the name."""
    exchange = await ask.get(f"{ask.endpoint.base_url}/models")
    refuse(exchange)
    listed = _listed(exchange)
    mine = next((item for item in listed if ask.endpoint.model in _names(item)), None)
    if mine is None:
        return _unlisted(ask, listed)
    _learn(ask, mine)
    if ask.limit is None or _has_slots(ask.engine):
        # ik_llama.cpp lists the context of all slots together; one request has that of one slot.
        known = (ask.limit, ask.endpoint.context, await _props(ask))
        ask.limit = min(filter(None, known), default=None)
    return f"context {ask.limit:,}" if ask.limit else ""


def _unlisted(ask: Asker, listed: list[dict[str, object]]) -> str:
    """Unusable where the model is not in the list, unless a router stands before the server."""
    shown = ", ".join(str(item.get("id")) for item in listed[:8]) or "nothing"
    if not ask.endpoint.router:
        raise Unusable(f"/v1/models does not list {ask.endpoint.model!r}, but: {shown}")
    ask.limit = ask.endpoint.context or None
    return f"{ask.endpoint.router} lists {shown}; name and context are the fleet's"


def _listed(exchange: Exchange) -> list[dict[str, object]]:
    try:
        data = object_of(strict_json(exchange.response)).get("data")
    except ValueError:
        data = None
    if not isinstance(data, list):
        raise Failed("/v1/models does not answer with a list of models")
    return objects_of(data)


def _names(item: dict[str, object]) -> tuple[object, ...]:
    """The names that a model goes by."""
    aliases = item.get("aliases")
    return (item.get("id"), *(aliases if isinstance(aliases, list) else ()))


def _learn(ask: Asker, item: dict[str, object]) -> None:
    """What the listing tells about the server: its context length and what it is."""
    limit = item.get("max_model_len") or object_of(item.get("meta")).get("n_ctx")
    ask.limit = limit if isinstance(limit, int) and limit > 0 else None
    ask.engine = ask.engine or _engine(str(item.get("owned_by")))


def _has_slots(engine: str) -> bool:
    """Whether it divides its context over slots and tells of one at /props."""
    return any(traits.name == engine and traits.tells_cache == "/props" for traits in registry.all_traits())


def _engine(owner: str) -> str:
    """The engine whose /v1/models says so under owned_by, or ""."""
    return next((traits.name for traits in registry.all_traits() if owner and traits.owned_by == owner), "")


async def _props(ask: Asker) -> int | None:
    """The context of one slot, where llama.cpp tells it beside the API."""
    exchange = await ask.client.get(f"{ask.endpoint.root}/props")
    try:
        found = strict_json(exchange.response)["default_generation_settings"]["n_ctx"]
    except (ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, int) and found > 0 else None


async def health(ask: Asker) -> None:
    """/health says yes, where there is one."""
    exchange = await ask.get(f"{ask.endpoint.root}/health")
    if exchange.status in (404, 405, 501):
        raise Skipped("the server has no /health")
    refuse(exchange)


async def answers(ask: Asker) -> None:
    """One small question gets an answer; and it is learnt which settings of ours are taken."""
    task = draw(ask, "secret")
    exchange = await ask.send(ask.body(task.messages, max_tokens=16))
    if exchange.status in REFUSALS and ask.limit_name in exchange.response:
        ask.limit_name = "max_completion_tokens"
        exchange = await ask.send(ask.body(task.messages, max_tokens=16))
    if exchange.status in REFUSALS:
        ask.template_arguments = False
        exchange = await ask.send(ask.body(task.messages, max_tokens=16))
    if ask.read(exchange, stream=False).is_empty:
        raise Failed("an empty answer")


RUNG = Rung(
    name="alive",
    about="the server is there, lists the model and answers",
    probes={"models": models, "health": health, "answers": answers},
    stops=(frozenset({"models"}), frozenset({"answers"})),
    cost=3,
)
