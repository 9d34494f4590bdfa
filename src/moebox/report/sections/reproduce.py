"""How to reproduce a run: commands, recipe and versions; sources of imported figures, and what is missing."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from moebox import codec
from moebox.assess.format import group_by, unique_names
from moebox.bench.command import bench_flags, prefill_decode_flags
from moebox.core.recipe import Recipe
from moebox.core.setting import flag_words
from moebox.loose import Document, Json, as_object
from moebox.redact import redact_text
from moebox.report.block import Block, CustomBlock, Section, bullet_list
from moebox.report.table import table_blocks
from moebox.runs.record import LoadResult, RunRecord

USUAL_PP, USUAL_TG = "512", "128"  # lengths of llama-bench, for imported rows that do not name theirs
NEEDED = ("name", "engine", "model", "checkpoint", "served_name")


def reproduce_section(records: Sequence[RunRecord]) -> Section:
    """For each run its commands and its recipe; a table of versions."""
    blocks: list[Block] = []
    for record in records:
        suffix = record.title_suffix
        texts = [(f"Commands{suffix}", run_commands(record))]
        texts += [(title + suffix, redact_text(text)) for title, text in record.commands]
        if record.recipe:
            texts.append((f"recipe.toml{suffix}", redact_text(codec.to_toml(non_default_settings(record.recipe)))))
        for place, (title, text) in enumerate(texts):
            data = {"title": title, "text": text, "open": place == 0 and not record.page_label}
            blocks += [CustomBlock("code", data)] if text else []
    tables = [dict(record.versions) for record in records]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, *(table.get(name, "") for table in tables)) for name in names]
    heads = ("Software", *(record.page_label or "Version" for record in records))
    blocks += table_blocks(heads, rows, text=range(len(heads)), caption="Versions", sortable=False)
    return Section(id="reproduce", title="How to reproduce", blocks=blocks)


def notes_section(records: Sequence[RunRecord]) -> Section:
    """Sources, remarks on imported figures, and what is missing in each run."""
    rows = [row for record in records for row in record.info.sources]
    sources = list(dict.fromkeys((row.get("title", ""), row.get("url", "")) for row in rows))
    blocks: list[Block] = [CustomBlock("sources", sources)] if sources else []
    blocks += bullet_list("Remarks on the figures", unique_names(n for record in records for n in record.info.notes))
    for record in records:  # an import never had some of our files, which is not worth a line
        gaps = [gap for gap in record.gaps if not record.imported or not gap.endswith(("missing", "unknown"))]
        blocks += bullet_list(f"Not in {record.page_label or 'this run'}", gaps)
    return Section(id="notes", title="Sources and gaps", blocks=blocks)


def non_default_settings(recipe: Recipe) -> Document:
    """The settings that differ from their defaults, which is all that a recipe file needs."""
    defaults = codec.to_plain(Recipe(**{name: getattr(recipe, name) for name in NEEDED}))
    return _differences(codec.to_plain(recipe), defaults, keep=(*NEEDED, "format"))


def _differences(values: Json, defaults: Json, keep: tuple[str, ...] = ()) -> Document:
    """Fields of `values` that differ from `defaults`, tables field by field."""
    found: Document = {}
    for name, value in values.items():
        default = defaults.get(name)
        if name in keep or value != default:
            is_table = isinstance(value, dict) and isinstance(default, dict)
            found[name] = _differences(as_object(value), as_object(default)) if is_table else value
    return found


def run_commands(record: RunRecord) -> str:
    """Commands that repeat the run; "" for published figures without a recipe.

    A server that moebox did not start is only checked and measured again; a simulation is simulated again.
    """
    if record.recipe is None:
        if record.imported or not record.url:
            return ""
        model = next((load.model for load in record.loads if load.model), "")
        target = (record.url, *flag_words({"--model": model}))
        checked = [redact_text(shlex.join(["moebox", "verify", *target]))] if record.all_checks else []
        return "\n".join([*checked, *bench_commands(record.loads, target)])
    if record.simulation:
        box = ("--box", record.box.name) if record.box else ()
        flags = flag_words({"--concurrency": concurrency_list(record.loads)})
        return shlex.join(["moebox", "run", record.recipe.model, *box, "--twin", *flags])
    lines = ["# save the recipe below as recipe.toml", "moebox up recipe.toml", "moebox verify recipe.toml"]
    benches = bench_commands(record.loads) or ["moebox bench recipe.toml"]
    return "\n".join([*lines, *benches, "moebox report latest"])


def bench_commands(loads: Sequence[LoadResult], target: Sequence[str] = ("recipe.toml",)) -> list[str]:
    """A `moebox bench` for each workload and way of driving it."""
    return unique_names(redact_text(shlex.join(["moebox", "bench", *target, *flags])) for flags in all_flags(loads))


def all_flags(loads: Sequence[LoadResult]) -> Iterator[list[str]]:
    """Flags of our own measurements, of --pp and --tg, then of imported figures as far as those name them."""
    measured = [load.measurement for load in loads if load.measurement]
    unsalted = [replace(each, workload=replace(each.workload, salt="")) for each in measured]
    for group in group_by(unsalted, lambda each: codec.to_json([each.workload, each.warmup, each.slo])).values():
        first, swept = group[0], [each.load for each in group]
        yield from bench_flags(first.workload, swept, warmup=first.warmup, slo=first.slo)
    if tests := next((load.tests for load in loads if load.tests), None):
        names = [load.test for load in loads if load.tests]
        yield prefill_decode_flags(names, tests.workload, tests.repeat, tests.load)
    imported = group_by([load for load in loads if not (load.measurement or load.tests)], imported_flags)
    for flags, same in imported.items():
        yield [*flags, *flag_words({"--concurrency": concurrency_list(same)})]


def concurrency_list(loads: Sequence[LoadResult]) -> str:
    """Each concurrency once, ascending."""
    return ",".join(sorted(unique_names(_count_text(load.concurrency) for load in loads), key=int))


def imported_flags(load: LoadResult) -> tuple[str, ...]:
    """The flags of an imported load, as far as they are known; its concurrency is swept."""
    turns = re.search(r"(\d+)[- ]turn", load.workload)
    if load.is_single_stream and not (load.output_tok_s or load.output_tokens or turns):
        tests = {"--pp": USUAL_PP if load.pp_tok_s else "", "--tg": USUAL_TG if load.tg_tok_s else ""}
        return tuple(flag_words(tests))
    rate = 0.0 if load.concurrency else load.request_rate
    conversation = {"--workload": "turns", "--set": f"workload.turns={turns[1]}"} if turns else {}
    flags = {
        **conversation,
        "--input": _count_text(load.input_tokens),
        "--output": _count_text(load.output_tokens),
        "--rate": f"{rate:g}" if rate else "",
        "--requests": _count_text(load.requests),
    }
    return tuple(flag_words(flags))


def _count_text(value: float | None) -> str:
    return f"{value:.0f}" if value else ""
