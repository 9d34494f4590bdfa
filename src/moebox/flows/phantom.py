"""The phantom as a recipe: the rehearsal model on the embedded engine, small enough for any machine."""

import dataclasses
import os

from moebox.checkpoint import resolve_model
from moebox.core import registry
from moebox.core.box import Box
from moebox.core.plan import Plan
from moebox.core.recipe import Climb, Listen, Recipe, Runtime
from moebox.detect import host
from moebox.errors import BadInput
from moebox.phantom import gguf_path

PHANTOM = "phantom"
CONTEXT = 2048  # of each slot; it was trained to read 8,192, for which a CPU takes half a minute
SLOTS = 4
THREADS = "MOEBOX_THREADS"  # variable that says how many threads the phantom computes with
MOST_THREADS = 4  # so small a model gains nothing from more
QUIET = 0.25  # share of the cores that others may use beside several threads


def plan_phantom(box: Box) -> Plan:
    """The planner's own answer for the phantom on this machine, in the embedded engine."""
    from moebox.planner.choose import choose_plan
    from moebox.planner.constraints import Constraints

    model, checkpoints = resolve_model(str(gguf_path()))
    pins = Constraints(
        engine=embedded_engine(), context=CONTEXT, ubatch=512, concurrency=SLOTS, threads=phantom_threads()
    )
    found = choose_plan(dataclasses.replace(box, gpus=(), links=()), model, checkpoints, pins)
    return dataclasses.replace(found, recipe=phantom_recipe(found.recipe))


def embedded_engine() -> str:
    """The engine that runs inside moebox."""
    return next(traits.name for traits in registry.all_traits() if traits.embedded)


def phantom_recipe(planned: Recipe) -> Recipe:
    """The planned recipe, embedded, with a few slots and a short climb."""
    found = planned.hybrid
    hybrid = found and dataclasses.replace(found, threads_batch=found.threads, batch=512)
    return dataclasses.replace(
        planned,
        name=PHANTOM,
        model=PHANTOM,
        served_name=PHANTOM,
        hybrid=hybrid,
        runtime=Runtime(kind="embedded"),
        listen=Listen(port=0),
        reasoning_parser="",
        climb=Climb(contexts=(CONTEXT // 2, CONTEXT), speculate=(), settings={"hybrid.ubatch": [256]}),
    )


def phantom_threads() -> int:
    """A few on an idle machine, one on a busy one: llama.cpp's threads spin for each other and crawl without a core."""
    given = os.environ.get(THREADS, "")
    if given:
        if not given.isdecimal() or not int(given):
            raise BadInput(f"{THREADS}: {given!r} is no number of threads", hint="write it like 2, or unset it")
        return int(given)
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_THREADS) if host.cpu_busy_share() < QUIET else 1
