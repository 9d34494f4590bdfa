"""Seconds of a step with experts in RAM: tokens one at a time over RAM bandwidth, prompts by CPU or by copying experts.

Also what llama.cpp's RPC backend adds over several nodes, and the range if the RAM's bandwidth is unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from moebox.core.box import Box, Gpu
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Parallel, Recipe
from moebox.engines.engine import load_engine
from moebox.planner.speed.constants import HostEfficiency, find_cpu
from moebox.planner.speed.links import network_rate, pcie_rate
from moebox.planner.speed.ranges import RangeKind
from moebox.planner.speed.step import Parts
from moebox.sizing.kv import keeps_all_heads
from moebox.sizing.rank import RankWork, rank_work
from moebox.units import format_rate

# A declared box without a CPU: one socket of 12 channels DDR5-4800 (4th gen EPYC), as few cores as such sockets have.
RAM = 460.8e9
CORES = 16
# Two channels of DDR4-3200, and twelve of MRDIMM-8800: the range that one socket is sold with (JEDEC rates × 8 bytes a
# channel).
SLOWEST_RAM, FASTEST_RAM = 51.2e9, 844.8e9
ASSUMED_RAM = "RAM at {} is assumed: the range covers {} to {}".format(
    *map(format_rate, (RAM, SLOWEST_RAM, FASTEST_RAM))
)
# Copies of experts to the GPUs from a mapped file, which one core copies into the driver's buffer first: 9 to 18 GB/s
# on the Xeon of an H200 (pieces of 1 MiB to 2 GiB; page-locked 53 to 55; 19 November 2026), 11 to 18 on a 4090's host
# (exllamav3#341), 10 in WSL (kekzl/imp#1409); prompts took 1.2 and 2.3 times as long (llama.cpp#25859, #28223).
SLOWEST_COPY, MAPPED_COPY, FASTEST_COPY = 9e9, 14e9, 22e9
ASSUMED_COPY = "the rate of copies from the mapped file is assumed: the range covers {} to {}".format(
    *map(format_rate, (SLOWEST_COPY, FASTEST_COPY))
)
RANGE_PROMPT = 4096  # tokens of the prompt that gives the range of prompt rates
# By ggml-rpc.cpp (November 2026) a server is sent, for every token of a step, the activations (f32) and the attention
# mask over the cache (f16), without waiting for a reply; then the graph, unless it is that of the previous step. The
# output is requested and waited for: one round trip per server. Counted on a real server (phantom, 4,000 tokens in
# micro-batches of 512): 24.6 MB sent, and 5.5 kB per decoded token at 1,280 tokens; the formula gives the same.
F32, F16 = 4, 2
RPC_MESSAGE = 1900  # bytes of commands and tensor headers of a step (counted on the same server)
RPC_GRAPH = 60_000  # bytes of a new graph per layer (299 kB for 5 layers, 339 nodes, counted on the same server)
ROUND_TRIP_US = 120.0  # over switched Ethernet and TCP if not measured: a usual ping between two machines


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcHops:
    """The network between the first node and the RPC servers of a recipe."""

    servers: int
    rate: float  # bytes/s of one TCP connection
    round_trip_us: float
    hidden: int
    vocab: int  # of logits that come back over the network; 0 if the output is on the first node
    layers: int  # on servers

    def request_bytes(self, tokens: float, context: float, *, prompt: bool) -> float:
        """Bytes to all servers for a step of `tokens`, each at `context` of cache."""
        graph = self.layers * RPC_GRAPH if prompt else 0  # decoding keeps its graph for 256 tokens
        return self.servers * (tokens * (self.hidden * F32 + context * F16) + RPC_MESSAGE) + graph

    def reply_bytes(self, tokens: float, *, prompt: bool) -> float:
        """Bytes back from all servers; of a prompt only the last token has logits."""
        between = self.servers - 1 if self.vocab else self.servers
        logits = (1 if prompt else tokens) * self.vocab * F32
        return between * tokens * self.hidden * F32 + logits

    def step_seconds(self, tokens: float, context: float, *, prompt: bool = False) -> float:
        moved = self.request_bytes(tokens, context, prompt=prompt) + self.reply_bytes(tokens, prompt=prompt)
        return self.servers * self.round_trip_us * 1e-6 + moved / self.rate

    def formula(self, tokens: float, context: float) -> str:
        """The arithmetic of a decode step, to check with a calculator."""
        moved = self.request_bytes(tokens, context, prompt=False) + self.reply_bytes(tokens, prompt=False)
        return (
            f"{self.servers} × {self.round_trip_us / 1e3:.3f} ms round trip + {moved / 1e6:.4f} MB / "
            f"{self.rate / 1e9:g} GB/s; activations, mask and {'logits' if self.vocab else 'activations'} of a token"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStep:
    """Everything that decides a step's time if CPU and GPUs share the work."""

    model: Model
    constants: HostEfficiency
    gpu: Gpu | None
    memory_rate: float  # bytes/s of weights from RAM
    unpack_rate: float  # bytes/s that the decoding threads can unpack
    cores: int  # that read prompts
    threads: int  # that decode
    core_flops: float  # operations/s of one core on quantised experts, a batch at a time
    mla_mode: int | None  # ik_llama.cpp's -mla; 0 also if llama.cpp keeps whole heads
    ubatch: int
    layers_on_gpus: float  # expert layers on GPUs, or as many layers' worth of experts
    layers_in_ram: float
    ranks: int = 1  # GPUs that work on one layer together
    mapped_copy: float = 0.0  # bytes/s of copies to all GPUs from a mapped file; 0: weights are page-locked
    host_copy: float = 0.0  # bytes/s at which RAM feeds all GPUs' copies; 0: only the link limits
    rank: RankWork  # the whole model on one rank: bytes and operations of every token
    hops: RpcHops | None = None  # between nodes

    @property
    def ram_rate(self) -> float:
        """Bytes/s of experts that the CPU processes for one token."""
        return min(self.memory_rate, self.unpack_rate)

    @property
    def gpu_rate(self) -> float:
        """Bytes/s of weights and cache on the GPUs, one token at a time; the CPU's without a GPU."""
        return self.gpu.bandwidth * self.constants.gpu_bw * self.ranks if self.gpu else self.ram_rate

    @property
    def attention_core_flops(self) -> float:
        """Operations/s of one core in attention without a GPU."""
        return self.constants.core_attention or self.core_flops

    def step_parts(self, batch: float, context: float, fresh: float = 0, past: float = 0, prompts: int = 1) -> Parts:
        """Seconds by part of a step that decodes `batch` sequences at `context` and reads `fresh` prompt tokens."""
        parts = self.decode_parts(batch, context) if batch else {}
        if fresh:
            for name, seconds in self.prefill_parts(fresh, past).items():
                parts[name] = parts.get(name, 0.0) + seconds
        return parts

    def decode_parts(self, batch: float, context: float) -> Parts:
        """Seconds by part of one step of `batch` sequences at `context`."""
        c, model, rank = self.constants, self.model, self.rank
        activated = rank.distinct_experts(batch) * rank.expert_bytes
        unpacked = activated
        if model.moe and not c.shares_unpacking:
            unpacked = batch * model.moe.used * rank.expert_bytes
        expert_flops = batch * (2.0 * model.expert_parameters * model.experts_used)
        # One layer's experts on the CPU: read once for the batch, unpacked, multiplied.
        layer = self._cpu_seconds(activated, unpacked, expert_flops)
        if self.gpu:
            dense = rank.dense_bytes / self.gpu_rate
        else:
            unpacked = rank.dense_bytes if c.shares_unpacking else batch * rank.dense_bytes
            dense = self._cpu_seconds(rank.dense_bytes, unpacked, batch * rank.dense_flops)
        read = batch * rank.cache_bytes_read(context) / self.gpu_rate
        flops = self.gpu.bf16 * c.attention_flops if self.gpu else self.threads * self.attention_core_flops
        parts = {
            "experts in RAM": self.layers_in_ram * (layer + c.layer_us * 1e-6),
            "experts on GPUs": self.layers_on_gpus * activated / self.gpu_rate,
            "dense weights": dense,
            "fixed": model.layers * c.gpu_layer_us * 1e-6,
            "attention": max(read, batch * self._attention_flops(context, prompt=False) / flops),
            "network": self.hops.step_seconds(batch, context) if self.hops else 0.0,
        }
        return {name: seconds for name, seconds in parts.items() if seconds}

    def _cpu_seconds(self, read: float, unpacked: float, flops: float) -> float:
        """Seconds of weights on the CPU: reading, unpacking or multiplying, whichever takes longest."""
        return max(read / self.memory_rate, unpacked / self.unpack_rate, flops / (self.threads * self.core_flops))

    def prefill_parts(self, tokens: float, past: float) -> Parts:
        """Seconds by part of one micro-batch of a prompt that has `past` tokens before it."""
        c, model, rank = self.constants, self.model, self.rank
        flops = tokens * (2.0 * model.expert_parameters * model.experts_used)
        activated = rank.distinct_experts(tokens) * rank.expert_bytes
        cpu_flops = self.cores * self.core_flops
        if self.gpu is None:
            weight_flops, attention_flops = cpu_flops, self.cores * self.attention_core_flops
        else:
            weight_flops = self.gpu.bf16 * c.prompt_flops * self.ranks
            attention_flops = self.gpu.bf16 * (c.prompt_attention or c.prompt_flops) * self.ranks
        # The engine copies experts to the GPU for a micro-batch of at least this size.
        least = c.upload_tokens * (model.moe.experts / model.moe.used if model.moe and c.upload_each else 1)
        if self.gpu and model.moe and self.layers_in_ram and tokens >= least:
            links = pcie_rate(self.gpu) * c.upload * self.ranks  # all links together, fed from one RAM
            links = min(links, self.mapped_copy or links)
            copy_rate = 1 / (1 / links + 1 / self.host_copy) if self.host_copy else links
            parts = {
                "copying experts to the GPU": self.layers_in_ram * activated / copy_rate,
                "experts": self.layers_in_ram * flops / weight_flops,
            }
        else:
            parts = {"experts on the CPU": self.layers_in_ram * max(activated / self.ram_rate, flops / cpu_flops)}
        parts |= {
            "experts on GPUs": self.layers_on_gpus * flops / weight_flops,
            "dense weights": tokens * rank.dense_flops / weight_flops,
            "attention": tokens * self._attention_flops(past + tokens / 2, prompt=True) / attention_flops,
            "fixed": model.layers * c.gpu_layer_us * 1e-6,
            "network": self.hops.step_seconds(tokens, past + tokens, prompt=True) if self.hops else 0.0,
        }
        return {name: seconds for name, seconds in parts.items() if seconds}

    def _attention_flops(self, context: float, *, prompt: bool) -> float:
        """Operations of one query at `context`, all layers.

        Mode 1 of latent attention reads prompts on the latent itself, mode 0 also decodes on whole heads; otherwise
        prompts are expanded to whole heads and decoding works on the latent.
        """
        prompt = {0: True, 1: False}.get(-1 if self.mla_mode is None else self.mla_mode, prompt)
        return sum(
            layers.count
            * (
                layers.kind.entries_read(context) * layers.kind.pair_flops(layers.heads, prompt=prompt)
                + layers.kind.index_flops(context)
            )
            for layers in self.rank.layers
        )


