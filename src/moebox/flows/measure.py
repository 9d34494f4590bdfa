"""The measurements of a pipeline: a sweep over concurrency, each level kept as soon as it is done."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from moebox.bench import samples
from moebox.bench.measure import Measured, Subject, subject_of
from moebox.bench.measure import measure as one_measurement
from moebox.core.endpoint import Endpoint
from moebox.core.event import LevelBegan, LevelDone, LevelSlept, MeasurementDamaged
from moebox.core.measure import Load, Workload
from moebox.core.result import document
from moebox.errors import AnswerIsNo, BadInput, Outside
from moebox.store import Run
from moebox.units import seconds, tok_s

FIGURES = ("completed", "output_throughput", "max_concurrency", "mean_ttft_ms")  # what every measurement has
ROUNDS = 4  # requests of each lane
TRIES = 3  # of a level during which the machine slept; the last one is kept, and marked
SHORT = Workload(input_tokens=96, output_tokens=64)
LONG = Workload(input_tokens=1024, output_tokens=256)


def measure(
    endpoint: Endpoint,
    run: Run,
    *,
    levels: Sequence[int],
    short: bool,
    tell: Callable[[str], None],
    alive: Callable[[], bool] = lambda: True,
) -> list[dict[str, Any]]:
    """Measure each level that has no measurement in the run yet; all of them are returned.

    AnswerIsNo when not one request of a level is answered; Outside when requests failed because the engine died.
    """
    subject = subject_of(endpoint)
    rows: list[dict[str, Any]] = []
    for level in levels:
        name = f"measurements/random-c{level}"
        kept = _kept(run, name)
        if kept is None:
            made = _level(subject, level, run, short=short, tell=tell)
            if made.result.failed and not alive():
                raise Outside(f"the engine died while it was measured with {streams(level)}")
            if not made.result.completed:
                raise AnswerIsNo(f"not one of {ROUNDS * level} requests with {streams(level)} was answered")
            kept = document(replace(made.result, samples=f"random-c{level}.samples"))
            run.write(f"{name}.samples", made.samples.pack())
            run.write_json(f"{name}.json", kept)
            run.event(LevelDone(concurrency=level, output_tok_s=kept["output_throughput"]), sync=True)
        rows.append(kept)
        limited = " (the client was the limit)" if kept.get("client_limited") else ""
        ttft = kept.get("mean_ttft_ms") or 0.0
        tell(f"{streams(level)}: {tok_s(kept['output_throughput'])}, first token after {ttft:.0f} ms{limited}")
        for flag in kept.get("flags") or ():
            tell(f"{streams(level)}: DO NOT TRUST: {flag}")
    return rows


def _kept(run: Run, name: str) -> dict[str, Any] | None:
    """An earlier measurement that is whole, with its samples; one that was cut short is measured again."""
    try:
        document = run.read_json(f"{name}.json")
        if document is None:
            return None
        samples.read(run.path / f"{name}.samples")
    except BadInput as problem:
        run.event(MeasurementDamaged(file=f"{name}.json", why=problem.message))
        return None
    whole = isinstance(document, dict) and all(isinstance(document.get(key), int | float) for key in FIGURES)
    if not whole:
        run.event(MeasurementDamaged(file=f"{name}.json", why="figures are missing"))
    return document if whole else None


def streams(number: int) -> str:
    """In words."""
    return "1 stream" if number == 1 else f"{number} streams"


def _level(subject: Subject, level: int, run: Run, *, short: bool, tell: Callable[[str], None]) -> Measured:
    """One level; once more where the machine slept meanwhile."""
    load = Load(concurrency=level, requests=ROUNDS * level)
    for left in reversed(range(TRIES)):
        run.event(LevelBegan(concurrency=level))
        made = one_measurement(subject, SHORT if short else LONG, load, warmup=min(level, 4), label="random")
        if made.interrupted:
            raise KeyboardInterrupt
        away_s = made.result.away_s
        if not away_s:
            break
        run.event(LevelSlept(concurrency=level, away_s=away_s))
        tell(
            f"{streams(level)}: the machine slept for {seconds(away_s)}; {'once more' if left else 'kept, and marked'}"
        )
    return made
