"""When requests of an open loop are due: a pure function of rate, burstiness and seed."""

import random
from collections.abc import Iterator

from moebox.core.measure import Load


def arrival_times(load: Load, seed: int) -> Iterator[float]:
    """Seconds after the start at which each request is due, without end.

    Gaps follow a gamma distribution of shape `burstiness` and mean 1/rate (shape 1 is Poisson), as vLLM's benchmark
    draws them; constant arrivals have equal gaps. While ramping up the rate grows linearly from a tenth of itself.
    """
    draw = random.Random(f"arrivals {seed}")
    at = 0.0
    while True:
        rate = load.rate
        if load.ramp_s and at < load.ramp_s:
            rate *= max(0.1, at / load.ramp_s)
        if load.arrivals == "constant":
            at += 1.0 / rate
        else:
            at += draw.gammavariate(load.burstiness, 1.0 / (rate * load.burstiness))
        yield at
