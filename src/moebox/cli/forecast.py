"""`moebox forecast`: speed by concurrency and context, in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli.display import make_table
from moebox.cli.flags import Switch, flag_name, parse_count, parse_token_count
from moebox.cli.forecast_tables import FORECAST_TABLES
from moebox.cli.forecast_target import (
    NO_PLAN_ARGS,
    ForecastTarget,
    PlanArgs,
    find_target,
    refuse_without_cache,
    with_cache_warnings,
    with_context_warning,
    with_known_facts,
)
from moebox.cli.output import exit_code, print_result, stdout_console
from moebox.core.registry import engine_display_name
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.flows import recipes
from moebox.loose import Document
from moebox.planner import forecast as rows_of
from moebox.planner.constraints import MAX_CONTEXT
from moebox.planner.forecast import ForecastRow
from moebox.planner.rate import sizes_up_to
from moebox.planner.simulate import SimulatedWorkload, scheduler_rules
from moebox.planner.speed.links import describe_network
from moebox.planner.speed.ranges import RangeKind
from moebox.units import format_count, parse_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

CONTEXTS = (0, 16384, 32768, 65536, 131072)
STREAMS = (1, 8, 32, 64, 128)
PROMPTS = (1024, 8192, 32768, 65536, 131072)
HYBRID_CONTEXTS = (1024, 16384, 65536)
# As many requests for each stream as published serving runs send (InferenceX 10, Lambda 16), within limits.
PER_STREAM, MIN_REQUESTS, MAX_REQUESTS = 10, 32, 20_000
# The micro-batch of a given layout without --ub: what published rows were measured with, by their prompt rates
# (loftllc.dev, Apr 2026: 185 and 223 tok/s with ik_llama.cpp and 188 with llama.cpp are reproduced with 2048).
UBATCH = 2048
DEFAULT_CONTEXT = 65536  # tokens of context in a careful plan
LARGEST_RUN = 10_000_000
OPEN_LOOP_REQUESTS = 1000  # of a simulated run at a rate, if nothing sets the number
Mode = Literal["decode", "prefill", "serving", "stream"]
RANGES: dict[Mode, RangeKind] = {"decode": "decode", "prefill": "prompt", "stream": "decode", "serving": "serving"}


@dataclass(frozen=True, kw_only=True)
class ForecastArgs:
    """What to forecast.

    Attributes:
        decode: Decode speed by context and concurrency, without prompts.
        prefill: Time to read one cold prompt, alone on the machine.
        input: Prompt tokens: of each request with --output, or of each row with --prefill, such as 8192,65536.
        output: Tokens of each answer; with --input this simulates a serving benchmark.
        rate: Requests a second instead of a concurrency, such as 0.5,2.
        requests: Requests of a simulated run. Default: ten for each stream.
        per_stream: Requests of each stream instead, such as 1 for a single burst.
        lengths: fixed, or uniform for lengths between 1 and the given one.
        prefix_hit: Share of each prompt that is in the prefix cache.
        warm: Share of the first burst's prompts whose prefix is cached. Default: all.
        turns: Turns of a conversation, each added to the ones before; 16 is typical of an agent.
        think: Time between an answer and the next turn, such as 2s.
        cold: Extra time of the first step, such as 26s for kernels compiled at first use.
        window: Time over which the client sends its first requests, such as 3.6s. Default: all at once.
        prefill_engines: Engines like this one that read the prompts and hand the cache over. Default: none.
        accept: Share of draft tokens accepted, if it is known, such as 0.6.
        kv_tokens: Cache capacity to assume, such as the one in an engine's log.
        eager: Without CUDA graphs.
        seed: For the arrivals of --rate and for --lengths uniform. Default: 1.
    """

    decode: Switch = False
    prefill: Switch = False
    input: str | None = None
    output: str | None = None
    rate: str | None = None
    requests: int | None = None
    per_stream: int | None = None
    lengths: Literal["fixed", "uniform"] = "fixed"
    prefix_hit: float = 0.0
    warm: float | None = None
    turns: int = 1
    think: str = ""
    cold: str = ""
    window: str = ""
    prefill_engines: int = 0
    accept: float | None = None
    kv_tokens: int | None = None
    eager: Switch = False
    seed: int | None = None

    @property
    def is_serving(self) -> bool:
        """Whether a serving run is wanted."""
        return self.output is not None or self.rate is not None

    @property
    def prompt_lengths(self) -> tuple[int, ...]:
        """The lengths of --input."""
        return _parse_counts(self.input, "--input", many=True)

    @property
    def request_tokens(self) -> int:
        """The longest prompt with its answer."""
        return max(self.prompt_lengths, default=0) + (parse_token_count("--output", self.output) or 0)


NO_ARGS = ForecastArgs()
# Flags of a simulated serving run.
SERVING_FLAGS = ["requests", "per_stream", "lengths", "prefix_hit", "warm", "turns", "think", "cold", "window"]
SERVING_FLAGS += ["prefill_engines"]


def forecast(
    target: str,
    *,
    box: str | None = None,
    args: Annotated[ForecastArgs, Parameter(name="*")] = NO_ARGS,
    plan: Annotated[PlanArgs, Parameter(name="*")] = NO_PLAN_ARGS,
    bold: Switch = False,
    ram: str = "",
    ram_bandwidth: str = "",
    force: Switch = False,
    json: Switch = False,
) -> int:
    """Forecast the speed of a recipe, or of the plan for a model: decoding, prompts, or a serving benchmark.

    Serving runs are simulated in virtual time: admission by cache, chunked prompts, decoding, preemption, drafts.

    Args:
        target: A recipe (a .toml file or a shipped name), or a model as `plan` takes it.
        box: COUNTxGPU such as 8x-rtx-pro-6000-server, or a TOML file. Default: the recipe's box, or this machine.
        args: What to forecast.
        plan: Settings that the plan must have; a recipe has its own.
        bold: The plan with the best forecast instead of the careful one.
        ram: Memory to assume, such as 768GiB.
        ram_bandwidth: Its bandwidth, such as 614GB/s.
        force: Exit with 0 although it does not fit.
        json: Print JSON.
    """
    contexts = _parse_counts(plan.context, "--context", many=True)
    streams = _parse_counts(plan.concurrency, "--concurrency")
    mode = _wanted_mode(args)
    settings = replace(plan, context=None, concurrency=None)
    constraints = settings.constraints(bold=bold)
    if constraints.experts is not None and constraints.ubatch is None:
        constraints = replace(constraints, ubatch=UBATCH)
    long_request = args.request_tokens if args.request_tokens > DEFAULT_CONTEXT else 0
    longest = max((*contexts, long_request), default=0)
    serving = max(streams, default=0) if args.is_serving else 0
    found = find_target(
        target,
        box,
        replace(constraints, context=longest or None, concurrency=serving or None),
        has_constraints=settings != NO_PLAN_ARGS or bold,
        ram=ram,
        ram_bandwidth=ram_bandwidth,
    )
    is_recipe = recipes.is_recipe(target)
    if serving and not is_recipe:
        found = with_cache_warnings(found, serving, args.request_tokens, args.kv_tokens)
    found = with_known_facts(found, eager=args.eager, kv_tokens=args.kv_tokens, accept=args.accept)
    mode = mode or ("stream" if found.deployment.engine.offloads_experts else "decode")
    _refuse_unused(mode, args, plan, is_recipe=is_recipe)
    if mode != "serving":
        found = with_context_warning(found, max((*contexts, *args.prompt_lengths), default=0))
    rows = _forecast_rows(mode, found, args, contexts, streams)
    print_result(
        json,
        forecast_document(mode, found, rows),
        lambda: stdout_console().print(forecast_page(mode, found, rows)),
    )
    return exit_code(force or found.misfit is None)


def _wanted_mode(args: ForecastArgs) -> Mode | None:
    """Return the kind of forecast that the flags ask for; BadInput for two kinds, or flags of another kind."""
    wanted: dict[Mode, bool] = {"serving": args.is_serving, "decode": args.decode, "prefill": args.prefill}
    modes = [mode for mode, given in wanted.items() if given]
    several = "--decode, --prefill and --input with --output are three different forecasts; give one"
    refuse_if(len(modes) > 1, several)
    missing = args.is_serving and None in (args.input, args.output)
    refuse_if(missing, "a serving run needs --input and --output", hint="such as --input 8192 --output 2048")
    alone = args.input is not None and not (args.is_serving or args.prefill)
    refuse_if(alone, "--input needs --output or --prefill")
    unused = next((name for name in SERVING_FLAGS if getattr(args, name) != getattr(NO_ARGS, name)), "")
    text = f"{flag_name(unused)} is for a serving run"
    refuse_if(unused and not args.is_serving, text, hint="add --input and --output")
    return next(iter(modes), None)


def _refuse_unused(mode: Mode, args: ForecastArgs, plan: PlanArgs, *, is_recipe: bool) -> None:
    """Raise BadInput for flags that this kind of forecast ignores; a recipe sets the context."""
    streams, cache = {"concurrency": plan.concurrency}, {"kv_tokens": args.kv_tokens}
    if mode == "prefill":
        flags.refuse_unused("--prefill reads one prompt alone", **streams, **cache, accept=args.accept)
    if mode == "stream":
        flags.refuse_unused("without --decode one stream is forecast", **streams, **cache)
    if is_recipe and mode in ("prefill", "serving"):
        flags.refuse_unused("a recipe has its own context", context=plan.context)
    if args.rate is None and args.lengths == "fixed":
        flags.refuse_without("--rate or --lengths uniform", seed=args.seed)
    if mode != "serving":
        return
    if args.rate is not None:
        reason = "--rate sends by the clock"
        flags.refuse_unused(reason, per_stream=args.per_stream, warm=args.warm, window=args.window)
    if args.requests is not None:
        flags.refuse_unused("--requests sets the number", per_stream=args.per_stream)
    if not args.prefix_hit:
        flags.refuse_without("--prefix-hit", warm=args.warm)
    if args.turns == 1:
        flags.refuse_without("--turns", think=args.think)


def _forecast_rows(
    mode: Mode, target: ForecastTarget, args: ForecastArgs, contexts: Sequence[int], streams: Sequence[int]
) -> list[ForecastRow]:
    """Return the rows of one kind of forecast."""
    speed, memory, limit = target.speed, target.memory, target.recipe.context
    if mode == "decode":
        many = tuple(streams or sorted({*STREAMS, target.recipe.max_seqs or 1}))
        lengths = tuple(contexts or sizes_up_to(limit, CONTEXTS))
        return rows_of.decode_rows(speed, lengths, many, memory, target.recipe)
    if mode == "prefill":
        lengths = args.prompt_lengths or sizes_up_to(limit, PROMPTS)
        return rows_of.prefill_rows(speed, tuple(max(length, 1) for length in lengths))
    if mode == "stream":
        lengths = tuple(contexts or sizes_up_to(limit, HYBRID_CONTEXTS))
        return rows_of.stream_rows(speed, lengths, min(max(4096, speed.chunk_tokens), limit))
    refuse_without_cache(memory.kv_tokens)
    rules = scheduler_rules(target.recipe, memory.kv_tokens, speed, memory.sequence_tokens)
    return rows_of.serving_rows(speed, rules, _make_workloads(args, streams))


def _make_workloads(args: ForecastArgs, streams: Sequence[int]) -> list[SimulatedWorkload]:
    """Return a simulated run for each concurrency or rate."""
    refuse_out_of_range("--requests", args.requests, 1, LARGEST_RUN)
    refuse_out_of_range("--per-stream", args.per_stream, 1, 10_000)
    refuse_out_of_range("--prefill-engines", args.prefill_engines, 0, 1024)
    warm = args.warm
    refuse_if(warm is not None and not 0 <= warm <= 1, f"--warm {warm or 0:g} is not a share between 0 and 1")
    base = SimulatedWorkload(
        input=parse_token_count("--input", args.input) or 0,
        output=parse_token_count("--output", args.output) or 0,
        requests=args.requests or 1,
        concurrency=1,
        lengths=args.lengths,
        prefix_hit=args.prefix_hit,
        turns=args.turns,
        think_s=_parse_seconds("--think", args.think),
        cold_s=_parse_seconds("--cold", args.cold),
        prefill_engines=args.prefill_engines,
        seed=1 if args.seed is None else args.seed,
    )
    base.validate()
    if args.rate is not None:
        refuse_if(streams, "give either --rate or --concurrency")
        rates = flags.parse_numbers(
            args.rate.split(","),
            float,
            lambda rate: 0 < rate <= 1e6,
            not_numbers=f"--rate: {args.rate!r} is not a list of requests a second",
            hint="write it like 0.5,2",
        )
        requests = args.requests or OPEN_LOOP_REQUESTS
        return [replace(base, rate=rate, concurrency=0, requests=requests) for rate in rates]
    window = _parse_seconds("--window", args.window)
    each, least = (args.per_stream, 1) if args.per_stream else (PER_STREAM * args.turns, MIN_REQUESTS)
    return [
        replace(
            base,
            concurrency=count,
            requests=args.requests or min(max(each * count, least), MAX_REQUESTS),
            warm=None if warm is None else int(warm * count),
            spacing_s=window / count,
        )
        for count in streams or STREAMS
    ]


def _parse_seconds(flag: str, text: str) -> float:
    return flags.parse_value(flag, text, parse_seconds, hint="write it like 2s") if text else 0.0


def _parse_counts(text: str | None, flag: str, *, many: bool = False) -> tuple[int, ...]:
    """Parse counts with commas between them; with `many` as token counts (64k)."""
    if text is None:
        return ()
    parse, least = (parse_token_count, 0) if many else (parse_count, 1)
    found = tuple(parse(flag, part) or 0 for part in flags.split_names(text))
    wrong = not found or not least <= min(found) <= max(found) <= MAX_CONTEXT
    refuse_if(wrong, f"{flag}: {text!r} is not a list of counts", hint="write it like 1,8,32")
    return found


def forecast_document(mode: Mode, target: ForecastTarget, rows: list[ForecastRow]) -> Document:
    """Return the forecast under the keys that scripts rely on."""
    kind = RANGES[mode]
    low, high = target.speed.range_factors(kind)
    return {
        "simulated": True,
        "mode": mode,
        "model": target.model.name,
        "box": target.box.name,
        "recipe": target.recipe,
        "kv_tokens": target.memory.kv_tokens,
        "tokens_per_step": round(target.speed.tokens_per_step, 3),
        "band": {"low": round(low, 3), "high": round(high, 3)},
        "measured": target.speed.calibration_text,
        "basis": target.speed.basis_text(kind),
        "rows": rows,
        "fits": target.misfit is None,
        "warnings": target.all_warnings,
    }


def forecast_page(mode: Mode, target: ForecastTarget, rows: list[ForecastRow]) -> "RenderableType":
    """Return title, table, range and warnings for the terminal."""
    from rich.console import Group
    from rich.text import Text

    recipe, speed = target.recipe, target.speed
    words = [engine_display_name(recipe.engine)] + (["community image"] if recipe.runtime.preset else [])
    words += recipe.parallel.labels if recipe.hybrid is None else []
    words += [f"{recipe.kv} cache of {format_count(target.memory.kv_tokens)} tokens"]
    words += [f"{recipe.speculate.method} ×{recipe.speculate.tokens}"] if recipe.speculate else []
    title = Text.assemble((f"{target.model.title} {target.deployment.checkpoint.label}", "bold"))
    heads, lines, remark = FORECAST_TABLES[mode](rows)
    parts: list[RenderableType] = []
    if target.misfit:
        text = f"{target.misfit.text}; {target.misfit.remedy}. These speeds are hypothetical."
        parts.append(Text.assemble(("fatal: ", "bold red"), text))
    parts += [
        title.append(f" on {target.box.name}: {', '.join(words)}"),
        Text(),
        make_table(heads, lines),
    ]
    parts += [Text(remark)] if remark else []
    expect = f"expect {speed.range_text(RANGES[mode])}"
    if mode in ("serving", "stream"):
        expect += f"; prompts and TTFT {speed.range_text('prompt')}"
    source = speed.measured.text if speed.measured else "forecast, not a measurement"
    parts.append(Text(f"{source}: {expect}", style="dim"))
    if recipe.parallel.nodes > 1:
        parts.append(Text(describe_network(target.box), style="dim"))
    known = [warning for warning in target.warnings if warning.severity != "note"]
    parts += [Text.assemble((f"{warning.severity}: ", "yellow"), warning.text) for warning in known]
    return Group(*parts)
