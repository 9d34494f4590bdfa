"""Workload files: the requests of a benchmark and how they are sent, for `bench` and `forecast` (docs/metrics.md)."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from moebox import codec
from moebox.core.measure import LoadSettings, Workload, WorkloadKind
from moebox.data import FOLDER
from moebox.errors import UnknownName, prefix_errors, refuse_if

DEFAULT_TURNS, DEFAULT_THINK_S = 16, 1.0  # of a conversation, if no file sets them
FILE_KINDS: tuple[WorkloadKind, ...] = ("prompts", "trace")
# Fields of [workload] that only some kinds have.
FIELD_KINDS: dict[str, tuple[WorkloadKind, ...]] = {
    "turns": ("turns",),
    "think_s": ("turns",),
    "prefix_tokens": ("prefix", "turns"),
    "prefixes": ("prefix",),
    "file": FILE_KINDS,
    "input_tokens": ("random", "code", "turns", "prefix"),
    "output_tokens": ("random", "code", "turns", "prefix", "prompts"),
    "reuse_prompts": ("random", "code", "turns", "prefix", "trace"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What a forecast or a twin assumes beside the recipe, as published runs state it; `bench` does not use it."""

    lengths: Literal["fixed", "near", "uniform"] = "fixed"  # near: 80 to 100% of it; uniform: between 1 and it
    prefix_hit: float = 0.0  # share of each prompt that is in the prefix cache
    warm: float | None = None  # share of the first burst whose prefix is cached; None: all
    cold_s: float = 0.0  # extra time of the first step, for kernels compiled at first use
    window_s: float = 0.0  # over which the client sends its first requests; 0: all at once
    prefill_engines: int = 0  # engines like this one that read the prompts and hand the cache over
    kv_tokens: int | None = None  # cache capacity, such as the one in an engine's log
    accept: float | None = None  # share of draft tokens accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """One workload with its loads. The keys are those of the file, and of --set."""

    about: str = ""
    source: str = ""
    concurrency: tuple[int, ...] = ()  # a load for each; none: 1 in a benchmark, several in a forecast
    rate: tuple[float, ...] = ()  # requests a second instead; concurrency then limits the requests in flight
    requests: int = 0  # for each load; 0: requests_per_stream
    requests_per_stream: int = 0  # 0: 4 in a benchmark, 10 in a forecast
    warmup: int = 0  # requests sent before the measurement, and not counted
    repeat: int = 3  # of each test of --pp and --tg
    workload: Workload = Workload()
    load: LoadSettings = LoadSettings()
    simulation: Simulation = Simulation()

    def check(self, *, search_rate: bool = False) -> None:
        """Raise BadInput for settings without effect and values out of range; `search_rate`: a rate is searched."""
        work, load, is_open = self.workload, self.load, bool(self.rate) or search_rate
        for name, kinds in FIELD_KINDS.items():
            unused = work.kind not in kinds and getattr(work, name) != getattr(Workload(), name)
            refuse_if(unused, f"workload.{name} has no effect with the kind {work.kind}", hint=f"it is for {kinds[0]}")
        refuse_if(work.prefixes > 1 and not work.prefix_tokens, "workload.prefixes needs workload.prefix_tokens")
        refuse_if(work.kind in FILE_KINDS and not work.file, f"the kind {work.kind} needs workload.file")
        refuse_if(work.file and not Path(work.file).is_file(), f"{work.file}: no such file")
        shaped = load.arrivals != "poisson" or load.burstiness != 1
        refuse_if(shaped and not is_open, "load.arrivals and load.burstiness need a rate", hint="add --rate")
        constant = load.arrivals == "constant" and load.burstiness != 1
        refuse_if(constant, "load.burstiness has no effect: constant arrivals have equal gaps")
        timed = work.kind == "trace" and (self.rate or shaped or load.ramp_s)
        refuse_if(timed, "a trace has its own times: it does not take a rate, arrivals, burstiness or ramp_s")
        limits = {"workload.input_tokens": work.input_tokens, "workload.output_tokens": work.output_tokens}
        limits |= {"workload.turns": work.turns, "workload.prefixes": work.prefixes, "repeat": self.repeat}
        for name, value in limits.items():
            refuse_if(value < 1, f"{name} must be 1 or more")
        refuse_if(load.burstiness <= 0, "load.burstiness must be above 0")


@functools.cache
def shipped_workloads() -> dict[str, WorkloadFile]:
    """Return the workloads that come with moebox, by name: published benchmarks, ready to repeat."""
    paths = sorted((FOLDER / "workloads").glob("*.toml"))
    return {path.stem: codec.read_toml(WorkloadFile, path) for path in paths}


def find_workload_file(name: str) -> WorkloadFile:
    """Return the workload of a file, a shipped one, or the usual one of a kind; paths in a file are relative to it."""
    if name == "turns":
        return WorkloadFile(workload=Workload(kind="turns", turns=DEFAULT_TURNS, think_s=DEFAULT_THINK_S))
    if name in get_args(WorkloadKind):
        return WorkloadFile(workload=Workload(kind=name))  # type: ignore[arg-type]
    if name in shipped_workloads():
        return shipped_workloads()[name]
    path = Path(name)
    if not name.endswith(".toml") and not path.exists():
        raise UnknownName("workload", name, [*shipped_workloads(), *get_args(WorkloadKind)])
    found = codec.read_toml(WorkloadFile, path)
    with prefix_errors(str(path)):
        work = found.workload
        if work.file:
            found = replace(found, workload=replace(work, file=str(path.parent / work.file)))
        found.check()
    return found