def assumed_factors(box: Box, step: HybridStep) -> dict[RangeKind, tuple[float, float, str]]:
    """Return how much slower and faster it may be for assumed rates, and what is assumed: of RAM, and of copies."""
    variants = []
    if not (box.ram_rate or box.has_unified_memory) and (step.layers_in_ram or not box.gpus):
        slow, fast = (
            replace(step, memory_rate=step.memory_rate * times, host_copy=step.host_copy * times)
            for times in (SLOWEST_RAM / RAM, FASTEST_RAM / RAM)
        )
        variants.append((slow, fast, ASSUMED_RAM))
    if step.mapped_copy:
        slow, fast = (replace(step, mapped_copy=rate) for rate in (SLOWEST_COPY, FASTEST_COPY))
        variants.append((slow, fast, ASSUMED_COPY))
    prompt = min(step.ubatch, RANGE_PROMPT)

    def factors(seconds: Callable[[HybridStep], Parts]) -> tuple[float, float, str]:
        total, low, high, texts = sum(seconds(step).values()), 1.0, 1.0, []
        for slow, fast, text in variants:
            slower, faster = (total / sum(seconds(each).values()) for each in (slow, fast))
            low, high = low * slower, high * faster
            texts += [text] * (slower < faster)
        return low, high, "; ".join(texts)

    decode = factors(lambda each: each.decode_parts(1, 1024))
    return {"decode": decode, "serving": decode, "prompt": factors(lambda each: each.prefill_parts(prompt, 0))}


