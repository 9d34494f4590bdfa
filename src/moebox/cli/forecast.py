"""`moebox forecast`: speed by concurrency and context, in virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli import subject as subjects
from moebox.cli.flags import parse_count, parse_token_count
from moebox.cli.output import print_result, stdout_console
from moebox.cli.pinned import PlanArgs
from moebox.cli.subject import ForecastTarget
from moebox.core.box import Box
from moebox.errors import BadInput, refuse_if, refuse_out_of_range
from moebox.flows import boxes, recipes
from moebox.loose import Document
from moebox.planner import forecast as rows_of
from moebox.planner.constraints import MAX_CONTEXT, Constraints
from moebox.planner.rate import sizes_up_to
from moebox.planner.simulate import SimulatedWorkload, scheduler_rules
from moebox.units import parse_seconds

NOTHING = PlanArgs()
CONTEXTS = (0, 16384, 32768, 65536, 131072)
STREAMS = (1, 8, 32, 64, 128)
PROMPTS = (1024, 8192, 32768, 65536, 131072)
HYBRID_CONTEXTS = (1024, 16384, 65536)
# As many requests for each stream as published serving runs send (InferenceX 10, Lambda 16), within reason.
PER_STREAM, LEAST, MOST = 10, 32, 20_000
# The micro-batch of a pinned layout that does not say: what published rows were measured with, by their prompt rates
# (loftllc.dev, Apr 2026: 185 and 223 tok/s with ik_llama.cpp and 188 with llama.cpp come out at 2048).
UBATCH = 2048
DEFAULT_CONTEXT = 65536  # tokens of context in a careful plan
LARGEST_RUN = 10_000_000
OPEN_LOOP = 1000  # requests of a simulated run at a rate, where nothing says how many
Mode = Literal["decode", "prefill", "serving", "stream"]
Rows = list[rows_of.ForecastRow]


@dataclass(frozen=True, kw_only=True)
class ForecastArgs:
    """What to forecast.

    Attributes:
        decode: Decode speed by context and concurrency, without prompts.
        prefill: Time to read one cold prompt, alone on the machine.
        input: Prompt tokens: of each request with --output, or of each row with --prefill, such as 8192,65536.
        output: Tokens of each answer; with --input this simulates a serving benchmark.
        rate: Requests a second instead of a concurrency, such as 0.5,2.
        requests: Requests of a simulated run; ten for each stream without it.
        per_stream: Requests of each stream instead, such as 1 for a single burst.
        lengths: fixed, or uniform for lengths between 1 and the one given.
        prefix_hit: Share of each prompt that lies in the prefix cache.
        warm: Share of the first burst's prompts whose prefix is cached; all of them without it.
        turns: Turns of a conversation, each on top of the ones before; 16 is an agent at work.
        think: Seconds between an answer and the next turn, such as 2s.
        cold: Seconds that the first step takes longer, such as 26s for kernels compiled at first use.
        window: Seconds over which the client sends its first requests, such as 3.6s; all at once without it.
        prefill_engines: Engines like this one that read the prompts and hand the cache over; none without it.
        accept: Share of draft tokens accepted, where it is known, such as 0.6.
        kv_tokens: Cache capacity to assume, such as the one in an engine's log.
        eager: Without CUDA graphs.
        seed: For the arrivals of --rate and for --lengths uniform; 1 when left out.
    """

    decode: Annotated[bool, Parameter(negative=())] = False
    prefill: Annotated[bool, Parameter(negative=())] = False
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
    eager: Annotated[bool, Parameter(negative=())] = False
    seed: int | None = None

    @property
    def is_serving(self) -> bool:
        """Whether a serving run is asked for."""
        return self.output is not None or self.rate is not None

    @property
    def modes(self) -> "list[Mode]":
        """The kinds of forecast that are asked for."""
        wanted: dict[Mode, bool] = {"serving": self.is_serving, "decode": self.decode, "prefill": self.prefill}
        return [mode for mode, given in wanted.items() if given]


NO_WISH = ForecastArgs()
# What only a simulated serving run can take up.
SERVING = (
    "requests",
    "per_stream",
    "lengths",
    "prefix_hit",
    "warm",
    "turns",
    "think",
    "cold",
    "window",
    "prefill_engines",
)


def forecast(
    target: str,
    *,
    box: str | None = None,
    asked: Annotated[ForecastArgs, Parameter(name="*")] = NO_WISH,
    pinned: Annotated[PlanArgs, Parameter(name="*")] = NOTHING,
    bold: Annotated[bool, Parameter(negative=())] = False,
    ram: str = "",
    ram_bandwidth: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Forecast the speed of a recipe, or of the plan for a model: decoding, prompts, or a serving benchmark.

    Serving runs are simulated in virtual time: admission by cache, chunked prompts, decoding, preemption, drafts.

    Args:
        target: A recipe file (.toml), or a model as `plan` takes it.
        box: COUNTxGPU such as 8x-rtx-pro-6000-server, or a TOML file; the recipe's box or this machine without it.
        asked: What to forecast.
        pinned: Settings of the plan that must hold; a recipe file has its own.
        bold: The plan with the best forecast instead of the careful one.
        ram: Memory to assume, such as 768GiB.
        ram_bandwidth: Its bandwidth, such as 614GB/s.
        json: Print JSON.
    """
    contexts = _counts(pinned.context, "--context", many=True)
    streams = _counts(pinned.concurrency, "--concurrency")
    _refuse_contradictions(asked)
    settings = replace(pinned, context=None, concurrency=None)
    if recipes.is_recipe(target):
        fixed = settings != NOTHING or bold
        subject = subjects.target_from_recipe(target, box, has_constraints=fixed, ram=ram, ram_bandwidth=ram_bandwidth)
    else:
        where = boxes.calibrated_box(box, ram=ram, ram_bandwidth=ram_bandwidth)
        serving = max(streams, default=0) if asked.is_serving else 0
        subject = _planned(target, where, settings.constraints(bold=bold), asked, contexts, serving)
    subject = _as_asked(subject, asked)
    usual: Mode = "stream" if subject.deployment.engine.offloads_experts else "decode"
    mode = next(iter(asked.modes), usual)
    _refuse_unused(mode, asked, pinned, fixed=recipes.is_recipe(target))
    subject = (
        subjects.with_context_warning(subject, max((*contexts, *_prompts(asked, 0)))) if mode != "serving" else subject
    )
    rows = ROWS[mode](subject, asked, contexts, streams)
    print_result(json, forecast_document(mode, subject, rows), lambda: _show(mode, subject, rows))
    return 0


