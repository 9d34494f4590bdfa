"""`moebox forecast`: speed by concurrency and context, in virtual time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli.display import arrange_speeds, make_table
from moebox.cli.flags import AsJson, Ram, RamBandwidth, Settings, Switch, parse_counts, parse_token_count
from moebox.cli.forecast_target import NO_PLAN_ARGS, ForecastTarget, PlanArgs, find_target, with_facts
from moebox.cli.output import Part, print_parts, print_result
from moebox.core.plan import PlanWarning
from moebox.core.registry import engine_display_name
from moebox.core.setting import split_settings
from moebox.core.workload_file import Simulation, WorkloadFile, find_workload_file
from moebox.errors import refuse_if
from moebox.flows import recipes
from moebox.loose import Document
from moebox.planner import forecast as rows_of
from moebox.planner.constraints import MAX_CONTEXT
from moebox.planner.forecast import ForecastRow
from moebox.planner.kv_tiers import cache_tiers
from moebox.planner.rate import sizes_up_to
from moebox.planner.simulate import STREAMS, scheduler_rules, simulated_workloads
from moebox.planner.speed.links import describe_network
from moebox.planner.speed.ranges import RangeKind
from moebox.units import format_count, format_percent, format_seconds, plural

CONTEXTS = (0, 16384, 32768, 65536, 131072)
PROMPTS = (1024, 8192, 32768, 65536, 131072)
HYBRID_CONTEXTS = (1024, 16384, 65536)
# The micro-batch of a given layout without --ub: what published rows were measured with, by their prompt rates
# (loftllc.dev, Apr 2026: 185 and 223 tok/s with ik_llama.cpp and 188 with llama.cpp are reproduced with 2048).
UBATCH = 2048
DEFAULT_CONTEXT = 65536  # tokens of context in a careful plan
Mode = Literal["decode", "prefill", "serving", "stream"]
RANGES: dict[Mode, RangeKind] = {"decode": "decode", "prefill": "prompt", "stream": "decode", "serving": "serving"}
MIN_GAIN = 0.005  # of the hits, below which a tier is not proposed
ForecastTable = tuple[Sequence[str], list[tuple[str, ...]], str]  # headings, rows, the remark below


def _decode_table(rows: list[ForecastRow]) -> ForecastTable:
    """Return contexts down and streams across, in tok/s of all streams."""
    cells = {}
    for row in rows:
        rate = row["decode_tok_s"]
        text = f"{rate:.1f}" if rate < 100 else format_count(rate)
        cells[row["context"], row["concurrency"]] = text + "*" * (not row["fits"])
    streams, lines = arrange_speeds(cells)
    fits = all(row["fits"] for row in rows)
    over = "; * more than the engine runs at a time (cache or max_seqs)" * (not fits)
    return ("context", *(plural(many, "stream") for many in streams)), lines, f"decode tok/s of all streams{over}"


def _prefill_table(rows: list[ForecastRow]) -> ForecastTable:
    keys = ("prompt_tokens", "prefill_tok_s", "low_tok_s", "high_tok_s")
    lines = [(*(format_count(row[key]) for key in keys), format_seconds(row["ttft_s"])) for row in rows]
    return ("prompt", "tok/s", "low", "high", "read in"), lines, ""


def _stream_table(rows: list[ForecastRow]) -> ForecastTable:
    """Return one stream by context, and the prompt beside it."""
    lines = []
    for row in rows:
        tg = (f"{row[key]:.1f}" for key in ("tg_tok_s", "tg_low_tok_s", "tg_high_tok_s"))
        pp = (format_count(row[key]) for key in ("pp_tok_s", "pp_low_tok_s", "pp_high_tok_s"))
        lines.append((format_count(row["context"]), *tg, *pp))
    remark = f"tg: one stream at that context; pp: a prompt of {format_count(rows[0]['prompt_tokens'])} tokens"
    return ("context", "tg tok/s", "low", "high", "pp tok/s", "low", "high"), lines, remark


def _serving_table(rows: list[ForecastRow]) -> ForecastTable:
    """Return a row for each simulated run, and the problems of the worst."""
    lines = []
    for row in rows:
        load = format_count(row["max_concurrency"]) if row["max_concurrency"] else f"{row['request_rate']:g}/s"
        keys = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "p99_itl_ms")
        times = (format_seconds(row[key] / 1e3) if row["request_throughput"] else "-" for key in keys)
        lines.append((load, f"{row['request_throughput']:.2f}", format_count(row["output_throughput"]), *times))
    problems = {
        "failed": "up to {} requests are longer than the cache or the context and fail",
        "preemptions": "up to {} preemptions: the cache is too small for these streams",
    }
    worst = {key: max(row[key] for row in rows) for key in problems}
    remarks = [problems[key].format(format_count(number)) for key, number in worst.items() if number]
    if any(row["p99_itl_ms"] < row["mean_itl_ms"] for row in rows):
        remarks.append("ITL p99 is below the mean because fewer than 1 gap in 100 is long: one that waits for prompts")
    return ("streams", "req/s", "out tok/s", "TTFT", "p99", "TPOT", "ITL", "p99"), lines, "; ".join(remarks)


def tier_table(rows: Sequence[ForecastRow]) -> ForecastTable:
    """Return what each tier of the KV cache brings for the conversations of a workload."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        name = f"+ {row['tier']}, {row['gib']:g} GiB" if row["gib"] else row["tier"]
        ttft, low, high = (format_seconds(row[key] / 1e3) for key in ("returning_ttft_ms", "low_ms", "high_ms"))
        lines.append((name, format_count(row["tokens"]), format_percent(row["hit_share"]), ttft, low, high))
    many, length = rows[0]["conversations"], format_count(rows[0]["conversation_tokens"])
    remark = f"{many} conversations of up to {length} tokens; hits: prompt tokens not computed again"
    gains = rows[-1]["hit_share"] - rows[0]["hit_share"] > MIN_GAIN
    remark += f"; later TTFT: after the first turn\n{rows[-1]['setting'] if gains else rows[0]['without_tier']}"
    return ("KV cache", "tokens", "hits", "later TTFT", "low", "high"), lines, remark


