"""Launches can be monitored: bench, watch, the ui, Grafana and fleets read /metrics, so launches serve it."""

from pathlib import Path

import pytest

from moebox import engines, http
from moebox.checkpoint import deploy
from moebox.core import metrics
from moebox.core.recipe import EngineName, Recipe
from moebox.serve import session
from moebox.store import Run
from tests.embedded import phantom_recipe

# vLLM serves metrics by default; the others have a flag for it.
FLAGS: dict[EngineName, tuple[str, ...]] = {
    "sglang": ("--enable-metrics", "--enable-cache-report"),
    "ktransformers": ("--enable-metrics", "--enable-cache-report"),
    "llama.cpp": ("--metrics",),
    "ik_llama.cpp": ("--metrics",),
}


def kimi(engine: EngineName, **flags: bool) -> tuple[str, ...]:
    recipe = Recipe(name="kimi", engine=engine, model="kimi-k2.6", checkpoint="", served_name="kimi", flags=flags)
    return engines.build_launch(deploy(recipe)).argv


@pytest.mark.parametrize("engine", FLAGS)
def test_a_launch_turns_metrics_on(engine: EngineName) -> None:
    """Unless the recipe turns them off."""
    assert set(FLAGS[engine]) <= set(kimi(engine))
    off = {flag.removeprefix("--"): False for flag in FLAGS[engine]}
    assert not set(FLAGS[engine]) & set(kimi(engine, **off))


def test_the_embedded_engine_serves_metrics(tmp_path: Path) -> None:
    """Through the launch that any recipe gets."""
    with session.engine_session(deploy(phantom_recipe()), Run.create("watched", runs=tmp_path)) as live:
        page = http.get(f"{live.endpoint.server_url}/metrics", headers=live.endpoint.headers)
    assert page.ok
    assert metrics.engine_metrics("llama.cpp").newest_name("running") in page.text
