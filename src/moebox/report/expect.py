"""What this moebox would have promised for a run: memory, rates and serving figures of exactly what was measured.

A plan says what to expect of a recipe in general; here the planner is asked for the loads that were really driven, so
that plan and measurement can stand side by side. Where the run brings its own plan, its memory and reasons stay.
"""

from dataclasses import replace

from moebox.checkpoint import deploy
from moebox.codec import to_plain
from moebox.core.box import Box
from moebox.core.recipe import Recipe
from moebox.engines import memory_budget
from moebox.errors import MoeboxError
from moebox.planner.simulate import SimulatedWorkload, scheduler_rules, simulate
from moebox.planner.speed import Speed
from moebox.report.reading.measured import lengths_text
from moebox.report.reading.planned import plan_record
from moebox.report.record import ForecastRow, LoadResult, PlanRecord, RunRecord
from moebox.store import calibrations

MOST_LEVELS = 16
MOST_QUEUED = 1_000_000  # output tokens; a long queue before a small cache is slow to simulate
MOST_REQUESTS = 20_000  # about a second of simulation
PROMPT = 4096  # tokens; prompt processing is forecast for this length where none is given


def with_forecast(record: RunRecord) -> RunRecord:
    """The record with what the planner expects of its loads; unchanged where model, box or checkpoint is unknown."""
    if record.recipe is None or record.box is None or forecasts_serving(record.plan):
        return record
    try:
        return replace(record, plan=plan_with_loads(record, record.recipe, record.box))
    except (MoeboxError, KeyError, AssertionError, ArithmeticError):
        return record


def plan_with_loads(record: RunRecord, recipe: Recipe, box: Box) -> PlanRecord:
    """The run's own plan, or the memory of one, with a row for each of its loads."""
    deployment = deploy(recipe, box if box.calibrations else calibrations.with_calibrations(box)).with_default_context()
    memory, speed = memory_budget(deployment), Speed.for_deployment(deployment)
    rows = (forecast_load(level, speed, deployment.recipe, memory.kv_tokens) for level in record.loads[:MOST_LEVELS])
    plan = plan_record({"memory": to_plain(memory)}) if record.plan == PlanRecord() else record.plan
    basis = (f"speed {speed.measured.text}",) if speed.measured else ()
    reasons = dict.fromkeys((*plan.reasons, *basis))
    return replace(plan, rows=(*plan.rows, *filter(None, rows)), reasons=tuple(reasons))


def forecasts_serving(plan: PlanRecord) -> bool:
    """It already forecasts serving, not only decode."""
    return any(not row.decode_only for row in plan.rows)


def forecast_load(level: LoadResult, speed: Speed, recipe: Recipe, kv_tokens: int) -> ForecastRow | None:
    """One load as the planner sees it; None where it says too little of what was asked."""
    if level.is_single_stream:
        return forecast_single_stream(level, speed)
    if level.simulation or not described(level):
        return None
    work = simulated_workload(level)
    if slow_to_simulate(work, kv_tokens):
        return None
    done = simulate(speed, scheduler_rules(recipe, kv_tokens, speed), work)
    low, high = speed.decode_range
    return ForecastRow(
        concurrency=level.concurrency,
        workload=level.workload,
        lengths=lengths(level, work),
        output_tok_s=done.output_tok_s,
        low_tok_s=done.output_tok_s * low,
        high_tok_s=done.output_tok_s * high,
        ttft_ms=done.ttft.mean * 1e3,
        tpot_ms=done.tpot.mean * 1e3,
    )


def lengths(level: LoadResult, work: SimulatedWorkload) -> str:
    """Of prompts and replies, where they are not what was asked."""
    asked, were = (level.input_tokens, level.output_tokens), (work.input, work.output)
    return lengths_text(*were) if were != asked else ""


def slow_to_simulate(work: SimulatedWorkload, kv_tokens: int) -> bool:
    """Whether there are more at once than are simulated, or many queue before a cache that does not hold the load."""
    if work.concurrency > MOST_REQUESTS:
        return True
    queued = kv_tokens < work.concurrency * (work.input + work.output)
    return queued and work.requests * work.output > MOST_QUEUED


def forecast_single_stream(level: LoadResult, speed: Speed) -> ForecastRow:
    """Prefill and decode of one stream."""
    prompt = int(level.input_tokens or PROMPT)
    rate = speed.decode_tok_s(1, prompt)
    low, high = speed.decode_range
    return ForecastRow(
        concurrency=level.concurrency or 1.0,
        workload=level.workload,
        tg_tok_s=rate,
        pp_tok_s=speed.prefill_tok_s(prompt) if level.pp_tok_s else None,
        low_tok_s=rate * low,
        high_tok_s=rate * high,
    )


def described(level: LoadResult) -> bool:
    """Whether a serving load says enough to be simulated."""
    return all((level.concurrency, level.input_tokens, level.output_tokens, level.output_tok_s))


def simulated_workload(level: LoadResult) -> SimulatedWorkload:
    """What was really read and replied, as the simulation takes it: a chat's template adds to a prompt, and not every
    server goes on after the model has ended its reply. One request a slot where their number is not known.
    """
    together = int(level.concurrency or 1)
    requests = int(level.requests or level.completed or together)
    uniform = level.raw.get("lengths") == "uniform"
    read, replied = (None, None) if uniform else (level.mean_input_tokens, level.mean_output_tokens)
    return SimulatedWorkload(
        input=max(round(read or level.input_tokens or 1), 1),
        output=max(round(replied or level.output_tokens or 1), 1),
        requests=max(min(requests, 20 * together, MOST_REQUESTS), 1),
        concurrency=together,
        lengths="uniform" if uniform else "fixed",
    )
