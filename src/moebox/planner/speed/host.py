"""Experts in RAM: one token at a time over RAM bandwidth, prompts by CPU or by copying experts to the GPU."""

from dataclasses import dataclass, replace

from moebox.core.box import Box, Gpu
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Hybrid, Parallel, Recipe
from moebox.engines import modules
from moebox.planner.speed.constants import HostEfficiency, find_cpu
from moebox.planner.speed.links import pcie_rate
from moebox.planner.speed.rpc import RpcHops, rpc_hops
from moebox.sizing.kv import keeps_all_heads
from moebox.sizing.rank import RankWork, rank_work

# A declared box without a CPU: one socket of 12 channels DDR5-4800 (4th gen EPYC), as few cores as such sockets have.
RAM = 460.8e9
CORES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStep:
    """Everything that decides a step's time where CPU and GPUs share the work."""

    model: Model
    constants: HostEfficiency
    gpu: Gpu | None
    memory_rate: float  # bytes/s of weights that RAM gives
    unpack_rate: float  # and that the threads which decode can unpack
    cores: int  # that read prompts
    threads: int  # that decode
    core_flops: float  # operations/s of one core on quantised experts, a batch at a time
    mla_mode: int | None  # mode of latent attention, where the engine has modes
    ubatch: int
    layers_on_gpus: float  # expert layers on GPUs, or as many layers' worth of experts
    layers_in_ram: float
    ranks: int = 1  # GPUs that work on one layer together
    host_copy: float = 0.0  # bytes/s at which RAM feeds all GPUs' copies; 0: the link decides alone
    rank: RankWork  # the whole model on one rank: bytes and operations of every token
    hops: RpcHops | None = None  # between nodes

    def distinct_experts(self, tokens: float) -> float:
        """Expected distinct experts a batch wakes in one layer."""
        return self.rank.distinct_experts(tokens)

    @property
    def ram_rate(self) -> float:
        """Bytes/s of experts the CPU gets through for one token."""
        return min(self.memory_rate, self.unpack_rate)

    @property
    def is_thread_bound(self) -> bool:
        """Whether the threads are what limits experts in RAM, not RAM."""
        return self.layers_in_ram > 0 and self.memory_rate > self.unpack_rate

    def step_parts(self, batch: float, context: float, fresh: float, past: float) -> dict[str, float]:
        """Seconds by part of a step that decodes `batch` sequences at `context` and reads `fresh` prompt tokens."""
        parts = self.decode_parts(batch, context) if batch else {}
        if fresh:
            for name, seconds in self.prefill_parts(fresh, past).items():
                parts[name] = parts.get(name, 0.0) + seconds
        return parts

    def decode_parts(self, batch: float, context: float) -> dict[str, float]:
        """Seconds by part of one step of `batch` sequences at `context`."""
        c = self.constants
        woken = self.distinct_experts(batch) * self.rank.expert_bytes
        parts = {
            "experts in RAM": self.layers_in_ram * (self.expert_seconds(batch) + c.layer_us * 1e-6),
            "experts on GPUs": self.layers_on_gpus * woken / self._gpu_rate(),
            "dense weights": self.dense_seconds(batch),
            "fixed": self.model.layers * c.gpu_layer_us * 1e-6,
            "attention": self._attention(batch, context),
            "network": self.hops.step_seconds(batch, context) if self.hops else 0.0,
        }
        return {name: seconds for name, seconds in parts.items() if seconds}

    def expert_seconds(self, batch: float) -> float:
        """Seconds of one layer's experts on the CPU: read once for the batch, unpacked, multiplied."""
        moe, each = self.model.moe, self.rank.expert_bytes
        woken = self.distinct_experts(batch) * each
        unpacked = woken if self.constants.shares_unpacking or not moe else batch * moe.used * each
        flops = batch * self._token_flops()
        return max(woken / self.memory_rate, unpacked / self.unpack_rate, flops / (self.threads * self.core_flops))

    def dense_seconds(self, batch: float) -> float:
        """Seconds of the weights that every token goes through: on the GPUs, or on the CPU like experts."""
        size = self.rank.dense_bytes
        if self.gpu:
            return size / self._gpu_rate()
        unpacked = size if self.constants.shares_unpacking else batch * size
        flops = batch * self.rank.dense_flops
        return max(size / self.memory_rate, unpacked / self.unpack_rate, flops / (self.threads * self.core_flops))

    def prefill_parts(self, tokens: float, past: float) -> dict[str, float]:
        """Seconds by part of one micro-batch of a prompt that has `past` tokens before it."""
        flops = tokens * self._token_flops()
        rate, pairs = self._prompt_rates()
        parts = self._experts_from_ram(tokens, flops) | {
            "experts on GPUs": self.layers_on_gpus * flops / rate,
            "dense weights": tokens * self.rank.dense_flops / rate,
            "attention": tokens * self._attention_flops(past + tokens / 2, prompt=True) / pairs,
            "fixed": self.model.layers * self.constants.gpu_layer_us * 1e-6,
            "network": self.hops.step_seconds(tokens, past + tokens, prompt=True) if self.hops else 0.0,
        }
        return {name: seconds for name, seconds in parts.items() if seconds}

    def _prompt_rates(self) -> tuple[float, float]:
        """Operations a second on weights, and in attention, while a prompt is read."""
        if self.gpu is None:
            return self._cpu_flops(), self.cores * (self.constants.core_attention or self.core_flops)
        rate = self.gpu.bf16 * self.constants.prompt_flops * self.ranks
        return rate, rate

    def _experts_from_ram(self, tokens: float, flops: float) -> dict[str, float]:
        """Seconds of those experts of a micro-batch that lie in RAM: copied to the GPU, or worked on by the CPU."""
        woken = self.distinct_experts(tokens) * self.rank.expert_bytes
        if self.gpu is None or not self.copies_experts(tokens):
            return {"experts on the CPU": self.layers_in_ram * max(woken / self.ram_rate, flops / self._cpu_flops())}
        return {
            "copying experts to the GPU": self.layers_in_ram * woken / self._copy_rate(pcie_rate(self.gpu)),
            "experts": self.layers_in_ram * flops / self._prompt_rates()[0],
        }

    def copies_experts(self, tokens: float) -> bool:
        """Whether the engine copies experts to the GPU for a micro-batch of this size."""
        moe = self.model.moe
        if self.gpu is None or not moe or not self.layers_in_ram:
            return False
        each = moe.experts / moe.used if self.constants.upload_each else 1
        return tokens >= self.constants.upload_tokens * each

    def _cpu_flops(self) -> float:
        return self.cores * self.core_flops

    def _token_flops(self) -> float:
        return 2.0 * self.model.expert_parameters * self.model.experts_used

    def _copy_rate(self, link: float) -> float:
        """Bytes a second of experts on their way to the GPUs: all links together, fed from one RAM."""
        links = link * self.constants.upload * self.ranks
        return 1 / (1 / links + 1 / self.host_copy) if self.host_copy else links

    def _gpu_rate(self) -> float:
        return self.gpu.bandwidth * self.constants.gpu_bw * self.ranks if self.gpu else self.ram_rate

    def _attention(self, batch: float, context: float) -> float:
        read = batch * self.rank.cache_bytes_read(context) / self._gpu_rate()
        here = self.threads * (self.constants.core_attention or self.core_flops)
        rate = self.gpu.bf16 * self.constants.attention_flops if self.gpu else here
        return max(read, batch * self._attention_flops(context, prompt=False) / rate)

    def _attention_flops(self, context: float, *, prompt: bool) -> float:
        """Operations of one query at `context`, all layers.

        Mode 1 of latent attention reads prompts on the latent itself, mode 0 decodes on whole heads too; otherwise
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


def mla_mode(model: Model, recipe: Recipe) -> int | None:
    """ik_llama.cpp's -mla; 0 also where llama.cpp works on whole heads."""
    if model.mla and keeps_all_heads(model.mla, recipe):
        return 0
    return recipe.hybrid.mla if recipe.hybrid else None


