"""A machine: GPUs, the links between them, CPU and memory. Sizes are bytes, rates are per second."""

import operator
from dataclasses import dataclass, field, replace
from typing import Literal

from moebox.core.calibration import Calibration
from moebox.core.recipe import VISIBLE_DEVICES

# Compute capability to architecture (CUDA programming guide, table of compute capabilities).
GENERATIONS = {"8.0": "ampere", "8.6": "ampere-rtx", "8.9": "ada", "9.0": "hopper"}
GENERATIONS |= {"10.0": "blackwell", "10.3": "blackwell", "12.0": "blackwell-rtx", "12.1": "blackwell-rtx"}
CHANNEL_RATE = 8 * 8800 * 10**6  # bytes/s of one memory channel, MRDIMM-8800
MAX_BANDWIDTH = 2 * 12 * CHANNEL_RATE  # bytes/s of RAM
gpu_size = operator.attrgetter("memory", "bandwidth")
LinkKind = Literal["nvlink", "pix", "pxb", "phb", "node", "sys", "fabric", "network"]
EMBEDDED = " (embedded)"  # after the name of an engine that runs inside moebox, on CPUs only


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A GPU's slot: current and maximal generation and lanes."""

    generation: int
    width: int
    max_generation: int
    max_width: int

    @property
    def bytes_per_second(self) -> int:
        """Current usable rate in one direction."""
        # GB/s per lane after encoding (PCI-SIG base specifications): 3.0 0.985, 4.0 1.969, 5.0 3.938, 6.0 7.563
        per_lane = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
        return round(per_lane.get(self.generation, 0.25e9) * self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    name: str
    bytes: int
    user: str = ""  # its owner's name, or number if it has none; "" if not visible
    instance: str = ""  # if moebox runs the engine: it can be stopped, so a plan counts its memory as free


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator, by datasheet or as the driver reports it."""

    name: str  # catalogue key, e.g. "rtx-pro-6000-server"
    title: str  # the name that the driver reports
    memory: int  # bytes in total, as the driver reports it
    memory_free: int | None = None  # bytes free now, if detected
    holders: tuple[GpuProcess, ...] = ()  # processes that use the rest, if the driver lists them
    bandwidth: int  # bytes/s of device memory
    bf16: float  # dense FLOP/s
    fp8: float | None = None
    fp4: float | None = None
    sms: int
    sm: str  # compute capability, e.g. "12.0"; "gfx942" on AMD
    smem: int  # bytes of shared memory one block may opt in to
    l2: int = 0
    p2p: bool = True  # NVIDIA's driver allows peer access over PCIe
    clock: float = 1.0  # speed of its cores over that of the GPU that its generation's constants were fitted on
    tdp: int = 0  # watts
    nvlink: int = 0  # bytes/s to all peers together, both ways, as NVIDIA states it; 0: no NVLink
    nvlink_peers: int = 0  # GPUs of one NVLink group; 0: all of a node
    per_node: int = 0  # most GPUs of a node of this kind; 0: any number
    host_cpu: str = ""  # on the same board; "": the owner's choice
    network: int = 0  # bytes/s per GPU between nodes, if built in; 0: depends on the installation
    network_us: float = 0.0  # latency of one hop under NCCL; 0: the usual one
    pcie: Pcie | None = None
    numa: int | None = None
    mig: bool = False
    max_clock: int = 0  # MHz of the SMs, as the driver reports it; 0: not detected
    power_limit: int = 0  # watts now allowed; 0: not detected
    unified: bool = False  # shares its memory with the CPU
    unverified: tuple[str, ...] = ()  # fields not yet checked against hardware or a datasheet
    source: str = ""

    @property
    def generation(self) -> str:
        """The architecture family, by which the speed constants are fitted."""
        return GENERATIONS.get(self.sm, "cdna" if self.sm.startswith("gfx") else "unknown")

    @property
    def vendor(self) -> str:
        """An engine build supports the GPUs of one vendor."""
        return "AMD" if self.generation == "cdna" else "NVIDIA"

    @property
    def short_title(self) -> str:
        """The title without the words that all GPUs of its kind share."""
        return self.title.removeprefix("NVIDIA ").removesuffix(" Edition").replace(" Blackwell", "")

    @property
    def degraded_slot(self) -> Pcie | None:
        """The slot, if it has fewer lanes than GPU and slot support. (The generation drops at idle.)"""
        return self.pcie if self.pcie and self.pcie.width < self.pcie.max_width else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link between two GPUs, as `nvidia-smi topo` names it."""

    a: int
    b: int
    kind: LinkKind
    p2p: bool | None = None  # peer access allowed; None: unknown
    lanes: int = 0  # NVLink links


# Sets of instructions that engines are built for, by the kernel's names.
CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processors of all sockets."""

    model: str = ""
    sockets: int = 1
    cores: int = 0  # physical
    threads: int = 0
    numa_nodes: int = 1
    channels: int = 0  # memory channels of all sockets; 0: unknown
    features: tuple[str, ...] = ()  # those of CPU_FEATURES that it has; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Software and settings that decide whether a launch works; only on detected boxes."""

    system: str = ""  # with the kernel's release
    bios: str = ""  # vendor, version and date; "" if not readable
    driver: str = ""
    cuda: str = ""
    iommu: str = ""  # "off", "on", "passthrough", or "" if unreadable
    acs: str = ""
    shm: int = 0  # bytes of /dev/shm
    disk_free: int = 0  # bytes free at disk_path, where models are stored
    disk_path: str = ""
    runtimes: dict[str, str] = field(default_factory=dict)  # docker, podman, nvidia-ctk -> version
    engines: dict[str, str] = field(default_factory=dict)  # vllm, sglang, llama.cpp … -> version
    python: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A machine, or several equal ones (`nodes`); `gpus` are those of one node."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    gpu_numbers: tuple[int, ...] = ()  # the driver's numbers, if CUDA_VISIBLE_DEVICES hides some GPUs
    links: tuple[Link, ...] = ()  # empty on declared boxes: the GPU's nvlink and pcie figures apply
    cpu: Cpu = Cpu()
    ram: int = 0
    ram_free: int | None = None
    ram_bandwidth: int = 0  # bytes/s, theoretical unless measured
    ram_bandwidth_measured: int | None = None
    nodes: int = 1
    network: int = 0  # bytes/s between nodes, per GPU
    network_measured: int | None = None  # as timed by `moebox box --hosts`
    network_us: float | None = None  # latency of one hop between nodes, as timed
    host: Host | None = None
    calibrations: tuple[Calibration, ...] = ()  # measured on an equal box
    source: Literal["detected", "declared"] = "declared"

    @property
    def smallest_gpu(self) -> Gpu | None:
        """The smallest GPU, which limits a mixed box."""
        return min(self.gpus, key=gpu_size, default=None)

    @property
    def has_unified_memory(self) -> bool:
        """CPU and GPU share one memory, which is counted as the GPU's."""
        return any(gpu.unified for gpu in self.gpus)

    @property
    def is_mixed(self) -> bool:
        return len({gpu.name for gpu in self.gpus}) > 1

    @property
    def ram_rate(self) -> int:
        """Bytes per second of RAM: measured, else theoretical; 0 if unknown."""
        return self.ram_bandwidth_measured or self.ram_bandwidth

    def engine_runtime(self, engine: str) -> Literal["native", "embedded", ""]:
        """How the detected machine can run an engine; "" if it is not installed, or not known."""
        installed = self.host.engines if self.host else {}
        if engine in installed:
            return "native"
        return "embedded" if engine + EMBEDDED in installed and not self.gpus else ""

    @property
    def links_by_pair(self) -> dict[tuple[int, int], Link]:
        """Links by the two GPUs, in either order."""
        return {(link.a, link.b): link for link in self.links} | {(link.b, link.a): link for link in self.links}

    @property
    def all_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of all nodes."""
        return self.gpus * self.nodes

    def largest_gpus(self, count: int) -> tuple[int, ...]:
        """Indices of the `count` GPUs with the most memory, for a tensor-parallel group."""
        gpus = self.all_gpus
        order = sorted(range(len(gpus)), key=lambda i: (-gpus[i].memory, -gpus[i].bandwidth, i))
        return tuple(sorted(order[:count]))

    def visible_devices_env(self, used: tuple[int, ...]) -> dict[str, str]:
        """The environment in which a program sees only these GPUs; empty if they are the first ones."""
        numbers = tuple(self.gpu_numbers[place] for place in used) if self.gpu_numbers else used
        return {} if numbers == tuple(range(len(numbers))) else {VISIBLE_DEVICES: ",".join(map(str, numbers))}

    @property
    def gpu_memory(self) -> int:
        """Bytes of GPU memory on all nodes."""
        return sum(gpu.memory for gpu in self.gpus) * self.nodes


def split_into_nodes(box: Box) -> Box:
    """Divide the GPUs over as many nodes as they need: sixteen H100 are two machines of eight."""
    gpu, number = box.smallest_gpu, len(box.gpus)
    if gpu is None or box.is_mixed or box.nodes > 1 or not gpu.per_node or number <= gpu.per_node:
        return box
    nodes = -(-number // gpu.per_node)
    return replace(box, gpus=box.gpus[: number // nodes], nodes=nodes) if number % nodes == 0 else box
