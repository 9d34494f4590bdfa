"""The published speed rows beside what the model says: each row a Case with its published figure and a prediction."""

import csv
import functools
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from moebox.core import catalogue
from moebox.core.box import Box, Cpu, Link, Pcie
from moebox.core.catalogue import checkpoint_from_row
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Hybrid, Parallel, Recipe, Runtime, Speculate
from moebox.detect.declared import box_from_name
from moebox.planner.simulate import SimulatedWorkload, SimulationResult, scheduler_rules, simulate
from moebox.planner.speed import Speed, constants
from moebox.planner.speed.step import expert_kernel_seconds
from moebox.sizing.rank import RankWork, rank_work

PLENTY = 2_000_000  # cache tokens where a run does not say and the cache was not what limited it
OUT_OF_CACHE = 8  # tokens: fewer read so little that it lies in the 128 MB cache from the run before
UNEVEN = 1024  # tokens from which on ranks with whole experts have unequal work
HARDLY_READS = 12e6  # bytes: whether they lie in that cache makes no difference
BITS = {"int4": 4.5, "nvfp4": 4.5, "mxfp4": 4.25, "fp8": 8.0, "bf16": 16.0}  # of an expert's weight, with scales
UNFITTED = ("gpustack-h100-tp2", "vllm-30326")
TOKEN_BYTES = 7.2  # of the random tokens that tokenizing.py timed
LONG = 2048  # tokens of a prompt whose time is mostly reading it
# A run with a broken NCCL topology.
NOT_SPEED = ("pathological",)
FIGURES = {
    "output_tok_s": "output",
    "ttft_ms": "ttft",
    "median_ttft_ms": "median ttft",
    "tpot_ms": "tpot",
    "itl_ms": "itl",
    "p99_ttft_ms": "p99",
    "p99_tpot_ms": "p99",
    "p99_itl_ms": "p99",
}
TIMES = ("ttft", "median ttft", "tpot", "itl", "p99", "experts")  # lower is better
PROMPTS = ("prefill", "pp", "ttft")


@dataclass(frozen=True, slots=True)
class Case:
    """One published figure."""

    group: str  # decode, prefill, tg, pp, output, ttft, tpot, itl, p99
    run: str
    at: str
    published: float
    predict: Callable[[], float]
    host: str = ""
    speed: Callable[[], Speed] | None = None  # the model behind it, for its bands

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predict() / self.published

    def covered(self, *, fitted: bool) -> bool:
        """Whether the published figure lies in the forecast's band; of a `fitted` row in that of its own host."""
        assert self.speed is not None
        low, high = self.speed().range_factors("prompt" if self.group in PROMPTS else "decode", fitted_hosts=fitted)
        return low <= math.exp(-log_error(self)) <= high


def box_of(text: str, row: dict[str, Any] | None = None) -> Box:
    """COUNTx-GPU, with what a row says of its host."""
    box, row = box_from_name(text), row or {}
    if "sockets" in row:
        box = replace(box, cpu=Cpu(sockets=row["sockets"]))
    if row.get("p2p") is False:
        box = replace(box, links=(Link(a=0, b=1, kind="phb", p2p=False),))
    return box


def facts(recipe: Recipe, layers: int = 0) -> tuple[Model, Checkpoint]:
    """The model and checkpoint of a recipe; cut to so many layers, text only, where a run did that."""
    model = catalogue.find_model(recipe.model)
    if not layers:
        return model, catalogue.find_checkpoint(model.name, recipe.checkpoint)
    model = replace(model, layers=layers, vision=0, counted={})
    rows = catalogue.load_table("checkpoints")["checkpoint"]
    row = next(row for row in rows if recipe.model in row["models"] and row["name"] == recipe.checkpoint)
    return model, checkpoint_from_row(model, row)


