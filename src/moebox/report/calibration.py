"""A calibration as it is shown: its error, and the step times of the whole model."""

from dataclasses import dataclass

from moebox.core.calibration import Calibration
from moebox.planner.speed.measured import MeasuredSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of the whole model: decoding `streams` at a context, or reading a prompt."""

    kind: str  # decode or prompt
    streams: int
    tokens: int  # context, or length of the prompt
    seconds: float
    tok_s: float


def full_depth(calibration: Calibration) -> MeasuredSpeed:
    """The calibration extrapolated to all layers of its model."""
    most = max((prompt.tokens for boot in calibration.boots for prompt in boot.prefill), default=1)
    return MeasuredSpeed(calibration=calibration, layers=calibration.layers, chunk=calibration.layout.chunk or most)


def is_solved(calibration: Calibration) -> bool:
    """True if it has step times of the whole model."""
    return bool(full_depth(calibration).decode_times)


def depths_text(calibration: Calibration) -> str:
    """The depths of its boots: "3 and 6"."""
    return " and ".join(map(str, calibration.depths))


def error_text(calibration: Calibration) -> str:
    """Its relative error, or "unfinished"."""
    if not is_solved(calibration):
        return "unfinished"
    return full_depth(calibration).error_text + (", disturbed" if calibration.disturbed else "")


def step_times(calibration: Calibration) -> tuple[StepTime, ...]:
    """Step times of the whole model at the measured batches and prompts."""
    reading = full_depth(calibration)
    decoded = [
        StepTime(kind="decode", streams=batch, tokens=int(context), seconds=step, tok_s=batch / step)
        for batch, line in sorted(reading.decode_times.items())
        for context, step in line
    ]
    prompts = [
        StepTime(kind="prompt", streams=1, tokens=int(tokens), seconds=time, tok_s=tokens / time)
        for tokens, time in reading.prompt_times
    ]
    return (*decoded, *prompts)