def make_hybrid_step(
    box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, constants: HostEfficiency
) -> HybridStep:
    """Return the step model of a CPU+GPU recipe on a box."""
    hybrid = recipe.placement
    on_gpus: float = sum(map(len, hybrid.experts))
    if recipe.hybrid is None or hybrid.split:
        on_gpus = model.moe_layers
    elif hybrid.gpu_experts is not None and model.moe:  # a share of every layer counts as that many layers
        on_gpus = model.moe_layers * hybrid.gpu_experts / model.moe.experts
    if not box.gpus:
        on_gpus = 0.0
    cores, cpu = box.cpu.cores or hybrid.threads or CORES, find_cpu(box.cpu.model)
    decoding = min(hybrid.threads or cores, cores)
    shared = (gpu.bandwidth for gpu in box.gpus if gpu.unified)
    nominal = float(box.ram_bandwidth or next(shared, RAM))
    if box.ram_bandwidth_measured:
        memory_rate = box.ram_bandwidth_measured * constants.ram_measured
    else:
        memory_rate = nominal * constants.ram * (constants.numa if box.cpu.sockets > 1 else 1.0)
    whole_heads = model.mla is not None and keeps_all_heads(model.mla, recipe)
    return HybridStep(
        model=model,
        constants=constants,
        gpu=box.smallest_gpu,
        memory_rate=memory_rate,
        unpack_rate=decoding * constants.core_gb_s * 1e9,
        cores=cores,
        threads=decoding,
        core_flops=cpu.core_flops or constants.core_flops * (constants.wide_vectors if cpu.avx512 else 1.0),
        mla_mode=0 if whole_heads else recipe.hybrid.mla if recipe.hybrid else None,
        ubatch=load_engine(recipe.engine).step_tokens(recipe),
        ranks=recipe.parallel.tp,
        mapped_copy=0.0 if load_engine(recipe.engine).locks_weights(recipe) else MAPPED_COPY,
        host_copy=(box.ram_bandwidth_measured or nominal) * constants.upload_ram,
        layers_on_gpus=min(on_gpus, model.moe_layers),
        layers_in_ram=max(model.moe_layers - on_gpus, 0),
        rank=rank_work(model, checkpoint, replace(recipe, parallel=Parallel())),
        hops=rpc_hops(box, model, recipe),
    )


def rpc_hops(box: Box, model: Model, recipe: Recipe) -> RpcHops | None:
    """Return the network hops of a recipe whose layers are on several nodes; None for any other."""
    split = recipe.hybrid.split if recipe.hybrid else ()
    servers, gpus = recipe.parallel.nodes - 1, len(box.gpus)
    if not split or servers < 1:
        return None
    # A box stores the measured rate per GPU; one connection carries that of all GPUs of a node.
    measured = float(box.network_measured * max(gpus, 1)) if box.network_measured else 0.0
    return RpcHops(
        servers=servers,
        rate=measured or network_rate(box),
        round_trip_us=ROUND_TRIP_US if box.network_us is None else 2 * box.network_us,
        hidden=model.hidden,
        vocab=0 if gpus else model.vocab,
        layers=sum(split[:-gpus]) if gpus else sum(split) - 1,
    )
