"""The phantom on the embedded engine, for tests that start it."""

import dataclasses

from moebox import phantom
from moebox.core.recipe import Hybrid, Listen, Recipe, Runtime


def phantom_recipe(**more: object) -> Recipe:
    """One thread, a short context, a free port."""
    usual = Recipe(
        name="phantom",
        engine="llama.cpp",
        model="kimi-k2.6",
        checkpoint=str(phantom.gguf_path()),
        served_name="phantom",
        context=2048,
        hybrid=Hybrid(threads=1),
        runtime=Runtime(kind="embedded"),
        listen=Listen(port=0),
    )
    return dataclasses.replace(usual, **more)  # type: ignore[arg-type]
