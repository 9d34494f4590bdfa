"""What a machine is: GPUs, the links between them, CPU and memory.

Sizes are bytes and rates are per second. `source` tells a box that was detected from one that was declared.
"""

import operator
from dataclasses import dataclass, field, replace
from typing import Literal

from moebox.core.calibration import Calibration

# Compute capability to architecture (CUDA programming guide, table of compute capabilities).
GENERATIONS = {
    "8.0": "ampere",
    "8.6": "ampere-rtx",
    "8.9": "ada",
    "9.0": "hopper",
    "10.0": "blackwell",
    "10.3": "blackwell",
    "12.0": "blackwell-rtx",
    "12.1": "blackwell-rtx",
}
gpu_size = operator.attrgetter("memory", "bandwidth")
LinkKind = Literal["nvlink", "pix", "pxb", "phb", "node", "sys", "fabric", "network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A GPU's slot: generation and lanes now and at most."""

    generation: int
    width: int
    max_generation: int
    max_width: int

    @property
    def bytes_per_second(self) -> int:
        """Usable bytes per second one way, now."""
        # GB/s per lane after encoding (PCI-SIG base specifications): 3.0 0.985, 4.0 1.969, 5.0 3.938, 6.0 7.563
        per_lane = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
        return round(per_lane.get(self.generation, 0.25e9) * self.width)

    @property
    def is_degraded(self) -> bool:
        """Fewer lanes than the GPU and slot could have. (Generation drops at idle, so it does not count.)"""
        return self.width < self.max_width


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    bytes: int
    instance: str = ""  # of an engine that moebox runs; it can be stopped, so a plan counts its memory as free


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator, by datasheet or as the driver reports it."""

    name: str  # catalogue key, e.g. "rtx-pro-6000-server"
    title: str  # as people and drivers write it
    memory: int  # bytes in total, as the driver reports it
    memory_free: int | None = None  # bytes free now, where detected
    holders: tuple[GpuProcess, ...] = ()  # who holds the rest, where the driver tells
    bandwidth: int  # bytes/s of device memory
    bf16: float  # dense FLOP/s
    fp8: float | None = None
    fp4: float | None = None
    sms: int
    sm: str  # compute capability, e.g. "12.0"; "gfx942" on AMD
    smem: int  # bytes of shared memory one block may opt in to
    l2: int = 0
    tdp: int = 0  # watts
    nvlink: int = 0  # bytes/s to all peers together, both ways, as NVIDIA quotes it; 0 without
    nvlink_peers: int = 0  # GPUs one NVLink group has; 0: all of a node
    per_node: int = 0  # GPUs a node of this kind has at most; 0: any number
    network: int = 0  # bytes/s a GPU between machines of this kind, which have it built in; 0: that is the buyer's
    network_us: float = 0.0  # and of one hop under NCCL; 0: the usual
    pcie: Pcie | None = None
    numa: int | None = None
    mig: bool = False
    unified: bool = False  # shares its memory with the CPU
    unverified: tuple[str, ...] = ()  # fields nobody has checked against hardware or a datasheet
    source: str = ""

    @property
    def generation(self) -> str:
        """Architecture family that the speed constants are fitted by."""
        return GENERATIONS.get(self.sm, "cdna" if self.sm.startswith("gfx") else "unknown")

    @property
    def vendor(self) -> str:
        """Whose it is: an engine is built for one vendor's GPUs."""
        return "AMD" if self.generation == "cdna" else "NVIDIA"

    @property
    def degraded_slot(self) -> Pcie | None:
        """Its slot, where that has fewer lanes than the GPU and the slot could have."""
        return self.pcie if self.pcie and self.pcie.is_degraded else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way between two GPUs, in nvidia-smi topo's words."""

    a: int
    b: int
    kind: LinkKind
    p2p: bool | None = None  # peer access allowed; None when nobody asked
    lanes: int = 0  # NVLink links


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The host's processors, all sockets together."""

    model: str = ""
    sockets: int = 1
    cores: int = 0  # physical
    threads: int = 0
    numa_nodes: int = 1
    channels: int = 0  # memory channels of all sockets; 0 when unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What else of the machine decides whether a launch works; only on detected boxes."""

    system: str = ""
    driver: str = ""
    cuda: str = ""
    iommu: str = ""  # "off", "on", "passthrough" or "" when unreadable
    acs: str = ""
    shm: int = 0  # bytes of /dev/shm
    disk_free: int = 0  # bytes where models live
    disk_path: str = ""
    runtimes: dict[str, str] = field(default_factory=dict)  # docker, podman, nvidia-ctk -> version
    engines: dict[str, str] = field(default_factory=dict)  # vllm, sglang, llama.cpp … -> version
    python: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The whole machine, or several alike in `nodes`; `gpus` are those of one node."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    gpu_numbers: tuple[int, ...] = ()  # the driver's, where CUDA_VISIBLE_DEVICES hides some of its GPUs
    links: tuple[Link, ...] = ()  # empty on declared boxes: the GPU's own nvlink/pcie figures hold
    cpu: Cpu = Cpu()
    ram: int = 0
    ram_free: int | None = None
    ram_bandwidth: int = 0  # bytes/s, theoretical unless measured
    ram_bandwidth_measured: int | None = None
    nodes: int = 1
    network: int = 0  # bytes/s between nodes, a GPU
    network_measured: int | None = None  # the same as `moebox box --hosts` timed it
    network_us: float | None = None  # of one hop between nodes, as timed
    host: Host | None = None
    calibrations: tuple[Calibration, ...] = ()  # steps that rehearsals timed on such a box
    source: Literal["detected", "declared"] = "declared"

    @property
    def smallest_gpu(self) -> Gpu | None:
        """The smallest GPU: the one that decides, on a mixed box."""
        return min(self.gpus, key=gpu_size, default=None)

    @property
    def has_unified_memory(self) -> bool:
        """Whether CPU and GPU use one memory, which is counted as the GPU's."""
        return any(gpu.unified for gpu in self.gpus)

    @property
    def is_mixed(self) -> bool:
        """Cards of more than one kind."""
        return len({gpu.name for gpu in self.gpus}) > 1

    @property
    def ram_rate(self) -> int:
        """Bytes a second of RAM: as measured, else in theory; 0 where neither is known."""
        return self.ram_bandwidth_measured or self.ram_bandwidth

    @property
    def links_by_pair(self) -> dict[tuple[int, int], Link]:
        """The link between two GPUs, named in either order."""
        return {(link.a, link.b): link for link in self.links} | {(link.b, link.a): link for link in self.links}

    @property
    def gpu_memory(self) -> int:
        """Bytes of device memory on all nodes."""
        return sum(gpu.memory for gpu in self.gpus) * self.nodes


def split_into_nodes(box: Box) -> Box:
    """The same GPUs in as many nodes as such GPUs come in: sixteen H100 are two machines of eight."""
    gpu, number = box.smallest_gpu, len(box.gpus)
    if gpu is None or box.is_mixed or box.nodes > 1 or not gpu.per_node or number <= gpu.per_node:
        return box
    nodes = -(-number // gpu.per_node)
    return replace(box, gpus=box.gpus[: number // nodes], nodes=nodes) if number % nodes == 0 else box
