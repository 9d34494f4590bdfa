"""The first screen: headline figures and a few sentences about them."""

from collections.abc import Iterator, Sequence
from statistics import median

from moebox import units
from moebox.assess.assessment import Tone
from moebox.assess.figures import planned_figures, reliable_loads
from moebox.assess.format import capitalize, format_ms, format_number, group_by, join_names, short_number, unique_names
from moebox.assess.naming import box_title, engine_title, model_title, parallelism_title, quant_title
from moebox.assess.recommend import load_sweeps, recommend
from moebox.report.block import Block, CustomBlock, Prose, Section, Tile
from moebox.report.sections.compare import incomparable_reason
from moebox.report.svg import run_colour
from moebox.runs.record import LoadResult, RunRecord

MAX_TILES = 6
MAX_RUN_TILES = 4  # up to this many runs have a tile each
STATUS_TEXTS = {"WORKING": "works", "PARTLY": "works in part", "FAILED": "failed", "SIMULATED": "was simulated"}
RATES = (
    ("total_tok_s", "highest input + output"),
    ("output_tok_s", "highest output"),
    ("tg_tok_s", "fastest generation"),
    ("pp_tok_s", "fastest prompt processing"),
)
RUN_RATES = (*RATES[1::-1], ("tg_tok_s", "token generation"), ("pp_tok_s", "prompt processing"))


def summary_section(records: Sequence[RunRecord]) -> Section:
    tiles = list(run_tiles(records[0])) if len(records) == 1 else list(comparison_tiles(records))
    blocks: list[Block] = [CustomBlock("tiles", tiles[:MAX_TILES])] if tiles else []
    blocks.append(Prose(paragraphs=tuple(summary_paragraphs(records))))
    return Section(id="summary", title="Summary", blocks=blocks)


def load_text(load: LoadResult) -> str:
    """ "at 8 concurrent, 256 in / 100 out"; with the share of requests that met the SLO, if there was one."""
    at = f"at {load.load_name}{' concurrent' if load.concurrency else ''}" if load.load_value else ""
    met = f"{load.slo_share:.0%} met the SLO" if load.slo_share is not None else ""
    return ", ".join(filter(None, (at, load.workload, met)))


def run_tiles(record: RunRecord) -> Iterator[Tile]:
    """One run's headline figures: rates, the shortest wait, the cache, the checks, the forecast's error."""
    for name, label in RUN_RATES:
        if load := record.peak_load(name):
            is_single = name in ("tg_tok_s", "pp_tok_s")
            detail = load.workload or load.name if is_single else load_text(load)
            yield Tile(figure=format_number(getattr(load, name)), unit="tok/s", label=label, detail=detail)
    timed = [load for load in record.loads if load.ttft.mean_or_median and load.output_tok_s]
    if timed:
        load = min(timed, key=lambda load: load.ttft.mean_or_median or 0)
        figure, _, unit = format_ms(load.ttft.mean_or_median).partition(" ")
        yield Tile(figure=figure, unit=unit, label="lowest mean TTFT", detail=load_text(load))
    if record.kv_tokens:
        detail = f"{units.format_count(record.kv_tokens)} exactly"
        yield Tile(figure=short_number(record.kv_tokens), unit="tokens", label="KV cache", detail=detail)
    if record.checks_run and not record.simulation:
        yield checks_tile(record)
    errors = [abs(figure.relative_error) for figure in planned_figures([record]) if figure.unit == "tok/s"]
    if errors:
        detail = f"median of {len(errors)} rates"
        yield Tile(figure=f"{median(errors) * 100:.0f}", unit="%", label="forecast error", detail=detail)


def checks_tile(record: RunRecord) -> Tile:
    """How many checks passed, and what else there is to know about them."""
    failed, warned = record.check_names("fail"), record.warned_names(known=False)
    known = record.warned_names(known=True)
    total = f"of {len(record.checks_run)}" + (f"; {len(known)} with known quirks of the engine" if known else "")
    tone: Tone = "warn"
    if failed:
        detail, tone = f"{join_names(failed)} failed", "bad"
    elif warned:
        detail = f"{total}; {len(warned)} with warnings"
    elif record.unfinished_checks is not None:
        detail = record.check_count_text
    elif record.verdict_is_partial:
        detail = f"{total}; {record.missing_check_count} not made"
    else:
        detail, tone = total, "good"
    return Tile(figure=str(len(record.check_names("pass"))), label="checks passed", detail=detail, tone=tone)


def comparison_tiles(records: Sequence[RunRecord]) -> Iterator[Tile]:
    """The rate that most runs have, run by run if they are few, else the best run of each rate; then cache and box.

    Beside a measurement, a simulation is never the best.
    """
    measured = [record for record in records if not record.simulation] or list(records)
    if len(records) <= MAX_RUN_TILES:
        name, label = max(RATES, key=lambda rate: sum(bool(record.peak_load(rate[0])) for record in records))
        for index, record in enumerate(records):
            if load := record.peak_load(name):
                figure, detail = format_number(getattr(load, name)), f"{label} {load_text(load)}".strip()
                colour = run_colour(index)
                yield Tile(figure=figure, unit="tok/s", label=record.label, detail=detail, colour=colour)
    else:
        for name, label in () if unlike_reason(records) else RATES:
            values = [(record.highest_value(name), index) for index, record in enumerate(records) if record in measured]
            highest, index = max(((value, i) for value, i in values if value is not None), default=(None, 0))
            if highest is not None:
                colour, detail = run_colour(index), records[index].label
                yield Tile(figure=format_number(highest), unit="tok/s", label=label, detail=detail, colour=colour)
        detail = f"{sum(record.status == 'WORKING' for record in records)} of {len(records)} fully working"
        yield Tile(figure=str(len(records)), label="configurations", detail=detail)
    largest = max(measured, key=lambda record: record.kv_tokens or 0)
    if largest.kv_tokens and not unlike_reason(records):
        figure = short_number(largest.kv_tokens)
        yield Tile(figure=figure, unit="tokens", label="largest KV cache", detail=largest.label)
    box = records[0].box
    if box and box.gpus and all(record.box == box for record in records):
        figure = format_number(box.gpu_memory / 2**30, 0)
        yield Tile(figure=figure, unit="GiB", label="device memory", detail=f"{len(box.gpus) * box.nodes} GPUs")


