"""A recipe on a box, put together by hand."""

from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe


def on(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> Deployment:
    """`recipe` with everything it is about."""
    return Deployment.of(recipe, model, checkpoint, box)
