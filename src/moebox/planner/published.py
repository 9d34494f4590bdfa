"""Published key-value pools and weights beside what the memory model says: the rows of the accuracy table."""

from dataclasses import dataclass

from moebox import codec
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.recipe import EngineName, Parallel, Recipe, Runtime, Speculate
from moebox.engines import memory_budget
from moebox.sizing.constants import GRAPH_ESTIMATE_ENV

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStart:
    """One start that somebody published; `kv_tokens` or `weights_gib` is what was seen."""

    run: str
    held: bool = True  # one of the figures that must be met
    model: str
    checkpoint: str
    box: str
    engine: EngineName
    image: str = ""
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
        """The settings in short."""
        words = [self.engine, f"TP{self.tp}", f"DCP{self.dcp}" if self.dcp > 1 else "", self.kv]
        words += [f"{self.memory_utilization:g}" if self.memory_utilization else "", "draft" if self.has_draft else ""]
        return " ".join(filter(None, words))

    @property
    def has_draft(self) -> bool:
        """Whether a draft was loaded."""
        return bool(self.draft) or self.method != "eagle3"

    @property
    def recipe(self) -> Recipe:
        """The settings as a recipe."""
        return Recipe(
            name=self.run,
            engine=self.engine,
            model=self.model,
            checkpoint=self.checkpoint,
            served_name=self.model,
            context=self.context,
            max_seqs=self.max_seqs,
            batched_tokens=self.batched_tokens,
            kv=self.kv,
            memory_utilization=self.memory_utilization,
            vision=True,
            parallel=Parallel(tp=self.tp, dcp=self.dcp, ep=self.ep),
            speculate=Speculate(method=self.method, draft=self.draft) if self.has_draft else None,
            runtime=Runtime(image=self.image, preset="community" if self.image else ""),
            env={} if self.graphs_counted else {GRAPH_ESTIMATE_ENV: "0"},
        )

    @property
    def deployment(self) -> Deployment:
        """The start with its box, model and checkpoint."""
        count, _, name = self.box.partition("x-")
        model = catalogue.find_model(self.model)
        box = Box(name=self.box, gpus=(catalogue.find_gpu(name),) * int(count))
        return Deployment.from_parts(self.recipe, model, catalogue.find_checkpoint(model.name, self.checkpoint), box)


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
