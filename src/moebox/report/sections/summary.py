"""The first screen: headline figures and what they mean in a few sentences."""

from collections.abc import Iterable, Sequence
from statistics import median

from moebox import units
from moebox.report.block import Block, Prose, Section, Tile, Tiles, Tone
from moebox.report.format import capitalize, format_ms, format_number, group_by, join_names, short_number, unique_names
from moebox.report.naming import box_title, engine_title, model_title, parallelism_title, quant_title
from moebox.report.palette import run_colour
from moebox.report.record import LoadResult, RunRecord
from moebox.report.rules import Advice, load_sweeps, make_advice
from moebox.report.sections.models import run_status
from moebox.report.sections.plan import planned_figures

MOST_TILES = 6
FEW = 4  # runs up to this many have a tile each
STATES = {"WORKING": "works", "PARTLY": "works in part", "FAILED": "failed", "SIMULATED": "was simulated"}


def section(records: Sequence[RunRecord]) -> Section:
    """Tiles and prose."""
    tiles = for_one(records[0]) if len(records) == 1 else for_several(records)
    blocks: list[Block] = [Tiles(tiles=tuple(tiles[:MOST_TILES]))] if tiles else []
    blocks.append(Prose(paragraphs=tuple(prose(records))))
    return Section(id="summary", title="Summary", blocks=tuple(blocks))


def at(level: LoadResult) -> str:
    """Under which load."""
    words = [f"at {format_number(level.concurrency)} concurrent" if level.concurrency else "", level.workload]
    return ", ".join(filter(None, words))


def for_one(record: RunRecord) -> list[Tile]:
    """One run's headline figures."""
    tiles = [*rate_tiles(record), *alone_tiles(record), *wait_tiles(record), *cache_tiles(record)]
    return [*tiles, *check_tiles(record), *forecast_tiles(record)]


def rate_tiles(record: RunRecord) -> Iterable[Tile]:
    """The highest throughput of a serving benchmark."""
    for name, label in (("output_tok_s", "highest output"), ("total_tok_s", "highest input + output")):
        if level := record.peak_load(name):
            yield Tile(figure=format_number(getattr(level, name)), unit="tok/s", label=label, detail=at(level))


def alone_tiles(record: RunRecord) -> Iterable[Tile]:
    """Prefill and decode alone, as llama.cpp people report them."""
    for name, label in (("tg_tok_s", "token generation"), ("pp_tok_s", "prompt processing")):
        if level := record.peak_load(name):
            detail = level.workload or level.name
            yield Tile(figure=format_number(getattr(level, name)), unit="tok/s", label=label, detail=detail)


def wait_tiles(record: RunRecord) -> Iterable[Tile]:
    """The shortest time to first token under a load."""
    timed = [level for level in record.loads if level.ttft.mean_or_median and level.output_tok_s]
    if timed:
        level = min(timed, key=lambda level: level.ttft.mean_or_median or 0)
        figure, _, unit = format_ms(level.ttft.mean_or_median).partition(" ")
        yield Tile(figure=figure, unit=unit, label="lowest mean TTFT", detail=at(level))


def cache_tiles(record: RunRecord) -> Iterable[Tile]:
    """The KV cache as the engine reported it."""
    if record.kv_tokens:
        detail = f"{units.format_count(record.kv_tokens)} exactly"
        yield Tile(figure=short_number(record.kv_tokens), unit="tokens", label="KV cache", detail=detail)


def check_tiles(record: RunRecord) -> Iterable[Tile]:
    """How many checks passed; nothing of a simulation, whose answers mean nothing."""
    if record.checks_run and not record.simulation:
        detail, tone = verdict(record)
        yield Tile(figure=str(len(record.check_names("pass"))), label="checks passed", detail=detail, tone=tone)


def verdict(record: RunRecord) -> tuple[str, Tone]:
    """What there is to say of the checks beside how many passed."""
    failed, warned, total = record.check_names("fail"), record.check_names("warn"), f"of {len(record.checks_run)}"
    if failed:
        return f"{join_names(failed)} failed", "bad"
    if warned:
        return f"{total}; {len(warned)} with warnings", "warn"
    if record.is_verification_unfinished:
        return record.check_count_text, "warn"
    return (f"{total}; {record.missing_check_count} not made", "warn") if record.is_partly_checked else (total, "good")