def speed_of(box: Box, recipe: Recipe, layers: int = 0) -> Speed:
    """The speed model of a recipe whose model and checkpoint are in the catalogue."""
    return Speed.from_published_rows(Deployment(recipe, *facts(recipe, layers), box))


def recipe_of(engine: Any, model: str, checkpoint: str, **settings: Any) -> Recipe:
    """A recipe with only what the speed model looks at."""
    return Recipe(name="published", engine=engine, model=model, checkpoint=checkpoint, served_name=model, **settings)


@functools.cache
def rig(tp: int, dcp: int, guesses: int) -> Speed:
    """The tuned rig of the decode and prefill cells: Kimi K2.6 INT4, patched image, fp8 cache."""
    recipe = recipe_of(
        "vllm",
        "kimi-k2.6",
        "int4",
        kv="fp8",
        parallel=Parallel(tp=tp, dcp=dcp),
        runtime=Runtime(preset="community"),
        speculate=Speculate(tokens=guesses) if guesses else None,
    )
    return speed_of(box_of(f"{tp}x-rtx-pro-6000-server"), recipe)


def decode_cells(*, tp: int = 8) -> Iterator[Case]:
    """rtx6kpro wiki, kimi-k26 v1 to v4, the Prometheus refresh and the Turin retests, Apr-May 2026; trust A and B."""
    for row in _csv("decode.csv"):
        if int(row["tp"]) == tp:
            at = f"tp{row['tp']} dcp{row['dcp']} spec{row['guesses']} ctx{row['context']} C{row['concurrency']}"
            speed = functools.partial(rig, tp, int(row["dcp"]), int(row["guesses"]))
            yield Case(
                "decode",
                row["run"],
                at,
                float(row["decode_tok_s"]),
                functools.partial(_decode, speed, row),
                "festr",
                speed,
            )


def prefill_cells(*, tp: int = 8) -> Iterator[Case]:
    """The same pages' prefill tables."""
    for row in _csv("prefill.csv"):
        if int(row["tp"]) == tp:
            at = f"tp{row['tp']} dcp{row['dcp']} {row['prompt_tokens']} tokens"
            speed = functools.partial(rig, tp, int(row["dcp"]), int(row["guesses"]))
            yield Case(
                "prefill",
                row["run"],
                at,
                float(row["prefill_tok_s"]),
                functools.partial(_prefill, speed, row),
                "festr",
                speed,
            )


def expert_kernels(*, quant: str, generation: str, kernel: str, engine: str = "") -> Iterator[Case]:
    """Timings of one expert kernel on GPUs of a generation, under one engine or all: NVIDIA aiconfigurator's, and ours.

    Prompts with whole experts on ranks are left out: routing was uneven, and the timed rank had more than its share.

    On RTX, runs whose weights fit the GPU's second-level cache are left out, a real step finds none of them there,
    unless they read hardly any.
    """
    for row in _csv("experts.csv"):
        if (row["quant"], row["kernel"], _generation(row["gpu"])) != (quant, kernel, generation):
            continue
        if not row["run"].lower().startswith(engine) or (int(row["ep"]) > 1 and int(row["tokens"]) >= UNEVEN):
            continue
        rank = _expert_rank(row["model"], quant, int(row["tp"]), int(row["ep"]))
        read = rank.expert_bytes_read(int(row["tokens"])) / rank.model.moe_layers
        if generation != "blackwell-rtx" or int(row["tokens"]) >= OUT_OF_CACHE or read < HARDLY_READS:
            at = f"{row['gpu']} {row['model']} tp{row['tp']} ep{row['ep']} {row['tokens']} tokens"
            yield Case("experts", f"{row['run']} {quant}", at, float(row["kernel_us"]), functools.partial(_kernel, row))


@functools.cache
def _generation(gpu: str) -> str:
    return catalogue.find_gpu(gpu).generation