FORECAST_TABLES = {"decode": _decode_table, "prefill": _prefill_table}
FORECAST_TABLES |= {"stream": _stream_table, "serving": _serving_table}


def forecast(
    target: str,
    *,
    box: str | None = None,
    decode: Switch = False,
    prefill: Switch = False,
    input: str | None = None,
    output: str | None = None,
    rate: str | None = None,
    workload: str = "",
    plan: Annotated[PlanArgs, Parameter(name="*")] = NO_PLAN_ARGS,
    settings: Settings = (),
    ram: Ram = "",
    ram_bandwidth: RamBandwidth = "",
    force: Switch = False,
    json: AsJson = False,
) -> int:
    """Forecast the speed of a recipe, or of the plan for a model: decoding, prompts, or a serving benchmark.

    Serving runs are simulated in virtual time: admission by cache, chunked prompts, decoding, preemption, drafts.

    Args:
        target: A recipe (a .toml file or a shipped name), or a model as `plan` takes it.
        box: COUNTxGPU such as 8x-h200 or 1x-rtx-5090+512GB, or a TOML file. Default: the recipe's box, or this machine.
        decode: Decode speed by context and concurrency, without prompts.
        prefill: Time to read one cold prompt, alone on the machine.
        input: Prompt tokens: of each request with --output, or of each row with --prefill, such as 8192,65536.
        output: Tokens of each answer; with --input this simulates a serving benchmark.
        rate: Requests a second instead of a concurrency, such as 0.5,2.
        workload: Simulate this workload, as `bench` measures it: a workload file, or the name of a shipped one.
        plan: Settings that the plan must have; a recipe has its own.
        settings: Another value of the recipe (parallel.tp=4), of the workload (workload.turns=16, requests=500) or of
            what the simulation assumes (simulation.kv_tokens=200k); repeatable.
        force: Exit with 0 although it does not fit.
    """
    contexts = parse_counts("--context", plan.context, least=0, most=MAX_CONTEXT)
    streams = parse_counts("--concurrency", plan.concurrency, most=MAX_CONTEXT)
    prompts = parse_counts("--input", input, most=MAX_CONTEXT)
    is_serving, is_recipe = bool(output or rate or workload), recipes.is_recipe(target)
    wanted: dict[Mode, bool] = {"serving": is_serving, "decode": decode, "prefill": prefill}
    modes = [mode for mode, given in wanted.items() if given]
    refuse_if(len(modes) > 1, "--decode, --prefill and a serving run are three different forecasts; give one")
    missing = is_serving and not workload and None in (input, output)
    refuse_if(missing, "a serving run needs --input and --output", hint="such as --input 8192 --output 2048")
    refuse_if(prompts and not (is_serving or prefill), "--input needs --output or --prefill")
    work, others = split_settings(find_workload_file(workload or "random"), settings)
    facts = work.simulation
    if is_serving:
        work = _with_flags(work, prompts, parse_token_count("--output", output), streams, rate)
    else:
        known = Simulation(kv_tokens=facts.kv_tokens, accept=facts.accept)
        unused = work != replace(find_workload_file("random"), simulation=known)
        refuse_if(unused, "settings of a workload are for a serving run", hint="add --input and --output")
    constraints = replace(plan, context=None, concurrency=None)
    if is_recipe:
        hint = "--set parallel.tp=8 changes one; or name a model"
        refuse_if(constraints != NO_PLAN_ARGS, "a recipe already has its settings", hint=hint)
        others = [text for text in others if text.partition("=")[0] != "bold"]
    request = simulated_workloads(work)[-1].longest if is_serving else 0
    most = max(work.concurrency, default=0) if is_serving else 0
    longest = max((*contexts, request if request > DEFAULT_CONTEXT else 0), default=0)
    limits = constraints.constraints()
    if limits.experts is not None and limits.ubatch is None:
        limits = replace(limits, ubatch=UBATCH)
    # A plan has room for the longest context and request, and for all streams
    limits = replace(limits, context=max(longest, 1024) if longest else None, concurrency=most or None)
    found = find_target(target, box, others, constraints=limits, ram=ram, ram_bandwidth=ram_bandwidth)
    if not is_recipe and 0 < found.recipe.context < request:  # slots for many streams, each too short for one request
        limits = replace(limits, context=request)
        found = find_target(target, box, others, constraints=limits, ram=ram, ram_bandwidth=ram_bandwidth)
    found = with_facts(found, facts, 0 if is_recipe else most, request)
    mode = next(iter(modes), "stream" if found.deployment.engine.offloads_experts else "decode")
    _refuse_unused(mode, work, plan, is_recipe=is_recipe)
    length, limit = max((*contexts, *prompts), default=0), found.recipe.context
    if mode != "serving" and 0 < limit < length:
        text = f"{format_count(length)} tokens exceed the recipe's context of {format_count(limit)}"
        warning = PlanWarning(text=f"{text}: these speeds are hypothetical", remedy=f"context = {length}")
        found = replace(found, warnings=(*found.warnings, warning))
    rows, tiers = _forecast_rows(mode, found, work, prompts if mode == "prefill" else contexts, streams), []
    nothing_ends = mode == "serving" and not any(row["request_throughput"] for row in rows)
    if mode == "serving" and work.workload.turns > 1 and not (found.misfit or nothing_ends):
        rules = scheduler_rules(found.recipe, found.memory.kv_tokens, found.speed, found.memory)
        tiers = rows_of.tier_rows(found.deployment, found.memory, found.speed, rules, simulated_workloads(work)[-1])
    document = forecast_document(mode, found, rows) | {"kv_tiers": tiers}
    good = force or (found.misfit is None and not nothing_ends)
    return print_result(json, document, lambda: print_parts(*forecast_page(mode, found, rows, tiers)), good=good)


