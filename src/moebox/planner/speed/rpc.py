"""What llama.cpp's RPC backend adds to a step: each server gets its input over TCP and gives its output back.

By ggml-rpc.cpp (November 2026) a server is sent, for every token of a step, the activations (f32) and the attention
mask over the cache (f16), without waiting for an answer; then the graph, unless it is the one of the step before. The
output is asked for and waited for: one round trip a server. Counted on a real server (phantom, 4,000 tokens in
micro-batches of 512): 24.6 MB sent, and 5.5 kB a token of decoding at 1,280 tokens; this says the same.
"""

from dataclasses import dataclass

from moebox.core.box import Box
from moebox.core.model import Model
from moebox.core.recipe import Recipe
from moebox.planner.speed.links import network_rate

F32, F16 = 4, 2
MESSAGE = 1900  # bytes of commands and tensors' heads of a step (counted on the same server)
GRAPH = 60_000  # bytes of a new graph a layer (299 kB for 5 layers, 339 nodes, counted on the same server)
ROUND_TRIP_US = 120.0  # over switched Ethernet and TCP, where nobody has timed it: a usual ping between two machines


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcHops:
    """The way to the RPC servers of a recipe and back."""

    servers: int
    rate: float  # bytes/s of one TCP connection
    round_trip_us: float
    hidden: int
    vocab: int  # of logits that come back over the network; 0 where the output lies on the first node
    layers: int  # on servers

    def bytes_sent(self, tokens: float, context: float, *, prompt: bool) -> float:
        """Bytes to all servers for a step of `tokens`, each at `context` of cache."""
        graph = self.layers * GRAPH if prompt else 0  # decoding keeps its graph for 256 tokens
        return self.servers * (tokens * (self.hidden * F32 + context * F16) + MESSAGE) + graph

    def bytes_returned(self, tokens: float, *, prompt: bool) -> float:
        """Bytes back; of a prompt only the last token has logits."""
        between = self.servers - 1 if self.vocab else self.servers
        logits = (1 if prompt else tokens) * self.vocab * F32
        return between * tokens * self.hidden * F32 + logits

    def step_seconds(self, tokens: float, context: float, *, prompt: bool = False) -> float:
        """Seconds of a step on the network."""
        moved = self.bytes_sent(tokens, context, prompt=prompt) + self.bytes_returned(tokens, prompt=prompt)
        return self.servers * self.round_trip_us * 1e-6 + moved / self.rate

    def formula(self, tokens: float, context: float) -> str:
        """The same to check with a calculator."""
        moved = self.bytes_sent(tokens, context, prompt=False) + self.bytes_returned(tokens, prompt=False)
        return (
            f"{self.servers} × {self.round_trip_us / 1e3:.3f} ms there and back + {moved / 1e6:.4f} MB / "
            f"{self.rate / 1e9:g} GB/s; activations, mask and {'logits' if self.vocab else 'activations'} of a token"
        )


def rpc_hops(box: Box, model: Model, recipe: Recipe) -> RpcHops | None:
    """The hops of a recipe whose layers lie on several nodes; None for any other."""
    split = recipe.hybrid.split if recipe.hybrid else ()
    servers = recipe.parallel.nodes - 1
    if not split or servers < 1:
        return None
    here = len(box.gpus)
    return RpcHops(
        servers=servers,
        rate=connection_rate(box),
        round_trip_us=ROUND_TRIP_US if box.network_us is None else 2 * box.network_us,
        hidden=model.hidden,
        vocab=0 if here else model.vocab,
        layers=sum(split[:-here]) if here else sum(split) - 1,
    )


def connection_rate(box: Box) -> float:
    """Bytes a second of one TCP connection: as timed, which a box keeps a GPU, or one network card's."""
    if box.network_measured:
        return float(box.network_measured * max(len(box.gpus), 1))
    return network_rate(box)
