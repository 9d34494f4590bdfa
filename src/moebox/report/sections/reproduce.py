"""How to do it again: recipe, commands, versions."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from moebox import codec, loose
from moebox.bench.command import bench_flags, prefill_decode_flags
from moebox.core.recipe import Recipe
from moebox.loose import Document, Json
from moebox.report.block import Block, CustomBlock, ReportTable, Section, table_columns, text_cell
from moebox.report.format import group_by, unique_names
from moebox.report.record import LoadRequest, LoadResult, RunRecord
from moebox.report.tidy import redact_text

USUAL_PP, USUAL_TG = "512", "128"  # lengths of llama-bench, where rows of others do not say theirs
NEEDED = ("name", "engine", "model", "checkpoint", "served_name")


def section(records: Sequence[RunRecord]) -> Section:
    """Per run: what to type, the recipe in full, the versions found."""
    blocks: Iterator[Block] = chain.from_iterable(map(of_run, records))
    return Section(id="reproduce", title="How to reproduce", blocks=(*blocks, *versions(records)))


def of_run(record: RunRecord) -> Iterator[CustomBlock]:
    """Commands, launch and recipe of one run."""
    if typed := commands(record) if record.recipe else of_server(record):
        yield code(f"Commands{record.title_suffix}", typed, shown=not record.page_label)
    for title, text in record.commands:
        yield code(title + record.title_suffix, redact_text(text))
    if record.recipe:
        yield code(f"recipe.toml{record.title_suffix}", redact_text(codec.to_toml(non_default_settings(record.recipe))))


def code(title: str, text: str, *, shown: bool = False) -> CustomBlock:
    """Text to copy, folded unless it is to be seen at once."""
    return CustomBlock(kind="code", data={"title": title, "text": text, "open": shown})


def non_default_settings(recipe: Recipe) -> Document:
    """The settings that differ from their defaults, which is all a recipe file needs."""
    needed = Recipe(**{name: getattr(recipe, name) for name in NEEDED})
    return without(codec.to_plain(recipe), codec.to_plain(needed), keep=(*NEEDED, "format"))


def without(values: Json, usual: Json, keep: tuple[str, ...] = ()) -> Document:
    """What of `values` is not as in `usual`, tables looked through."""
    kept = [name for name, value in values.items() if name in keep or value != usual.get(name)]
    return {name: difference(values[name], usual.get(name)) for name in kept}


def difference(value: object, usual: object) -> object:
    """A value, or what of a table is not as usual."""
    return without(value, usual) if isinstance(value, dict) and isinstance(usual, dict) else value


def commands(record: RunRecord) -> str:
    """What to type to get the same again."""
    if record.simulation:
        return simulated(record)
    lines = ["# save the recipe below as recipe.toml", "moebox up recipe.toml", "moebox verify recipe.toml"]
    benches = bench_commands(record.loads) or ["moebox bench recipe.toml"]
    return "\n".join([*lines, *benches, "moebox report latest"])


def of_server(record: RunRecord) -> str:
    """The same for a server of whose launch nothing is known; nothing for figures of others."""
    if record.imported or not record.url:
        return ""
    models = [loose.get_text(level.raw, "model_id") for level in record.loads]
    target = (record.url, *given({"--model": next(filter(None, models), "")}))
    checked = [redact_text(shlex.join(["moebox", "verify", *target]))] if record.checks else []
    return "\n".join([*checked, *bench_commands(record.loads, target)])


def simulated(record: RunRecord) -> str:
    """What to type to simulate it again: nothing was started that could be started alone."""
    assert record.recipe is not None
    words = ["moebox", "run", record.recipe.model, *(("--box", record.box.name) if record.box else ()), "--twin"]
    return shlex.join([*words, *given({"--concurrency": sweep(record.loads)})])


def bench_commands(levels: Sequence[LoadResult], target: Sequence[str] = ("recipe.toml",)) -> list[str]:
    """A `moebox bench` for each workload and way of driving it that was measured."""
    every = (*again(levels), *tests(levels), *imported_flags(levels))
    return unique_names(redact_text(shlex.join(["moebox", "bench", *target, *flags])) for flags in every)


def again(levels: Sequence[LoadResult]) -> list[list[str]]:
    """The flags of what moebox measured itself: they are kept with the figures."""
    asked = [unsalted(level.request) for level in levels if level.request and not level.request.test]
    groups = group_by(asked, lambda each: codec.to_json([each.workload, each.warmup, each.slo]))
    return [*chain.from_iterable(map(swept, groups.values()))]


def unsalted(asked: LoadRequest) -> LoadRequest:
    """Without the words that keep one measurement's prompts out of another's cache."""
    return replace(asked, workload=replace(asked.workload, salt=""))


def swept(group: Sequence[LoadRequest]) -> list[list[str]]:
    """The flags of loads that differ in nothing else."""
    first = group[0]
    return bench_flags(first.workload, [asked.load for asked in group], warmup=first.warmup, slo=first.slo)


def tests(levels: Sequence[LoadResult]) -> list[list[str]]:
    """The flags of --pp and --tg."""
    asked = [level.request for level in levels if level.request and level.request.test]
    if not asked:
        return []
    first = asked[0]
    return [prefill_decode_flags([each.test for each in asked], first.workload, first.repeat, first.load)]


def imported_flags(levels: Sequence[LoadResult]) -> list[list[str]]:
    """Flags for figures of others, as far as they say how they were measured."""
    groups = group_by([level for level in levels if level.request is None], told_workload)
    return [[*key, *given({"--concurrency": sweep(group)})] for key, group in groups.items()]


def sweep(levels: Sequence[LoadResult]) -> str:
    """Each concurrency once, the lowest first."""
    return ",".join(sorted(unique_names(whole(level.concurrency) for level in levels), key=int))


def told_workload(level: LoadResult) -> tuple[str, ...]:
    """What was asked, by what is known of a row."""
    turns = re.search(r"(\d+)[- ]turn", level.workload)
    served = level.output_tok_s or level.output_tokens or turns
    if level.is_single_stream and not served:
        return given({"--pp": USUAL_PP if level.pp_tok_s else "", "--tg": USUAL_TG if level.tg_tok_s else ""})
    conversation = {"--workload": "turns", "--turns": turns[1]} if turns else {}
    return given(conversation | told_load(level))


def told_load(level: LoadResult) -> dict[str, str]:
    """The flags of a load, as far as they are known; its concurrency is swept."""
    rate = 0.0 if level.concurrency else level.request_rate
    return {
        "--input": whole(level.input_tokens),
        "--output": whole(level.output_tokens),
        "--rate": f"{rate:g}" if rate else "",
        "--requests": whole(level.requests),
    }


def given(flags: dict[str, str]) -> tuple[str, ...]:
    """The flags that have a value, as words."""
    return tuple(word for flag, value in flags.items() if value for word in (flag, value))


def whole(value: float | None) -> str:
    """A count; "" where it is not known."""
    return f"{value:.0f}" if value else ""


def versions(records: Sequence[RunRecord]) -> Iterator[ReportTable]:
    """Versions, runs across."""
    tables = [dict(record.versions) for record in records]
    names = dict.fromkeys(chain.from_iterable(tables))  # in the order they were met
    rows = tuple((text_cell(name), *(text_cell(table.get(name, "")) for table in tables)) for name in names)
    heads = ("Software", *(record.page_label or "Version" for record in records))
    if rows:
        yield ReportTable(
            caption="Versions", columns=table_columns(*heads, text=range(len(heads))), rows=rows, sortable=False
        )