def _with_flags(
    work: WorkloadFile, prompts: Sequence[int], output: int | None, streams: Sequence[int], rate: str | None
) -> WorkloadFile:
    """Return the workload with the lengths and loads of the flags."""
    refuse_if(len(prompts) > 1, "a serving run has one length of prompts", hint="give --input one value")
    tokens = work.workload
    reply = tokens.output_tokens if output is None else output
    tokens = replace(tokens, input_tokens=next(iter(prompts), tokens.input_tokens), output_tokens=reply)
    refuse_if(rate is not None and streams, "give either --rate or --concurrency")
    rates = flags.parse_rates(rate)
    concurrency = () if rates else tuple(streams) or work.concurrency
    return replace(work, workload=tokens, rate=rates or work.rate, concurrency=concurrency)


def _refuse_unused(mode: Mode, work: WorkloadFile, plan: PlanArgs, *, is_recipe: bool) -> None:
    """Raise BadInput for flags and settings that this kind of forecast ignores; a recipe sets the context."""
    streams, facts = {"concurrency": plan.concurrency}, work.simulation
    if mode == "prefill":
        flags.refuse_unused("--prefill reads one prompt alone", **streams)
        refuse_if((facts.kv_tokens, facts.accept) != (None, None), "--prefill needs no simulation.kv_tokens or accept")
    if mode == "stream":
        flags.refuse_without("--decode", **streams)
    if is_recipe and mode in ("prefill", "serving"):
        flags.refuse_unused("a recipe has its own context", context=plan.context)
    burst = facts.warm is not None or facts.window_s
    refuse_if(burst and work.rate, "a rate sends by the clock: it does not take simulation.warm or window_s")
    refuse_if(facts.warm is not None and not facts.prefix_hit, "simulation.warm needs simulation.prefix_hit")
    refuse_if(work.workload.think_s and work.workload.turns == 1, "workload.think_s needs workload.turns")


