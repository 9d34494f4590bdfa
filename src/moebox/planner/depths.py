"""A deployment with fewer layers, and the forecast of its steps from published rows."""

from collections.abc import Iterable
from dataclasses import replace

from moebox.core.calibration import ExpectedStep
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.planner.speed import Speed


def cut_layers(deployment: Deployment, layers: int) -> Deployment:
    """The deployment with that many layers of its model, and as many of the checkpoint's bytes."""
    box, model, checkpoint, recipe = deployment.facts
    small = shallow_model(model, layers)
    return Deployment.from_parts(recipe, small, shallow_checkpoint(checkpoint, model, small), box)


def shallow_model(model: Model, layers: int) -> Model:
    """The model with fewer layers, other kinds of layers in proportion."""
    share = layers / model.layers
    others = tuple(replace(each, count=max(1, round(share * each.count))) for each in model.others)
    return replace(model, layers=layers, others=others, counted={})


def shallow_checkpoint(checkpoint: Checkpoint, model: Model, small: Model) -> Checkpoint:
    """The checkpoint with each component in proportion to the parameters that are left of it."""
    before, after = replace(model, counted={}).parameters_by_component, small.parameters_by_component
    sizes = {
        name: round(size * after.get(name, 0) / before[name]) if before.get(name) else size
        for name, size in checkpoint.bytes_by_component.items()
    }
    return replace(checkpoint, bytes_by_component=sizes)


def expected_steps(deployment: Deployment, steps: Iterable[tuple[int, int]]) -> tuple[ExpectedStep, ...]:
    """Return the forecast of steps (batch, context) from published rows as a line in the layers. Batch 0: a prompt."""
    model = deployment.facts[1]
    few = max(model.dense_layers + 1, model.layers // 2)
    if few == model.layers:
        return ()
    half, whole = (Speed.from_published_rows(cut_layers(deployment, layers)) for layers in (few, model.layers))
    found = []
    for batch, context in sorted(set(steps)):
        seconds, total = (
            speed.step_s(batch, context) if batch else speed.prefill_s(context) for speed in (half, whole)
        )
        layer = (total - seconds) / (model.layers - few)
        found.append(ExpectedStep(batch=batch, context=context, fixed_s=seconds - few * layer, layer_s=layer))
    return tuple(found)
