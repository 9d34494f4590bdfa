"""A deployment with fewer layers, and the forecast of its steps from published rows."""

from collections.abc import Iterable
from dataclasses import replace

from moebox.core.calibration import ExpectedStep
from moebox.core.deployment import Deployment
from moebox.planner.speed import Speed


def cut_layers(deployment: Deployment, layers: int) -> Deployment:
    """The deployment with that many layers of its model, and of each component's bytes its share."""
    box, model, checkpoint, recipe = deployment.facts
    share = layers / model.layers
    others = tuple(replace(each, count=max(1, round(share * each.count))) for each in model.others)
    small = replace(model, layers=layers, others=others, counted={})
    before, after = replace(model, counted={}).parameters_by_component, small.parameters_by_component
    sizes = {
        name: round(size * after.get(name, 0) / before[name]) if before.get(name) else size
        for name, size in checkpoint.bytes_by_component.items()
    }
    return Deployment(recipe, small, replace(checkpoint, bytes_by_component=sizes), box)


def expected_steps(deployment: Deployment, steps: Iterable[tuple[int, int]]) -> tuple[ExpectedStep, ...]:
    """Return the forecast of steps (batch, context) from published rows as a line in the layers.

    Batch 0: a prompt until its first token arrives, as clients time it.
    """
    model = deployment.facts[1]
    few = max(model.dense_layers + 1, model.layers // 2)
    if few == model.layers:
        return ()
    half, whole = (Speed.from_published_rows(cut_layers(deployment, layers)) for layers in (few, model.layers))
    found = []
    for batch, context in sorted(set(steps)):
        seconds, total = (
            speed.step_s(batch, context) if batch else speed.prefill_s(context) + speed.request_s
            for speed in (half, whole)
        )
        layer = (total - seconds) / (model.layers - few)
        found.append(ExpectedStep(batch=batch, context=context, fixed_s=seconds - few * layer, layer_s=layer))
    return tuple(found)
