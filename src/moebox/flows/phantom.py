"""The phantom as a recipe: the rehearsal model on the embedded engine, small enough for any machine."""

import dataclasses

from moebox.checkpoint import resolve
from moebox.core import registry
from moebox.core.box import Box
from moebox.core.plan import Plan
from moebox.core.recipe import Climb, Listen, Recipe, Runtime
from moebox.phantom import gguf_path
from moebox.planner.choose import choose
from moebox.planner.pins import Pins

NAME = "phantom"
CONTEXT = 2048  # of each slot; it was trained to read 8,192, but a CPU takes minutes for that
SLOTS = 4


def plan(box: Box) -> Plan:
    """The planner's own answer for the phantom on this machine, in the embedded engine."""
    model, checkpoints = resolve(str(gguf_path()))
    pins = Pins(engine=embedded(), context=CONTEXT, ubatch=512, concurrency=SLOTS)
    found = choose(dataclasses.replace(box, gpus=(), links=()), model, checkpoints, pins)
    return dataclasses.replace(found, recipe=recipe(found.recipe))


def embedded() -> str:
    """The engine that runs inside moebox."""
    return next(traits.name for traits in registry.all_traits() if traits.embedded)


def recipe(planned: Recipe) -> Recipe:
    """The planned recipe, embedded, with a few slots and a short climb."""
    # One thread: so small a model gains little from more, and threads that spin for each other crawl on a busy machine.
    hybrid = planned.hybrid and dataclasses.replace(planned.hybrid, threads=1, threads_batch=1, batch=512)
    return dataclasses.replace(
        planned,
        name=NAME,
        model=NAME,
        served_name=NAME,
        hybrid=hybrid,
        runtime=Runtime(kind="embedded"),
        listen=Listen(port=0),
        reasoning_parser="",
        climb=Climb(contexts=(CONTEXT // 2, CONTEXT), speculate=(), settings={"hybrid.ubatch": [256]}),
    )
