"""User constraints on a plan. Whatever is not given is the planner's choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from moebox.core import registry
from moebox.core.model import KV_BYTES
from moebox.core.plan import Goal
from moebox.core.recipe import EngineName, Parallel
from moebox.core.setting import parse_text, split_setting
from moebox.errors import BadInput, refuse_if, refuse_out_of_range, require_known
from moebox.sizing.layout import unsupported_layout
from moebox.units import join_names

IMAGES = ("stock", "community")
DRAFT_METHODS = ("none", "eagle3", "mtp", "ngram", "dflash", "dspark")
PARALLEL_SIZES = ("tp", "pp", "dp", "ep", "dcp")
# Flags of engines that share the work between CPU and GPUs, and the field of [hybrid] that each sets.
HYBRID_FLAGS = {"--experts-on-gpu": "experts", "--ub": "ubatch", "--mla": "mla", "--threads": "threads"}
MAX_CONTEXT = 2**31  # tokens; more is a typing error
# Settings of a recipe that the planner can be given, and the constraint that each is.
CONSTRAINT_OF_SETTING = {
    **{f"parallel.{name}": name for name in PARALLEL_SIZES},
    **{name: name for name in ("goal", "bold", "engine", "checkpoint", "kv", "memory_utilization", "context")},
    "max_seqs": "concurrency",
    "runtime.preset": "image",
    "speculate": "speculate",
    "speculate.method": "speculate",
    **{f"hybrid.{name}": name for name in HYBRID_FLAGS.values()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConstraints:
    """Constraints that the command line passes on as they are; None means unconstrained."""

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
    """User constraints; None means unconstrained. Invalid or contradictory ones raise BadInput."""

    goal: Goal = "throughput"
    bold: bool = False
    context: int | None = None
    concurrency: int | None = None
    image: str | None = None
    experts: tuple[int, ...] | None = None  # expert layers by GPU
    ubatch: int | None = None

    def __post_init__(self) -> None:
        names = {
            "goal": (self.goal, get_args(Goal)),
            "engine": (self.engine, registry.engine_names()),
            "KV cache type": (self.kv, tuple(KV_BYTES)),
            "draft method": (self.speculate, DRAFT_METHODS),
            "image": (self.image, IMAGES),
        }
        for kind, (name, known) in names.items():
            if name is not None:
                require_known(kind, name, known)
        for field in (*PARALLEL_SIZES, "concurrency", "threads"):
            refuse_out_of_range(f"--{field}", getattr(self, field), 1, 2**20)
        refuse_out_of_range("--ub", self.ubatch, 1, 2**20)
        refuse_out_of_range("--context", self.context, 1, MAX_CONTEXT)
        text, hint = f"--context {self.context}: so few tokens hold no request", f"did you mean {self.context}k?"
        refuse_if(self.context and self.context < 200, text, hint=hint)
        refuse_out_of_range("--mla", self.mla, 0, 3)
        share = self.memory_utilization
        if share is not None and not 0 < share <= 1:
            raise BadInput(f"--memory-utilization {share:g} is not a share of the GPU", hint="write it like 0.90")
        refuse_if(min(self.experts or (0,)) < 0, "--experts-on-gpu counts layers; none can be negative")
        if self.gpu_only_flag and self.hybrid_flag:
            gpu_only, hybrid = join_names(gpu_only_engines()), join_names(hybrid_engines())
            raise BadInput(f"{self.gpu_only_flag} is for {gpu_only}, {self.hybrid_flag} for {hybrid}")
        self._refuse_for_engine()

    @property
    def parallel_sizes(self) -> dict[str, int]:
        """Constrained sizes of parallelism, by flag."""
        return {f"--{name}": getattr(self, name) for name in PARALLEL_SIZES if getattr(self, name)}

    @property
    def gpu_only_flag(self) -> str:
        """The first given flag that only GPU-only engines have, or ""."""
        given = {flag: size > 1 for flag, size in self.parallel_sizes.items()} | {
            "--memory-utilization": self.memory_utilization is not None,
            "--image": self.image == "community",
            "--speculate": self.speculate not in (None, "none"),
        }
        return next((flag for flag, is_given in given.items() if is_given), "")

    @property
    def hybrid_flag(self) -> str:
        """The first given flag that only CPU+GPU engines have, or ""."""
        return next((flag for flag, field in HYBRID_FLAGS.items() if getattr(self, field) is not None), "")

    def _refuse_for_engine(self) -> None:
        """Raise BadInput for a setting that the requested engine does not have."""
        if not self.engine:
            return
        engine, hybrid = registry.engine_traits(self.engine), join_names(hybrid_engines())
        gpu_only = join_names(gpu_only_engines())
        text = f"{self.gpu_only_flag} is for {gpu_only}, --engine {self.engine} for {hybrid}"
        refuse_if(self.gpu_only_flag and engine.offloads_experts and self.gpu_only_flag[2:] not in engine.shards, text)
        ep = (self.ep or 1) > 1
        wanted = Parallel(tp=self.tp or 1, pp=self.pp or 1, dp=self.dp or 1, dcp=self.dcp or 1, ep=ep)
        if problem := unsupported_layout(engine, wanted):
            flag = f"--{problem.setting}"
            raise BadInput(f"{flag} {self.parallel_sizes[flag]}: {problem.reason}", hint="leave it out")
        text = f"--speculate {self.speculate}: {engine.title} has no such draft"
        refuse_if(self.speculate not in (None, "none", *engine.draft_methods), text, hint="--speculate none")
        refuse_if(
            self.hybrid_flag and not engine.offloads_experts, f"{self.hybrid_flag} is for {hybrid}, not {self.engine}"
        )
        if self.image and self.image not in ("stock", *engine.presets):
            makers = join_names(engines_with_preset(self.image))
            raise BadInput(f"--image {self.image} is an image of {makers}, not {self.engine}")
        for flag in ("--experts-on-gpu", "--ub", "--mla"):
            field = HYBRID_FLAGS[flag]
            if getattr(self, field) is not None and field not in engine.hybrid_fields:
                others = join_names(hybrid_engines(field))
                hint = "llama.cpp always absorbs latent attention" if field == "mla" else None
                raise BadInput(f"{flag} is for {others}, not {self.engine}", hint=hint)
        text = f"{self.engine} has no {self.kv} cache"
        refuse_if(self.kv and self.kv not in engine.kv, text, hint=f"it has {', '.join(engine.kv[1:])}")


def split_constraints(settings: Sequence[str], given: Constraints) -> tuple[Constraints, list[str]]:
    """Take the settings (path=value) that are constraints into `given`; return it and the other settings."""
    found: dict[str, Any] = {}
    others: list[str] = []
    for text in settings:
        path, value = split_setting(text)
        name = CONSTRAINT_OF_SETTING.get(path)
        if name is None:
            others.append(text)
        elif name == "experts":
            found[name] = parse_expert_counts(value)
        else:
            if name == "ep" and value in ("true", "false"):  # as in a recipe, which has no size
                tp = found.get("tp", given.tp)
                refuse_if(value == "true" and not tp, f"--set {text} needs --set parallel.tp=… before it")
                value = str((tp or 1) * (found.get("dp", given.dp) or 1)) if value == "true" else "1"
            found[name] = parse_text(get_type_hints(Constraints)[name], value, f"--set {path}")
    return replace(given, **found), others


def gpu_only_engines() -> tuple[EngineName, ...]:
    """Engines that serve from GPUs alone, the preferred ones first."""
    return tuple(traits.name for traits in registry.all_traits() if not traits.offloads_experts)


def hybrid_engines(*fields: str) -> tuple[EngineName, ...]:
    """Engines that share the work between CPU and GPUs and have these fields of [hybrid], the preferred ones first."""
    hybrid = (traits for traits in registry.all_traits() if traits.offloads_experts)
    return tuple(traits.name for traits in hybrid if traits.hybrid_fields >= set(fields))


def engines_with_preset(preset: str) -> tuple[EngineName, ...]:
    """Engines that have a patched image."""
    return tuple(traits.name for traits in registry.all_traits() if preset in traits.presets)


def parse_expert_counts(text: str) -> tuple[int, ...]:
    """Parse expert layers by GPU: "3+3" is three on the first and three on the last of two; "0" is none."""
    parts = text.replace(" ", "").split("+")
    if not all(part.isdigit() and len(part) < 5 for part in parts):
        raise BadInput(f"--experts-on-gpu {text!r} is not a list of counts", hint="write it like 3+3, or 0 for none")
    return tuple(map(int, parts))
