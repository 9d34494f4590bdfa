"""Compute the ranges of forecasts from results on hosts that had no part in the fit.

    python benchmarks/unseen.py [--score] [--write]

Without a flag: coverage by group, each source left out in turn. `--score` forecasts every row of unseen.csv again
(about five minutes) and stores its error there; `--write` stores the ranges in src/moebox/data/ranges.toml.

A range is conformal over sources, and a source is a publisher's machines of one GPU: other GPUs of one publisher are
other hosts. The level is raised for a small number of publications. Rows of 1,024 streams and more, or of more streams
than the server ran at once (a limit of running requests decides), of drafts without a known acceptance, of streams that
share one long prompt, and of InferenceX's `token_position` runs (most of those series get faster with more streams) are
left out; the rules and weights were chosen with the errors in view. `ttft` is a median, `mean_ttft` a mean, as
InferenceX's are.
"""

import contextlib
import csv
import io
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import published

from moebox import codec
from moebox.cli.app import call_command
from moebox.core import catalogue
from moebox.core.recipe import Parallel
from moebox.detect import load_box
from moebox.planner.speed.ranges import (
    OLDER,
    RANGE_KINDS,
    SEVERAL_NODES,
    ModelGroup,
    RangeKind,
    range_groups,
    range_label,
)

ROWS = Path(__file__).parent / "unseen.csv"
BOOTS = Path(__file__).parents[1] / "tests" / "planner" / "h200"
CUT_MODELS = {
    "dsv3": ("deepseek-v3", "fp8"),
    "kimi": ("kimi-k2.5", "int4"),
    "minimax": ("minimax-m2.7", "fp8"),
    "qwen": ("qwen3-235b", "fp8"),
}
LEFT_OUT = Path(__file__).parent / "left_out.csv"
RANGES = Path(__file__).parents[1] / "src" / "moebox" / "data" / "ranges.toml"
ENOUGH = 10  # rows from which on a group has a range of its own
SHARE = 0.80  # of results that a range is for
NOTHING_ALIKE = 0.90  # the share for a case that no row is like, all publications alike: wider on purpose
RAISED = 0.85  # the highest level that few publications raise the share to
POWER = 2 / 3  # of its rows that a publication of a model weighs: they are neither one result nor as many as they are
FASTER_IF_LOWER = ("tpot", "ttft", "mean_ttft", "step_ms")
FORECAST_FIELDS = {
    "tok_s": "decode_tok_s",
    "step_ms": "itl_ms",
    "tpot": "median_tpot_ms",
    "ttft": "median_ttft_ms",
    "mean_ttft": "mean_ttft_ms",
    "out": "output_throughput",
}
HEADER = """# How far forecasts were from results on hosts that had no part in the fit: factors that hold four of five,
# by kind of result, GPU generation, engine, and whether the model's architecture was fitted under that engine. Written
# by `python benchmarks/unseen.py --write`; `rows` and `sources` are what stands behind a factor. A group of fewer than
# ten rows, or of one source, has no row here, and the next wider one is used; rows with neither generation nor engine
# are for the rest. Results of several nodes, and of versions before `oldest` (vLLM without asynchronous scheduling,
# SGLang before those that were fitted), are groups of their own in place of a generation, whatever the model. A group's
# factor is drawn towards the next wider group's, which counts as one source. `active_b`: billions of active parameters
# of models with results; beyond them ln(factor) grows by `widening` for each factor e of distance.
"""
# Hosts of left_out.csv whose publisher has rows in unseen.csv too; owners in the rtx6kpro wiki count as one source.
WIKI_OWNERS = ("festr", "grimulkan", "orangezed", "cyysky", "luke")
PUBLISHERS = {
    "cookbook": "sgl-project/sglang",
    "inferencex": "SemiAnalysisAI/InferenceX",
    "jasl": "jasl/vllm-ds4-sm120-harness",
    **dict.fromkeys(WIKI_OWNERS, "local-inference-lab/rtx6kpro"),
}
Group = tuple[RangeKind, str, str, ModelGroup]  # kind, generation, engine, models


@dataclass(frozen=True, slots=True)
class Result:
    """One published figure: where it belongs, and ln(forecast / published) of the speed."""

    kind: RangeKind
    generation: str  # or what stands in its place: range_label
    engine: str
    models: Literal["fitted", "other"]
    source: str
    model: str
    error: float

    @property
    def groups(self) -> tuple[Group, ...]:
        """From the narrowest group to all results of its kind."""
        narrow = range_groups(self.kind, self.generation, self.engine, self.models)
        return (*((self.kind, *group) for group in narrow), (self.kind, "", "", ""))


