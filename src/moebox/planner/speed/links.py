"""What collectives cost: latency by ranks, then bytes over the bus, on PCIe, NVLink or between nodes."""

import math
from dataclasses import dataclass, replace

from moebox.core.box import Box, Gpu, Link
from moebox.core.recipe import Parallel
from moebox.planner.speed.constants import Efficiency, Wire, find_wire
from moebox.units import format_rate as rate_text

# A link nobody described: PCIe 4.0 x16, and 400 Gb/s a GPU between nodes (HGX reference design, one ConnectX-7 each).
PCIE = 31.5e9
NETWORK = 50e9
NODE_US = 12.0  # one network hop under NCCL with RDMA (NCCL tests, ConnectX-7 class)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The way between the ranks of one group."""

    wire: Wire
    rate: float  # bytes/s one way per GPU
    nodes: int = 1  # nodes one group spans
    network: float = NETWORK  # bytes/s between nodes, a GPU
    node_us: float = NODE_US  # of one hop between nodes
    extra_us: float = 0.0  # each collective waits this much longer on this host
    machines: int = 1  # nodes of the whole box, which pipeline stages may span

    def all_reduce(self, ranks: int, size: float) -> float:
        """Seconds to sum `size` bytes over `ranks`."""
        if ranks < 2 or size <= 0:
            return 0.0
        ring = self._ring(ranks, size, rounds=2)
        wire = self.wire
        if ranks > wire.small_ranks or self.nodes > 1:
            return ring
        # One shot: every rank reads the whole of every other's buffer. Engines leave it at a size of their own; from
        # there to twice that size the cost goes over to the ring's, so that one token more is never a jump.
        if not wire.small_bytes or size <= wire.small_bytes:
            return min(ring, self._one_shot(ranks, size))
        part = min(size / wire.small_bytes - 1, 1.0)
        return min(ring, (1 - part) * self._one_shot(ranks, wire.small_bytes) + part * ring)

    def _one_shot(self, ranks: int, size: float) -> float:
        return self.wire.small_us * 1e-6 + size * (ranks - 1) / (self.rate * self.wire.bus)

    def all_gather(self, ranks: int, size: float) -> float:
        """Seconds until every rank has the `size` bytes that all hold together."""
        return self._ring(ranks, size, rounds=1) if ranks > 1 and size > 0 else 0.0

    def stage_transfer(self, count: int, size: float, ranks: int) -> float:
        """Seconds for `size` bytes to go through `count` stages; between nodes each of `ranks` sends a share."""
        across = min(count - 1, self.machines - 1)
        inside = self.all_gather(2, size) if count - 1 > across else 0.0
        hop = self.node_us * 1e-6 + size / max(ranks, 1) / self.network if across else 0.0
        return (count - 1 - across) * inside + across * hop

    def _ring(self, ranks: int, size: float, *, rounds: int) -> float:
        wire, here = self.wire, -(-ranks // self.nodes)
        moved = rounds * (here - 1) / here * size
        hops = wire.base_us + rounds * (here - 1) * wire.hop_us
        if wire.tree_us:  # NCCL goes over to trees where a ring has too many hops
            hops = min(hops, rounds * math.log2(here) * wire.tree_us)
        latency = hops + self.extra_us
        seconds = latency * 1e-6 + moved / (self.rate * wire.bus)
        if self.nodes > 1:  # each GPU carries its share of the sum to its peers on the other nodes
            crossed = rounds * (self.nodes - 1) / self.nodes * size / here
            seconds += rounds * (self.nodes - 1) * self.node_us * 1e-6 + crossed / self.network
        return seconds


def make_fabric(box: Box, gpu: Gpu, constants: Efficiency, parallel: Parallel) -> Fabric:
    """The links that a tensor-parallel group talks over."""
    ranks, per_node = parallel.tp, max(len(box.gpus), 1)
    nodes = min(box.nodes, max(parallel.group_nodes, -(-ranks // per_node)))
    switched = gpu.nvlink and ranks <= (gpu.nvlink_peers or per_node * nodes)
    wire = _switch(gpu) if switched else _slots(box, constants, ranks)
    return Fabric(
        wire=wire,
        rate=gpu.nvlink / 2 if switched else pcie_rate(gpu),
        nodes=nodes,
        network=network_rate(box),
        node_us=(gpu.network_us or NODE_US) if box.network_us is None else box.network_us,
        extra_us=0.0 if switched else _host_us(box, wire, ranks),
        machines=box.nodes,
    )


def _switch(gpu: Gpu) -> Wire:
    """What joins GPUs that have links of their own."""
    return find_wire("fabric" if gpu.generation == "cdna" else "nvlink")


def _slots(box: Box, constants: Efficiency, ranks: int) -> Wire:
    """What joins GPUs over the host's slots."""
    wire = find_wire(constants.link or "pcie")
    return replace(wire, bus=wire.bus_sockets) if wire.bus_sockets and _spans_sockets(box, ranks) else wire


def network_rate(box: Box) -> float:
    """Bytes a second a GPU between nodes: as timed, as given, as such machines have it, or a guess."""
    return float(box.network_measured or box.network or _built_in(box) or NETWORK)


def _built_in(box: Box) -> int:
    return box.smallest_gpu.network if box.smallest_gpu else 0


def pcie_rate(gpu: Gpu) -> float:
    """Bytes a second one way over a GPU's slot."""
    return float(gpu.pcie.bytes_per_second) if gpu.pcie else PCIE


def describe_network(box: Box) -> str:
    """What lies between the nodes, and how that is known; "" for one node."""
    if box.nodes < 2:
        return ""
    if box.network_measured:
        hop = f" and {box.network_us:,.0f} µs a hop" if box.network_us is not None else ""
        return f"{rate_text(box.network_measured)} a GPU{hop} measured between nodes: the forecast takes these"
    if box.network:
        return f"{rate_text(box.network)} a GPU between nodes, as given"
    known = "as these machines have it between nodes" if _built_in(box) else "assumed between nodes"
    bits = network_rate(box) * 8 / 1e9
    return f"{bits:.0f} Gb/s a GPU {known}; `moebox box --hosts FILE --save FOLDER` measures it"


def _host_us(box: Box, wire: Wire, ranks: int) -> float:
    """What the host adds to a collective: no peer access between GPUs, or two sockets under NCCL's own topology."""
    if any(link.p2p is False for link in _links(box, ranks)):
        return wire.no_p2p_us * 2 * (ranks - 1)
    return wire.sockets_us if _spans_sockets(box, ranks) else 0.0


def _links(box: Box, ranks: int) -> list[Link]:
    """The links between the first `ranks` GPUs."""
    return [link for link in box.links if max(link.a, link.b) < ranks]


def _spans_sockets(box: Box, ranks: int) -> bool:
    """Whether a group's GPUs hang on two sockets; where no link is known, more than four on a box of two do."""
    used = _links(box, ranks)
    if used:
        return any(link.kind == "sys" for link in used)
    return box.cpu.sockets > 1 and ranks > 4
