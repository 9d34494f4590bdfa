"""The measurements of a pipeline: a sweep over loads, each saved as soon as it is done."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moebox.bench import samples
from moebox.bench.measure import MeasuredLoad, measure_load
from moebox.bench.probe import ProbedEndpoint, probe_endpoint
from moebox.core.endpoint import Endpoint
from moebox.core.event import LoadBegan, LoadDone, LoadRepeated, LoadSlept, MeasurementDamaged
from moebox.core.measure import Load, Workload
from moebox.core.result import Measurement, parse_measurement, result_document
from moebox.doctor.logs import known_causes
from moebox.errors import AnswerIsNo, BadInput, ExternalError
from moebox.escape import printable_line
from moebox.loose import as_object
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox.units import format_seconds, format_streams, format_tok_s

NAME = "measurements/random-c{}"  # of a load's files, without suffix
ROUNDS = 4  # requests per stream
SLEEP_TRIES = 3  # of a load during which the machine slept; the last one is kept and marked
REPEATS_ENV = "MOEBOX_REPEATS"  # how often a load is measured again if it was disturbed or not steady; 1 if unset
DOUBTS = ("disturbed", "not steady", "other clients")  # beginnings of flags that a second try may get rid of
SWEEP_NOISE = 0.1  # by which more streams may seem slower; identical loads of a quiet server differ by less
SHORT = Workload(input_tokens=96, output_tokens=64)
LONG = Workload(input_tokens=1024, output_tokens=256)


def measure_loads(
    endpoint: Endpoint, run: Run, work: Workload, *, loads: Sequence[int], notify: Notify, is_dead: Callable[[], bool]
) -> list[Measurement]:
    """Measure each load that has no measurement in the run yet. Return all of them.

    Raise AnswerIsNo if no request of a load is answered, ExternalError if the engine died.
    """
    subject = probe_endpoint(endpoint)
    rows: list[Measurement] = []
    for load in loads:
        path = NAME.format(load)
        try:
            result = _load_measurement(run, path)
        except BadInput as problem:  # a damaged file is measured again
            run.add_event(MeasurementDamaged(file=f"{path}.json", why=problem.message))
            result = None
        if result is None:
            best = max(rows, key=lambda row: row.output_throughput, default=None)
            measured = _measure_load(subject, load, run, work=work, best=best, notify=notify)
            if measured.result.bad_requests and is_dead():
                raise ExternalError(f"the engine died while it was measured with {format_streams(load)}")
            if not measured.result.completed:
                raise AnswerIsNo(f"not one of {ROUNDS * load} requests with {format_streams(load)} was answered")
            result = replace(measured.result, samples=f"{Path(path).name}.samples")
            run.write_file(f"{path}.samples", measured.samples.to_bytes())
            run.write_json(f"{path}.json", result_document(result))
            run.add_event(LoadDone(concurrency=load, output_tok_s=result.output_throughput), sync=True)
        rows.append(result)
        limited = " (the client was the limit)" if result.client_limited else ""
        ttft = format_seconds((result.ttft.mean or 0.0) / 1e3)
        lines = [f"{format_tok_s(result.output_throughput)}, first token after {ttft}{limited}"]
        if result.bad_requests:
            error = max(result.errors, key=result.errors.__getitem__, default="")
            failed = f"{result.bad_requests} of {result.num_prompts} requests failed"
            lines += [f"{failed}: {printable_line(error)}" if error else failed, *known_causes(result.errors)]
        for line in (*lines, *(f"DO NOT TRUST: {flag}" for flag in result.flags)):
            notify(f"{format_streams(load)}: {line}")
    return rows


def _load_measurement(run: Run, name: str) -> Measurement | None:
    """A stored measurement, or None. Raise BadInput if one of its files is damaged."""
    values = run.read_json(f"{name}.json")
    if values is None:
        return None
    samples.read_samples(run.path / f"{name}.samples")
    return parse_measurement(as_object(values), f"{name}.json")


def are_measurements_readable(run: Run) -> bool:
    """Whether every load that the run measured can still be read. Raise BadInput if one is damaged."""
    loads = {event.concurrency for event in run.read_events() if isinstance(event, LoadDone)}
    return all(_load_measurement(run, NAME.format(load)) for load in loads)


def _measure_load(
    subject: ProbedEndpoint, streams: int, run: Run, *, work: Workload, best: Measurement | None, notify: Notify
) -> MeasuredLoad:
    """Measure one load. Repeat it if the machine slept, was disturbed or the server was not steady.

    `best` is the fastest of the lower loads: more streams give no fewer tokens, beyond noise, from a steady server.
    """
    load = Load(concurrency=streams, requests=ROUNDS * streams)
    sleeps_left, repeats_left = SLEEP_TRIES, int(os.environ.get(REPEATS_ENV, "1"))
    while True:
        run.add_event(LoadBegan(concurrency=streams))
        made = measure_load(subject, work, load, settle=True, label="random")
        if made.result.partial:
            raise KeyboardInterrupt
        if made.result.away_s:
            sleeps_left -= 1
            reason = f"the machine slept for {format_seconds(made.result.away_s)}"
            run.add_event(LoadSlept(concurrency=streams, away_s=made.result.away_s))
            is_repeated = sleeps_left > 0
        else:
            if best and made.result.output_throughput < (1 - SWEEP_NOISE) * best.output_throughput:
                rate = f"{format_tok_s(best.output_throughput)} with {format_streams(best.max_concurrency or 1)}"
                flags = (*made.result.flags, f"not steady: slower than with fewer streams ({rate})")
                made = replace(made, result=replace(made.result, flags=flags))
            reason = "; ".join(flag for flag in made.result.flags if flag.startswith(DOUBTS))
            if not reason:
                return made
            is_repeated = repeats_left > 0
            repeats_left -= 1
            run.add_event(LoadRepeated(concurrency=streams, reason=reason))
        notify(f"{format_streams(streams)}: {reason}; {'measured again' if is_repeated else 'kept and marked'}")
        if not is_repeated:
            return made