def make_hybrid_step(
    box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, constants: HostEfficiency
) -> HybridStep:
    """The CPU+GPU side of a recipe on a box."""
    hybrid = recipe.hybrid or Hybrid()
    on_gpus = layers_on_gpus(model, recipe) if box.gpus else 0.0
    cores = box.cpu.cores or hybrid.threads or CORES
    decoding = min(hybrid.threads or cores, cores)
    return HybridStep(
        model=model,
        constants=constants,
        gpu=box.smallest_gpu,
        memory_rate=memory_rate(box, constants),
        unpack_rate=unpack_rate(constants, decoding),
        cores=cores,
        threads=decoding,
        core_flops=find_cpu(box.cpu.model).core_flops or constants.core_flops,
        mla_mode=mla_mode(model, recipe),
        ubatch=modules.schedule_module(recipe.engine).step_tokens(recipe),
        ranks=recipe.parallel.tp,
        host_copy=(box.ram_bandwidth_measured or nominal_ram_rate(box)) * constants.upload_ram,
        layers_on_gpus=min(on_gpus, model.moe_layers),
        layers_in_ram=max(model.moe_layers - on_gpus, 0),
        rank=rank_work(model, checkpoint, replace(recipe, parallel=Parallel())),
        hops=rpc_hops(box, model, recipe),
    )


def layers_on_gpus(model: Model, recipe: Recipe) -> float:
    """Expert layers on GPUs; a share of every layer counts as so many layers' worth."""
    hybrid = recipe.hybrid
    if hybrid is None or hybrid.split:
        return model.moe_layers
    if hybrid.gpu_experts is not None and model.moe:
        return model.moe_layers * hybrid.gpu_experts / model.moe.experts
    return sum(len(layers) for layers in hybrid.experts)


def memory_rate(box: Box, constants: HostEfficiency) -> float:
    """What RAM gives of its rate, as measured or as given on paper."""
    if box.ram_bandwidth_measured:
        return box.ram_bandwidth_measured * constants.ram_measured
    return nominal_ram_rate(box) * constants.ram * (constants.numa if box.cpu.sockets > 1 else 1.0)


def nominal_ram_rate(box: Box) -> float:
    """RAM's rate as given; a GPU's that shares it; or else a guess."""
    shared = (gpu.bandwidth for gpu in box.gpus if gpu.unified)
    return float(box.ram_bandwidth or next(shared, RAM))


def unpack_rate(constants: HostEfficiency, threads: int) -> float:
    """What so many threads can unpack."""
    return threads * constants.core_gb_s * 1e9