def load_results() -> list[Result]:
    """Return the rows of unseen.csv and the errors of hosts that were left out of the fit."""
    architectures = catalogue.load_table("ranges")["fitted"]["architectures"]
    found = []
    for row in read_rows(ROWS):
        words = row["args"].split()
        engine = words[words.index("--engine") + 1]
        known = catalogue.find_model(row["model"]).architecture in architectures.get(engine, ())
        engine += " community" * ("--image community" in row["args"])
        version = next((word.partition("=")[2] for word in words if word.startswith("engine_version=")), "")
        box = load_box(box_name(row["box"]))
        gpu = box.gpus[0]
        if gpu.unified:
            continue  # its range is in efficiency.toml: the results differ more than one source shows
        kind: RangeKind = {"decode": "decode", "prefill": "prompt"}.get(row["mode"], "serving")  # type: ignore[assignment]
        kind = "prompt" if row["metric"] in ("ttft", "mean_ttft") else kind
        models: Literal["fitted", "other"] = "fitted" if known else "other"
        source = f"{row['source']} {gpu.name}"
        label = range_label(gpu.generation, engine, version, box.nodes)
        found.append(Result(kind, label, engine, models, source, row["model"], float(row["error"])))
    for row in read_rows(LEFT_OUT):
        if row["table"] == "engine" and not row["preset"]:
            host, generation, engine = row["host"], row["generation"], row["engine"]
            if host in ("gpustack", "conselara"):  # vLLM 0.10.2; two DGX Spark
                generation = OLDER if host == "gpustack" else SEVERAL_NODES
            kind = {"decode": "decode", "ttft": "prompt"}.get(row["group"], "serving")  # type: ignore[assignment]
            source = PUBLISHERS.get(host.partition("-")[0], host)
            if host.startswith(("cookbook", "inferencex")):
                source += f" {host.rpartition('-')[2]}"
            # Owners in the wiki ran one and the same model: together they are one publication of it.
            name = source if host.partition("-")[0] in WIKI_OWNERS else host
            found.append(Result(kind, generation, engine, "fitted", source, name, float(row["error"])))
    return found


def group_factors(results: Iterable[Result]) -> dict[Group, tuple[float, int, int]]:
    """Return factor, rows and sources of each group with enough rows of several sources, and of all others.

    A group's own factor is drawn towards that of the next wider group, which counts as one source more.

    Decoding and serving share the last one, the wider of the two: both are rates of the same steps.
    """
    members: dict[Group, list[Result]] = defaultdict(list)
    for result in results:
        for group in result.groups:
            members[group].append(result)
    found: dict[Group, tuple[float, int, int]] = {}
    for kind in RANGE_KINDS:
        kinds: tuple[RangeKind, ...] = ("prompt",) if kind == "prompt" else ("decode", "serving")
        pools = [members[each, "", "", ""] for each in kinds]
        rows = [row for pool in pools for row in pool]
        factor = max(_factor(pool, NOTHING_ALIKE) for pool in pools if pool)
        found[kind, "", "", ""] = (factor, len(rows), len({row.source for row in rows}))
    for group in sorted(members, key=lambda group: bool(group[1]) + bool(group[2])):  # the widest first
        rows, sources = members[group], len({row.source for row in members[group]})
        if len(rows) < ENOUGH or sources < 2 or not any(group[1:]):
            continue
        between = range_groups(*group)[1:] if group[1] and group[2] else ()
        factors = [found[group[0], *each][0] for each in between if (group[0], *each) in found]
        wider = factors[0] if factors else _factor(members[group[0], "", "", ""], SHARE)
        drawn = (sources * math.log(_factor(rows, SHARE)) + math.log(wider)) / (sources + 1)
        found[group] = (math.exp(drawn), len(rows), sources)
    return found


def _factor(rows: list[Result], share: float) -> float:
    """Return the factor that holds the share of the results, publications of a model weighted by POWER."""
    most, power = (RAISED, POWER) if share < NOTHING_ALIKE else (NOTHING_ALIKE, 0.0)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        sizes[row.source, row.model] += 1
    level = min(share * (1 + 1 / len(sizes)), max(most, share)) * sum(size**power for size in sizes.values())
    weight = 0.0
    for row in sorted(rows, key=lambda row: abs(row.error)):
        weight += sizes[row.source, row.model] ** (power - 1)
        if weight >= level - 1e-9:
            break
    return math.exp(abs(row.error))