def _show(mode: Mode, subject: ForecastTarget, rows: Rows) -> None:
    from moebox.cli.forecast_view import forecast_page

    stdout_console().print(forecast_page(mode, subject, rows))


def _planned(
    model: str, box: Box, pins: Constraints, asked: ForecastArgs, contexts: tuple[int, ...], serving: int
) -> ForecastTarget:
    """The plan for a model, long and wide enough for what is asked; `serving` is the highest concurrency of a run."""
    if pins.experts is not None and pins.ubatch is None:
        pins = replace(pins, ubatch=UBATCH)
    longest = max((*contexts, _longest(asked)), default=0)
    subject = subjects.target_from_plan(model, box, replace(pins, context=longest or None, concurrency=serving or None))
    return (
        subjects.with_cache_warnings(subject, serving, _request_tokens(asked), asked.kv_tokens) if serving else subject
    )


def _as_asked(subject: ForecastTarget, asked: ForecastArgs) -> ForecastTarget:
    """With what is known better than the planner knows it: graphs, cache, acceptance."""
    if asked.eager:
        subject = subjects.without_graphs(subject)
    if asked.kv_tokens is not None:
        subject = replace(subject, memory=replace(subject.memory, kv_tokens=asked.kv_tokens))
    return subject if asked.accept is None else subjects.with_acceptance(subject, asked.accept)


def forecast_document(mode: Mode, subject: ForecastTarget, rows: Rows) -> Document:
    """The forecast under the keys that scripts rely on."""
    low, high = subject.speed.prefill_range if mode == "prefill" else subject.speed.decode_range
    return {
        "simulated": True,
        "mode": mode,
        "model": subject.model.name,
        "box": subject.box.name,
        "recipe": subject.recipe,
        "kv_tokens": subject.memory.kv_tokens,
        "tokens_per_step": round(subject.speed.tokens_per_step, 3),
        "band": {"low": round(low, 3), "high": round(high, 3)},
        "measured": subject.speed.calibration_text,
        "basis": subject.speed.basis_text(prompts=mode == "prefill"),
        "rows": rows,
        "warnings": subject.warnings,
    }


