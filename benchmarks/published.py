"""The published speed rows beside what the model says: each row a Case with its published figure and a prediction."""

import csv
import functools
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from moebox.core import catalogue
from moebox.core.box import Box, Cpu
from moebox.core.deployment import Deployment
from moebox.core.recipe import Hybrid, Parallel, Recipe, Runtime, Speculate
from moebox.planner.simulate import Outcome, Workload, rules_of, simulate
from moebox.planner.speed import Speed

PLENTY = 2_000_000  # cache tokens where a run does not say and the cache was not what limited it
OUT_OF_CACHE = 8  # tokens: 60 experts of 384 on 8 ranks are 185 MB, the cache 128
# A run with a broken NCCL topology.
NOT_SPEED = ("pathological",)


@dataclass(frozen=True, slots=True)
class Case:
    """One published figure."""

    group: str  # decode, prefill, tg, pp, output, ttft, tpot
    run: str
    at: str
    published: float
    predict: Callable[[], float]
    weight: float = 1.0  # in a fit

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predict() / self.published


def box_of(text: str) -> Box:
    """COUNTx-GPU."""
    count, _, name = text.partition("x-")
    return Box(name=text, gpus=(catalogue.gpu(name),) * int(count))


def speed_of(box: Box, recipe: Recipe) -> Speed:
    """The speed model of a recipe whose model and checkpoint are in the catalogue."""
    model = catalogue.model(recipe.model)
    return Speed.of(Deployment.of(recipe, model, catalogue.checkpoint(model.name, recipe.checkpoint), box))


def recipe_of(engine: Any, model: str, checkpoint: str, **settings: Any) -> Recipe:
    """A recipe with only what the speed model looks at."""
    return Recipe(name="published", engine=engine, model=model, checkpoint=checkpoint, served_name=model, **settings)


def rig(dcp: int, guesses: int) -> Speed:
    """The tuned rig of the decode and prefill cells: Kimi K2.6 INT4 on eight cards, patched image, fp8 cache."""
    recipe = recipe_of(
        "vllm",
        "kimi-k2.6",
        "int4",
        kv="fp8",
        parallel=Parallel(tp=8, dcp=dcp),
        runtime=Runtime(preset="community"),
        speculate=Speculate(tokens=guesses) if guesses else None,
    )
    return speed_of(box_of("8x-rtx-pro-6000-server"), recipe)


def decode_cells() -> Iterator[Case]:
    """rtx6kpro wiki, kimi-k26 v1 to v4, the Prometheus refresh and the Turin retest, Apr-May 2026; trust A and B."""
    for row in _csv("decode.csv"):
        at = f"dcp{row['dcp']} spec{row['guesses']} ctx{row['context']} C{row['concurrency']}"
        yield Case("decode", row["run"], at, float(row["decode_tok_s"]), functools.partial(_decode, row))


def prefill_cells() -> Iterator[Case]:
    """The same pages' prefill tables."""
    for row in _csv("prefill.csv"):
        at = f"dcp{row['dcp']} {row['prompt_tokens']} tokens"
        yield Case("prefill", row["run"], at, float(row["prefill_tok_s"]), functools.partial(_prefill, row))


def expert_kernels(*, quant: str) -> Iterator[Case]:
    """NVIDIA aiconfigurator's timings of expert kernels with 384 experts on RTX PRO 6000 Server.

    Runs whose weights fit the card's second-level cache are left out: a real step finds none of them there.
    """
    for row in _csv("experts.csv"):
        if row["quant"] == quant and int(row["tokens"]) >= OUT_OF_CACHE:
            at = f"tp{row['tp']} {row['tokens']} tokens"
            yield Case("experts", f"{row['run']} {quant}", at, float(row["kernel_us"]), functools.partial(_kernel, row))


def single_streams() -> Iterator[Case]:
    """One stream on eight RTX PRO 6000 without the patched image."""
    for row in _toml("single.toml"):
        yield Case("decode", row["name"], row["checkpoint"], row["decode_tok_s"], functools.partial(_single, row))


def hybrid_rows(*, engine: str = "") -> Iterator[Case]:
    """CPU+GPU rows, of one engine where asked."""
    for row in _toml("hybrid.toml"):
        if engine not in ("", row["engine"]):
            continue
        if "tg_tok_s" in row:
            yield Case("tg", row["name"], row["checkpoint"], row["tg_tok_s"], functools.partial(_hybrid, row, "tg"))
        if "pp_tok_s" in row:
            yield Case("pp", row["name"], row["checkpoint"], row["pp_tok_s"], functools.partial(_hybrid, row, "pp"))


