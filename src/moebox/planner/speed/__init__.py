"""How fast a recipe runs on a box: seconds for a step from bytes moved and operations done.

`Speed.of` puts facts and fitted constants together; `step` and `host` hold the arithmetic. Nothing here knows about
queues or requests; that is `simulate`.
"""

import math
from dataclasses import dataclass, replace

from moebox.core.deployment import Deployment
from moebox.core.plan import Line
from moebox.engines import rooms
from moebox.errors import BadInput
from moebox.planner.speed import constants as tables
from moebox.planner.speed.explain import explain, explain_measured
from moebox.planner.speed.guessed import Guessed, guessed_ram
from moebox.planner.speed.host import Shared, shared_of
from moebox.planner.speed.links import fabric
from moebox.planner.speed.measured import BAND_SIGMAS, Measured, measured_on
from moebox.planner.speed.step import GpuStep
from moebox.sizing import kv
from moebox.sizing.rank import rank_of

PIECE = 8192  # prompt tokens a step where nothing says otherwise
EAGER_FLAGS = ("enforce-eager", "disable-cuda-graph")
# Of a CPU without GPUs, where attention is the CPU's too (standard deviation of the logarithm): there are no published
# rows, and the rehearsal model ran at a quarter of its forecast on one of two machines, at the forecast on the other.
ALONE_SPREAD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed model of one recipe on one box."""

    gpu_step: GpuStep | None = None
    shared: Shared | None = None
    piece: int = PIECE
    decode_spread: float = 0.3
    prefill_spread: float = 0.3
    host_spread: float = 0.0  # between hosts alike on paper
    alone_spread: float = 0.0  # of a CPU without GPUs
    unified_spread: float = 0.0  # on memory shared with the CPU, of which few results are published
    guessed: Guessed | None = None  # RAM's bandwidth, where nobody said it
    away: int = 0  # steps from the nearest measured engine and generation
    request_s: float = 0.01  # HTTP, tokenizer and scheduling of a request before its first step
    intake_s: float = 0.001  # between two requests that arrive together
    token_bytes: float = 0.0  # of cache for one token
    measured: Measured | None = None  # steps timed on this box, which stand instead of the fitted ones

    @property
    def source(self) -> str:
        """The calibration that it was measured by, in words; "" where it is fitted."""
        return self.measured.text if self.measured else ""

    @classmethod
    def of(cls, deployment: Deployment) -> "Speed":
        """The model for a recipe on its box: measured there by a rehearsal, or else fitted to published rows."""
        speed = cls.fitted(deployment)
        box, model, checkpoint, recipe = deployment.facts
        found = measured_on(box, model, checkpoint, recipe, chunk=speed.piece)
        if found is None:
            return speed
        return replace(
            speed,
            measured=found,
            decode_spread=found.decode_spread,
            prefill_spread=found.prefill_spread,
            away=0,
        )

    @classmethod
    def fitted(cls, deployment: Deployment) -> "Speed":
        """The model from constants fitted to published rows, whatever was measured on the box."""
        return cls._sharing(deployment) if deployment.engine.offloads else cls._serving(deployment)

    @classmethod
    def _sharing(cls, deployment: Deployment) -> "Speed":
        """Of an engine that shares the work between CPU and GPUs."""
        box, model, checkpoint, recipe = deployment.facts
        constants = tables.host_side(recipe.engine)
        apart = tables.unified()
        if box.unified:
            constants = replace(constants, gpu_bw=apart.rate)
        shared = shared_of(box, model, checkpoint, recipe, constants)
        return cls(
            unified_spread=apart.spread_sharing * box.unified,
            guessed=guessed_ram(box, shared),
            shared=shared,
            piece=shared.ubatch,
            token_bytes=kv.token_bytes(model, recipe),
            decode_spread=constants.decode_spread,
            prefill_spread=constants.prefill_spread,
            host_spread=tables.between_hosts(constants, 0),
            alone_spread=0.0 if box.gpus else ALONE_SPREAD,
        )

    @classmethod
    def _serving(cls, deployment: Deployment) -> "Speed":
        """Of an engine that serves from GPUs alone."""
        box, model, checkpoint, recipe = deployment.facts
        gpu = deployment.gpu
        if gpu is None:
            raise BadInput(f"{recipe.engine} needs a GPU, and there is none", hint="--box names the box it is for")
        if gpu.unified:
            gpu = replace(gpu, bandwidth=round(gpu.bandwidth * tables.unified().rate))
        row, away = tables.efficiency(recipe.engine, recipe.runtime.preset, gpu.generation)
        row = tables.widened(row, away)
        step = GpuStep(
            rank=rank_of(model, checkpoint, recipe),
            gpu=gpu,
            constants=row,
            kernel=tables.expert_kernel(
                checkpoint.quant, gpu.generation, recipe.engine, model.architecture, recipe.engine_version
            ),
            fabric=fabric(box, gpu, row, recipe.parallel),
            draft=tables.draft(recipe.speculate.method) if recipe.speculate and recipe.draft_tokens else None,
            guesses=recipe.draft_tokens,
            graphs=not any(recipe.flags.get(name) for name in EAGER_FLAGS),
            host=1 / tables.cpu(box.cpu.model).host,
            overhead=tables.overhead(recipe.engine, recipe.engine_version),
            fused=tables.fused_norms(recipe.engine, recipe.engine_version, gpu.generation, model.architecture),
        )
        return cls(
            gpu_step=step,
            piece=rooms.schedule(recipe.engine).step_tokens(recipe, gpu),
            request_s=row.request_ms * 1e-3,
            intake_s=tables.intake_ms(recipe.engine) * 1e-3,
            token_bytes=kv.token_bytes(model, recipe),
            decode_spread=row.decode_spread,
            prefill_spread=row.prefill_spread,
            host_spread=tables.between_hosts(row, away),
            away=away,
            unified_spread=tables.unified().spread * gpu.unified,
        )

    def step_s(self, batch: float, context: float, fresh: float = 0.0, past: float = 0.0) -> float:
        """Seconds of a step that decodes `batch` sequences at `context` and reads `fresh` prompt tokens."""
        return sum(self.parts(batch, context, fresh, past).values())

    def parts(self, batch: float, context: float, fresh: float = 0.0, past: float = 0.0) -> dict[str, float]:
        """The same by part."""
        if self.measured:
            return {"measured": self.measured.step_s(batch, context, fresh, past)}
        if self.gpu_step:
            return self.gpu_step.parts(batch, context, fresh, past)
        assert self.shared is not None
        return self.shared.parts(batch, context, fresh, past)

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens a sequence gains in a step."""
        return self.gpu_step.tokens_per_step if self.gpu_step else 1.0

    def slower_by(self, rank: float) -> float:
        """TPOT of the request at `rank` (0 to 1) of all over the mean: drafts suit some requests better than others."""
        return self.gpu_step.slower_by(rank) if self.gpu_step else 1.0

    def accepting(self, share: float) -> "Speed":
        """The same where `share` of the draft tokens are accepted, over all of them as servers report it."""
        return replace(self, gpu_step=self.gpu_step.accepting(share)) if self.gpu_step else self

    def decode_tok_s(self, batch: int, context: int) -> float:
        """Tokens a second of all sequences together."""
        return batch * self.tokens_per_step / self.step_s(batch, context)

    def prefill_s(self, tokens: int, context: int = 0) -> float:
        """Seconds to read a prompt of `tokens` after `context` tokens that are cached, alone on the machine."""
        return _prefill(self, tokens, context)

    def prefills_s(self, tokens: int, prompts: int) -> float:
        """Seconds to read `prompts` of `tokens` each that came together: a step takes as many as it has room for."""
        together = min(max(self.piece // max(tokens, 1), 1), prompts)
        if together == 1:
            return prompts * self.prefill_s(tokens)
        return prompts / together * self.step_s(0, 0, together * tokens)

    def prefill_tok_s(self, tokens: int) -> float:
        """Prompt tokens a second for one prompt."""
        return tokens / self.prefill_s(tokens) if tokens else 0.0

    @property
    def band(self) -> tuple[float, float]:
        """Factors on decode speed between which four of five rows of another host lie."""
        return self.bands()

    @property
    def prefill_band(self) -> tuple[float, float]:
        """The same for prompts."""
        return self.bands(prompts=True)

    def prompt_band(self, tokens: int) -> tuple[float, float]:
        """The same for prompts of that length: what was measured tells them apart."""
        return _band(self.measured.prompt_spread(tokens)) if self.measured else self.prefill_band

    def bands(self, *, prompts: bool = False, fitted: bool = False) -> tuple[float, float]:
        """Factors on a rate between which four of five rows lie; `fitted`: rows of the hosts that were fitted to."""
        spread = self.prefill_spread if prompts else self.decode_spread
        if fitted or self.measured:
            return _band(spread)
        low, high = _band(math.hypot(spread, self.host_spread, self.unified_spread, self.alone_spread))
        least, most = self.guessed.factors(prompts=prompts) if self.guessed else (1.0, 1.0)
        return low * least, high * most

    @property
    def basis(self) -> str:
        """What the band rests on, in words."""
        return self.based_on()

    def based_on(self, *, prompts: bool = False) -> str:
        """The same for prompts or for decoding; a guess is told where the band has it."""
        if self.measured:
            return ""
        if self.alone_spread:
            return "nobody has published results of a CPU without a GPU"
        if self.guessed and self.guessed.factors(prompts=prompts) != (1.0, 1.0):
            return self.guessed.text
        if self.unified_spread:
            return "few results are published for memory shared with the CPU, and they differ"
        if self.away:
            return "no published results for this engine on these GPUs, the nearest ones stand in"
        return "80% of results on other hosts"

    def lines(self, batch: int, context: int) -> tuple[Line, ...]:
        """The arithmetic of a decode step, line by line."""
        if self.measured:
            return explain_measured(self.measured, batch, context, self.band)
        return explain(self.gpu_step, self.shared, batch, context, self.tokens_per_step, self.band, self.basis)


def _band(spread: float) -> tuple[float, float]:
    factor = math.exp(BAND_SIGMAS * spread)
    return 1 / factor, factor


def _prefill(speed: Speed, tokens: int, context: int) -> float:
    """Whole pieces, then the rest; long prompts in closed form of the first and last piece (attention is linear)."""
    whole, rest = divmod(tokens, speed.piece)
    seconds = speed.step_s(0, 0, rest, context + whole * speed.piece) if rest else 0.0
    if whole:
        first = speed.step_s(0, 0, speed.piece, context)
        last = speed.step_s(0, 0, speed.piece, context + (whole - 1) * speed.piece)
        seconds += whole * (first + last) / 2
    return seconds
