"""Seconds of collectives: latency by ranks, then bytes over the bus, on PCIe, NVLink or between nodes."""

import math
import re
from dataclasses import dataclass, replace

from moebox.core.box import Box, Gpu
from moebox.core.recipe import Parallel
from moebox.planner.speed.constants import Efficiency, Wire, find_wire
from moebox.units import format_rate

# Defaults of an undescribed link: PCIe 4.0 x16, and 400 Gb/s per GPU between nodes (HGX reference design, one
# ConnectX-7 each).
PCIE = 31.5e9
NETWORK = 50e9
SOCKET_GPUS = 4  # more in one box with two sockets span both
NODE_US = 12.0  # one network hop under NCCL with RDMA (NCCL tests, ConnectX-7 class)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links between the ranks of one group."""

    wire: Wire
    rate: float  # bytes/s one way per GPU
    nodes: int = 1  # nodes that one group spans
    network: float = NETWORK  # bytes/s between nodes, per GPU
    node_us: float = NODE_US  # of one hop between nodes
    extra_us: float = 0.0  # additional latency of each collective on this host
    machines: int = 1  # nodes of the whole box, which pipeline stages may span
    state: str = ""  # of links over PCIe: what is known of them, or assumed

    def all_reduce(self, ranks: int, size: float) -> float:
        """Seconds to sum `size` bytes over `ranks`."""
        if ranks < 2 or size <= 0:
            return 0.0
        ring = self._ring(ranks, size, rounds=2)
        wire = self.wire
        if ranks > wire.small_ranks or self.nodes > 1:
            return ring
        # One shot: every rank reads the whole of every other's buffer. Engines stop using it at a size of their own;
        # from there to twice that size the cost moves over to the ring's, so that one token more is never a jump.
        limited = min(size, wire.small_bytes) if wire.small_bytes else size
        one_shot = wire.small_us * 1e-6 + limited * (ranks - 1) / (self.rate * wire.bus)
        if not wire.small_bytes or size <= wire.small_bytes:
            return min(ring, one_shot)
        part = min(size / wire.small_bytes - 1, 1.0)
        return min(ring, (1 - part) * one_shot + part * ring)

    def all_gather(self, ranks: int, size: float) -> float:
        """Seconds until every rank has the `size` bytes that all hold together."""
        return self._ring(ranks, size, rounds=1) if ranks > 1 and size > 0 else 0.0

    def stage_transfer(self, count: int, size: float, ranks: int) -> float:
        """Seconds for `size` bytes to pass through `count` stages; between nodes each of `ranks` sends a share."""
        across = min(count - 1, self.machines - 1)
        inside = self.all_gather(2, size) if count - 1 > across else 0.0
        hop = self.node_us * 1e-6 + size / max(ranks, 1) / self.network if across else 0.0
        return (count - 1 - across) * inside + across * hop

    def _ring(self, ranks: int, size: float, *, rounds: int) -> float:
        wire, here = self.wire, -(-ranks // self.nodes)
        moved = rounds * (here - 1) / here * size
        hops = wire.base_us + rounds * (here - 1) * wire.hop_us
        if wire.tree_us:  # NCCL switches to trees if a ring has too many hops
            hops = min(hops, rounds * math.log2(here) * wire.tree_us)
        latency = hops + self.extra_us
        seconds = latency * 1e-6 + moved / (self.rate * wire.bus)
        if self.nodes > 1:  # each GPU carries its share of the sum to its peers on the other nodes
            crossed = rounds * (self.nodes - 1) / self.nodes * size / here
            seconds += rounds * (self.nodes - 1) * self.node_us * 1e-6 + crossed / self.network
        return seconds


def make_fabric(box: Box, gpu: Gpu, constants: Efficiency, parallel: Parallel) -> Fabric:
    """Return the links that a tensor-parallel group communicates over."""
    ranks, per_node = parallel.tp, max(len(box.gpus), 1)
    nodes = min(box.nodes, max(parallel.group_nodes, -(-ranks // per_node)))
    switched = gpu.nvlink and ranks <= (gpu.nvlink_peers or per_node * nodes)
    extra_us, state = 0.0, ""
    if switched:
        wire = find_wire("fabric" if gpu.generation == "cdna" else "nvlink")
        wire = replace(wire, small_us=constants.reduce_us or wire.small_us)
    else:  # over the host's slots
        wire = find_wire(constants.link or "pcie")
        links = [link for link in box.links if max(link.a, link.b) < ranks]
        spans = box.cpu.sockets > 1 and ranks > SOCKET_GPUS  # if no links are known
        two_sockets = any(link.kind == "sys" for link in links) if links else spans
        if wire.bus_sockets and two_sockets:
            is_intel = re.search(r"xeon|intel", box.cpu.model, re.IGNORECASE) is not None
            wire = replace(wire, bus=(wire.bus_xeons if is_intel else 0) or wire.bus_sockets)
        # NCCL 2.27 and 2.28 take the same time within 2% (aiconfigurator), so its version is no cause here.
        known_p2p = {link.p2p for link in links} - {None}
        peers = False not in known_p2p if known_p2p else gpu.p2p
        if not peers:
            extra_us = wire.no_p2p_us * 2 * (ranks - 1)
        elif two_sockets:
            extra_us = wire.sockets_us
        access = "peer access" if peers else "no peer access"
        access += ", over two sockets" if two_sockets else ", one socket or switch"
        state = f"{access}: {'as detected' if known_p2p else 'assumed'}, with the driver's default topology"
    return Fabric(
        wire=wire,
        rate=gpu.nvlink / 2 if switched else pcie_rate(gpu),
        nodes=nodes,
        network=network_rate(box),
        node_us=(gpu.network_us or NODE_US) if box.network_us is None else box.network_us,
        extra_us=extra_us,
        machines=box.nodes,
        state=state,
    )


def network_rate(box: Box) -> float:
    """Bytes per second per GPU between nodes: measured, given, the machine's own, or the default."""
    built_in = box.smallest_gpu.network if box.smallest_gpu else 0
    return float(box.network_measured or box.network or built_in or NETWORK)


def pcie_rate(gpu: Gpu) -> float:
    """Bytes per second one way over a GPU's slot."""
    return float(gpu.pcie.bytes_per_second) if gpu.pcie else PCIE


def describe_network(box: Box) -> str:
    """Describe the network between nodes and how its rate is known; "" for one node."""
    if box.nodes < 2:
        return ""
    if box.network_measured:
        hop = f" and {box.network_us:,.0f} µs a hop" if box.network_us is not None else ""
        return f"{format_rate(box.network_measured)} a GPU{hop} measured between nodes: used in the forecast"
    if box.network:
        return f"{format_rate(box.network)} a GPU between nodes, as given"
    built_in = box.smallest_gpu is not None and box.smallest_gpu.network
    known = "built into these machines between nodes" if built_in else "assumed between nodes"
    bits = network_rate(box) * 8 / 1e9
    return f"{bits:.0f} Gb/s a GPU {known}; `moebox box --hosts FILE --save FOLDER` measures it"
