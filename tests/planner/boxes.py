"""Boxes and facts that the planner tests share."""

from dataclasses import replace

from moebox.core import catalogue
from moebox.core.box import Box, Cpu
from moebox.core.model import Checkpoint, Model

EIGHT = Box(name="8x-rtx-pro-6000-server", gpus=(catalogue.find_gpu("rtx-pro-6000-server"),) * 8)
# The box of the K2.6 write-up with two Max-Q GPUs, April 2026.
MAX_Q_BOX = Box(
    name="attic",
    gpus=(catalogue.find_gpu("rtx-pro-6000-max-q"),) * 2,
    cpu=Cpu(model="AMD EPYC 9175F", cores=16, threads=32, channels=12),
    ram=768 * 2**30,
    ram_bandwidth=614_400_000_000,
)


def box_with(count: int, name: str, **changes: object) -> Box:
    """Return a box of `count` GPUs called `name`."""
    box = Box(name=f"{count}x-{name}", gpus=(catalogue.find_gpu(name),) * count)
    return replace(box, **changes)  # type: ignore[arg-type]


def facts(name: str) -> tuple[Model, tuple[Checkpoint, ...]]:
    """A catalogue model and its checkpoints."""
    model = catalogue.find_model(name)
    return model, catalogue.published_checkpoints(model.name)
