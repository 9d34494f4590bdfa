"""Commands that repeat a run, or its measurements, with every flag that they need."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from moebox import codec
from moebox.assess.format import group_by, unique_names
from moebox.bench.command import bench_flags, prefill_decode_flags
from moebox.core.setting import flag_words
from moebox.runs.record import LoadResult, RunRecord

USUAL_PP, USUAL_TG = "512", "128"  # lengths of llama-bench, for imported rows that do not name theirs


def run_commands(record: RunRecord) -> str:
    """Commands that repeat the run; "" for published figures without a recipe.

    A server that moebox did not start is only checked and measured again; a simulation is simulated again.
    """
    if record.recipe is None:
        if record.imported or not record.server.url:
            return ""
        checked = [shlex.join(["moebox", "verify", *server_words(record)])] if record.all_checks else []
        return "\n".join([*checked, *bench_commands(record.loads, [*server_words(record), *record.server.connection])])
    if record.simulation:
        box = ("--box", record.box.name) if record.box else ()
        flags = flag_words({"--concurrency": concurrency_list(record.loads)})
        return shlex.join(["moebox", "run", record.recipe.model, *box, "--twin", *flags])
    lines = ["# save the recipe below as recipe.toml", "moebox up recipe.toml", "moebox verify recipe.toml"]
    benches = bench_commands(record.loads) or ["moebox bench recipe.toml"]
    return "\n".join([*lines, *benches, "moebox report latest"])


def server_words(record: RunRecord) -> list[str]:
    """The server that a run checked or measured, its model and the variable with its key, as words of a command."""
    server, models = record.server, (load.model for load in record.loads if load.model)
    return [server.url or "URL", *flag_words({"--model": next(models, server.model), "--key-env": server.key_env})]


def bench_commands(loads: Sequence[LoadResult], target: Sequence[str] = ("recipe.toml",)) -> list[str]:
    """A `moebox bench` for each workload and way of driving it; imported figures may not name every flag."""
    flags: list[list[str]] = []
    measured = [load.measurement for load in loads if load.measurement]
    unsalted = [replace(each, workload=replace(each.workload, salt="")) for each in measured]
    for group in group_by(unsalted, lambda each: codec.to_json([each.workload, each.warmup, each.slo])).values():
        first, swept = group[0], [each.load for each in group]
        flags += bench_flags(first.workload, swept, warmup=first.warmup, slo=first.slo)
    if tests := next((load.tests for load in loads if load.tests), None):
        names = [load.test for load in loads if load.tests]
        flags.append(prefill_decode_flags(names, tests.workload, tests.repeat, tests.load))
    imported = group_by([load for load in loads if not (load.measurement or load.tests)], imported_flags)
    flags += [[*own, *flag_words({"--concurrency": concurrency_list(same)})] for own, same in imported.items()]
    return unique_names(shlex.join(["moebox", "bench", *target, *words]) for words in flags)


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
    flags = {
        **({"--workload": "turns", "--set": f"workload.turns={turns[1]}"} if turns else {}),
        "--input": _count_text(load.input_tokens),
        "--output": _count_text(load.output_tokens),
        "--rate": f"{rate:g}" if rate else "",
        "--requests": _count_text(load.requests),
    }
    return tuple(flag_words(flags))


def _count_text(value: float | None) -> str:
    return f"{value:.0f}" if value else ""
