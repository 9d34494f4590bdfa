"""The memory lines of the accuracy table: weights on a GPU and key-value pools against published starts.

python benchmarks/accuracy_memory.py
"""

import sys
from dataclasses import dataclass

from moebox import codec
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.recipe import EngineName, Parallel, Recipe, Runtime, Speculate
from moebox.engines import memory_budget
from moebox.sizing.constants import GRAPH_ESTIMATE_ENV

GIB = 2**30

WEIGHTS_WITHIN, POOL_WITHIN = 0.03, 0.04
KV, OTHERS = "KV capacity", "KV, not held"  # the second is shown, and not held to a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStart:
    """One published start; `kv_tokens` or `weights_gib` is what was measured."""

    run: str
    held: bool = True  # one of the figures that must be met
    model: str
    checkpoint: str
    box: str
    engine: EngineName
    image: str = ""
    version: str = ""  # of a stock engine; "": the newest known
    vision: bool = True
    tp: int = 1
    dcp: int = 1
    ep: bool = False
    kv: str = "auto"
    memory_utilization: float | None = None
    method: str = "eagle3"
    draft: str = ""
    context: int = 65536
    max_seqs: int | None = None
    batched_tokens: int | None = None
    graphs_counted: bool = True
    kv_tokens: int = 0
    weights_gib: float = 0.0
    source: str

    @property
    def settings_text(self) -> str:
        words = [self.engine, f"TP{self.tp}", f"DCP{self.dcp}" if self.dcp > 1 else "", self.kv]
        words += [f"{self.memory_utilization:g}" if self.memory_utilization else "", "draft" if self.has_draft else ""]
        return " ".join(filter(None, words))

    @property
    def has_draft(self) -> bool:
        return bool(self.draft) or self.method != "eagle3"

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            name=self.run,
            engine=self.engine,
            engine_version=self.version,
            model=self.model,
            checkpoint=self.checkpoint,
            served_name=self.model,
            context=self.context,
            max_seqs=self.max_seqs,
            batched_tokens=self.batched_tokens,
            kv=self.kv,
            memory_utilization=self.memory_utilization,
            vision=self.vision,
            parallel=Parallel(tp=self.tp, dcp=self.dcp, ep=self.ep),
            speculate=Speculate(method=self.method, draft=self.draft) if self.has_draft else None,
            runtime=Runtime(image=self.image, preset="community" if self.image else ""),
            env={} if self.graphs_counted else {GRAPH_ESTIMATE_ENV: "0"},
        )

    @property
    def deployment(self) -> Deployment:
        count, _, name = self.box.partition("x-")
        model = catalogue.find_model(self.model)
        box = Box(name=self.box, gpus=(catalogue.find_gpu(name),) * int(count))
        return Deployment(self.recipe, model, catalogue.find_checkpoint(model.name, self.checkpoint), box)


def published_starts(kind: str) -> tuple[PublishedStart, ...]:
    """Every published `pool`, or every published `weights`."""
    found = catalogue.load_table("published/memory")[kind]
    return tuple(codec.decode(PublishedStart, row, where=f"published/memory.toml [{row['run']}]") for row in found)


def forecast_kv_tokens(row: PublishedStart) -> int:
    """The pool the model gives for a row."""
    return memory_budget(row.deployment).kv_tokens


def forecast_weights_gib(row: PublishedStart) -> float:
    """The weights on a GPU, in GiB, that the model gives for a row."""
    return memory_budget(row.deployment).devices[0].weights_total / GIB


def cases() -> list[tuple[str, str, str, float, float]]:
    """Every row: group, run, settings, published, forecast."""
    found = [
        ("weights per GPU", start.run, start.settings_text, start.weights_gib, forecast_weights_gib(start))
        for start in published_starts("weights")
    ]
    pools = [(KV if start.held else OTHERS, start) for start in published_starts("pool")]
    found += [
        (group, start.run, start.settings_text, float(start.kv_tokens), float(forecast_kv_tokens(start)))
        for group, start in pools
    ]
    return found


def memory_rows() -> list[dict[str, float | str]]:
    """Rows as dicts, with their error."""
    return [
        {"what": what, "run": run, "at": at, "published": seen, "forecast": forecast, "error": forecast / seen - 1}
        for what, run, at, seen, forecast in cases()
        if what != OTHERS
    ]


def figures() -> list[tuple[str, str, str, str, bool]]:
    """A line of the accuracy table for weights and one for pools; `--rows` prints every row as well."""
    if "--rows" in sys.argv:
        main()
    lines = []
    for what, within in (("weights per GPU", WEIGHTS_WITHIN), (KV, POOL_WITHIN)):
        errors = [abs(forecast / seen - 1) for group, _, _, seen, forecast in cases() if group == what]
        reached = f"worst {max(errors):.1%} of {len(errors)} rows"
        lines.append((what, "published starts", f"within {within:.0%}", reached, max(errors) <= within))
    return lines


def main() -> int:
    """Print every row; 1 when one misses its bound."""
    missed = 0
    for what, run, at, seen, forecast in cases():
        within = WEIGHTS_WITHIN if what.startswith("weights") else POOL_WITHIN
        good = abs(forecast / seen - 1) <= within or what == OTHERS
        missed += not good
        mark = "" if good else "  MISSED"
        print(f"{what:16} {run:22} {at:32} {seen:>12,.2f} {forecast:>12,.2f} {forecast / seen - 1:+7.2%}{mark}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
