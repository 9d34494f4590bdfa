"""The flags of `moebox bench` that say what is asked and how hard, turned into a workload and loads."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from moebox.core.measure import Api, Arrivals, Load, Workload, WorkloadKind
from moebox.errors import BadInput
from moebox.units import parse_seconds, parse_tokens


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked and how hard, as flags."""

    concurrency: str = "1"
    "Streams at once, or a sweep: 1,8,32,128."
    rate: str = ""
    "Requests a second (open loop), or a sweep; --concurrency then limits what is in flight, if given."
    arrivals: Arrivals = "poisson"
    "How an open loop's requests come."
    burstiness: float = 1.0
    "Shape of the gamma distribution of their gaps: 1 is Poisson, below 1 comes in bursts."
    requests: int | None = None
    "Requests for each load; four for each stream when neither this nor --duration is given."
    duration: str = ""
    "No new request after this long, like 60s."
    ramp: str = "0s"
    "Let the load build up over this long."
    warmup: int = 0
    "Requests sent before, which are not measured."
    workload: WorkloadKind = "random"
    "random words, code, a prompts file, turns of conversations, a shared prefix, or a trace."
    input: str = "256"
    "Prompt tokens, like 8192 or 8k."
    output: str = "100"
    "Tokens to ask for."
    file: Path | None = None
    "The prompts (JSON lines or ShareGPT) or the trace."
    turns: int = 16
    "Turns of each conversation."
    think: str = "1s"
    "Pause between a reply and the next turn."
    prefix: str = "0"
    "Tokens that requests share (workload prefix)."
    prefixes: int = 1
    "How many different shared prefixes."
    seed: int = 0
    "The same seed asks the same."
    api: Api = "chat"
    "Which endpoint is asked."
    stop_at_eos: Annotated[bool, Parameter(negative=())] = False
    "Let the model end its replies before --output tokens."
    extra_body: str = ""
    "JSON merged into every request's body."
    timeout: str = "2h"
    "Longest time for one request."
    stall: str = "30m"
    "Longest silence within one."
    workers: int = 0
    "Client processes; chosen when 0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A workload and the loads it is driven at."""

    workload: Workload
    loads: tuple[Load, ...]

    def at(self, axis: str, value: float) -> Load:
        """The first load with its concurrency or rate replaced."""
        if axis == "rate":
            return replace(self.loads[0], rate=value)
        lanes = int(value)
        first = self.loads[0]
        scaled = max(lanes, round(first.requests * lanes / max(1, first.concurrency))) if first.requests else 0
        return replace(first, concurrency=lanes, requests=scaled)


def plan_of(asked: Asked, name: str) -> Plan:
    """Flags (or a preset) to a workload and loads; BadInput says which flag cannot be meant."""
    try:
        duration, ramp, think = (parse_seconds(value or "0") for value in (asked.duration, asked.ramp, asked.think))
        timeout, stall = parse_seconds(asked.timeout), parse_seconds(asked.stall)
        input_tokens, output_tokens, prefix = (parse_tokens(v) for v in (asked.input, asked.output, asked.prefix))
    except ValueError as problem:
        raise BadInput(str(problem)) from None
    if min(input_tokens, output_tokens) < 1 or asked.burstiness <= 0 or (asked.requests or 1) < 1 or asked.warmup < 0:
        raise BadInput("--input, --output, --requests and --burstiness are above 0, --warmup is not below it")
    if asked.workload in ("prompts", "trace") and not asked.file:
        raise BadInput(f"--workload {asked.workload} needs --file")
    if asked.file and not asked.file.is_file():
        raise BadInput(f"{asked.file}: no such file")
    common = Load(
        arrivals=asked.arrivals,
        burstiness=asked.burstiness,
        duration_s=duration,
        ramp_s=ramp,
        timeout_s=timeout,
        stall_s=stall,
        workers=asked.workers,
    )
    if name:
        from moebox.bench.presets import preset

        chosen = preset(name)
        loads = [replace(common, concurrency=c, requests=asked.requests or chosen.count(c)) for c in chosen.concurrency]
        return Plan(workload=replace(chosen.workload, seed=asked.seed, api=asked.api), loads=tuple(loads))
    workload = Workload(
        kind=asked.workload,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        file=str(asked.file or ""),
        turns=asked.turns if asked.workload == "turns" else 1,
        think_s=think,
        prefix_tokens=prefix,
        prefixes=asked.prefixes,
        seed=asked.seed,
        api=asked.api,
        ignore_eos=not asked.stop_at_eos,
        extra=_extra(asked.extra_body),
    )
    return Plan(workload=workload, loads=_loads(asked, common, workload))


def _loads(asked: Asked, common: Load, workload: Workload) -> tuple[Load, ...]:
    turns = workload.turns
    if asked.rate or workload.kind == "trace":
        limit = 0 if asked.concurrency == "1" else counts("--concurrency", asked.concurrency)[0]
        if workload.kind == "trace":
            return (replace(common, concurrency=limit, requests=asked.requests or 0),)
        requests = asked.requests or (0 if common.duration_s else 100)
        return tuple(replace(common, rate=rate, concurrency=limit, requests=requests) for rate in _rates(asked.rate))
    loads = []
    for lanes in counts("--concurrency", asked.concurrency):
        requests = asked.requests or (0 if common.duration_s else 4 * lanes * turns)
        loads.append(replace(common, concurrency=min(lanes, requests or lanes), requests=requests))
    return tuple(loads)


def counts(flag: str, text: str) -> tuple[int, ...]:
    """Numbers written like "1,8,32"."""
    try:
        found = tuple(parse_tokens(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise BadInput(f"{flag}: {text!r} is not a list of counts", hint="write it like 1,8,32") from None
    if any(value < 1 or value > 60_000 * 20 for value in found):
        raise BadInput(f"{flag}: {text!r} holds a count that cannot be meant")
    return found


def _rates(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or any(not 0 < rate < 1e6 for rate in found):
        raise BadInput(f"--rate: {text!r} is not a list of rates", hint="write it like 0.5,1,2")
    return found


def _extra(text: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text or "{}")
    except ValueError as problem:
        raise BadInput(f"--extra-body is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise BadInput("--extra-body is not a JSON object")
    return value
