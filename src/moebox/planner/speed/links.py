"""What collectives cost: latency by ranks, then bytes over the bus, on PCIe, NVLink or between nodes."""

from dataclasses import dataclass

from moebox.core.box import Box, Gpu
from moebox.planner.speed.constants import Efficiency, Wire, wire_of

# A link nobody described: PCIe 4.0 x16, and 200 Gb/s between nodes (ConnectX-7, the smallest that multi-node MoE uses).
PCIE = 31.5e9
NETWORK = 25e9
NODE_US = 12.0  # one network hop under NCCL with RDMA (NCCL tests, ConnectX-7 class)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The way between the ranks of one group."""

    wire: Wire
    rate: float  # bytes/s one way per card
    nodes: int = 1  # nodes one group spans
    network: float = 0.0

    def all_reduce(self, ranks: int, size: float) -> float:
        """Seconds to sum `size` bytes over `ranks`."""
        if ranks < 2 or size <= 0:
            return 0.0
        wire = self.wire
        if size <= wire.small_bytes and ranks <= wire.small_ranks and self.nodes == 1:
            # One shot: every rank reads the whole of every other's buffer.
            return wire.small_us * 1e-6 + size * (ranks - 1) / (self.rate * wire.bus)
        return self._ring(ranks, size, rounds=2)

    def all_gather(self, ranks: int, size: float) -> float:
        """Seconds until every rank has the `size` bytes that all hold together."""
        return self._ring(ranks, size, rounds=1) if ranks > 1 and size > 0 else 0.0

    def _ring(self, ranks: int, size: float, *, rounds: int) -> float:
        moved = rounds * (ranks - 1) / ranks * size
        seconds = rounds * (ranks - 1) * self.wire.hop_us * 1e-6 + moved / (self.rate * self.wire.bus)
        if self.nodes > 1:
            crossed = rounds * (self.nodes - 1) / self.nodes * size
            seconds += rounds * (self.nodes - 1) * NODE_US * 1e-6 + crossed / (self.network or NETWORK)
        return seconds


def fabric(box: Box, gpu: Gpu, constants: Efficiency, ranks: int) -> Fabric:
    """The links that `ranks` cards of the box talk over."""
    per_node = max(len(box.gpus), 1)
    nodes = min(box.nodes, -(-ranks // per_node))
    if gpu.nvlink:
        name = "fabric" if gpu.generation == "cdna" else "nvlink"
        return Fabric(wire=wire_of(name), rate=gpu.nvlink / 2, nodes=nodes, network=float(box.network))
    rate = float(gpu.pcie.rate) if gpu.pcie else PCIE
    return Fabric(wire=wire_of(constants.link or "pcie"), rate=rate, nodes=nodes, network=float(box.network))
