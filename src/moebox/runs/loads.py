"""measurements/*.json as loads: our own files by their types, files of other tools leniently, by vLLM's field names."""

from pathlib import Path
from typing import Any

from moebox import codec
from moebox.core import result
from moebox.data import load_table
from moebox.errors import BadInput
from moebox.escape import printable_line
from moebox.loose import Json, as_object, drop_keys, get_number, get_objects, get_path, get_text, get_texts, is_true
from moebox.runs.record import LoadResult
from moebox.store import plain

LISTS = ("levels", "measurements", "rows", "results")  # names under which other tools keep several results
MAX_FILES = 2_000  # measurements of one run that are read


def read_loads(folder: Path) -> tuple[list[LoadResult], list[str], list[str]]:
    """Return every load in `folder`, by workload and load; a line for each damaged file; and other gaps."""
    loads: list[LoadResult] = []
    damaged, gaps = list[str](), list[str]()
    paths = plain.list_entries(folder, "*.json")
    for path in paths[:MAX_FILES]:
        try:
            found = parse_file(plain.load_json(path), path)
            if not found:
                gaps.append(f"measurements/{path.name}: holds no figures")
            loads += found
        except BadInput as problem:
            damaged.append(f"measurements/{path.name}: {problem.message.split(': ', 1)[-1]}")
    if len(paths) > MAX_FILES:
        gaps.append(f"measurements/: {len(paths):,} files, only the first {MAX_FILES:,} were read")
    loads.sort(key=lambda load: (load.workload, load.concurrency or 0.0, load.request_rate or 0.0, load.name))
    return loads, damaged, gaps


def parse_file(document: Any, path: Path) -> list[LoadResult]:
    """Return the loads of one file. Raise BadInput if it is one of ours and damaged."""
    if result.is_own_document(document):
        if document.get("kind") == "serving":
            return [_from_measurement(result.parse_measurement(document, path.name), document, path)]
        if document.get("kind") == "pp-tg":
            return _from_tests(result.parse_prefill_decode(document, path.name))
        raise BadInput(f"{path.name}: unknown kind of measurement {get_text(document, 'kind')!r}")
    common = drop_keys(as_object(document), *LISTS)
    rows = get_objects(document, *LISTS) or ([common] if common else get_objects({"all": document}, "all"))
    loads = [imported_load({**common, **row}, name=path.stem, folder=path.parent) for row in rows]
    found = []
    for load in loads:  # a rate or latency is enough, or the number of completed requests, which may be 0
        figures = (load.output_tok_s, load.total_tok_s, load.tg_tok_s, load.pp_tok_s, load.ttft.mean_or_median)
        found += [load] if any(figure is not None for figure in (*figures, load.completed)) else []
    return found


def _from_measurement(found: result.Measurement, document: Json, path: Path) -> LoadResult:
    work = found.workload
    kind = "" if work.kind == "random" else work.kind
    counted, good, sent = found.completed > 0, found.request_goodput, found.num_prompts - found.cancelled
    met = round(good * found.duration) / sent if good is not None and sent else None  # failed requests did not
    own_prompts = work.turns <= 1 and not found.cached_input_tokens  # else the totals count some tokens twice
    figures = (
        codec.shared_fields(found, LoadResult)
        | codec.shared_fields(work, LoadResult)
        | {
            "workload": ", ".join(filter(None, (kind, lengths_text(work.input_tokens, work.output_tokens)))),
            "request_rate": found.request_rate if found.request_rate != "inf" else None,
            "failed": found.bad_requests,
            "flags": tuple(map(printable_line, found.flags)),
            "samples": _find_samples(found.samples, path.parent, path.stem),
        }
    )
    return LoadResult(
        **figures,
        name=found.label or path.stem,
        concurrency=None if found.load.rate or work.kind == "trace" else found.max_concurrency,
        mean_input_tokens=found.total_input_tokens / found.completed or None if counted and own_prompts else None,
        mean_output_tokens=found.total_output_tokens / found.completed or None if counted else None,
        requests=found.num_prompts,
        duration_s=found.duration,
        request_s=found.request_throughput,
        output_tok_s=found.output_throughput,
        total_tok_s=found.total_token_throughput,
        peak_tok_s=found.max_output_tokens_per_s,
        e2e=found.e2el,
        slo_share=met,
        missed_slo=met is not None and found.slo is not None and met < found.slo.share,
        acceptance=found.server.figures.get("accepted_per_step") if found.server else None,
        model=found.model_id,
        source=get_text(document, "source"),
        measurement=found,
        raw=document,
    )


