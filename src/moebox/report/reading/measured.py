"""measurements/*.json to levels: our own files, and those of other tools, in vLLM's field names."""

from pathlib import Path
from typing import Any

from moebox import codec
from moebox.core import result
from moebox.core.result import STATS, LatencyStats, Measurement, PrefillDecode
from moebox.errors import BadInput
from moebox.escape import printable_line
from moebox.loose import Json, as_object, get_number, get_objects, get_path, get_text, is_true
from moebox.report.record import LoadRequest, LoadResult
from moebox.store import plain

LISTS = ("levels", "measurements", "rows", "results")


def read_loads(folder: Path) -> tuple[list[LoadResult], list[str]]:
    """Every level in `folder`, by load; and what could not be read."""
    levels: list[LoadResult] = []
    gaps: list[str] = []
    for path in plain.list_entries(folder, "*.json"):
        try:
            found = of_file(plain.load_json(path), path)
        except BadInput as problem:
            gaps.append(f"measurements/{path.name}: {problem.message.split(': ', 1)[-1]}")
            continue
        if not found:
            gaps.append(f"measurements/{path.name}: holds no figures")
        levels += found
    return sorted(levels, key=order), gaps


def of_file(document: Any, path: Path) -> list[LoadResult]:
    """The levels of one file, ours or another tool's."""
    ours = typed(document, path)
    if ours is not None:
        return ours
    common = shared(as_object(document))
    made = (imported_load({**common, **row}, name=path.stem, folder=path.parent) for row in listed(document))
    return [level for level in made if says_something(level)]


def listed(document: object) -> list[Json]:
    """The rows of a file of others: under a name, a list of its own, or the document itself."""
    common = as_object(document)
    return get_objects(common, *LISTS) or ([common] if common else get_objects({"all": document}, "all"))


def typed(document: Any, path: Path) -> list[LoadResult] | None:
    """The levels of a file that moebox wrote itself, by its own types; None where it is someone else's, or damaged."""
    kind = document.get("kind") if result.is_own_document(document) else ""
    try:
        if kind == "serving":
            return [serving(result.parse_measurement(document, str(path)), document, path)]
        return tested(result.parse_prefill_decode(document, str(path))) if kind == "pp-tg" else None
    except BadInput:
        return None


def serving(found: Measurement, document: Json, path: Path) -> LoadResult:
    """A measurement of ours as a level."""
    work = found.workload
    lengths = lengths_text(work.input_tokens, work.output_tokens)
    return LoadResult(
        name=found.label or path.stem,
        workload=", ".join(filter(None, (telling(work.kind), lengths))),
        concurrency=found.max_concurrency,
        request_rate=found.request_rate if found.request_rate != "inf" else None,
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        mean_input_tokens=None
        if work.turns > 1 or found.cached_input_tokens
        else mean(found.total_input_tokens, found),
        mean_output_tokens=mean(found.total_output_tokens, found),
        requests=found.num_prompts,
        completed=found.completed,
        failed=found.bad_requests,
        duration_s=found.duration,
        request_s=found.request_throughput,
        output_tok_s=found.output_throughput,
        total_tok_s=found.total_token_throughput,
        peak_tok_s=found.max_output_tokens_per_s,
        ttft=found.ttft,
        tpot=found.tpot,
        itl=found.itl,
        e2e=found.e2el,
        tokens_per_joule=found.tokens_per_joule,
        acceptance=found.server.accepted_per_step if found.server else None,
        client_limited=found.client_limited,
        flags=tuple(map(printable_line, found.flags)),
        partial=found.partial,
        simulation=found.simulation,
        samples=samples_of(document, path.parent, path.stem),
        request=LoadRequest(workload=work, load=found.load, warmup=found.warmup, slo=found.slo),
        raw=document,
    )


def mean(tokens: int, found: Measurement) -> float | None:
    """Of one request that was completed; None where nothing was counted."""
    return tokens / found.completed if found.completed and tokens else None


def tested(found: PrefillDecode) -> list[LoadResult]:
    """Prefill and decode alone, a level for each test."""
    return [
        LoadResult(
            name=name_of({"test": row.test, "cold": row.cold}),
            workload="prefill and decode alone",
            tg_tok_s=row.tg_tok_s,
            pp_tok_s=row.pp_tok_s,
            ttft=LatencyStats(mean=row.mean_ttft_ms),
            flags=tuple(printable_line(flag) for flag in found.flags if flag.startswith(f"{row.test} ") and row.cold),
            simulation=found.simulation,
            request=LoadRequest(workload=found.workload, load=found.load, test=row.test, repeat=found.repeat),
            raw=codec.to_plain(row),
        )
        for row in found.rows
    ]


def shared(document: Json) -> Json:
    """What a file says of all its rows."""
    return {key: value for key, value in document.items() if key not in LISTS}


def order(level: LoadResult) -> tuple[str, float, float, str]:
    """Workload, then load."""
    return level.workload, level.concurrency or 0.0, level.request_rate or 0.0, level.name


