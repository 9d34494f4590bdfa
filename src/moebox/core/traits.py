"""What an engine is, as declared facts: every engine's folder has one `Traits` in its traits.py.

The planner, the renderers and the flows ask these instead of an engine's name, so that an engine they have never heard
of is planned, rendered and launched like the others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a box carries calibrations, which ask for traits
    from moebox.core.box import Gpu
    from moebox.core.model import Model

WeightsFormat = Literal["safetensors", "gguf"]
ToolsUnderNone = Literal["flag", "hidden", "shown"]
LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One engine's facts. What a newcomer leaves out has the value that asks least of moebox."""

    name: str  # what recipes and pins call it
    title: str  # what people call it
    rank: int = 100  # lower is preferred where forecasts tie
    is_proven: bool = True  # measured often enough to be chosen unasked where others fit too
    formats: tuple[WeightsFormat, ...]
    shards: frozenset[str] = frozenset()  # of tp, pp, dp, ep, dcp, nodes: what it can divide over GPUs
    hybrid_fields: frozenset[str] = frozenset()  # fields of [hybrid] it has; empty: it keeps no experts in RAM
    kv: tuple[str, ...] = ("auto",)  # cache types it takes
    kv_auto: str = "bf16"  # what "auto" comes to
    proposes_dcp: bool = False  # decode context parallelism is proven enough to be chosen unasked
    packs_sparse_latent: bool = False  # an fp8 cache of sparse attention is vLLM's 656-byte form
    draft_methods: tuple[str, ...] = ()  # methods of speculative decoding
    runs_without_gpu: bool = False  # runs on a CPU alone
    unsupported_generations: tuple[str, ...] = ()  # GPU generations it has no kernels for
    no_sparse_mla_generations: tuple[str, ...] = ()  # generations on which it cannot run DeepSeek sparse attention
    ports: tuple[int, ...] = ()  # other ports it listens on, counted from its own
    rendezvous_port: int = 0  # port of the first node at which the ranks of several meet
    follower_flag: str = ""  # tells every node but the first that it serves no requests
    worker_programs: tuple[str, ...] = ()  # names of the program that the other nodes run, and the first connects to
    worker_port: int = 0  # where that listens, counted from the engine's own port
    health_path: str = "/health"  # path that answers 200 when it is up
    # Figure (running, waiting, kv_use, …) to the name it has in /metrics, where data/metrics.toml has no row for it.
    metrics: Mapping[str, str] = field(default_factory=dict)
    kv_cache_endpoint: str = (
        ""  # path that tells the size of the cache: /metrics (vLLM's labels) or /props (llama.cpp's)
    )
    owned_by: str = ""  # what its /v1/models says under owned_by
    key_env: str = ""  # variable the engine gets its key from
    image: str = ""  # of this engine; "{version}" is filled in
    image_entry: tuple[str, ...] = ()  # words that start it inside the image
    image_has_entrypoint: bool = False  # whether those words are the image's own entry point
    shares_memory: bool = False  # its workers need the host's shared memory in a container
    uses_all_gpus: bool = False  # spreads over every GPU there is unless told otherwise
    needs_gguf_filename: bool = False  # must be told the file of a GGUF in a repository
    cache_variable: str = ""  # names the folder of its downloads, where that is not the Hub's own cache
    local_weights_only: bool = False  # reads weights from a folder of this machine, not from the Hub
    embedded: bool = False  # can run inside moebox
    presets: tuple[str, ...] = ()  # patched images it may run in
    package: str = ""  # Python distribution that tells its version; "": its program is asked for --version
    packages: tuple[str, ...] = ()  # other distributions that carry it
    program: tuple[str, ...] = ()  # the program that is it, on PATH
    install: str = ""  # how to get it
    step_tokens: int = 8192  # prompt tokens of one step unless the recipe says otherwise, on GPUs of 70 GiB and more
    eager_flag: str = ""  # turns CUDA graphs off
    tool_parsers: Mapping[str, str] = field(default_factory=dict)  # vLLM's name -> its own, where they differ
    reasoning_parsers: Mapping[str, str] = field(default_factory=dict)
    needs_parser_flags: bool = False  # tool and reasoning parsers are named at launch
    own_call_ids: bool = True  # keeps the ids that a model gives its tool calls
    moe_config_env: str = ""  # variable that names a folder of tuned fused-MoE files; "": none of its kernels are known
    moe_config_pairs: bool = False  # keeps the tuned files of the up and the down projection apart
    tools_under_none: ToolsUnderNone = "hidden"  # under tool_choice "none": hidden by a flag, always, or never
    hide_tools_flag: str = ""
    cached_tokens_flag: str = ""  # makes replies say how much of their prompt was cached, where a launch lacks it

    def can_shard(self, what: str) -> bool:
        """Whether it can shard over GPUs this way."""
        return what in self.shards

    @property
    def is_gpu_only(self) -> bool:
        """Whether it serves from GPUs alone, as opposed to sharing the work with the CPU."""
        return not self.hybrid_fields

    @property
    def offloads_experts(self) -> bool:
        """Whether it can keep experts in RAM."""
        return bool(self.hybrid_fields)

    def ports_used(self, port: int) -> tuple[int, ...]:
        """Every port it takes when it listens on `port`, that one first."""
        return (port, *(port + offset for offset in self.ports))

    @property
    def last_port(self) -> int:
        """The highest port it can listen on."""
        return LAST_PORT - max(self.ports, default=0)

    def hardware_problem(self, gpus: "Collection[Gpu]", model: "Model | None") -> str:
        """Why it cannot run over these GPUs (none: on a CPU alone), or ""."""
        if not gpus:
            return "" if self.runs_without_gpu else f"{self.title} needs a GPU"
        return next(filter(None, (self._without_kernels(gpu, model) for gpu in gpus)), "")

    def _without_kernels(self, gpu: "Gpu", model: "Model | None") -> str:
        """Why it cannot run on a GPU, or ""."""
        if gpu.generation in self.unsupported_generations:
            return f"{self.title} has no kernels for {gpu.title} ({gpu.generation})"
        if _sparse(model) and gpu.generation in self.no_sparse_mla_generations:
            return f"{self.title} has no sparse attention kernels for {gpu.title} ({_capability(gpu)})"
        return ""


def _sparse(model: "Model | None") -> bool:
    """DeepSeek's sparse attention, as V3.2 has it or as V4 does."""
    if model is None or model.mla is None:
        return model is not None and model.has_compressed_cache
    return model.mla.indexer is not None


def _capability(gpu: "Gpu") -> str:
    return f"compute capability {gpu.sm}" if gpu.sm[:1].isdigit() else gpu.sm
