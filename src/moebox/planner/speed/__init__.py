"""How fast a recipe runs on a box: seconds for a step from bytes moved and operations done.

`Speed.of` puts facts and fitted constants together; `step` and `host` hold the arithmetic. Nothing here knows about
queues or requests; that is `simulate`.
"""

import math
from dataclasses import dataclass, replace

from moebox.core.deployment import Deployment
from moebox.core.plan import ArithmeticLine
from moebox.engines import modules
from moebox.errors import BadInput
from moebox.planner.speed import constants as tables
from moebox.planner.speed.explain import explain_measured, explain_step
from moebox.planner.speed.guessed import AssumedRam, assumed_ram
from moebox.planner.speed.host import HybridStep, make_hybrid_step
from moebox.planner.speed.links import make_fabric
from moebox.planner.speed.measured import RANGE_SIGMAS, MeasuredSpeed, find_measured
from moebox.planner.speed.step import GpuStep
from moebox.sizing import kv
from moebox.sizing.rank import rank_work

DEFAULT_CHUNK = 8192  # prompt tokens a step where nothing says otherwise
EAGER_FLAGS = ("enforce-eager", "disable-cuda-graph")
# Of a CPU without GPUs, where attention is the CPU's too (standard deviation of the logarithm): there are no published
# rows, and the rehearsal model ran at a quarter of its forecast on one of two machines, at the forecast on the other.
ALONE_SPREAD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed model of one recipe on one box."""

    gpu_step: GpuStep | None = None
    hybrid_step: HybridStep | None = None
    chunk_tokens: int = DEFAULT_CHUNK
    decode_spread: float = 0.3
    prefill_spread: float = 0.3
    host_spread: float = 0.0  # between hosts alike on paper
    cpu_only_spread: float = 0.0  # of a CPU without GPUs
    unified_spread: float = 0.0  # on memory shared with the CPU, of which few results are published
    assumed_ram: AssumedRam | None = None  # RAM's bandwidth, where nobody said it
    steps_away: int = 0  # steps from the nearest measured engine and generation
    request_s: float = 0.01  # HTTP, tokenizer and scheduling of a request before its first step
    intake_s: float = 0.001  # between two requests that arrive together
    token_bytes: float = 0.0  # of cache for one token
    measured: MeasuredSpeed | None = None  # steps timed on this box, which stand instead of the fitted ones

    @property
    def calibration_text(self) -> str:
        """The calibration that it was measured by, in words; "" where it is fitted."""
        return self.measured.text if self.measured else ""

    @classmethod
    def for_deployment(cls, deployment: Deployment) -> "Speed":
        """The model for a recipe on its box: measured there by a rehearsal, or else fitted to published rows."""
        speed = cls.from_published(deployment)
        box, model, checkpoint, recipe = deployment.facts
        found = find_measured(box, model, checkpoint, recipe, chunk=speed.chunk_tokens)
        if found is None:
            return speed
        return replace(
            speed,
            measured=found,
            decode_spread=found.decode_spread,
            prefill_spread=found.prefill_spread,
            steps_away=0,
        )

    @classmethod
    def from_published(cls, deployment: Deployment) -> "Speed":
        """The model from constants fitted to published rows, whatever was measured on the box."""
        return cls._sharing(deployment) if deployment.engine.offloads_experts else cls._serving(deployment)

    @classmethod
    def _sharing(cls, deployment: Deployment) -> "Speed":
        """Of an engine that shares the work between CPU and GPUs."""
        box, model, checkpoint, recipe = deployment.facts
        constants = tables.host_efficiency(recipe.engine)
        apart = tables.unified_memory()
        if box.has_unified_memory:
            constants = replace(constants, gpu_bw=apart.rate)
        shared = make_hybrid_step(box, model, checkpoint, recipe, constants)
        return cls(
            unified_spread=apart.spread_sharing * box.has_unified_memory,
            assumed_ram=assumed_ram(box, shared),
            hybrid_step=shared,
            chunk_tokens=shared.ubatch,
            token_bytes=kv.token_bytes(model, recipe),
            decode_spread=constants.decode_spread,
            prefill_spread=constants.prefill_spread,
            host_spread=tables.spread_between_hosts(constants, 0),
            cpu_only_spread=0.0 if box.gpus else ALONE_SPREAD,
        )

    @classmethod
    def _serving(cls, deployment: Deployment) -> "Speed":
        """Of an engine that serves from GPUs alone."""
        box, model, checkpoint, recipe = deployment.facts
        gpu = deployment.smallest_gpu
        if gpu is None:
            raise BadInput(f"{recipe.engine} needs a GPU, and there is none", hint="--box names the box it is for")
        if gpu.unified:
            gpu = replace(gpu, bandwidth=round(gpu.bandwidth * tables.unified_memory().rate))
        row, away = tables.find_efficiency(recipe.engine, recipe.runtime.preset, gpu.generation)
        row = tables.widen_spread(row, away)
        step = GpuStep(
            rank=rank_work(model, checkpoint, recipe),
            gpu=gpu,
            constants=row,
            kernel=tables.find_expert_kernel(
                checkpoint.quant, gpu.generation, recipe.engine, model.architecture, recipe.engine_version
            ),
            fabric=make_fabric(box, gpu, row, recipe.parallel),
            draft=tables.draft_cost(recipe.speculate.method) if recipe.speculate and recipe.draft_tokens else None,
            draft_tokens=recipe.draft_tokens,
            graphs=not any(recipe.flags.get(name) for name in EAGER_FLAGS),
            host_factor=1 / tables.find_cpu(box.cpu.model).host,
            overhead=tables.find_overhead(recipe.engine, recipe.engine_version),
            fused_norms=tables.has_fused_norms(
                recipe.engine, recipe.engine_version, gpu.generation, model.architecture
            ),
        )
        return cls(
            gpu_step=step,
            chunk_tokens=modules.schedule_module(recipe.engine).step_tokens(recipe, gpu),
            request_s=row.request_ms * 1e-3,
            intake_s=tables.intake_ms(recipe.engine) * 1e-3,
            token_bytes=kv.token_bytes(model, recipe),
            decode_spread=row.decode_spread,
            prefill_spread=row.prefill_spread,
            host_spread=tables.spread_between_hosts(row, away),
            steps_away=away,
            unified_spread=tables.unified_memory().spread * gpu.unified,
        )

    def step_s(self, batch: float, context: float, fresh: float = 0.0, past: float = 0.0) -> float:
        """Seconds of a step that decodes `batch` sequences at `context` and reads `fresh` prompt tokens."""
        return sum(self.step_parts(batch, context, fresh, past).values())

    def step_parts(self, batch: float, context: float, fresh: float = 0.0, past: float = 0.0) -> dict[str, float]:
        """The same by part."""
        if self.measured:
            return {"measured": self.measured.step_s(batch, context, fresh, past)}
        if self.gpu_step:
            return self.gpu_step.step_parts(batch, context, fresh, past)
        assert self.hybrid_step is not None
        return self.hybrid_step.step_parts(batch, context, fresh, past)

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens a sequence gains in a step."""
        return self.gpu_step.tokens_per_step if self.gpu_step else 1.0

    def draft_slowdown(self, rank: float) -> float:
        """TPOT of the request at `rank` (0 to 1) of all over the mean: drafts suit some requests better than others."""
        return self.gpu_step.draft_slowdown(rank) if self.gpu_step else 1.0

    def with_acceptance(self, share: float) -> "Speed":
        """The same where `share` of the draft tokens are accepted, over all of them as servers report it."""
        return replace(self, gpu_step=self.gpu_step.with_acceptance(share)) if self.gpu_step else self

    def decode_tok_s(self, batch: int, context: int) -> float:
        """Tokens a second of all sequences together."""
        return batch * self.tokens_per_step / self.step_s(batch, context)

    def prefill_s(self, tokens: int, context: int = 0) -> float:
        """Seconds to read a prompt of `tokens` after `context` tokens that are cached, alone on the machine."""
        return _prefill(self, tokens, context)

    def prefills_s(self, tokens: int, prompts: int) -> float:
        """Seconds to read `prompts` of `tokens` each that came together: a step takes as many as it has room for."""
        together = min(max(self.chunk_tokens // max(tokens, 1), 1), prompts)
        if together == 1:
            return prompts * self.prefill_s(tokens)
        return prompts / together * self.step_s(0, 0, together * tokens)

    def prefill_tok_s(self, tokens: int) -> float:
        """Prompt tokens a second for one prompt."""
        return tokens / self.prefill_s(tokens) if tokens else 0.0

    @property
    def decode_range(self) -> tuple[float, float]:
        """Factors on decode speed between which four of five rows of another host lie."""
        return self.range_factors()

    @property
    def prefill_range(self) -> tuple[float, float]:
        """The same for prompts."""
        return self.range_factors(prompts=True)

    def prompt_range(self, tokens: int) -> tuple[float, float]:
        """The same for prompts of that length: what was measured tells them apart."""
        return _band(self.measured.prompt_spread(tokens)) if self.measured else self.prefill_range

    def range_factors(self, *, prompts: bool = False, fitted_hosts: bool = False) -> tuple[float, float]:
        """Factors on a rate between which four of five rows lie; `fitted`: rows of the hosts that were fitted to."""
        spread = self.prefill_spread if prompts else self.decode_spread
        if fitted_hosts or self.measured:
            return _band(spread)
        low, high = _band(math.hypot(spread, self.host_spread, self.unified_spread, self.cpu_only_spread))
        least, most = self.assumed_ram.range_factors(prompts=prompts) if self.assumed_ram else (1.0, 1.0)
        return low * least, high * most

    @property
    def range_basis(self) -> str:
        """What the band rests on, in words."""
        return self.basis_text()

    def basis_text(self, *, prompts: bool = False) -> str:
        """The same for prompts or for decoding; a guess is told where the band has it."""
        if self.measured:
            return ""
        if self.cpu_only_spread:
            return "nobody has published results of a CPU without a GPU"
        if self.assumed_ram and self.assumed_ram.range_factors(prompts=prompts) != (1.0, 1.0):
            return self.assumed_ram.text
        if self.unified_spread:
            return "few results are published for memory shared with the CPU, and they differ"
        if self.steps_away:
            return "no published results for this engine on these GPUs, the nearest ones stand in"
        return "80% of results on other hosts"

    def explain_lines(self, batch: int, context: int) -> tuple[ArithmeticLine, ...]:
        """The arithmetic of a decode step, line by line."""
        if self.measured:
            return explain_measured(self.measured, batch, context, self.decode_range)
        return explain_step(
            self.gpu_step, self.hybrid_step, batch, context, self.tokens_per_step, self.decode_range, self.range_basis
        )


def _band(spread: float) -> tuple[float, float]:
    factor = math.exp(RANGE_SIGMAS * spread)
    return 1 / factor, factor


def _prefill(speed: Speed, tokens: int, context: int) -> float:
    """Whole pieces, then the rest; long prompts in closed form of the first and last piece (attention is linear)."""
    whole, rest = divmod(tokens, speed.chunk_tokens)
    seconds = speed.step_s(0, 0, rest, context + whole * speed.chunk_tokens) if rest else 0.0
    if whole:
        first = speed.step_s(0, 0, speed.chunk_tokens, context)
        last = speed.step_s(0, 0, speed.chunk_tokens, context + (whole - 1) * speed.chunk_tokens)
        seconds += whole * (first + last) / 2
    return seconds