def says_something(level: LoadResult) -> bool:
    """Has at least one figure, or says that nothing was completed."""
    rates = (level.output_tok_s, level.total_tok_s, level.tg_tok_s, level.pp_tok_s)
    return any(value is not None for value in (*rates, level.ttft.mean_or_median, level.completed))


def imported_load(row: Json, *, name: str, folder: Path) -> LoadResult:
    """One row as a level."""
    completed = get_number(row, "completed", "num_completed")
    ask, answer = (per_request(row, which, completed) for which in ("input", "output"))
    return LoadResult(
        name=name_of(row) or name,
        workload=work_of(row, lengths_text(ask, answer)),
        concurrency=get_number(row, "concurrency", "max_concurrency", "load.concurrency"),
        request_rate=get_number(row, "rate", "request_rate", "load.rate"),
        input_tokens=ask,
        output_tokens=answer,
        requests=get_number(row, "num_prompts", "requests"),
        completed=completed,
        failed=get_number(row, "failed", "num_failed"),
        duration_s=get_number(row, "duration", "duration_s"),
        request_s=get_number(row, "request_throughput"),
        output_tok_s=get_number(row, "output_throughput", "output_tok_s"),
        total_tok_s=get_number(row, "total_token_throughput", "total_tok_s"),
        peak_tok_s=get_number(row, "max_output_tokens_per_s", "peak_output_tok_s"),
        tg_tok_s=get_number(row, "tg_tok_s", "decode_tok_s"),
        pp_tok_s=get_number(row, "pp_tok_s", "prefill_tok_s"),
        ttft=spread(row, "ttft"),
        tpot=spread(row, "tpot"),
        itl=spread(row, "itl"),
        e2e=spread(row, "e2el"),
        tokens_per_joule=get_number(row, "tokens_per_joule", "power.tokens_per_joule", "power.output_tokens_per_joule"),
        acceptance=get_number(row, "accepted_per_step", "server.accepted_per_step", "acceptance_length"),
        client_limited=is_true(row, "client_limited"),
        flags=flags_of(row),
        partial=is_true(row, "partial", "interrupted"),
        simulation=is_true(row, "simulation", "simulated"),
        source=get_text(row, "source"),
        note=get_text(row, "note"),
        samples=samples_of(row, folder, name),
        raw=row,
    )


def name_of(row: Json) -> str:
    """What the measurement is called: its label, or the test with the state of the cache."""
    test = get_text(row, "test")
    return test + cache_of(row, test) if test else get_text(row, "name", "label")


def cache_of(row: Json, test: str) -> str:
    """The state of the prefix cache, which decides a prompt's speed."""
    if row.get("cold") is False:
        return ", warm cache"
    return ", cold cache" if test.startswith("pp") else ""


def flags_of(row: Json) -> tuple[str, ...]:
    """What the measurement itself says against its figures."""
    flags = get_path(row, "flags")
    if not isinstance(flags, list):
        return ()
    return tuple(printable_line(flag) for flag in flags if isinstance(flag, str))


def work_of(row: Json, lengths: str) -> str:
    """What was asked: a title, or the kind of text with its lengths."""
    if row.get("kind") == "pp-tg":
        return "prefill and decode alone"
    title = get_text(row, "workload.title", "workload.name", "workload", "preset", "dataset_name")
    parts = [telling(title), telling(get_text(row, "workload.kind")), "" if title else lengths]
    return ", ".join(filter(None, parts)) or lengths


def telling(kind: str) -> str:
    """The kind of text; "" for random words, which is what benchmarks send."""
    return "" if kind == "random" else kind


def per_request(row: Json, which: str, completed: float | None) -> float | None:
    """Tokens of one request: as asked, or the mean of what was counted."""
    asked = get_number(
        row, f"{which}_len", f"{which}_tokens", f"random_{which}_len", f"workload.{which}_tokens", f"workload.{which}"
    )
    total = get_number(row, f"total_{which}_tokens")
    return asked if asked is not None else total / completed if total is not None and completed else None


def lengths_text(ask: float | None, answer: float | None) -> str:
    """The workload's name from its lengths: "256 in / 100 out"."""
    return f"{ask:,.0f} in / {answer:,.0f} out" if ask and answer else ""


def spread(row: Json, what: str) -> LatencyStats:
    """mean_ttft_ms, p99_ttft_ms and so on; or a dict of its own under the name."""
    values = {stat: get_number(row, f"{stat}_{what}_ms", f"{what}_ms.{stat}", f"{what}.{stat}_ms") for stat in STATS}
    return LatencyStats(**values)


def samples_of(row: Json, folder: Path, name: str) -> Path | None:
    """The columnar file that belongs to this row, where it lies in the run's folder."""
    named = get_path(row, "samples")
    candidates = [named] if isinstance(named, str) else []
    for candidate in [*candidates, f"{name}.samples"]:
        path = (folder / candidate).resolve()
        if path.is_file() and path.is_relative_to(folder.resolve()):
            return path
    return None