def timed_steps(model: str, *, shortest: int = LONG) -> Iterator[Case]:
    """Steps of a model's text core cut to 12 layers or less on one H200, vLLM 0.26, timed by `rehearse --measure`.

    Prompts are token ids, no text. Those shorter than LONG are mostly HTTP and scheduling: left out unless asked for.
    """
    for row in _csv("steps.csv"):
        if row["model"] != model:
            continue
        speed = functools.partial(_timed, row["model"], row["checkpoint"], int(row["layers"]))
        seconds = float(row["seconds"])
        if row["kind"] == "decode":
            at = f"{row['model']} {row['layers']} layers ctx{row['context']} C{row['batch']}"
            predict = functools.partial(_decode, speed, {"concurrency": row["batch"], "context": row["context"]})
            rate = int(row["batch"]) / seconds
            yield Case("decode", "h200-steps", at, rate, predict, "h200-16-cores", speed)
        elif int(row["tokens"]) >= shortest:
            predict = functools.partial(_first_token, speed, int(row["tokens"]))
            at = f"{row['model']} {row['layers']} layers {row['tokens']} tokens"
            yield Case("ttft", "h200-steps", at, seconds * 1e3, predict, "h200-16-cores", speed)


def single_streams(*, engine: str = "") -> Iterator[Case]:
    """One stream on eight RTX PRO 6000 without the patched image."""
    for row in _toml("single.toml"):
        if engine in ("", row["engine"]):
            speed = functools.partial(_single, row)
            predict = functools.partial(_rate, speed, 1, 0)
            yield Case("decode", row["name"], row["checkpoint"], row["decode_tok_s"], predict, row["host"], speed)


def other_rows() -> Iterator[Case]:
    """Other hosts, engines and models; the file says which three constants were read off some of them."""
    for run in _toml("others.toml"):
        for row in run["rows"]:
            both = run | row
            speed = functools.partial(_plain, both)
            streams = row["concurrency"]
            rate = row.get("decode_tok_s") or streams / row["tpot_decode_ms"] * 1e3
            predict = functools.partial(_rate, speed, streams, both["context"])
            at = f"C{streams}" + (f" dcp{row['dcp']}" if "dcp" in row else "")
            yield Case("decode", run["name"], at, rate, predict, run["host"], speed)


def hybrid_rows(*, engine: str = "") -> Iterator[Case]:
    """CPU+GPU rows, of one engine where asked."""
    for row in _toml("hybrid.toml"):
        if engine not in ("", row["engine"]):
            continue
        speed = functools.partial(_hybrid, row)
        if "tg_tok_s" in row:
            predict = functools.partial(_rate, speed, 1, row.get("context", 1000))
            yield Case("tg", row["name"], row["checkpoint"], row["tg_tok_s"], predict, row["host"], speed)
        if "pp_tok_s" in row:
            predict = functools.partial(_reading, speed, row.get("prompt", 4096))
            yield Case("pp", row["name"], row["checkpoint"], row["pp_tok_s"], predict, row["host"], speed)


def hybrid_prompt_rows() -> Iterator[Case]:
    """Prompts of ik_llama.cpp with experts in RAM: micro-batches, contexts, GPUs and CPUs of many owners."""
    for row in _csv("hybrid_prompts.csv"):
        speed = functools.partial(_micro_batches, tuple(row.items()))
        chunk, past = int(row["chunk"]), int(row["context"])
        predict = functools.partial(_chunk_rate, speed, chunk, past)
        host = f"{row['source'].rpartition('/')[2]} {row['cpu']} {row['gpu']}"
        yield Case("pp", host, f"ub {row['ubatch']} at {past}", float(row["pp_tok_s"]), predict, host, speed)