def serving_rows(*, only: str = "") -> Iterator[Case]:
    """Serving benchmarks, by simulation."""
    for run in _toml("serving.toml"):
        if not run["name"].startswith(only):
            continue
        for row in run["rows"]:
            for figure, group in (("output_tok_s", "output"), ("ttft_ms", "ttft"), ("tpot_ms", "tpot")):
                if figure in row:
                    predict = functools.partial(_serving, run, row, figure)
                    yield Case(group, run["name"], f"C{row['concurrency']}", row[figure], predict)


def outcome(run: dict[str, Any], concurrency: int) -> Outcome:
    """One row of a serving run, simulated."""
    guesses = run.get("guesses", 0)
    recipe = recipe_of(
        run["engine"],
        run["model"],
        run["checkpoint"],
        kv=run["kv"],
        parallel=Parallel(tp=run["tp"]),
        speculate=Speculate(tokens=guesses) if guesses else None,
        flags={"disable-cuda-graph": True} if run.get("eager") else {},
    )
    workload = Workload(
        input=run["input"],
        output=run["output"],
        requests=concurrency * run["requests_per_slot"],
        concurrency=concurrency,
        lengths=run.get("lengths", "fixed"),
        prefix_hit=run.get("prefix_hit", 0.0),
        warm=int(concurrency * run.get("warm", 1.0)),
    )
    speed = speed_of(box_of(run["box"]), recipe)
    return simulate(speed, rules_of(recipe, run.get("kv_tokens", PLENTY)), workload)


def _serving(run: dict[str, Any], row: dict[str, Any], figure: str) -> float:
    done = outcome(run, row["concurrency"])
    figures = {"output_tok_s": done.output_tok_s, "ttft_ms": done.ttft.mean * 1e3, "tpot_ms": done.tpot.mean * 1e3}
    return figures[figure]


def _decode(row: dict[str, str]) -> float:
    return rig(int(row["dcp"]), int(row["guesses"])).decode_tok_s(int(row["concurrency"]), int(row["context"]))


def _kernel(row: dict[str, str]) -> float:
    model = "kimi-k2-instruct" if row["quant"] == "fp8" else "kimi-k2.6"
    recipe = recipe_of("vllm", model, row["quant"], parallel=Parallel(tp=int(row["tp"])))
    cards = speed_of(box_of(f"{row['tp']}x-rtx-pro-6000-server"), recipe).cards
    assert cards is not None
    alone = replace(cards, constants=replace(cards.constants, experts=1.0))
    return alone.experts(float(row["tokens"])) / cards.rank.model.moe_layers * 1e6


def _single(row: dict[str, Any]) -> float:
    spread = Parallel(tp=8, dcp=row["dcp"])
    recipe = recipe_of(row["engine"], row["model"], row["checkpoint"], kv=row["kv"], parallel=spread)
    return speed_of(box_of("8x-rtx-pro-6000-server"), recipe).decode_tok_s(1, 0)


def _prefill(row: dict[str, str]) -> float:
    return rig(int(row["dcp"]), int(row["guesses"])).prefill_tok_s(int(row["prompt_tokens"]))


def _hybrid(row: dict[str, Any], figure: str) -> float:
    cards = (catalogue.gpu(row["gpu"]),) * row["gpus"] if row["gpus"] else ()
    measured = row.get("ram_measured_gb_s")
    box = Box(
        name=row["name"],
        gpus=cards,
        cpu=Cpu(cores=row["cores"], sockets=row.get("sockets", 1)),
        ram_bandwidth=round(row["ram_gb_s"] * 1e9),
        ram_bandwidth_measured=round(measured * 1e9) if measured else None,
    )
    layers = tuple(range(1, 1 + row["expert_layers"]))
    hybrid = Hybrid(experts=(layers,), threads=row["threads"], ubatch=row["ubatch"])
    recipe = recipe_of(row["engine"], row["model"], row["checkpoint"], kv="f16", hybrid=hybrid)
    speed = speed_of(box, recipe)
    if figure == "tg":
        return speed.decode_tok_s(1, row.get("context", 1000))
    return speed.prefill_tok_s(row.get("prompt", 4096))


@functools.cache
def _csv(name: str) -> list[dict[str, str]]:
    text = resources.files("moebox.data").joinpath("published", name).read_text(encoding="utf-8")
    return [row for row in csv.DictReader(text.splitlines()) if not any(word in row["run"] for word in NOT_SPEED)]


@functools.cache
def _toml(name: str) -> list[dict[str, Any]]:
    text = resources.files("moebox.data").joinpath("published", name).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["run"]
    return rows
