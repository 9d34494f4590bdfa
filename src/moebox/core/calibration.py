"""A calibration: the steps that a rehearsal timed on a box, as they were measured, and for which recipes they hold.

Facts only. What they say of the whole model is worked out in `planner.speed.measured`.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from moebox import codec
from moebox.core import registry
from moebox.core.layer_kind import LayerKind
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.units import plural

if TYPE_CHECKING:  # a box carries its calibrations
    from moebox.core.box import Box

FORMAT = 1
SIXTEEN_BIT_KV = ("auto", "bf16", "f16", "")  # the cache's type where nothing else is asked for
EAGER_FLAGS = ("enforce-eager", "disable-cuda-graph")
RAM_TOLERANCE = 0.05  # of the same modules two kernels leave a little more or less
NOT_MEASURED = (
    "acceptance of draft tokens: dummy weights cannot be guessed",
    "skew of the real routing: experts were used evenly",
    "page faults of a cold start: the engine was warm",
)


def uses_cpu(engine: str) -> bool:
    """Whether the CPU computes as well."""
    return engine in registry.engine_names() and registry.engine_traits(engine).offloads_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """One step that decodes `batch` sequences at `context` tokens each."""

    batch: int
    context: int
    seconds: float
    spread: float = 0.0  # standard error of `seconds`, as a share of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStep:
    """One new prompt alone on the engine, until its first token."""

    tokens: int
    seconds: float
    spread: float = 0.0


StepT = TypeVar("StepT", DecodeStep, PrefillStep)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """What the forecast from published rows said of a decode step: seconds whatever the depth, and of each layer."""

    batch: int
    context: int
    fixed_s: float
    layer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What one depth showed."""

    layers: int
    gpu_experts: int = 0  # of these, layers with experts on GPUs where other layers' experts are in RAM
    decode: tuple[DecodeStep, ...] = ()
    prefill: tuple[PrefillStep, ...] = ()
    weights_bytes: int = 0  # on the fullest device
    cache_tokens: int = 0
    startup_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedBox:
    """The box in what decides speed, so that owners of the same box can share a calibration."""

    gpus: str = ""  # "8x h200"
    cpu: str = ""
    cores: int = 0
    ram_bytes: int = 0

    def matches(self, other: "CalibratedBox", *, host: bool) -> bool:
        """The same GPUs and, where the host computes as well, the same CPU and memory."""
        if self.gpus != other.gpus:
            return False
        if not host:
            return True
        if (self.cpu, self.cores) != (other.cpu, other.cores):
            return False
        return abs(self.ram_bytes - other.ram_bytes) <= RAM_TOLERANCE * max(self.ram_bytes, other.ram_bytes)

    @property
    def text(self) -> str:
        """In a few words."""
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
    chunk: int = 0  # prompt tokens in one step; 0: the engine's own
    threads: int = 0  # 0: the engine's own
    preset: str = ""

    @property
    def text(self) -> str:
        """In a few words."""
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
        return " ".join([*parts, *(text for text, said in others.items() if said)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Steps timed on one box with one engine, and for which recipes they hold."""

    format: int = FORMAT
    id: str
    date: str  # YYYY-MM-DD
    place: CalibratedBox
    engine: str
    version: str = ""
    model: str  # its title, for people
    shape: str  # of the model, whatever its number of layers
    layers: int  # of the whole model
    quant: str
    layout: CalibratedLayout = CalibratedLayout()
    layer_bytes: float = 0.0  # of cache that a token takes in one layer, on one GPU; 0: not known
    boots: tuple[Boot, ...] = ()
    expected: tuple[ExpectedStep, ...] = ()  # of an engine that works on GPUs alone
    notes: tuple[str, ...] = ()  # what went differently than wanted
    unseen: tuple[str, ...] = NOT_MEASURED
    imported: str = ""  # the file's name; "" where measured here

    @property
    def depths(self) -> tuple[int, ...]:
        """Layers of the boots, fewest first."""
        return tuple(sorted({boot.layers for boot in self.boots}))

    def applies_to(self, box: "Box", model: Model, checkpoint: Checkpoint, recipe: Recipe) -> bool:
        """Whether it was measured with what `recipe` starts on `box`."""
        if (self.engine, self.quant) != (recipe.engine, checkpoint.quant):
            return False
        if recipe.speculate is not None:  # drafts are not measured
            return False
        if self.version and recipe.engine_version and self.version != recipe.engine_version:
            return False
        if self.shape != shape_id(model) or self.layout != calibrated_layout(recipe):
            return False
        return self.place.matches(calibrated_box(box), host=uses_cpu(recipe.engine))


def calibrated_box(box: "Box") -> CalibratedBox:
    """`box` in what decides speed."""
    names: dict[str, int] = {}
    for gpu in box.gpus:
        names[gpu.name] = names.get(gpu.name, 0) + box.nodes
    gpus = " + ".join(f"{count}x {name}" for name, count in sorted(names.items()))
    return CalibratedBox(gpus=gpus, cpu=box.cpu.model, cores=box.cpu.cores, ram_bytes=box.ram)


def calibrated_layout(recipe: Recipe) -> CalibratedLayout:
    """The settings of `recipe` that decide the time of a step."""
    spread, hybrid = recipe.parallel, recipe.hybrid
    return CalibratedLayout(
        tp=spread.tp,
        pp=spread.pp,
        dp=spread.dp,
        dcp=spread.dcp,
        ep=spread.ep,
        kv="" if recipe.kv in SIXTEEN_BIT_KV else recipe.kv,
        graphs=not any(map(recipe.flags.get, EAGER_FLAGS)),
        chunk=(hybrid.ubatch if hybrid else recipe.batched_tokens) or 0,
        threads=(hybrid.threads if hybrid else 0) or 0,
        preset=recipe.runtime.preset,
    )


def gpu_expert_layers(recipe: Recipe) -> int:
    """Layers whose experts the recipe puts on GPUs while others' stay in RAM."""
    return sum(map(len, recipe.hybrid.experts)) if recipe.hybrid else 0


LATER_FIELDS = ("whole_heads",)


def shape_id(model: Model) -> str:
    """A short name for the shape of the model's layers; models that differ in depth alone share it."""
    kinds = [[type(layers.kind).__name__, _facts(layers.kind)] for layers in model.stack]
    widths = [model.hidden, model.dense_layers, model.dense_intermediate, model.vocab]
    facts = [kinds, codec.to_plain(model.moe), widths]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _facts(kind: LayerKind) -> dict[str, object]:
    """What a kind of layer is; what was added to kinds later counts only where it is set, so that old names hold."""
    facts: dict[str, object] = codec.to_plain(kind)
    return {name: value for name, value in facts.items() if name not in LATER_FIELDS or value}
