"""Deployments made by hand."""

from dataclasses import replace

from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Parallel, Recipe


def on(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> Deployment:
    """Return the deployment of `recipe`."""
    return Deployment(recipe, model, checkpoint, box)


def kimi(**changes: object) -> Recipe:
    """Return a recipe for Kimi K2.6 as published, under vLLM on eight ranks, with a test's changes."""
    usual = Recipe(
        name="kimi", engine="vllm", model="kimi-k2.6", checkpoint="int4", served_name="kimi", parallel=Parallel(tp=8)
    )
    return replace(usual, **changes)  # type: ignore[arg-type]
