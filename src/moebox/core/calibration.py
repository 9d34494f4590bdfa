"""A calibration: steps that a rehearsal timed on a box, and the recipes they apply to.

`planner.speed.measured` computes the speed of the whole model from them.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from moebox import codec
from moebox.core import registry
from moebox.core.conditions import MOST_DOUBT
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.core.versions import same_version
from moebox.units import plural

if TYPE_CHECKING:  # a box carries its calibrations
    from moebox.core.box import Box

FORMAT = 1
SIXTEEN_BIT_KV = ("auto", "bf16", "f16", "")  # cache types of 16 bits
EAGER_FLAGS = {  # and the values with which steps that decode run outside graphs
    "enforce-eager": "True",
    "max-cudagraph-capture-size": "0",
    "compilation-config.cudagraph_mode": "NONE",
    "disable-cuda-graph": "True",
    "disable-decode-cuda-graph": "True",
    "cuda-graph-backend-decode": "disabled",
}
RAM_TOLERANCE = 0.05  # two kernels report slightly different totals for the same modules
# At least, however well the fit describes its own rows: 75 decode steps of four sets of boots with vLLM on H200s
# (tests/planner/h200) were 8 % off (root mean square), their prompts 35 %.
FIT_SPREAD, PROMPT_FIT_SPREAD = 0.1, 0.35
NOT_MEASURED = (
    "acceptance of draft tokens: dummy weights are unpredictable",
    "skew of the real routing: experts were used evenly",
    "page faults of a cold start: the engine was warm",
)


def uses_cpu(engine: str) -> bool:
    """True if the engine computes on the CPU as well."""
    return engine in registry.engine_names() and registry.engine_traits(engine).offloads_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """A step that decodes `batch` sequences of `context` tokens each."""

    batch: int
    context: int
    seconds: float
    spread: float = 0.0  # standard error of `seconds`, as a share of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStep:
    """A single new prompt on an idle engine, until its first token."""

    tokens: int
    seconds: float
    spread: float = 0.0


StepT = TypeVar("StepT", DecodeStep, PrefillStep)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """The forecast of a step from published rows: fixed seconds, and seconds per layer."""

    batch: int  # 0: a prompt alone
    context: int  # the prompt's tokens
    fixed_s: float
    layer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """The measurements at one depth."""

    layers: int
    gpu_experts: int = 0  # layers with experts on GPUs, if those of other layers are in RAM
    decode: tuple[DecodeStep, ...] = ()
    prefill: tuple[PrefillStep, ...] = ()
    weights_bytes: int = 0  # on the fullest device
    cache_tokens: int = 0
    startup_s: float = 0.0
    drift: float = 0.0  # of the first point between the beginning and the end
    left_out: int = 0  # kinds of step for which there was no time

    @property
    def text(self) -> str:
        return f"{self.layers} layers" + (f" ({self.gpu_experts} with experts on GPUs)" if self.gpu_experts else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedBox:
    """The parts of a box that decide speed, so that owners of equal boxes can share a calibration."""

    gpus: str = ""  # "8x h200"
    cpu: str = ""
    cores: int = 0
    ram_bytes: int = 0

    def matches(self, other: "CalibratedBox", *, host: bool) -> bool:
        """True for the same GPUs and, if the CPU computes too (`host`), the same CPU and memory."""
        same_ram = abs(self.ram_bytes - other.ram_bytes) <= RAM_TOLERANCE * max(self.ram_bytes, other.ram_bytes)
        same_host = (self.cpu, self.cores) == (other.cpu, other.cores) and same_ram
        return self.gpus == other.gpus and (same_host or not host)

    @property
    def text(self) -> str:
        return self.gpus or f"{self.cpu or 'CPU'}, {self.cores} cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedLayout:
    """The settings of a recipe that decide the time of a step."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: bool = False
    kv: str = ""  # "" is 16 bits
    graphs: bool = True
    chunk: int = 0  # prompt tokens in one step; 0: the engine's default
    threads: int = 0  # 0: the engine's default
    preset: str = ""

    @property
    def text(self) -> str:
        sizes = (("TP", self.tp), ("PP", self.pp), ("DP", self.dp), ("DCP", self.dcp))
        others: dict[str, object] = {
            "EP": self.ep,
            f"kv {self.kv}": self.kv,
            "eager": not self.graphs,
            f"chunk {self.chunk}": self.chunk,
            plural(self.threads, "thread"): self.threads,
            self.preset: self.preset,
        }
        parts = [f"{name}{size}" for name, size in sizes if size > 1 or name == "TP"]
        return " ".join([*parts, *(text for text, is_set in others.items() if is_set)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Steps timed on one box with one engine, and the recipes they apply to."""

    format: int = FORMAT
    id: str
    date: str  # YYYY-MM-DD
    place: CalibratedBox
    engine: str
    version: str = ""
    model: str  # its title
    shape: str  # of the model's layers, independent of their number
    layers: int  # of the whole model
    quant: str
    layout: CalibratedLayout = CalibratedLayout()
    layer_bytes: float = 0.0  # cache of one token in one layer on one GPU; 0: unknown
    boots: tuple[Boot, ...] = ()
    expected: tuple[ExpectedStep, ...] = ()  # only for engines that use GPUs alone
    # Standard deviation of ln(real / fitted) on a box that was not fitted, of decode steps and prompts.
    fit_spread: float = FIT_SPREAD
    prompt_fit_spread: float = PROMPT_FIT_SPREAD
    disturbed: tuple[str, ...] = ()  # by what, while it was measured
    doubt: float = MOST_DOUBT  # if it was disturbed: standard deviation of ln(timed / undisturbed)
    notes: tuple[str, ...] = ()  # deviations from the planned measurement
    unseen: tuple[str, ...] = NOT_MEASURED
    imported: str = ""  # the file's name; "" if measured here

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of layers of the boots, ascending."""
        return tuple(sorted({boot.layers for boot in self.boots}))

    def applies_to(self, box: "Box", model: Model, checkpoint: Checkpoint, recipe: Recipe) -> bool:
        """True if it was measured with the configuration that `recipe` starts on `box`."""
        if (self.engine, self.quant) != (recipe.engine, checkpoint.quant) or recipe.speculate:  # no drafts are measured
            return False
        if self.version and recipe.engine_version and not same_version(recipe.engine_version, self.version):
            return False
        if self.shape != shape_id(model) or self.layout != calibrated_layout(recipe):
            return False
        return self.place.matches(calibrated_box(box), host=uses_cpu(recipe.engine))


def calibrated_box(box: "Box") -> CalibratedBox:
    names = Counter(gpu.name for gpu in box.all_gpus)
    gpus = " + ".join(f"{count}x {name}" for name, count in sorted(names.items()))
    return CalibratedBox(gpus=gpus, cpu=box.cpu.model, cores=box.cpu.cores, ram_bytes=box.ram)


def calibrated_layout(recipe: Recipe) -> CalibratedLayout:
    hybrid = recipe.hybrid
    return CalibratedLayout(
        **codec.shared_fields(recipe.parallel, CalibratedLayout),
        kv="" if recipe.kv in SIXTEEN_BIT_KV else recipe.kv,
        graphs=decodes_in_graphs(recipe),
        chunk=(hybrid.ubatch if hybrid else recipe.batched_tokens) or 0,
        threads=(hybrid.threads if hybrid else 0) or 0,
        preset=recipe.runtime.preset,
    )


def decodes_in_graphs(recipe: Recipe) -> bool:
    """Whether steps that decode run in CUDA graphs, by the recipe's flags."""
    return not any(str(recipe.flags.get(name)) == value for name, value in EAGER_FLAGS.items())


def largest_graph(recipe: Recipe) -> float:
    """The most tokens that a step may decode in a graph by its flags: 0 if none is captured, no limit without flags."""
    if not decodes_in_graphs(recipe):
        return 0
    tokens, batch = (recipe.flags.get(name) for name in ("max-cudagraph-capture-size", "cuda-graph-max-bs-decode"))
    limits = [tokens, batch * (1 + recipe.draft_tokens) if isinstance(batch, int) else None]
    return min((limit for limit in limits if isinstance(limit, int)), default=math.inf)


def gpu_expert_layers(recipe: Recipe) -> int:
    """Number of layers whose experts are on GPUs while others are in RAM."""
    return sum(map(len, recipe.placement.experts))


# Fields that were added later, with their defaults: hashed only if they differ, so that old ids stay valid.
LATER_FIELDS: dict[str, object] = {"whole_heads": False, "matrices": 3}


def shape_id(model: Model) -> str:
    """A short id of the shape of the model's layers; models that differ only in depth share it."""
    import hashlib  # slow to import

    def facts(value: object) -> dict[str, object]:
        return {name: field for name, field in codec.to_document(value).items() if field != LATER_FIELDS.get(name, ...)}

    kinds = [[type(layers.kind).__name__, facts(layers.kind)] for layers in model.stack]
    widths = [model.hidden, model.dense_layers, model.dense_intermediate, model.vocab]
    text = json.dumps([kinds, model.moe and facts(model.moe), widths], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