def coverage() -> Iterator[tuple[str, int, int, float, float]]:
    """Yield each group's name, rows, sources, share inside and median error, each source left out of its own range."""
    results = load_results()
    groups: dict[Group, list[tuple[bool, float, str]]] = defaultdict(list)
    for source in {result.source for result in results}:
        factors = group_factors(result for result in results if result.source != source)
        for result in (result for result in results if result.source == source):
            factor = next(factors[group][0] for group in result.groups if group in factors)
            row = (abs(result.error) <= math.log(factor), abs(math.expm1(result.error)), source)
            groups[result.kind, result.generation, result.engine, ""].append(row)
            groups[result.kind, "", "", ""].append(row)
    for (kind, generation, engine, _), rows in sorted(groups.items()):
        held, errors, sources = zip(*rows, strict=True)
        name = " ".join(filter(None, (kind, generation, engine))) if generation else f"{kind}, all"
        yield name, len(rows), len(set(sources)), sum(held) / len(rows), sorted(errors)[len(errors) // 2]


def active_billions() -> tuple[float, float]:
    """Return the fewest and the most active parameters of models with results, in billions."""
    counts = [catalogue.find_model(row["model"]).active_parameters / 1e9 for row in read_rows(ROWS)]
    return math.floor(10 * min(counts)) / 10, math.ceil(10 * max(counts)) / 10


def widening_by_distance(least: float) -> float:
    """Return how much ln(factor) grows with ln(least / active parameters): a line through what cut models show.

    Models cut to 3 to 8 layers on one H200 are small models of known families: four of five of their decode steps are
    off by this much.
    """
    points = []
    for path in sorted(BOOTS.glob("*-[0-9]-and-[0-9].json")):
        model, checkpoint = next(known for name, known in CUT_MODELS.items() if name in path.name)
        engine = "sglang" if path.name.startswith("sglang") else "vllm"
        recipe = published.recipe_of(engine, model, checkpoint, kv="bf16", parallel=Parallel(), max_seqs=64)
        for boot in codec.load_json(path)["boots"]:
            speed = published.speed_of(published.box_of("1x-h200"), recipe, boot["layers"])
            assert speed.gpu_step is not None
            distance = math.log(least * 1e9 / speed.gpu_step.rank.model.active_parameters)
            seconds = [(step["seconds"], speed.step_s(step["batch"], step["context"])) for step in boot["decode"]]
            errors = sorted(abs(math.log(timed / forecast)) for timed, forecast in seconds)
            if distance > 0:
                points.append((distance, errors[int(SHARE * len(errors))]))
    return sum(x * y for x, y in points) / sum(x * x for x, _ in points)


def write_ranges() -> None:
    """Store the factors of all groups beside the list of fitted architectures."""
    table, active = catalogue.load_table("ranges"), active_billions()
    names = "".join(
        f"{engine} = [\n" + "".join(f'  "{name}",\n' for name in known) + "]\n"
        for engine, known in table["fitted"]["architectures"].items()
    )
    oldest = ", ".join(f'{engine} = "{version}"' for engine, version in table["fitted"]["oldest"].items())
    span = f"active_b = [{active[0]}, {active[1]}]\nwidening = {widening_by_distance(active[0]):.2f}\n"
    parts = [HEADER, f"[fitted]\noldest = {{ {oldest} }}\n{span}\n[fitted.architectures]\n{names}"]
    factors = group_factors(load_results())
    order = sorted(factors, key=lambda group: (RANGE_KINDS.index(group[0]), *group[1:]))
    for group in order:
        factor, rows, sources = factors[group]
        fields = zip(("kind", "generation", "engine", "models"), group, strict=True)
        lines = [f'{name} = "{value}"' for name, value in fields if value]
        lines += [f"factor = {factor:.3f}", f"rows = {rows}", f"sources = {sources}"]
        parts.append("\n[[range]]\n" + "\n".join(lines) + "\n")
    RANGES.write_text("".join(parts), encoding="utf-8")


def score_rows() -> None:
    """Forecast every row again, and store its error."""
    rows = read_rows(ROWS)
    runs: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        runs[row["model"], row["box"], row["args"], row["mode"]].append(row)
    for (model, box, args, mode), members in runs.items():
        words = ["forecast", model, "--box", box_name(box), *args.split(), "--json"]
        if mode == "prefill":
            words += ["--prefill", "--input", _join(row["prompt"] for row in members)]
        else:
            words += ["--concurrency", _join(row["concurrency"] for row in members)]
        if mode == "decode":
            words += ["--decode", "--context", _join(row["context"] for row in members)]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            call_command(words)
        forecasts = json.loads(output.getvalue())["rows"]
        for row in members:
            rate = _matching_figure(forecasts, row)
            error = math.log(rate / float(row["measured"]))
            row["error"] = f"{-error if row['metric'] in FASTER_IF_LOWER else error:.4f}"
    with open(ROWS, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _matching_figure(forecasts: list[dict[str, Any]], row: dict[str, str]) -> float:
    if row["mode"] == "prefill":
        return next(float(each["prefill_tok_s"]) for each in forecasts if each["prompt_tokens"] == int(row["prompt"]))
    streams, name = int(row["concurrency"]), FORECAST_FIELDS[row["metric"]]
    if row["mode"] == "serve":
        return next(float(each[name]) for each in forecasts if each["max_concurrency"] == streams)
    load = (int(row["context"]), streams)
    return next(float(each[name]) for each in forecasts if (each["context"], each["concurrency"]) == load)


def box_name(text: str) -> str:
    """Return a box as `--box` takes it; files lie in benchmarks/boxes."""
    return str(ROWS.parent / text) if text.endswith(".toml") else text


def _join(values: Iterable[str]) -> str:
    return ",".join(sorted(set(values), key=int))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Do what the flags ask for, then print the coverage by group."""
    if "--score" in sys.argv:
        score_rows()
    if "--write" in sys.argv:
        write_ranges()
    for name, rows, sources, inside, median in coverage():
        if rows >= ENOUGH:
            print(f"{name:36} {rows:4} rows of {sources:2}  {inside:4.0%} inside  median error {median:.0%}")


if __name__ == "__main__":
    main()