@functools.cache
def _micro_batches(items: tuple[tuple[str, str], ...]) -> Speed:
    row = dict(items)
    generation, width = int(row["pcie_generation"]), int(row["pcie_width"])
    slot = Pcie(generation=generation, width=width, max_generation=generation, max_width=width)
    box = Box(
        name=row["cpu"],
        gpus=(replace(catalogue.find_gpu(row["gpu"]), pcie=slot),) * int(row["gpus"]),
        cpu=Cpu(model=row["cpu"], cores=int(row["cores"]), sockets=int(row["sockets"])),
        ram_bandwidth=round(float(row["ram_gb_s"]) * 1e9),
    )
    model, size = catalogue.find_model(row["model"]), float(row["file_gib"]) * 2**30
    files = [each for each in catalogue.published_checkpoints(model.name) if each.format == "gguf"]
    near = min(files, key=lambda each: abs(each.total_bytes - size))  # its split, with the row's own total
    parts = {name: round(part * size / near.total_bytes) for name, part in near.bytes_by_component.items()}
    layers = tuple(range(1, 1 + int(row["expert_layers"])))
    mla = 2 if model.mla else None
    hybrid = Hybrid(experts=(layers,), threads=int(row["threads"]), ubatch=int(row["ubatch"]), mla=mla)
    recipe = recipe_of(row["engine"], model.name, near.name, kv="f16", hybrid=hybrid)
    return Speed.from_published_rows(Deployment(recipe, model, replace(near, bytes_by_component=parts), box))


def _chunk_rate(speed: Callable[[], Speed], chunk: int, past: int) -> float:
    """Prompt tokens a second of `chunk` tokens after `past`, in micro-batches."""
    step, seconds = speed().hybrid_step, 0.0
    assert step is not None
    for start in range(0, chunk, step.ubatch):
        tokens = min(step.ubatch, chunk - start)
        seconds += sum(step.prefill_parts(tokens, past + start).values())
    return chunk / seconds


def serving_rows(*, only: str = "") -> Iterator[Case]:
    """Serving benchmarks, by simulation."""
    for run in _serving_runs():
        if not run["name"].startswith(only):
            continue
        for row in run["rows"]:
            for figure, group in FIGURES.items():
                if figure in row:
                    predict = functools.partial(_serving, run, row, figure)
                    speed = functools.partial(_plain, run | row)
                    at = f"C{row['concurrency']}" + "".join(
                        f" {name}{row[name]}" for name in ("input", "prefix_hit") if name in row
                    )
                    name = f"{run['name']}{' ' + figure if group == 'p99' else ''}"
                    yield Case(group, name, at, row[figure], predict, run["host"], speed)


def cookbook_rows() -> Iterator[Case]:
    """Serving benchmarks of SGLang's cookbook, by simulation."""
    for run in _toml("cookbook.toml"):
        yield from serving_rows(only=run["name"])


def left_over(case: Case) -> bool:
    """Whether a serving row is of a layout or a host that no constant stands for."""
    return case.run.startswith(UNFITTED) or "-dp" in case.run


def unfitted_rows() -> Iterator[Case]:
    """Serving rows of other layouts and hosts, without those of data-parallel attention."""
    for name in UNFITTED:
        yield from serving_rows(only=name)


def ktransformers_rows() -> Iterator[Case]:
    """KTransformers: prompts by length, and decoding of one stream."""
    for row in _toml("ktransformers.toml"):
        speed = functools.partial(_sliced, row)
        for tokens, rate in row.get("pp", {}).items():
            predict = functools.partial(_reading, speed, int(tokens))
            yield Case("pp", row["name"], f"{tokens} tokens", rate, predict, row["name"], speed)
        if "tg_tok_s" in row:
            predict = functools.partial(_rate, speed, 1, 1000)
            yield Case("tg", row["name"], row["checkpoint"], row["tg_tok_s"], predict, row["name"], speed)


def _serving_runs() -> list[dict[str, Any]]:
    return [*_toml("serving.toml"), *_toml("cookbook.toml")]


