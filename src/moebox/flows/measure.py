"""The measurements of a story: a sweep over concurrency, each level kept as soon as it is done."""

from collections.abc import Callable, Sequence
from typing import Any

from moebox.bench.measure import look
from moebox.bench.measure import measure as one_measurement
from moebox.bench.vocabulary import text_for
from moebox.core.endpoint import Endpoint
from moebox.core.measure import Load, Workload
from moebox.errors import AnswerIsNo
from moebox.store import Run
from moebox.units import tok_s

ROUNDS = 4  # requests of each lane
SHORT = Workload(input_tokens=96, output_tokens=64)
LONG = Workload(input_tokens=1024, output_tokens=256)


def measure(
    endpoint: Endpoint, run: Run, *, levels: Sequence[int], short: bool, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure each level that has no measurement in the run yet; all of them are returned.

    AnswerIsNo when not one request of a level is answered.
    """
    subject = look(endpoint, text_for(endpoint))
    rows: list[dict[str, Any]] = []
    for level in levels:
        name = f"measurements/random-c{level}"
        kept = run.read_json(f"{name}.json")
        if kept is None:
            load = Load(concurrency=level, requests=ROUNDS * level)
            made = one_measurement(subject, SHORT if short else LONG, load, warmup=min(level, 4), label="random")
            if made.interrupted:
                raise KeyboardInterrupt
            if not made.result["completed"]:
                raise AnswerIsNo(f"not one of {load.requests} requests at {level} streams was answered")
            kept = {**made.result, "samples": f"random-c{level}.samples"}
            run.write(f"{name}.samples", made.samples.pack())
            run.write_json(f"{name}.json", kept)
            run.event("bench.level", sync=True, concurrency=level, output_tok_s=kept["output_throughput"])
        rows.append(kept)
        limited = " (the client was the limit)" if kept.get("client_limited") else ""
        ttft = kept.get("mean_ttft_ms") or 0.0
        tell(f"{level} streams: {tok_s(kept['output_throughput'])}, first token after {ttft:.0f} ms{limited}")
    return rows