def _refuse_contradictions(asked: ForecastArgs) -> None:
    """BadInput for two kinds of forecast at once, and for flags of one that is not asked for."""
    several = "--decode, --prefill and --input with --output are three different forecasts; give one"
    refuse_if(len(asked.modes) > 1, several)
    missing = asked.is_serving and None in (asked.input, asked.output)
    refuse_if(missing, "a serving run needs --input and --output", hint="such as --input 8192 --output 2048")
    alone = asked.input is not None and not (asked.is_serving or asked.prefill)
    refuse_if(alone, "--input goes with --output or with --prefill")
    lost = next((name for name in SERVING if getattr(asked, name) != getattr(NO_WISH, name)), "")
    text = f"{flags.flag_name(lost)} is for a serving run"
    refuse_if(lost and not asked.is_serving, text, hint="add --input and --output")


def _refuse_unused(mode: Mode, asked: ForecastArgs, pinned: PlanArgs, *, fixed: bool) -> None:
    """BadInput for what this kind of forecast has no use for; `fixed`: a recipe says the context."""
    streams, cache = {"concurrency": pinned.concurrency}, {"kv_tokens": asked.kv_tokens}
    if mode == "prefill":
        flags.refuse_unused("--prefill reads one prompt alone", **streams, **cache, accept=asked.accept)
    if mode == "stream":
        flags.refuse_unused("without --decode one stream is forecast", **streams, **cache)
    if fixed and mode in ("prefill", "serving"):
        flags.refuse_unused("a recipe has its own context", context=pinned.context)
    if asked.rate is None and asked.lengths == "fixed":
        flags.refuse_without("--rate or --lengths uniform", seed=asked.seed)
    if mode == "serving":
        _refuse_in_serving(asked)


def _refuse_in_serving(asked: ForecastArgs) -> None:
    """BadInput for flags of a serving run that have no effect with, or without, another."""
    if asked.rate is not None:
        why = "--rate sends by the clock"
        flags.refuse_unused(why, per_stream=asked.per_stream, warm=asked.warm, window=asked.window)
    if asked.requests is not None:
        flags.refuse_unused("--requests says how many there are", per_stream=asked.per_stream)
    if not asked.prefix_hit:
        flags.refuse_without("--prefix-hit", warm=asked.warm)
    if asked.turns == 1:
        flags.refuse_without("--turns", think=asked.think)


def _longest(asked: ForecastArgs) -> int:
    """The longest sequence asked for, where it is more than a careful plan would allow; 0 otherwise."""
    length = _request_tokens(asked)
    return length if length > DEFAULT_CONTEXT else 0


def _request_tokens(asked: ForecastArgs) -> int:
    prompts = _counts(asked.input, "--input", many=True)
    return max(prompts, default=0) + (parse_token_count("--output", asked.output) or 0)


def _decoding(
    subject: ForecastTarget, asked: ForecastArgs, contexts: tuple[int, ...], streams: tuple[int, ...]
) -> Rows:
    """By context and concurrency."""
    limit, most = subject.recipe.context, subject.recipe.max_seqs
    lengths = contexts or sizes_up_to(limit, CONTEXTS)
    many = streams or tuple(sorted({*STREAMS, most or 1}))
    return rows_of.decode_rows(subject.speed, lengths, many, subject.memory.kv_tokens, most)


def _reading(subject: ForecastTarget, asked: ForecastArgs, contexts: tuple[int, ...], streams: tuple[int, ...]) -> Rows:
    """By length of a cold prompt."""
    return rows_of.prefill_rows(subject.speed, _prompts(asked, subject.recipe.context))


def _streaming(
    subject: ForecastTarget, asked: ForecastArgs, contexts: tuple[int, ...], streams: tuple[int, ...]
) -> Rows:
    """One stream by context."""
    speed, limit = subject.speed, subject.recipe.context
    lengths = contexts or sizes_up_to(limit, HYBRID_CONTEXTS)
    return rows_of.stream_rows(speed, lengths, min(max(4096, speed.chunk_tokens), limit))