def forecast_tiles(record: RunRecord) -> Iterable[Tile]:
    """How far the forecast rates were off."""
    errors = [abs(pair.relative_error) for pair in planned_figures([record]) if pair.unit == "tok/s"]
    if errors:
        detail = f"median of {len(errors)} rates"
        yield Tile(figure=f"{median(errors) * 100:.0f}", unit="%", label="forecast error", detail=detail)


def for_several(records: Sequence[RunRecord]) -> list[Tile]:
    """The same figure of each run where they are few, else the best of each figure; then what the box offers."""
    tiles = each(records) if len(records) <= FEW else [*best(records), configurations_tile(records)]
    return [*tiles, *largest_cache(records), *device_memory(records)]


def configurations_tile(records: Sequence[RunRecord]) -> Tile:
    """How many configurations there are, and how many of them work."""
    working = sum(run_status(record) == "WORKING" for record in records)
    detail = f"{working} of {len(records)} fully working"
    return Tile(figure=str(len(records)), label="configurations", detail=detail)


def largest_cache(records: Sequence[RunRecord]) -> Iterable[Tile]:
    """The run with the most KV cache."""
    largest = max(records, key=lambda record: record.kv_tokens or 0)
    if largest.kv_tokens:
        yield Tile(
            figure=short_number(largest.kv_tokens), unit="tokens", label="largest KV cache", detail=largest.label
        )


def device_memory(records: Sequence[RunRecord]) -> Iterable[Tile]:
    """The GPUs' memory, where all runs had the same box."""
    box = records[0].box
    if box is None or not box.gpus or any(record.box != box for record in records):
        return
    detail = f"{len(box.gpus) * box.nodes} GPUs"
    yield Tile(figure=format_number(box.gpu_memory / 2**30, 0), unit="GiB", label="device memory", detail=detail)


FIGURES = (
    ("total_tok_s", "highest input + output"),
    ("output_tok_s", "highest output"),
    ("tg_tok_s", "fastest generation"),
    ("pp_tok_s", "fastest prompt processing"),
)


def each(records: Sequence[RunRecord]) -> list[Tile]:
    """One figure that most runs have, run by run."""
    name, label = max(FIGURES, key=lambda figure: sum(bool(record.peak_load(figure[0])) for record in records))
    return [
        rate_tile(record.highest_value(name), record.label, f"{label} {at(level)}".strip(), index)
        for index, record in enumerate(records)
        if (level := record.peak_load(name))
    ]


def best(records: Sequence[RunRecord]) -> list[Tile]:
    """Each figure's best run."""
    tops = ((label, top(records, name)) for name, label in FIGURES)
    return [rate_tile(value, label, records[index].label, index) for label, (value, index) in tops if value is not None]


def top(records: Sequence[RunRecord], name: str) -> tuple[float | None, int]:
    """The highest value of a figure, and the place of the run that has it; None where no run does."""
    found = ((record.highest_value(name), index) for index, record in enumerate(records))
    return max(((value, index) for value, index in found if value is not None), default=(None, 0))


def rate_tile(value: float | None, label: str, detail: str, index: int) -> Tile:
    """A rate of one run."""
    return Tile(figure=format_number(value), unit="tok/s", label=label, detail=detail, colour=run_colour(index))


def prose(records: Sequence[RunRecord]) -> list[str]:
    """What ran on what, why a run failed or where it stopped, how it scaled, and the first recommendation."""
    ran = " ".join([*openings(records), *phantom_note(records)])
    broken = [record.sentence_prefix + text for record in records if (text := failed(record) or stopped(record))]
    first = list(filter(None, (ran, *broken))) or [_without_recipe(records)]
    grew = " ".join(sentence for record in records[:3] for sentence in scaling_sentences(record))
    return [*first, *filter(None, (grew, recommended(records)))]


def _without_recipe(records: Sequence[RunRecord]) -> str:
    """What there is of servers that moebox did not start."""
    if any(record.loads or record.checks_run or record.tasks for record in records):
        return "This run has no recipe, so what ran on what is not told here."
    return "Nothing was measured in this run yet."


