"""The recipe: everything needed to start one engine on one box with one checkpoint.

`plan` writes it, users edit it, `up` and `render` read it, `climb` changes one setting at a time. Settings that engines
have in common have a field; others go to `flags`, under the engine's own names, and are checked against its flag table.
"""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from moebox.core.versions import canonical_version
from moebox.errors import refuse_if

if TYPE_CHECKING:
    from moebox.core.box import Box

EngineName = str  # of an engine in core.registry
RuntimeKind = Literal["native", "docker", "podman", "embedded"]
FORMAT = 1
Flag = str | int | float | bool | list[str | int]
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_FREE_TABLES = ("flags", "env", "runtime.mounts")  # tables with any keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How the model is divided over GPUs. With `ep` each rank holds whole experts instead of slices."""

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    dp: int = 1
    ep: bool = False
    nodes: int = 1

    @property
    def gpu_count(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def group_nodes(self) -> int:
        """The most nodes that a tensor-parallel group spans; ranks are numbered node by node, group by group."""
        on_each = max(1, self.gpu_count // self.nodes)
        firsts = range(0, self.gpu_count, self.tp)
        return max((first + self.tp - 1) // on_each - first // on_each + 1 for first in firsts)

    @property
    def text(self) -> str:
        """The layout as text: TP8, TP4×PP2 or TP2×DP4."""
        more = {"PP": self.pp, "DP": self.dp}
        return "×".join([f"TP{self.tp}", *(f"{name}{size}" for name, size in more.items() if size > 1)])

    @property
    def labels(self) -> tuple[str, ...]:
        """The layout with DCP and EP as separate labels: TP8, DCP4, EP."""
        added = {f"DCP{self.dcp}": self.dcp > 1, "EP": self.ep}
        return (self.text, *(label for label, is_set in added.items() if is_set))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculate:
    """Speculative decoding: draft tokens, and the model or method that makes them."""

    method: str = "eagle3"
    draft: str = ""  # repository or path of the draft model
    tokens: int = 3  # draft tokens per step


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """Experts in RAM; the rest and some expert layers on the GPUs."""

    experts: tuple[tuple[int, ...], ...] = ()  # expert layers by GPU; all others stay in RAM
    device: str = "CUDA"  # prefix of GPU names in the build: "ROCm" with HIP
    gpu_layers: int = 999  # -ngl: layers whose dense part is on the GPUs
    threads: int | None = None
    threads_batch: int | None = None
    batch: int = 2048  # -b
    ubatch: int = 512  # -ub
    mla: int | None = None  # ik_llama.cpp only
    attention_buffer: int | None = None  # -amb, MiB; ik_llama.cpp only
    gpu_experts: int | None = None  # experts of each layer on the GPUs as well; KTransformers only
    pools: int | None = None  # thread pools, one per NUMA node; KTransformers only
    split: tuple[int, ...] = ()  # -ts: whole layers by device, RPC servers of other nodes first; llama.cpp only
    ranges: tuple[str, ...] = ()  # verbatim -ot rules, used instead of those made from `experts`


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTiers:
    """Where prefixes go that the KV cache evicts: RAM, then a folder on NVMe. Without sizes there are no tiers."""

    ram_gib: float = 0.0  # of all ranks together
    disk_gib: float = 0.0
    folder: str = "~/.cache/moebox/kv"  # each engine version, model and cache type gets a folder of its own in it
    connector: Literal["native", "lmcache"] = "native"  # lmcache: vLLM only


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The environment that the engine runs in."""

    kind: RuntimeKind = "native"
    image: str = ""
    preset: str = ""  # "community": the patched image with its environment; "" otherwise
    models_dir: str = ""  # host folder mounted for weights; "" is the Hub cache
    mounts: dict[str, str] = field(default_factory=dict)  # host path -> container path
    options: tuple[str, ...] = ()  # extra docker/podman options, verbatim
    python: str = ""  # interpreter or venv of a native engine; "" finds it on PATH
    entry: str = ""  # starts the engine, e.g. "python3 -m sglang.launch_server"; "" is the default
    setup: str = ""  # shell line run in the container before the engine, e.g. "pip install -q transformers==4.57.6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The address to serve on, and the environment variable that holds the key."""

    host: str = "127.0.0.1"
    port: int = 8000
    key_env: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFor:
    """The box a recipe was planned for, as `--box`, `--ram` and `--ram-bandwidth` name it; "" is this machine."""

    box: str = ""
    ram: str = ""
    ram_bandwidth: str = ""
    described: dict[str, object] = field(default_factory=dict)  # the content of the box file, if `box` is a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """Settings that `moebox climb` tries, in order."""

    contexts: tuple[int, ...] = (65536, 98304, 131072, 262144)
    speculate: tuple[str, ...] = ("none", "eagle3")
    settings: dict[str, list[Flag]] = field(default_factory=dict)  # recipe path -> values, e.g. "kv" -> ["bf16", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One engine, one checkpoint, one set of settings."""

    format: int = FORMAT
    name: str
    engine: EngineName
    engine_version: str = ""  # "" is the newest known
    model: str  # catalogue name, or a path
    checkpoint: str  # catalogue name, Hub repository, folder or .gguf file
    served_name: str  # "" is the engine's default
    context: int = 65536  # 0 is the engine's default
    max_seqs: int | None = None
    batched_tokens: int | None = None  # prompt tokens per step
    kv: str = "auto"  # fp8, bf16, f16, q8_0 or auto
    memory_utilization: float | None = None  # vLLM gpu-memory-utilization / SGLang mem-fraction-static
    vision: bool = False
    thinking: bool = True
    prefix_caching: bool | None = None
    tool_parser: str = ""
    reasoning_parser: str = ""
    trust_remote_code: bool = False
    parallel: Parallel = Parallel()
    speculate: Speculate | None = None
    hybrid: Hybrid | None = None
    kv_tiers: KvTiers | None = None
    runtime: Runtime = Runtime()
    listen: Listen = Listen()
    env: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Flag] = field(default_factory=dict)
    climb: Climb = Climb()
    planned_for: PlannedFor = PlannedFor()  # the default box of `forecast` and `twin`

    def __post_init__(self) -> None:
        """Spell versions and flags one way, as every rule reads them: v0.32.0 is 0.32.0, --load_mode load-mode."""
        object.__setattr__(self, "engine_version", canonical_version(self.engine_version))
        names = " ".join(self.flags)
        if "_" in names or names.startswith("--") or " --" in names:
            flags = {canonical_flag(name): value for name, value in self.flags.items()}
            others = [name for name in self.flags if name not in flags and canonical_flag(name) in self.flags]
            text = f"flags: {', '.join(others) or names} and another spelling of it are both there"
            refuse_if(len(flags) < len(self.flags), text, hint="write it once, without dashes before it")
            object.__setattr__(self, "flags", flags)

    def with_port(self, port: int) -> "Recipe":
        """The recipe with another port; with 0 the launch chooses a free one."""
        return replace(self, listen=replace(self.listen, port=port))

    @property
    def tiers(self) -> KvTiers:
        """The tiers below the KV cache; without sizes if the recipe has none."""
        return self.kv_tiers or KvTiers()

    @property
    def placement(self) -> Hybrid:
        """Where layers and experts are; the engine's defaults if the recipe does not place them."""
        return self.hybrid or Hybrid()

    @property
    def slots(self) -> int:
        """Concurrent sequences, for engines with a default of one."""
        return self.max_seqs or 1

    @property
    def gpus_per_node(self) -> int:
        """GPUs used on each node, by ranks, expert layers or whole layers."""
        placed, nodes = self.placement, self.parallel.nodes
        return max(self.parallel.gpu_count // nodes, len(placed.experts), len(placed.split) // nodes)

    @property
    def draft_tokens(self) -> int:
        """Draft tokens per step; 0 without speculative decoding."""
        return self.speculate.tokens if self.speculate else 0

    def get(self, path: str) -> Any:
        """Return the setting at a path such as "parallel.dcp" or "env.NCCL_PROTO"; None if nothing is set there."""
        names, key = split_path(path)
        value: Any = self
        for name in names:
            value = getattr(value, name, None)
        if value is None or key is None:
            return value
        return value.get(key) if isinstance(value, Mapping) else None

    def with_store_here(self) -> "Recipe":
        """Return the recipe with its KV store in the home of this user."""
        tiers = self.kv_tiers
        return replace(self, kv_tiers=replace(tiers, folder=os.path.expanduser(tiers.folder))) if tiers else self

    def used_gpus(self, box: "Box") -> tuple[int, ...]:
        """Indices of the GPUs of a box that it runs on: by CUDA_VISIBLE_DEVICES if set, else the first ones."""
        every = range(len(box.all_gpus))
        picked = tuple(every)
        numbers = [*filter(None, self.env.get(VISIBLE_DEVICES, "").replace(" ", "").split(","))]
        if self.env.get(VISIBLE_DEVICES) and all(map(str.isdigit, numbers)):  # UUIDs count as all GPUs
            places = dict(zip(map(str, box.gpu_numbers or every), every, strict=False))
            picked = tuple(places[number] for number in numbers if number in places)
        return picked if self.hybrid else picked[: self.parallel.gpu_count]

    def pipeline_stages(self, box: "Box") -> dict[int, int]:
        """The stage of each GPU used."""
        per_stage = self.parallel.tp * self.parallel.dp
        return {index: min(rank // per_stage, self.parallel.pp - 1) for rank, index in enumerate(self.used_gpus(box))}


@functools.cache
def canonical_flag(name: str) -> str:
    """A key of `flags` without dashes before it and without underscores; a key within a flag's JSON stays."""
    head, dot, key = name.partition(".")
    return f"{(head.removeprefix('--') or head).replace('_', '-')}{dot}{key}"


def split_path(path: str) -> tuple[tuple[str, ...], str | None]:
    """Split a setting's path into field names and, in a table with any keys, the key (which may contain dots)."""
    for free in _FREE_TABLES:
        if path.startswith(f"{free}."):
            key = path[len(free) + 1 :]
            return tuple(free.split(".")), canonical_flag(key) if free == "flags" else key
    return tuple(path.split(".")), None
