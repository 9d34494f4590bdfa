"""The measurements of a pipeline: a sweep over concurrency, each level kept as soon as it is done."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moebox.bench import samples
from moebox.bench.measure import MeasuredLoad
from moebox.bench.measure import measure_load as one_measurement
from moebox.bench.probe import ProbedEndpoint, probe_endpoint
from moebox.core.endpoint import Endpoint
from moebox.core.event import LoadBegan, LoadDone, LoadSlept, MeasurementDamaged
from moebox.core.measure import Load, Workload
from moebox.core.result import Measurement, parse_measurement, result_document
from moebox.doctor.logs import known_causes
from moebox.errors import AnswerIsNo, BadInput, ExternalError
from moebox.escape import printable_line
from moebox.loose import as_object
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox.units import format_seconds, format_streams, format_tok_s

NAME = "measurements/random-c{}"  # of a level's files, without their endings
ROUNDS = 4  # requests of each lane
TRIES = 3  # of a level during which the machine slept; the last one is kept, and marked
SHORT = Workload(input_tokens=96, output_tokens=64)
LONG = Workload(input_tokens=1024, output_tokens=256)


def measure_loads(
    endpoint: Endpoint,
    run: Run,
    *,
    loads: Sequence[int],
    short: bool,
    notify: Notify,
    is_alive: Callable[[], bool] = lambda: True,
) -> list[Measurement]:
    """Measure each level that has no measurement in the run yet; all of them are returned.

    AnswerIsNo when not one request of a level is answered; Outside when requests failed because the engine died.
    """
    subject = probe_endpoint(endpoint)
    rows: list[Measurement] = []
    for level in loads:
        kept = _kept(run, NAME.format(level))
        if kept is None:
            measured = _level(subject, level, run, short=short, notify=notify)
            if measured.result.bad_requests and not is_alive():
                raise ExternalError(f"the engine died while it was measured with {format_streams(level)}")
            kept = _keep(run, level, measured)
        rows.append(kept)
        for line in _lines(kept):
            notify(f"{format_streams(level)}: {line}")
    return rows


def _lines(result: Measurement) -> list[str]:
    """A level in a few lines."""
    return [_headline(result), *_failures(result), *(f"DO NOT TRUST: {flag}" for flag in result.flags)]


def _keep(run: Run, level: int, measured: MeasuredLoad) -> Measurement:
    """Write a level down, with its samples beside it; AnswerIsNo where no request was answered."""
    if not measured.result.completed:
        raise AnswerIsNo(f"not one of {ROUNDS * level} requests with {format_streams(level)} was answered")
    path = NAME.format(level)
    result = replace(measured.result, samples=f"{Path(path).name}.samples")
    run.write_file(f"{path}.samples", measured.samples.to_bytes())
    run.write_json(f"{path}.json", result_document(result))
    run.add_event(LoadDone(concurrency=level, output_tok_s=result.output_throughput), sync=True)
    return result


def _headline(result: Measurement) -> str:
    limited = " (the client was the limit)" if result.client_limited else ""
    ttft = format_seconds((result.ttft.mean or 0.0) / 1e3)
    return f"{format_tok_s(result.output_throughput)}, first token after {ttft}{limited}"


def _failures(result: Measurement) -> list[str]:
    """How many requests did not end well, of what most of them died, and what is known of that."""
    if not result.bad_requests:
        return []
    why = max(result.errors, key=lambda name: result.errors[name], default="")
    told = f"{result.bad_requests} of {result.num_prompts} requests failed"
    return [f"{told}: {printable_line(why)}" if why else told, *known_causes(result.errors)]


def _kept(run: Run, name: str) -> Measurement | None:
    """An earlier measurement that is whole, with its samples; one that was cut short is measured again."""
    try:
        return _read(run, name)
    except BadInput as problem:
        run.add_event(MeasurementDamaged(file=f"{name}.json", why=problem.message))
        return None


def _read(run: Run, name: str) -> Measurement | None:
    """A level's files, None where it has none; BadInput where one of them is damaged."""
    values = run.read_json(f"{name}.json")
    if values is None:
        return None
    samples.read_samples(run.path / f"{name}.samples")
    return parse_measurement(as_object(values), f"{name}.json")


def are_measurements_readable(run: Run) -> bool:
    """Whether every level that the run measured can still be read; BadInput where one is damaged."""
    levels = {event.concurrency for event in run.read_events() if isinstance(event, LoadDone)}
    return all(_read(run, NAME.format(level)) for level in levels)


def _level(subject: ProbedEndpoint, level: int, run: Run, *, short: bool, notify: Notify) -> MeasuredLoad:
    """One level; once more where the machine slept meanwhile."""
    load = Load(concurrency=level, requests=ROUNDS * level)
    for left in reversed(range(TRIES)):
        run.add_event(LoadBegan(concurrency=level))
        made = one_measurement(subject, SHORT if short else LONG, load, warmup=min(level, 4), label="random")
        if made.was_interrupted:
            raise KeyboardInterrupt
        away_s = made.result.away_s
        if not away_s:
            break
        run.add_event(LoadSlept(concurrency=level, away_s=away_s))
        notify(
            f"{format_streams(level)}: the machine slept for {format_seconds(away_s)}; "
            f"{'once more' if left else 'kept, and marked'}"
        )
    return made