def _forecast_rows(
    mode: Mode, target: ForecastTarget, work: WorkloadFile, lengths: Sequence[int], streams: Sequence[int]
) -> list[ForecastRow]:
    speed, memory, limit = target.speed, target.memory, target.recipe.context
    if mode == "decode":
        many = tuple(streams or sorted({*STREAMS, target.recipe.max_seqs or 1}))
        tokens = tuple(lengths or sizes_up_to(limit, CONTEXTS))
        return rows_of.decode_rows(speed, tokens, many, memory, target.recipe)
    if mode == "prefill":
        tokens = tuple(lengths or sizes_up_to(limit, PROMPTS))
        return rows_of.prefill_rows(speed, tokens)
    if mode == "stream":
        tokens = tuple(lengths or sizes_up_to(limit, HYBRID_CONTEXTS))
        return rows_of.stream_rows(speed, tokens, min(max(4096, speed.chunk_tokens), limit))
    if memory.kv_tokens < 1:
        target.refuse_unservable()
    rules = scheduler_rules(target.recipe, memory.kv_tokens, speed, memory)
    tiers = cache_tiers(target.deployment, target.recipe.tiers)
    return rows_of.serving_rows(speed, rules, simulated_workloads(work), tiers)


def forecast_document(mode: Mode, target: ForecastTarget, rows: list[ForecastRow]) -> Document:
    """Return the forecast under the keys that scripts rely on."""
    kind = RANGES[mode]
    low, high = target.speed.range_factors(kind)
    warnings = target.warnings
    if misfit := target.misfit:
        text = f"{misfit.text}; these speeds are hypothetical"
        warnings = (PlanWarning(text=text, remedy=misfit.remedy, severity="fatal"), *warnings)
    return {
        "simulated": True,
        "mode": mode,
        "model": target.deployment.model.name,
        "box": target.deployment.required_box.name,
        "recipe": target.recipe,
        "kv_tokens": target.memory.kv_tokens,
        "tokens_per_step": round(target.speed.tokens_per_step, 3),
        "band": {"low": round(low, 3), "high": round(high, 3)},
        "measured": target.speed.calibration_text,
        "basis": target.speed.basis_text(kind),
        "rows": rows,
        "fits": target.misfit is None,
        "warnings": warnings,
    }


def describe_range(mode: Mode, target: ForecastTarget, rows: list[ForecastRow]) -> str:
    """Return the range of the forecast, the widest if rows have their own, and what it rests on."""
    speed = target.speed
    prompts = f"; prompts and TTFT {speed.range_text('prompt')}" * (mode in ("serving", "stream"))
    if not speed.measured:
        return f"forecast, not a measurement: expect {speed.range_text(RANGES[mode])}{prompts}"
    edges = ((row, edge) for row in rows for edge in ("low_tok_s", "high_tok_s") if row.get("output_throughput"))
    ratios = [row[edge] / row["output_throughput"] - 1 for row, edge in edges]
    served = f"; out tok/s {min(ratios):+.0%} to {max(ratios):+.0%}" if ratios else ""
    return f"{speed.measured.text}{served}{prompts}"


def forecast_page(
    mode: Mode, target: ForecastTarget, rows: list[ForecastRow], tiers: Sequence[ForecastRow]
) -> Iterator[Part]:
    """Yield title, table, range and warnings for the terminal."""
    recipe, box = target.recipe, target.deployment.required_box
    words = [engine_display_name(recipe.engine), *["community image"] * bool(recipe.runtime.preset)]
    words += recipe.parallel.labels if recipe.hybrid is None else []
    words += [f"{recipe.kv} cache of {format_count(target.memory.kv_tokens)} tokens"]
    words += [f"{recipe.speculate.method} ×{recipe.speculate.tokens}"] if recipe.speculate else []
    if misfit := target.misfit:
        yield [("fatal: ", "bold red"), f"{misfit.text}; {misfit.remedy}. These speeds are hypothetical."]
    title = f"{target.deployment.model.title} {target.deployment.checkpoint.label}"
    yield [(title, "bold"), f" on {box.name}: {', '.join(words)}"]
    for heads, lines, remark in (FORECAST_TABLES[mode](rows), *([tier_table(tiers)] if tiers else [])):
        yield ""
        yield make_table(heads, lines)
        if remark:
            yield remark
    yield (describe_range(mode, target, rows), "dim")
    if recipe.parallel.nodes > 1:
        yield (describe_network(box), "dim")
    for warning in target.warnings:
        if warning.severity != "note":
            yield [(f"{warning.severity}: ", "yellow"), warning.text]