def outcome(run: dict[str, Any], row: dict[str, Any]) -> SimulationResult:
    """One row of a serving run, simulated."""
    both, concurrency = run | row, row["concurrency"]
    recipe = _recipe(both)
    workload = SimulatedWorkload(
        input=both["input"],
        output=both["output"],
        requests=both.get("requests") or concurrency * both["requests_per_slot"],
        concurrency=concurrency,
        lengths=both.get("lengths", "fixed"),
        prefix_hit=both.get("prefix_hit", 0.0),
        warm=int(concurrency * both["warm"]) if "warm" in both else None,
        spacing_s=both.get("window_s", 0.0) / concurrency,
        cold_s=both.get("cold_s", 0.0),
    )
    box = box_of(both["box"], both)
    speed = speed_of(box, recipe, both.get("layers", 0))
    speed = replace(speed, token_s=speed.token_s * both.get("token_bytes", TOKEN_BYTES) / TOKEN_BYTES)
    return simulate(speed, scheduler_rules(recipe, both.get("kv_tokens", PLENTY), speed), workload)


def _recipe(row: dict[str, Any]) -> Recipe:
    guesses = row.get("guesses", 0)
    return recipe_of(
        row["engine"],
        row["model"],
        row["checkpoint"],
        kv=row["kv"],
        context=2**20,
        max_seqs=row.get("max_seqs"),
        engine_version=row.get("version", ""),
        parallel=Parallel(tp=row["tp"], dp=row.get("dp", 1), dcp=row.get("dcp", 1), ep=row.get("ep", False)),
        speculate=Speculate(tokens=guesses) if guesses else None,
        batched_tokens=row.get("batched_tokens"),
        flags=row.get("flags", {}) | ({"disable-cuda-graph": True} if row.get("eager") else {}),
    )


def _plain(row: dict[str, Any]) -> Speed:
    return speed_of(box_of(row["box"], row), _recipe(row), row.get("layers", 0))


@functools.cache
def outcome_at(name: str, place: int) -> SimulationResult:
    """The outcome of a row by its place in a run; several figures of it are looked at."""
    run = next(run for run in _serving_runs() if run["name"] == name)
    return outcome(run, run["rows"][place])


def _serving(run: dict[str, Any], row: dict[str, Any], figure: str) -> float:
    done = outcome_at(run["name"], run["rows"].index(row))
    if figure == "output_tok_s":
        return done.output_tok_s
    name = figure.removesuffix("_ms").removeprefix("p99_").removeprefix("median_")
    times = getattr(done, name)
    if figure.startswith("median"):
        return float(times.quantile(0.5) * 1e3)
    return float((times.quantile(0.99) if figure.startswith("p99") else times.mean) * 1e3)


def _rate(speed: Callable[[], Speed], streams: int, context: int) -> float:
    return speed().decode_tok_s(streams, context)


def _reading(speed: Callable[[], Speed], tokens: int) -> float:
    return speed().prefill_tok_s(tokens)


def _decode(speed: Callable[[], Speed], row: dict[str, str]) -> float:
    return speed().decode_tok_s(int(row["concurrency"]), int(row["context"]))


def _first_token(speed: Callable[[], Speed], tokens: int) -> float:
    return (speed().prefill_s(tokens) + speed().request_s) * 1e3


def _prefill(speed: Callable[[], Speed], row: dict[str, str]) -> float:
    return speed().prefill_tok_s(int(row["prompt_tokens"]))


def _kernel(row: dict[str, str]) -> float:
    rank = _expert_rank(row["model"], row["quant"], int(row["tp"]), int(row["ep"]))
    gpu = catalogue.find_gpu(row["gpu"])
    wanted, engine = (row["quant"], gpu.generation, row["kernel"], ""), row["run"].partition(" ")[0].lower()
    rows = catalogue.table_rows(constants.ExpertKernel, "efficiency", "experts")
    alike = [each for each in rows if (each.quant, each.generation, each.kernel, each.before) == wanted]
    kernel = min(alike, key=lambda each: (each.engine != engine, bool(each.engine)))
    return expert_kernel_seconds(rank, gpu, kernel, float(row["tokens"])) / rank.model.moe_layers * 1e6


