"""The planner's forecast for the loads that a run measured, so that plan and measurement can be compared.

A plan forecasts a recipe in general; here the planner is run for the measured loads. A run's own plan keeps its memory
and its reasons.
"""

from dataclasses import replace

from moebox.checkpoint import deploy
from moebox.core.plan import NO_MEMORY, Memory
from moebox.core.recipe import Recipe
from moebox.engines import memory_budget
from moebox.errors import MoeboxError
from moebox.planner.forecast import serving_range
from moebox.planner.simulate import SimulatedWorkload, scheduler_rules, simulate
from moebox.planner.speed import Speed
from moebox.runs.loads import lengths_text
from moebox.runs.record import ForecastRow, LoadResult, RunRecord
from moebox.store import calibrations

MAX_LOADS = 16
MAX_QUEUED_TOKENS = 1_000_000  # output tokens; a long queue before a small cache is slow to simulate
MAX_REQUESTS = 20_000  # about a second of simulation
PROMPT_TOKENS = 4096  # length for which prompt processing is forecast if the load names none


def with_forecast(record: RunRecord) -> RunRecord:
    """The record with forecasts for its loads; unchanged if model, box or checkpoint is unknown."""
    recipe, box = record.recipe, record.box
    if recipe is None or box is None or any(not row.decode_only for row in record.forecast):
        return record
    try:
        calibrated = box if box.calibrations else calibrations.with_calibrations(box)
        deployment = deploy(recipe, calibrated).with_default_context()
        memory, speed = memory_budget(deployment), Speed.for_deployment(deployment)
        rows = [forecast_load(load, speed, deployment.recipe, memory) for load in record.loads[:MAX_LOADS]]
    except (MoeboxError, KeyError, AssertionError, ArithmeticError):
        return record
    return replace(
        record,
        planned_memory=memory if record.planned_memory is NO_MEMORY else record.planned_memory,
        forecast=(*record.forecast, *filter(None, rows)),
        forecast_basis=f"speed {speed.measured.text}" if speed.measured else "",
    )


def forecast_load(load: LoadResult, speed: Speed, recipe: Recipe, memory: Memory) -> ForecastRow | None:
    """Forecast one load, or None if its workload is not known or would take long to simulate.

    The simulated lengths are the counted ones: a chat template lengthens prompts, and some servers end replies early.
    """
    if load.is_single_stream:
        prompt = int(load.input_tokens or PROMPT_TOKENS)
        low, high = speed.step_range(1, prompt)
        rate = speed.decode_tok_s(1, prompt)
        return ForecastRow(
            concurrency=load.concurrency or 1.0,
            workload=load.workload,
            tg_tok_s=rate,
            pp_tok_s=speed.prefill_tok_s(prompt) if load.pp_tok_s else None,
            low_tok_s=rate * low,
            high_tok_s=rate * high,
        )
    if load.simulation or not (load.concurrency and load.input_tokens and load.output_tokens and load.output_tok_s):
        return None
    concurrency = int(load.concurrency or 1)
    requests = int(load.requests or load.completed or concurrency)
    counted = (None, None) if load.uniform_lengths else (load.mean_input_tokens, load.mean_output_tokens)
    work = SimulatedWorkload(
        input=max(round(counted[0] or load.input_tokens), 1),
        output=max(round(counted[1] or load.output_tokens), 1),
        requests=max(min(requests, 20 * concurrency, MAX_REQUESTS), 1),
        concurrency=concurrency,
        lengths="uniform" if load.uniform_lengths else "fixed",
    )
    is_queued = memory.held_sequences(work.input + work.output, recipe.context) < concurrency
    if concurrency > MAX_REQUESTS or (is_queued and work.requests * work.output > MAX_QUEUED_TOKENS):
        return None
    result = simulate(speed, scheduler_rules(recipe, memory.kv_tokens, speed, memory), work)
    low, high = serving_range(result, speed)
    as_requested = (work.input, work.output) == (load.input_tokens, load.output_tokens)
    return ForecastRow(
        concurrency=load.concurrency,
        workload=load.workload,
        lengths="" if as_requested else lengths_text(work.input, work.output),
        output_tok_s=result.output_tok_s,
        low_tok_s=result.output_tok_s * low,
        high_tok_s=result.output_tok_s * high,
        ttft_ms=result.ttft.mean * 1e3,
        tpot_ms=result.tpot.mean * 1e3,
    )