def _from_tests(found: result.PrefillDecode) -> list[LoadResult]:
    return [
        LoadResult(
            name=_test_name(row.test, cold=row.cold),
            workload="prefill and decode alone",
            tg_tok_s=row.tg_tok_s,
            pp_tok_s=row.pp_tok_s,
            ttft=result.LatencyStats(mean=row.mean_ttft_ms),
            flags=tuple(printable_line(flag) for flag in found.flags if flag.startswith(f"{row.test} ") and row.cold),
            simulation=found.simulation,
            model=found.model_id,
            tests=found,
            test=row.test,
            raw=codec.to_plain(row),
        )
        for row in found.rows
    ]


def _test_name(test: str, *, cold: object) -> str:
    """ "pp512, cold cache": the state of the prefix cache decides a prompt's speed."""
    if cold is False:
        return f"{test}, warm cache"
    return f"{test}, cold cache" if test.startswith("pp") else test


def imported_load(row: Json, *, name: str, folder: Path) -> LoadResult:
    """Read one row of another tool's file; figures that are missing or not numbers are None."""
    table = load_table("imported_loads")
    figures: Any = {field: get_number(row, *names) for field, names in table["numbers"].items()}
    figures["concurrency"] = None if figures["request_rate"] else figures["concurrency"]
    figures |= {field: get_text(row, *names) for field, names in table["texts"].items()}
    figures |= {field: is_true(row, *names) for field, names in table["marks"].items()}
    for field, short in table["latencies"].items():  # mean_ttft_ms and so on, or an object of its own
        names = {stat: (f"{stat}_{short}_ms", f"{short}_ms.{stat}", f"{short}.{stat}_ms") for stat in result.STATS}
        figures[field] = result.LatencyStats(**{stat: get_number(row, *names[stat]) for stat in names})
    lengths: dict[str, float | None] = {}
    for side in ("input", "output"):
        shapes = (f"{side}_len", f"{side}_tokens", f"random_{side}_len", f"workload.{side}_tokens", f"workload.{side}")
        total, completed = get_number(row, f"total_{side}_tokens"), figures["completed"]
        requested = get_number(row, *shapes)
        lengths[side] = requested if requested is not None or total is None or not completed else total / completed
    title = get_text(row, "workload.title", "workload.name", "workload", "preset", "dataset_name")
    shape = lengths_text(lengths["input"], lengths["output"])
    kinds = (title, get_text(row, "workload.kind"), "" if title else shape)
    workload = ", ".join(text for text in kinds if text not in ("", "random")) or shape
    test = get_text(row, "test")
    return LoadResult(
        **figures,
        name=_test_name(test, cold=row.get("cold")) if test else get_text(row, "name", "label") or name,
        workload="prefill and decode alone" if row.get("kind") == "pp-tg" else workload,
        input_tokens=lengths["input"],
        output_tokens=lengths["output"],
        uniform_lengths=row.get("lengths") == "uniform",
        flags=tuple(map(printable_line, get_texts(row, "flags"))),
        samples=_find_samples(get_path(row, "samples"), folder, name),
        raw=row,
    )


def lengths_text(input_tokens: float | None, output_tokens: float | None) -> str:
    """ "256 in / 100 out"; "" if either is unknown."""
    return f"{input_tokens:,.0f} in / {output_tokens:,.0f} out" if input_tokens and output_tokens else ""


def _find_samples(named: object, folder: Path, name: str) -> Path | None:
    """Return the samples file of a measurement, or None if there is none inside the run's folder."""
    for candidate in (named, f"{name}.samples"):
        if isinstance(candidate, str) and "\0" not in candidate:
            path = (folder / candidate).resolve()
            if path.is_file() and path.is_relative_to(folder.resolve()):
                return path
    return None
