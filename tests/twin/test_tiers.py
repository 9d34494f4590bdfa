"""Prefixes of the twin: kept on its GPUs and in the recipe's tiers by the planner's rule, and reported to clients."""

import asyncio
from collections.abc import Sequence

import pytest

from moebox.checkpoint import deploy
from moebox.core.recipe import KvTiers, Parallel, Recipe
from moebox.detect.declared import parse_box
from moebox.planner.kv_tiers import CacheTier, cache_tiers
from moebox.planner.schedule import SchedulerRules
from moebox.planner.simulate import scheduler_rules
from moebox.planner.speed import Speed
from moebox.twin.engine import TwinEngine, metrics_text
from moebox.twin.request import TwinRequest, parse_request

RECIPE = Recipe(
    name="r", engine="vllm", model="qwen3-235b", checkpoint="fp8", served_name="m", context=8192,
    parallel=Parallel(tp=8),
    kv_tiers=KvTiers(ram_gib=8),
)  # fmt: skip
DEPLOYMENT = deploy(RECIPE, parse_box("8x-h200"))
SPEED = Speed.for_deployment(DEPLOYMENT)
RULES: SchedulerRules = scheduler_rules(RECIPE, 4096, SPEED)
TIERS = cache_tiers(DEPLOYMENT, RECIPE.tiers)
TEXTS = [f"conversation {number}: " + chr(97 + number) * 4000 for number in range(6)]


def turn(*texts: str) -> TwinRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    body = {"messages": messages, "max_tokens": 16}
    return parse_request(body, chat=True, model="m", context=8192)


def converse(tiers: Sequence[CacheTier] | None, requests: Sequence[TwinRequest]) -> TwinEngine:
    """Answer requests one after the other."""

    async def run() -> TwinEngine:
        engine = TwinEngine(SPEED, RULES, tiers, faster=1000)
        stepping = asyncio.create_task(engine.run())
        for request in requests:
            async for _ in engine.generate(request):
                pass
        stepping.cancel()
        return engine

    return asyncio.run(run())


@pytest.mark.parametrize(("tiers", "returns"), [(None, ""), ((), ""), (TIERS, "RAM")])
def test_a_conversation_returns_from_where_it_is_kept(tiers: Sequence[CacheTier] | None, returns: str) -> None:
    """The next turn from the GPUs, the return after six others from RAM, and nothing without a cache."""
    first = turn(TEXTS[0])
    following = turn(TEXTS[0], first.text_part(0, 16), "And now?")
    back = turn(TEXTS[0], first.text_part(0, 16), "And now?", following.text_part(0, 16), "And then?")
    engine = converse(tiers, [first, following, *map(turn, TEXTS[1:]), back])

    assert first.cached_tokens == 0
    assert (following.cached_tokens > 900) == (tiers is not None)
    assert (back.cached_tokens > 900) == bool(returns)
    assert {"", *([] if tiers is None else ["GPUs"]), *filter(None, [returns])} == set(engine.counters.ttft_by_tier)
    text = metrics_text(engine.counters, engine.scheduler, model="m", context=8192)
    assert (
        f'external_prefix_cache_hits_total{{engine="0",model_name="m"}} {back.cached_tokens if returns else 0}' in text
    )


def test_prompts_that_begin_alike_share_what_is_alike() -> None:
    """A second conversation with the same beginning finds it, and leaves the first one its cache."""
    system = "Tools and rules. " * 100
    first, second = turn(system + "One."), turn(system + "Two: " + "x" * 400)
    again = turn(system + "One.", first.text_part(0, 16), "Go on.")
    converse((), [first, second, again])

    assert 350 < second.cached_tokens < second.prompt_tokens - 90
    assert again.cached_tokens > 400
