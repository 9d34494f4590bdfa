"""Which requests are admitted and preempted, as the engines do it."""

from dataclasses import replace

from moebox.checkpoint import deploy
from moebox.detect.declared import parse_box
from moebox.planner.schedule import Scheduler, SchedulerRules, SimulatedRequest
from moebox.planner.speed import Speed
from tests.planner.deployed import kimi


def scheduler(*, kv_tokens: int, sglang: bool = False) -> Scheduler:
    """Return the scheduler of an engine on eight B200 with that much cache."""
    recipe = kimi(engine="sglang" if sglang else "vllm")
    speed = Speed.for_deployment(deploy(recipe, parse_box("8x-b200")))
    rules = SchedulerRules(
        kv_tokens=kv_tokens, context=65536, max_seqs=64, step_tokens=8192, prompts_first=sglang, reserves_output=sglang
    )
    return Scheduler(speed=speed, rules=rules)


def finished(engine: Scheduler) -> list[int]:
    """Return the order in which requests end."""
    order: list[int] = []
    for _ in range(100_000):
        done = engine.advance()
        if done is None:
            return order
        order += [request.id for request in done.finished]
    raise AssertionError("never done")


def test_sglangs_reserve_falls_while_it_decodes() -> None:
    """A third request that the reserve keeps out at first is admitted before either of the two running ones ends."""
    engine = scheduler(kv_tokens=9500, sglang=True)
    for number in range(3):
        assert engine.submit(SimulatedRequest(id=number, input=100, output=4000, arrival=float(number)))
    assert engine.advance() is not None
    assert len(engine.waiting) == 1
    for _ in range(100_000):
        done = engine.advance()
        assert done is not None
        assert not done.finished, "nothing ended before the third was admitted"
        if not engine.waiting:
            break
    assert not engine.waiting


def test_the_youngest_is_preempted_if_the_cache_is_full() -> None:
    """The older of two runs on and ends first; the younger is read again."""
    engine = scheduler(kv_tokens=1000)
    old, young = (SimulatedRequest(id=number, input=300, output=400, arrival=float(number)) for number in range(2))
    assert engine.submit(old)
    assert engine.submit(young)
    assert finished(engine) == [0, 1]
    assert old.preemptions == 0
    assert young.preemptions >= 1


def test_sglang_reads_no_more_prompt_tokens_in_a_step_than_its_limit() -> None:
    """Pieces of 131,072 tokens are cut to 16,384 of all prompts, unless the flag allows more."""
    recipe, box = replace(kimi(engine="sglang"), batched_tokens=131_072), parse_box("8x-b200")
    assert Speed.for_deployment(deploy(recipe, box)).chunk_tokens == 16_384
    recipe = replace(recipe, flags={"max-prefill-tokens": 32_768})
    assert Speed.for_deployment(deploy(recipe, box)).chunk_tokens == 32_768
