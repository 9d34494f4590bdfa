"""How fast a recipe runs on a box: seconds of a step from bytes moved and operations done.

`Speed.for_deployment` combines facts and fitted constants; `step` and `host` hold the arithmetic. Nothing here knows
queues or requests; that is `simulate`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moebox.core import catalogue
from moebox.core.calibration import largest_graph
from moebox.core.deployment import Deployment
from moebox.core.plan import ArithmeticLine
from moebox.core.support_matrix import candidate_rows
from moebox.engines.engine import load_engine
from moebox.engines.flags import may_be_newer
from moebox.engines.support import deployment_support, speed_factor
from moebox.errors import BadInput
from moebox.planner.speed import constants as tables
from moebox.planner.speed.acceptance import draft_with_acceptance
from moebox.planner.speed.attention import find_backends
from moebox.planner.speed.explain import explain_measured_step, explain_step
from moebox.planner.speed.host import HybridStep, assumed_factors, make_hybrid_step
from moebox.planner.speed.links import make_fabric
from moebox.planner.speed.measured import RANGE_SIGMAS, MeasuredSpeed, find_measured_speed
from moebox.planner.speed.ranges import RANGE_KINDS, HostRange, RangeKind, find_range, range_label
from moebox.planner.speed.step import GpuStep, Parts
from moebox.sizing import kv
from moebox.sizing.rank import rank_work

DEFAULT_CHUNK = 8192  # prompt tokens per step
# A timed prompt holds what a request costs, but a request that is sent when another ends still misses the next step.
ARRIVAL_S = 1e-4
# Of a CPU without GPUs, which also computes attention (standard deviation of the logarithm): there are no published
# rows, and the rehearsal model ran at a quarter of its forecast on one of two machines, at the forecast on the other.
CPU_ONLY_SPREAD = 1.0
# Of an unknown architecture or GPU: there are no published rows, so a factor of two either way is chosen, not fitted.
UNKNOWN_SPREAD = math.log(2) / RANGE_SIGMAS
NOTHING_ASSUMED = (1.0, 1.0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed model of one recipe on one box."""

    gpu_step: GpuStep | None = None
    hybrid_step: HybridStep | None = None
    chunk_tokens: int = DEFAULT_CHUNK
    decode_spread: float = 0.3
    prefill_spread: float = 0.3
    host_spread: float = 0.0  # between hosts with the same specification
    host_ranges: Mapping[RangeKind, HostRange] = field(default_factory=dict)  # of GPUs with memory of their own
    cpu_only_spread: float = 0.0
    unified_spread: float = 0.0  # on memory shared with the CPU, of which few results are published
    unknown_spread: float = 0.0  # of an architecture or GPU that is known only by its bytes
    unknown_text: str = ""  # the architecture, GPU or engine version that no table has
    assumed: Mapping[RangeKind, tuple[float, float, str]] = field(default_factory=dict)  # factors of assumed rates
    request_s: float = 0.01  # HTTP, tokenizer and scheduling of a request before its first step
    intake_s: float = 0.001  # between two requests that arrive together
    text_s: float = 0.0  # more for a prompt that is text, and
    token_s: float = 0.0  # of the tokenizer for each of its tokens
    token_bytes: float = 0.0  # of cache for one token
    # Of the fitted speed, by measured reports in the support matrix, from that many streams on.
    known_shares: dict[int, float] = field(default_factory=dict)
    measured: MeasuredSpeed | None = None  # steps timed on this box, which replace the fitted ones

    @property
    def step(self) -> GpuStep | HybridStep:
        found = self.gpu_step or self.hybrid_step
        assert found is not None
        return found

    @property
    def calibration_text(self) -> str:
        """The calibration that it was measured by; "" if it is fitted."""
        return self.measured.text if self.measured else ""

    @classmethod
    def for_deployment(cls, deployment: Deployment) -> "Speed":
        """Return the speed model: measured on the box by a calibration, or else fitted to published rows."""
        speed = cls.from_published_rows(deployment)
        box, model, checkpoint, recipe = deployment.facts
        found = find_measured_speed(box, model, checkpoint, recipe, chunk=speed.chunk_tokens, fitted=speed.step_s)
        if found is None:
            return replace(speed, known_shares=_reported_shares(deployment))
        decode, prefill = found.decode_spread, found.prefill_spread
        return replace(speed, measured=found, decode_spread=decode, prefill_spread=prefill, request_s=ARRIVAL_S)

    @classmethod
    def from_published_rows(cls, deployment: Deployment) -> "Speed":
        """Return the speed model from constants fitted to published rows, ignoring calibrations of the box."""
        box, model, checkpoint, recipe = deployment.facts
        unified, fitted = tables.unified_memory(), catalogue.load_table("efficiency")
        kinds = (gpu for gpu in deployment.gpu_kinds if gpu.name not in catalogue.gpus())
        unknown = [f"{gpu.title} is unknown" for gpu in kinds][:1]
        unknown += ["the architecture is unknown"] * bool(model.assumed)
        unknown += ["the quantisation is unknown"] * checkpoint.quant.endswith("(unknown)")
        unknown_spread = UNKNOWN_SPREAD * math.sqrt(len(unknown))
        unknown_text = f"{' and '.join(unknown)}: computed from the bytes read for a token" if unknown else ""
        if deployment.engine.offloads_experts:
            shared = cls.of_shared_work(deployment)
            return replace(shared, unknown_spread=unknown_spread, unknown_text=unknown_text)
        gpu = deployment.smallest_gpu
        if gpu is None:
            raise BadInput(f"{recipe.engine} needs a GPU, and there is none", hint="--box names the box it is for")
        if gpu.unified:
            gpu = replace(gpu, bandwidth=round(gpu.bandwidth * unified.engine_rate))
        engine, version, generation = recipe.engine, recipe.engine_version, gpu.generation
        row, away = tables.find_efficiency(engine, recipe.runtime.preset, generation, gpu.sm)
        kernel = tables.find_expert_kernel(checkpoint.quant, generation, model.architecture, recipe)
        if gpu.clock != 1:
            row = replace(row, layer_us=row.layer_us / gpu.clock, piecewise_us=row.piecewise_us / gpu.clock)
            times = {name: getattr(kernel, name) / gpu.clock for name in ("fixed_us", "hidden_us", "expert_us")}
            kernel = replace(kernel, **times)
            gpu = replace(gpu, bf16=gpu.bf16 * gpu.clock)
        drafts, rank = recipe.speculate and recipe.draft_tokens, rank_work(model, checkpoint, recipe)
        row = replace(row, gemm=max(row.gemm, rank.narrow_attention * row.narrow_gemm))
        gpu_step = GpuStep(
            rank=rank,
            gpu=gpu,
            constants=row,
            kernel=kernel,
            fabric=make_fabric(box, gpu, row, recipe.parallel),
            draft=draft_with_acceptance(model, recipe.speculate) if recipe.speculate and drafts else None,
            draft_tokens=recipe.draft_tokens,
            largest_graph=largest_graph(recipe),
            captured_tokens=load_engine(engine).captured_tokens(deployment, gpu),
            host_factor=1 / tables.find_cpu(box.cpu.model or gpu.host_cpu).host,
            overhead=tables.find_overhead(engine, version, generation),
            fused_norms=tables.has_fused_norms(engine, version, generation, model.architecture),
            attention=find_backends(recipe, generation, model.architecture),
        )
        wider = tables.STEP_AWAY**away
        label = range_label(generation, engine, version, recipe.parallel.nodes)
        known = (label, f"{engine} {recipe.runtime.preset}".strip(), model.architecture)
        if may_be_newer(engine, version):
            known = ("", "", "")
            unknown_text = unknown_text or f"no results of {deployment.engine.title} {version} are known"
        ranges = {kind: find_range(kind, *known, model.active_parameters) for kind in RANGE_KINDS}
        return cls(
            gpu_step=gpu_step,
            chunk_tokens=load_engine(engine).step_tokens(recipe, gpu),
            request_s=fitted["request"].get(engine, 10.0) * 1e-3,
            intake_s=fitted["intake"].get(engine, 1.0) * 1e-3,
            text_s=fitted["intake"]["text_ms"] * 1e-3,
            token_s=fitted["intake"]["token_us"] * gpu_step.host_factor * 1e-6,
            token_bytes=kv.token_bytes(model, recipe),
            decode_spread=row.decode_spread * wider,
            prefill_spread=row.prefill_spread * wider,
            host_spread=tables.spread_between_hosts(row, away),
            host_ranges={} if gpu.unified or unknown else ranges,
            unified_spread=unified.spread * gpu.unified,
            unknown_spread=unknown_spread,
            unknown_text=unknown_text,
        )

    @classmethod
    def of_shared_work(cls, deployment: Deployment) -> "Speed":
        """Return the speed model of an engine that shares the work between CPU and GPUs."""
        box, model, checkpoint, recipe = deployment.facts
        rows = {row.engine: row for row in catalogue.table_rows(tables.HostEfficiency, "efficiency", "host")}
        # The most conservative one for an engine without a row
        host = rows.get(recipe.engine) or min(rows.values(), key=lambda row: row.ram)
        unified = tables.unified_memory()
        if box.has_unified_memory:
            host = replace(host, gpu_bw=unified.rate)
        hybrid_step = make_hybrid_step(box, model, checkpoint, recipe, host)
        return cls(
            hybrid_step=hybrid_step,
            chunk_tokens=hybrid_step.ubatch,
            token_bytes=kv.token_bytes(model, recipe),
            decode_spread=host.decode_spread,
            prefill_spread=host.prefill_spread,
            host_spread=tables.spread_between_hosts(host, 0),
            cpu_only_spread=0.0 if box.gpus else CPU_ONLY_SPREAD,
            unified_spread=unified.spread_sharing * box.has_unified_memory,
            assumed=assumed_factors(box, hybrid_step),
        )

    def step_parts(self, batch: float, context: float, fresh: float = 0, past: float = 0, prompts: int = 1) -> Parts:
        """Seconds by part of a step that decodes `batch` sequences at `context` and reads `fresh` prompt tokens."""
        if self.measured:
            return {"measured": self.measured.step_s(batch, context, fresh, past)}
        parts = self.step.step_parts(batch, context, fresh, past, prompts)
        if (share := self.known_share(batch)) < 1:
            parts = parts | {"reported slowdown": sum(parts.values()) * (1 / share - 1)}
        return parts

    def known_share(self, streams: float) -> float:
        """The share of the fitted speed that reports leave with so many streams."""
        return next((share for least, share in reversed(self.known_shares.items()) if least <= max(streams, 1)), 1.0)

    def step_s(self, batch: float, context: float, fresh: float = 0.0, past: float = 0.0, prompts: int = 1) -> float:
        return sum(self.step_parts(batch, context, fresh, past, prompts).values())

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens that a sequence gains in a step."""
        return self.gpu_step.tokens_per_step if self.gpu_step else 1.0

    def draft_slowdown(self, rank: float) -> float:
        """TPOT of the request at `rank` (0 to 1) over the mean: drafts suit some requests better than others."""
        return self.gpu_step.draft_slowdown(rank) if self.gpu_step else 1.0

    def with_acceptance(self, share: float) -> "Speed":
        """Return the model with `share` of all draft tokens accepted, as servers report it."""
        return replace(self, gpu_step=self.gpu_step.with_acceptance(share)) if self.gpu_step else self

    def decode_tok_s(self, batch: int, context: int) -> float:
        """Tokens per second of all sequences together."""
        return batch * self.tokens_per_step / self.step_s(batch, context)

    def prefill_s(self, tokens: int, context: int = 0) -> float:
        """Seconds to read a prompt of `tokens` after `context` cached tokens, alone on the machine.

        Whole chunks, then the rest; of many chunks the mean of the first and the last (attention is linear).
        """
        chunk = self.chunk_tokens
        whole, rest = divmod(tokens, chunk)
        seconds = self.step_s(0, 0, rest, context + whole * chunk) if rest else 0.0
        if whole:
            first = self.step_s(0, 0, chunk, context)
            last = self.step_s(0, 0, chunk, context + (whole - 1) * chunk)
            seconds += whole * (first + last) / 2
        return seconds

    def intake_end(self, sent: float, tokens: int, last: float) -> float:
        """When a prompt is through HTTP and the tokenizer, which take one after another; `last`: the prompt before."""
        tokens_s = tokens * self.token_s
        return max(sent + self.request_s + self.text_s + tokens_s, last + max(self.intake_s, tokens_s))

    def prefills_s(self, tokens: int, prompts: int) -> float:
        """Seconds to read `prompts` of `tokens` each that arrived together: a step reads as many as it has room for."""
        together = min(max(self.chunk_tokens // max(tokens, 1), 1), prompts)
        if together == 1:
            return prompts * self.prefill_s(tokens)
        return prompts / together * self.step_s(0, 0, together * tokens, 0, together)

    def prefill_tok_s(self, tokens: int) -> float:
        return tokens / max(self.prefill_s(tokens), 1e-9)

    @property
    def decode_range(self) -> tuple[float, float]:
        """Factors on decode speed between which four of five rows of another host lie; drafts widen them."""
        low, high = self.range_factors("decode")
        if self.measured or self.gpu_step is None:
            return low, high
        less, more = self.gpu_step.draft_range
        down, up = math.hypot(math.log(low), math.log(less)), math.hypot(math.log(high), math.log(more))
        return math.exp(-down), math.exp(up)

    def step_range(self, streams: float, context: float) -> tuple[float, float]:
        """Factors on decode speed with so many streams: measured speeds have a range for each."""
        return _factors(self.measured.step_spread(streams, context)) if self.measured else self.decode_range

    def prompt_range(self, tokens: int) -> tuple[float, float]:
        """Factors on the speed of prompts of one length: measured speeds have a range for each."""
        return _factors(self.measured.prompt_spread(tokens)) if self.measured else self.range_factors("prompt")

    def range_factors(self, kind: RangeKind, *, fitted_hosts: bool = False) -> tuple[float, float]:
        """Factors on a rate between which four of five rows lie, on any host or on those that were fitted."""
        spread = self.prefill_spread if kind == "prompt" else self.decode_spread
        if fitted_hosts or self.measured:
            return _factors(spread)
        if kind in self.host_ranges:
            factor = self.host_ranges[kind].factor
            return 1 / factor, factor
        others = (self.host_spread, self.unified_spread, self.cpu_only_spread, self.unknown_spread)
        low, high = _factors(math.hypot(spread, *others))
        slower, faster, _ = self.assumed.get(kind, NOTHING_ASSUMED)
        return low * slower, high * faster

    def basis_text(self, kind: RangeKind = "decode") -> str:
        """What the range of a kind of result is based on."""
        if self.measured:
            return ""
        if self.unknown_text:
            return self.unknown_text
        if kind in self.host_ranges:
            return self.host_ranges[kind].text
        if self.cpu_only_spread:
            return "no published results of a CPU without a GPU"
        if text := self.assumed.get(kind, NOTHING_ASSUMED)[2]:
            return text
        if self.unified_spread:
            return "few results are published for memory shared with the CPU, and they differ"
        return "80% of results on other hosts"

    def range_text(self, kind: RangeKind) -> str:
        """The range of a kind of result as changes of the forecast, with its basis."""
        (low, high), basis = self.range_factors(kind), self.basis_text(kind)
        return f"{low - 1:+.0%} to {high - 1:+.0%}" + (f" ({basis})" if basis else "")

    def explain_lines(self, batch: int, context: int) -> tuple[ArithmeticLine, ...]:
        """The arithmetic of a decode step, line by line."""
        if self.measured:
            return explain_measured_step(self.measured, batch, context, self.decode_range)
        lines = explain_step(self.step, batch, context, self.tokens_per_step, self.decode_range, self.basis_text())
        if (share := self.known_share(batch)) == 1:
            return lines
        slow = ArithmeticLine(
            what="reported slowdown",
            formula=f"the lines above hold without it; × {share:.2f} by the support matrix",
            value=self.decode_tok_s(batch, context),
            unit="tok/s",
        )
        return (*lines, slow)


def _reported_shares(deployment: Deployment) -> dict[int, float]:
    """The share of the speed by number of streams: some reports are of many requests at once alone."""
    most = deployment.recipe.max_seqs or 1
    if (share := speed_factor(deployment)) == 1:
        return {}
    rows = (row for setup, _ in deployment_support(deployment) for row in candidate_rows(setup))
    if not any("concurrency" in row.settings or "max_seqs" in row.settings for row in rows):
        return {1: share}
    recipes = {n: replace(deployment.recipe, max_seqs=n) for n in (1, *range(8, 129, 8)) if n < most}
    return {n: speed_factor(deployment.with_recipe(recipe)) for n, recipe in recipes.items()} | {most: share}


def _factors(spread: float) -> tuple[float, float]:
    factor = math.exp(RANGE_SIGMAS * spread)
    return 1 / factor, factor
