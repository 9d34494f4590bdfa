"""Declared facts about an engine: every engine's folder has one `Traits` in its traits.py.

Planner, renderers and flows use these instead of an engine's name, so that engines of other packages are planned,
rendered and launched like moebox's own.
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
    """Facts about one engine. Defaults are the most conservative values."""

    name: str  # in recipes and constraints
    title: str  # shown to users
    rank: int = 100  # lower is preferred if forecasts are equal
    is_proven: bool = True  # measured often enough to be chosen by default
    formats: tuple[WeightsFormat, ...]
    shards: frozenset[str] = frozenset()  # of tp, pp, dp, ep, dcp, nodes: ways to divide a model over GPUs
    hybrid_fields: frozenset[str] = frozenset()  # fields of [hybrid] that it supports; empty: no experts in RAM
    kv: tuple[str, ...] = ("auto",)  # cache types
    kv_auto: str = "bf16"  # the meaning of "auto"
    # Tiers below the KV cache: "blocks" move by themselves to RAM and disk; "slots" to RAM, to disk only on request.
    kv_tiers: Literal["", "blocks", "slots"] = ""
    kv_connectors: tuple[str, ...] = ("native",)
    # How it frees its GPUs without ending: flags and variables it must be started with, the calls that put it to sleep
    # and resume it, by level. Level 1 keeps the weights in RAM, 2 drops them.
    sleep_flags: Mapping[str, "str | bool"] = field(default_factory=dict)
    sleep_env: Mapping[str, str] = field(default_factory=dict)
    sleep_levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    resume_calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    proposes_dcp: bool = False  # decode context parallelism may be chosen by default
    packs_sparse_latent: bool = False  # an fp8 cache of sparse attention has vLLM's 656-byte format
    draft_methods: tuple[str, ...] = ()  # methods of speculative decoding
    # GPU generation -> flags that a draft model with plain heads needs beside a target with latent attention.
    draft_flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    runs_without_gpu: bool = False  # runs on the CPU alone
    unsupported_generations: tuple[str, ...] = ()  # GPU generations without kernels
    no_sparse_mla_generations: tuple[str, ...] = ()  # GPU generations without DeepSeek sparse attention
    ports: tuple[int, ...] = ()  # further ports that it listens on, as offsets from the first
    rendezvous_port: int = 0  # port on the first node where the ranks of several nodes connect
    follower_flag: str = ""  # set on every node but the first: serve no requests
    worker_programs: tuple[str, ...] = ()  # program names on the other nodes, which the first connects to
    worker_port: int = 0  # their port, as an offset from the engine's port
    health_path: str = "/health"  # path that answers 200 once the engine is up
    # Metric (running, waiting, kv_use, …) -> its name in /metrics, if data/metrics.toml has no row for the engine.
    metrics: Mapping[str, str] = field(default_factory=dict)
    mla_modes: bool = False  # the recipe chooses how latent attention is computed (hybrid.mla)
    splits_layers: bool = False  # every layer has experts on GPUs and in RAM (hybrid.gpu_experts), not whole layers
    cache_in_metrics: bool = False  # /metrics has the size of the cache, in vLLM's cache_config_info
    has_slots: bool = False  # divides its context over slots; llama.cpp's /props has the share of one, and the cache
    owned_by: str = ""  # its owned_by in /v1/models
    key_env: str = ""  # variable from which the engine reads its key
    image: str = ""  # container image; "{version}" is filled in
    image_entry: tuple[str, ...] = ()  # arguments that start it inside the image
    image_has_entrypoint: bool = False  # those are the image's entry point
    shares_memory: bool = False  # its workers need the host's shared memory in a container
    uses_all_gpus: bool = False  # uses all GPUs by default
    joins_neighbours: bool = False  # one step decodes neighbouring slots only, and requests take the slots in turn
    needs_gguf_filename: bool = False  # needs the file name of a GGUF in a repository
    cache_variable: str = ""  # variable for its download folder, if that is not the Hub's cache
    local_weights_only: bool = False  # reads weights from a local folder, not from the Hub
    embedded: bool = False  # can run inside moebox
    presets: tuple[str, ...] = ()  # patched images that it can run in
    package: str = ""  # Python distribution that has its version; "": its program is run with --version
    packages: tuple[str, ...] = ()  # other distributions that contain it
    program: tuple[str, ...] = ()  # its program on PATH
    install: str = ""  # how to install it
    step_tokens: int = 8192  # default prompt tokens per step on GPUs of 70 GiB and more
    tool_parsers: Mapping[str, str] = field(default_factory=dict)  # vLLM's name -> its own, if they differ
    reasoning_parsers: Mapping[str, str] = field(default_factory=dict)
    needs_parser_flags: bool = False  # tool and reasoning parsers are set at launch
    own_call_ids: bool = True  # keeps the ids that a model gives its tool calls
    moe_config_env: str = ""  # variable for a folder of tuned fused-MoE files; "": not supported
    moe_config_pairs: bool = False  # separate tuned files for the up and the down projection
    tools_under_none: ToolsUnderNone = "hidden"  # under tool_choice "none": hidden by a flag, always hidden, or shown
    hide_tools_flag: str = ""
    cached_tokens_flag: str = ""  # makes replies report cached prompt tokens, if that is off by default

    @property
    def offloads_experts(self) -> bool:
        """It shares the work with the CPU, and does not use GPUs alone."""
        return bool(self.hybrid_fields)

    def ports_used(self, port: int) -> tuple[int, ...]:
        """All ports that it listens on with `port` as the first."""
        return (port, *(port + offset for offset in self.ports))

    @property
    def last_port(self) -> int:
        return LAST_PORT - max(self.ports, default=0)

    def hardware_problem(self, gpus: "Collection[Gpu]", model: "Model | None") -> str:
        """Return why it cannot run on these GPUs (none: on the CPU alone), or ""."""
        if not gpus:
            return "" if self.runs_without_gpu else f"{self.title} needs a GPU"
        # DeepSeek's sparse attention, as in V3.2 or in V4
        sparse = model is not None and (model.mla.indexer is not None if model.mla else model.has_compressed_cache)
        for gpu in gpus:
            if gpu.generation in self.unsupported_generations:
                return f"{self.title} has no kernels for {gpu.title} ({gpu.generation})"
            if sparse and gpu.generation in self.no_sparse_mla_generations:
                capability = f"compute capability {gpu.sm}" if gpu.sm[:1].isdigit() else gpu.sm
                return f"{self.title} has no sparse attention kernels for {gpu.title} ({capability})"
        return ""
