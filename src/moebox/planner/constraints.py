"""What a person has fixed; everything else is the planner's to choose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from moebox.core import registry
from moebox.core.model import KV_BYTES
from moebox.core.plan import Goal
from moebox.core.recipe import EngineName
from moebox.core.traits import Traits
from moebox.errors import BadInput, UnknownName, refuse_if, refuse_out_of_range

IMAGES = ("stock", "community")
DRAFT_METHODS = ("none", "eagle3", "mtp", "ngram")
# Flags that only engines have which share the work between CPU and GPUs, and the field of [hybrid] each pins.
PARALLEL_SIZES = ("tp", "pp", "dp", "ep", "dcp")
HYBRID_FLAGS = {"--experts-on-gpu": "experts", "--ub": "ubatch", "--mla": "mla", "--threads": "threads"}
MAX_CONTEXT = 2**31  # tokens; more is a typing error, not a context


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConstraints:
    """What the planner takes as the command line writes it; None is free."""

    engine: EngineName | None = None
    checkpoint: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    dcp: int | None = None
    kv: str | None = None
    memory_utilization: float | None = None
    speculate: str | None = None
    mla: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints(CommonConstraints):
    """Settings that must hold in the recipe; None is free."""

    goal: Goal = "throughput"
    bold: bool = False
    context: int | None = None
    concurrency: int | None = None
    image: str | None = None
    experts: tuple[int, ...] | None = None  # expert layers by GPU
    ubatch: int | None = None

    def __post_init__(self) -> None:
        _known("goal", self.goal, get_args(Goal))
        _known("engine", self.engine, registry.engine_names())
        _known("KV cache type", self.kv, tuple(KV_BYTES))
        _known("draft method", self.speculate, DRAFT_METHODS)
        _known("image", self.image, IMAGES)
        for name in (*PARALLEL_SIZES, "concurrency", "threads"):
            refuse_out_of_range(f"--{name}", getattr(self, name), 1, 2**20)
        refuse_out_of_range("--ub", self.ubatch, 1, 2**20)
        refuse_out_of_range("--context", self.context, 1, MAX_CONTEXT)
        refuse_out_of_range("--mla", self.mla, 0, 3)
        share = self.memory_utilization
        if share is not None and not 0 < share <= 1:
            raise BadInput(f"--memory-utilization {share:g} is not a share of the GPU", hint="write it like 0.90")
        refuse_if(min(self.experts or (0,)) < 0, "--experts-on-gpu counts layers; none can be negative")
        self._refuse_contradictions()

    @property
    def gpu_only_flag(self) -> str:
        """The first pin that only engines serving from GPUs have, as its flag; ""."""
        given = {flag: size > 1 for flag, size in self.parallel_sizes.items()} | {
            "--memory-utilization": self.memory_utilization is not None,
            "--image": self.image == "community",
            "--speculate": self.speculate not in (None, "none"),
        }
        return next((flag for flag, there in given.items() if there), "")

    @property
    def hybrid_flag(self) -> str:
        """The first pin that only engines sharing the work between CPU and GPUs have, as its flag; ""."""
        return next((flag for flag, field in HYBRID_FLAGS.items() if getattr(self, field) is not None), "")

    def _refuse_contradictions(self) -> None:
        """What no engine has together."""
        if self.gpu_only_flag and self.hybrid_flag:
            raise BadInput(
                f"{self.gpu_only_flag} is for {_listed(gpu_only_engines())}, "
                f"{self.hybrid_flag} for {_listed(hybrid_engines())}"
            )
        if self.engine:
            self._refuse_for(registry.engine_traits(self.engine))

    def _refuse_for(self, engine: Traits) -> None:
        """What the engine that was asked for does not have."""
        if self.gpu_only_flag and engine.offloads_experts and not engine.can_shard(self.gpu_only_flag[2:]):
            other = f"--engine {self.engine} for {_listed(hybrid_engines())}"
            raise BadInput(f"{self.gpu_only_flag} is for {_listed(gpu_only_engines())}, {other}")
        alone = self.hybrid_flag and engine.is_gpu_only
        refuse_if(alone, f"{self.hybrid_flag} is for {_listed(hybrid_engines())}, not {self.engine}")
        self._refuse_image(engine)
        self._refuse_sharing(engine)
        unknown = self.kv and self.kv not in engine.kv
        refuse_if(unknown, f"{self.engine} has no {self.kv} cache", hint=f"it has {', '.join(engine.kv[1:])}")

    def _refuse_image(self, engine: Traits) -> None:
        """A patched image that is made of another engine."""
        if self.image and self.image not in ("stock", *engine.presets):
            raise BadInput(f"--image {self.image} is a {_listed(engines_with_preset(self.image))}, not {self.engine}")

    def _refuse_sharing(self, engine: Traits) -> None:
        """Fields of [hybrid] that are pinned and that the engine does not have."""
        for flag in ("--experts-on-gpu", "--ub", "--mla"):
            field = HYBRID_FLAGS[flag]
            if getattr(self, field) is None or field in engine.hybrid_fields:
                continue
            hint = "llama.cpp always absorbs latent attention" if field == "mla" else None
            raise BadInput(f"{flag} is for {_listed(engines_with_hybrid(field))}, not {self.engine}", hint=hint)

    @property
    def parallel_sizes(self) -> dict[str, int]:
        """Sizes of parallelism that are pinned, by flag."""
        return {f"--{name}": getattr(self, name) for name in PARALLEL_SIZES if getattr(self, name)}


def _engines(wanted: Callable[[Traits], bool]) -> tuple[EngineName, ...]:
    """Engines of a kind, the preferred ones first."""
    return tuple(traits.name for traits in registry.all_traits() if wanted(traits))


def gpu_only_engines() -> tuple[EngineName, ...]:
    """Engines that serve from GPUs alone, the preferred ones first."""
    return _engines(lambda traits: traits.is_gpu_only)


def hybrid_engines() -> tuple[EngineName, ...]:
    """Engines that share the work between CPU and GPUs."""
    return _engines(lambda traits: traits.offloads_experts)


def engines_with_preset(preset: str) -> tuple[EngineName, ...]:
    """Engines that a patched image is made of."""
    return _engines(lambda traits: preset in traits.presets)


def engines_with_hybrid(*fields: str) -> tuple[EngineName, ...]:
    """Engines that share the work and have all these fields of [hybrid]."""
    return _engines(lambda traits: traits.offloads_experts and traits.hybrid_fields >= set(fields))


def _listed(names: tuple[EngineName, ...]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def parse_expert_counts(text: str) -> tuple[int, ...]:
    """Expert layers by GPU: "3+3" is three on the first and three on the last of two; "0" is none."""
    parts = text.replace(" ", "").split("+")
    if not all(part.isdigit() and len(part) < 5 for part in parts):
        raise BadInput(f"--experts-on-gpu {text!r} is not a list of counts", hint="write it like 3+3, or 0 for none")
    return tuple(map(int, parts))


def _known(kind: str, value: str | None, names: tuple[str, ...]) -> None:
    if value is not None and value not in names:
        raise UnknownName(kind, value, names)