def summary_paragraphs(records: Sequence[RunRecord]) -> list[str]:
    """What ran on what, why a run failed or stopped, how it scaled, and the first recommendation."""
    planned = [record for record in records if record.recipe]
    groups = group_by(planned, lambda record: (model_name(record), box_title(record)))
    sentences = [*map(opening_sentence, groups.values())]
    if any(model_name(record).startswith("phantom") for record in records):
        sentences.append("The phantom is moebox's rehearsal model: 17 M parameters in Kimi's architecture.")
    found = [" ".join(sentences)] if sentences else []
    if len(records) > 1 and (reason := unlike_reason(records) or incomparable_reason(records)):
        found.append(f"No run is the best of all: {reason}.")
    found += [record.sentence_prefix + text for record in records if (text := ending_sentence(record))]
    if not found and any(record.loads or record.checks_run or record.tasks for record in records):
        name = records[0].server.model
        known, rest = (f"The server calls its model {name}. ", "its box is") if name else ("", "its model and box are")
        found.append(f"{known}This run has no recipe, so {rest} not known.")
    elif not found:
        found.append("Nothing was measured in this run yet.")
    scaling = " ".join(sentence for record in records[:3] for sentence in scaling_sentences(record))
    found += [scaling] if scaling else []
    advice = recommend(records)
    comparing = [row for row in advice if len(row.runs) > 1] if len(records) > 2 else []
    for first in [*comparing, *advice][:1]:
        found.append(f"Recommended: {first.title[0].lower()}{first.title[1:]}. {first.text}")
    return found


def unlike_reason(records: Sequence[RunRecord]) -> str:
    """Why none of the measured runs is the best; "" if they can be compared."""
    measured = [record for record in records if not record.simulation]
    if len({model_name(record) for record in measured if record.recipe}) > 1:
        return "the runs are of different models"
    return incomparable_reason(measured)


def model_name(record: RunRecord) -> str:
    """The model's title; "" without a recipe."""
    return model_title(record.recipe.model) if record.recipe else ""


def ending_sentence(record: RunRecord) -> str:
    """Why the run ended early or where it was interrupted, or which of its measurements are damaged."""
    failure = record.failure
    if failure:
        parts = [f"{failure.step} failed: {failure.message}", failure.cause, failure.remedy or failure.hint]
        return f"{capitalize('. '.join(part.rstrip('.') for part in parts if part))}."
    if record.unfinished_step:
        return f"The run was interrupted in {record.unfinished_step}: what came after it is missing."
    return f"Damaged: {'; '.join(record.damaged_loads)}." if record.damaged_loads else ""


def opening_sentence(group: Sequence[RunRecord]) -> str:
    """Runs of one model on one box: the engine, the layout, and whether it works."""
    first = group[0]
    engines = join_names(unique_names(map(engine_title, group)))
    name = f"{model_name(first)} ({join_names(unique_names(map(quant_title, group)))})"
    on_box = f" on {box_title(first)}" if box_title(first) else ""
    if len(group) == 1:
        layout = f", {parallelism_title(first)}" if parallelism_title(first) else ""
        # A climb or a resumed run starts its engine more than once; only failures make that worth a word here.
        has_failures = any(attempt.outcome != "SUCCESS" for attempt in first.attempts)
        is_retried = has_failures and len(first.attempts) > 1 and not first.imported
        attempts = f" after {len(first.attempts)} attempts" if is_retried else ""
        status = STATUS_TEXTS.get(first.status, "was tried")
        if first.status == "WORKING" and any(load.failed for load in first.loads):
            status = "works in part"
        return f"{name} {status}{on_box} with {engines}{layout}{attempts}."
    partly = [record.label for record in group if record.status in ("PARTLY", "FAILED")]
    in_part = f"; {join_names(partly)} only in part" if partly else ""
    simulated = " (simulated)" if any(record.simulation for record in group) else ""
    return f"{name}{on_box} with {engines}: {len(group)} configurations{in_part}{simulated}."


def scaling_sentences(record: RunRecord) -> list[str]:
    """From the lowest to the highest load, if exactly one workload was measured at several."""
    sweeps = load_sweeps(reliable_loads(record))
    if len(sweeps) != 1 or len({load.workload for load in record.loads if load.is_serving_load}) > 1:
        return []
    low, *_, high = sweeps[0]
    start = f"{record.page_label}: from" if record.page_label else "From"
    loads = f"{format_number(low.concurrency)} to {format_number(high.concurrency)} concurrent requests"
    rates = f"output goes from {format_number(low.output_tok_s)} to {format_number(high.output_tok_s)} tok/s"
    waits = ""
    if low.ttft.mean_or_median and high.ttft.mean_or_median:
        waits = f"; mean TTFT from {format_ms(low.ttft.mean_or_median)} to {format_ms(high.ttft.mean_or_median)}"
    return [f"{start} {loads} {rates}{waits}."]