def recommended(records: Sequence[RunRecord]) -> str:
    """The first recommendation, in a sentence."""
    advice = first_advice(records)
    return f"Recommended: {advice.title[0].lower()}{advice.title[1:]}. {advice.text}" if advice else ""


def phantom_note(records: Sequence[RunRecord]) -> list[str]:
    """What a reader cannot know: the phantom is no model of anybody's."""
    if not any(model_name(record).startswith("phantom") for record in records):
        return []
    return ["The phantom is moebox's rehearsal model: 17 M parameters in Kimi's architecture."]


def first_advice(records: Sequence[RunRecord]) -> Advice | None:
    """The recommendation worth the first screen: of many runs, one that compares them."""
    advice = make_advice(records)
    comparing = [item for item in advice if len(item.runs) > 1] if len(records) > 2 else []
    return next(iter([*comparing, *advice]), None)


def failed(record: RunRecord) -> str:
    """Why the run ended early, in a sentence; "" where nothing failed."""
    failure = record.failure
    if failure is None:
        return ""
    parts = [f"{failure.step} failed: {failure.message}", failure.cause, failure.remedy or failure.hint]
    text = ". ".join(part.rstrip(".") for part in parts if part)
    return f"{capitalize(text)}."


def stopped(record: RunRecord) -> str:
    """Where the run was interrupted, in a sentence; "" where it was not."""
    return (
        f"The run was interrupted in {record.unfinished_step}: what came after it is missing."
        if record.unfinished_step
        else ""
    )


def openings(records: Sequence[RunRecord]) -> list[str]:
    """Runs of one model on one box in one sentence."""
    planned = [record for record in records if record.recipe]
    return [*map(opening, group_by(planned, lambda record: (model_name(record), box_title(record))).values())]


def model_name(record: RunRecord) -> str:
    """The model as a reader knows it; "" without a recipe."""
    return model_title(record.recipe.model) if record.recipe else ""


def opening(group: Sequence[RunRecord]) -> str:
    """What ran on what, with what, and whether it works."""
    first = group[0]
    quants = join_names(unique_names(map(quant_title, group)))
    engines = join_names(unique_names(map(engine_title, group)))
    name = f"{model_name(first)} ({quants})"
    where = f" on {box_title(first)}" if box_title(first) else ""
    if len(group) == 1:
        state = STATES.get(run_status(first), "was tried")
        return f"{name} {state}{where} with {engines}{_layout(first)}{_attempts(first)}."
    simulated = " (simulated)" if any(record.simulation for record in group) else ""
    return f"{name}{where} with {engines}: {len(group)} configurations{_in_part(group)}{simulated}."


def _layout(record: RunRecord) -> str:
    layout = parallelism_title(record)
    return f", {layout}" if layout else ""


def _attempts(record: RunRecord) -> str:
    """A climb or a resumed run starts its engine more than once; only failures make that worth a word here."""
    failures = any(attempt.outcome != "SUCCESS" for attempt in record.attempts)
    if record.imported or not failures or len(record.attempts) < 2:
        return ""
    return f" after {len(record.attempts)} attempts"


def _in_part(group: Sequence[RunRecord]) -> str:
    labels = [record.label for record in group if run_status(record) in ("PARTLY", "FAILED")]
    return f"; {join_names(labels)} only in part" if labels else ""


def scaling_sentences(record: RunRecord) -> list[str]:
    """From the lowest to the highest load, where one workload was measured at several."""
    several = load_sweeps(record)
    if len(several) != 1 or len({level.workload for level in record.loads if level.is_serving_load}) > 1:
        return []
    low, *_, high = several[0]
    start = f"{record.page_label}: from" if record.page_label else "From"
    loads = f"{format_number(low.concurrency)} to {format_number(high.concurrency)} concurrent requests"
    rates = f"output goes from {format_number(low.output_tok_s)} to {format_number(high.output_tok_s)} tok/s"
    return [f"{start} {loads} {rates}{_waiting(low, high)}."]


def _waiting(low: LoadResult, high: LoadResult) -> str:
    if not low.ttft.mean_or_median or not high.ttft.mean_or_median:
        return ""
    return f"; mean TTFT from {format_ms(low.ttft.mean_or_median)} to {format_ms(high.ttft.mean_or_median)}"