@functools.cache
def _expert_rank(name: str, quant: str, tp: int, ep: int) -> RankWork:
    """A rank of a model whose experts have that quantisation, whether or not somebody published such weights."""
    model = catalogue.find_model(name)
    form = {"name": quant, "quant": quant, "other": 16.0, "routed_experts": BITS[quant]}
    recipe = recipe_of("vllm", name, quant, parallel=Parallel(tp=tp * ep, ep=ep > 1))
    return rank_work(model, checkpoint_from_row(model, form), recipe)


@functools.cache
def _timed(model: str, checkpoint: str, layers: int) -> Speed:
    recipe = recipe_of("vllm", model, checkpoint, kv="bf16", parallel=Parallel(), max_seqs=64)
    return speed_of(box_of("1x-h200"), recipe, layers)


def _single(row: dict[str, Any]) -> Speed:
    spread = Parallel(tp=8, dcp=row["dcp"])
    recipe = recipe_of(row["engine"], row["model"], row["checkpoint"], kv=row["kv"], parallel=spread)
    return speed_of(box_of(row["box"], row), recipe)


def _hybrid(row: dict[str, Any]) -> Speed:
    cards = (catalogue.find_gpu(row["gpu"]),) * row["gpus"] if row["gpus"] else ()
    measured = row.get("ram_measured_gb_s")
    box = Box(
        name=row["name"],
        gpus=cards,
        cpu=Cpu(model=row.get("cpu", ""), cores=row["cores"], sockets=row.get("sockets", 1)),
        ram_bandwidth=round(row["ram_gb_s"] * 1e9),
        ram_bandwidth_measured=round(measured * 1e9) if measured else None,
    )
    layers = tuple(range(1, 1 + row["expert_layers"]))
    hybrid = Hybrid(experts=(layers,), threads=row["threads"], ubatch=row["ubatch"])
    flags = row.get("flags", {})
    recipe = recipe_of(row["engine"], row["model"], row["checkpoint"], kv="f16", hybrid=hybrid, flags=flags)
    return speed_of(box, recipe)


def _sliced(row: dict[str, Any]) -> Speed:
    gpu = catalogue.find_gpu(row["gpu"])
    gpu = replace(gpu, memory=row["memory_gib"] * 2**30) if "memory_gib" in row else gpu
    box = Box(
        name=row["name"],
        gpus=(gpu,) * row["gpus"],
        cpu=Cpu(sockets=row["sockets"], cores=row["cores"], threads=row["cores"]),
        ram_bandwidth=round(row["ram_gb_s"] * 1e9),
    )
    hybrid = Hybrid(threads=row["cores"], pools=row["sockets"], gpu_experts=row["gpu_experts"])
    spread = Parallel(tp=row["gpus"])
    settings = {"hybrid": hybrid, "parallel": spread, "batched_tokens": row["chunk"]}
    return speed_of(box, recipe_of("ktransformers", row["model"], row["checkpoint"], kv="bf16", **settings))


@functools.cache
def _csv(name: str) -> list[dict[str, str]]:
    text = resources.files("moebox.data").joinpath("published", name).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return [row for row in rows if not any(word in row.get("run", "") for word in NOT_SPEED)]


@functools.cache
def _toml(name: str) -> list[dict[str, Any]]:
    text = resources.files("moebox.data").joinpath("published", name).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["run"]
    return rows


def forget() -> None:
    """Look at the constants again."""
    rig.cache_clear()
    _timed.cache_clear()
    outcome_at.cache_clear()


def log_error(case: Case) -> float:
    """ln(predicted / published), positive where the forecast is too good."""
    error = math.log(case.ratio)
    return -error if case.group in TIMES else error