def _serving(subject: ForecastTarget, asked: ForecastArgs, contexts: tuple[int, ...], streams: tuple[int, ...]) -> Rows:
    """A simulated run for each concurrency or rate."""
    kv_tokens = subject.memory.kv_tokens
    subjects.refuse_without_cache(kv_tokens)
    rules = scheduler_rules(subject.recipe, kv_tokens, subject.speed)
    return rows_of.serving_rows(subject.speed, rules, _workloads(asked, streams))


ROWS: dict[Mode, Callable[[ForecastTarget, ForecastArgs, tuple[int, ...], tuple[int, ...]], Rows]] = {
    "decode": _decoding,
    "prefill": _reading,
    "stream": _streaming,
    "serving": _serving,
}


def _prompts(asked: ForecastArgs, limit: int) -> tuple[int, ...]:
    """Lengths of prompts: those asked for, or the usual ones that the context holds."""
    lengths = _counts(asked.input, "--input", many=True) or sizes_up_to(limit, PROMPTS)
    return tuple(max(length, 1) for length in lengths)


def _workloads(asked: ForecastArgs, streams: tuple[int, ...]) -> list[SimulatedWorkload]:
    """A simulated run for each concurrency or rate."""
    _check(asked)
    base = _request(asked)
    base.validate()
    if asked.rate is None:
        return [_load(base, asked, count) for count in streams or STREAMS]
    refuse_if(streams, "give either --rate or --concurrency")
    requests = asked.requests or OPEN_LOOP
    return [replace(base, rate=rate, concurrency=0, requests=requests) for rate in _rates(asked.rate)]


def _request(asked: ForecastArgs) -> SimulatedWorkload:
    """What each request asks for, sent once."""
    return SimulatedWorkload(
        input=parse_token_count("--input", asked.input) or 0,
        output=parse_token_count("--output", asked.output) or 0,
        requests=asked.requests or 1,
        concurrency=1,
        lengths=asked.lengths,
        prefix_hit=asked.prefix_hit,
        turns=asked.turns,
        think_s=_seconds("--think", asked.think),
        cold_s=_seconds("--cold", asked.cold),
        prefill_engines=asked.prefill_engines,
        seed=1 if asked.seed is None else asked.seed,
    )


def _load(base: SimulatedWorkload, asked: ForecastArgs, streams: int) -> SimulatedWorkload:
    """The workload of one concurrency."""
    each = asked.per_stream or PER_STREAM * asked.turns
    least = 1 if asked.per_stream else LEAST
    requests = asked.requests or min(max(each * streams, least), MOST)
    warm = None if asked.warm is None else int(asked.warm * streams)
    spacing = _seconds("--window", asked.window) / streams
    return replace(base, concurrency=streams, requests=requests, warm=warm, spacing_s=spacing)


def _check(asked: ForecastArgs) -> None:
    """What of a serving run cannot be meant."""
    refuse_out_of_range("--requests", asked.requests, 1, LARGEST_RUN)
    refuse_out_of_range("--per-stream", asked.per_stream, 1, 10_000)
    refuse_out_of_range("--prefill-engines", asked.prefill_engines, 0, 1024)
    if asked.warm is not None and not 0 <= asked.warm <= 1:
        raise BadInput(f"--warm {asked.warm:g} is not a share between 0 and 1")


def _seconds(flag: str, text: str) -> float:
    return flags.parse_value(flag, text, parse_seconds, hint="write it like 2s") if text else 0.0


def _rates(text: str) -> tuple[float, ...]:
    wrong = f"--rate: {text!r} is not a list of requests a second"
    return flags.parse_numbers(
        text.split(","), float, lambda rate: 0 < rate <= 1e6, not_numbers=wrong, hint="write it like 0.5,2"
    )


def _counts(text: str | None, flag: str, *, many: bool = False) -> tuple[int, ...]:
    """Counts with commas between them; with `many` as people write tokens (64k)."""
    if text is None:
        return ()
    read, least = (parse_token_count, 0) if many else (parse_count, 1)
    found = tuple(read(flag, part) or 0 for part in flags.split_names(text))
    wrong = not found or not least <= min(found) <= max(found) <= MAX_CONTEXT
    refuse_if(wrong, f"{flag}: {text!r} is not a list of counts", hint="write it like 1,8,32")
    return found
