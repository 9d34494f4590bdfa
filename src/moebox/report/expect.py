"""What this moebox would have promised for a run: memory, rates and serving figures of exactly what was measured.

A plan says what to expect of a recipe in general; here the planner is asked for the loads that were really driven, so
that plan and measurement can stand side by side. Where the run brings its own plan, its memory and reasons stay.
"""

from dataclasses import replace

from moebox.checkpoint import deploy
from moebox.codec import plain
from moebox.engines import budget
from moebox.errors import MoeboxError
from moebox.planner.simulate import Workload, rules_of, simulate
from moebox.planner.speed import Speed
from moebox.report.reading.planned import planned_of
from moebox.report.story import Expected, Level, Planned, Story
from moebox.store import calibrations

MOST_LEVELS = 16
MOST_QUEUED = 1_000_000  # output tokens; a long queue before a small cache is slow to simulate
PROMPT = 4096  # tokens; prompt processing is forecast for this length where none is given


def foretold(story: Story) -> Story:
    """The story with what the planner expects of its loads; unchanged where model, box or checkpoint is unknown."""
    if story.recipe is None or story.box is None or (story.planned and served(story.planned)):
        return story
    try:
        box = story.box if story.box.calibrations else calibrations.attached(story.box)
        deployment = deploy(story.recipe, box)
        memory, speed = budget(deployment), Speed.of(deployment)
        rows = [row for level in story.levels[:MOST_LEVELS] if (row := expected(level, speed, story, memory.kv_tokens))]
    except (MoeboxError, KeyError, AssertionError, ArithmeticError):
        return story
    own = planned_of({"memory": plain(memory)})
    assert own is not None
    basis = (f"speed {speed.measured.text}",) if speed.measured else ()
    if story.planned:
        reasons = story.planned.reasons + tuple(line for line in basis if line not in story.planned.reasons)
        return replace(story, planned=replace(story.planned, rows=(*story.planned.rows, *rows), reasons=reasons))
    return replace(story, planned=replace(own, rows=tuple(rows), reasons=basis))


def served(plan: Planned) -> bool:
    """It already forecasts serving, not only decode."""
    return any(not row.decode_only for row in plan.rows)


def expected(level: Level, speed: Speed, story: Story, kv_tokens: int) -> Expected | None:
    """One load as the planner sees it; None where it says too little of what was asked."""
    low, high = speed.band
    if level.tg_tok_s or level.pp_tok_s:
        prompt = int(level.input_tokens or PROMPT)
        rate = speed.decode_tok_s(1, prompt)
        return Expected(
            concurrency=level.concurrency or 1.0,
            workload=level.workload,
            tg_tok_s=rate,
            pp_tok_s=speed.prefill_tok_s(prompt) if level.pp_tok_s else None,
            low_tok_s=rate * low,
            high_tok_s=rate * high,
        )
    if (
        not (level.concurrency and level.input_tokens and level.output_tokens and level.output_tok_s)
        or level.simulation
    ):
        return None
    assert story.recipe is not None
    work = workload(level)
    if kv_tokens < work.concurrency * (work.input + work.output) and work.requests * work.output > MOST_QUEUED:
        return None
    done = simulate(speed, rules_of(story.recipe, kv_tokens, speed), work)
    return Expected(
        concurrency=level.concurrency,
        workload=level.workload,
        output_tok_s=done.output_tok_s,
        low_tok_s=done.output_tok_s * low,
        high_tok_s=done.output_tok_s * high,
        ttft_ms=done.ttft.mean * 1e3,
        tpot_ms=done.tpot.mean * 1e3,
    )


def workload(level: Level) -> Workload:
    """What was asked, as the simulation takes it; one request a slot where their number is not known."""
    together = int(level.concurrency or 1)
    requests = int(level.requests or level.completed or together)
    uniform = level.raw.get("lengths") == "uniform"
    return Workload(
        input=max(int(level.input_tokens or 1), 1),
        output=max(int(level.output_tokens or 1), 1),
        requests=max(min(requests, 20 * together), 1),
        concurrency=together,
        lengths="uniform" if uniform else "fixed",
    )
