"""The ladder, the climb and the phantom's answers on real vLLM 0.32."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox import phantom
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.serve.recipes import model_of
from moebox.serve.session import start
from moebox.store import Run
from moebox.verify.ask import Options
from moebox.verify.ladder import verify
from moebox.verify.rungs import NAMES

from .conftest import on_vllm

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def rehearsal(venv: Path) -> Recipe:
    """The phantom's Hugging Face folder, with Kimi's parsers."""
    return on_vllm(venv, phantom.hf_path(), name="phantom", context=4096)


@pytest.fixture(scope="module")
def endpoint(rehearsal: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One engine for all questions."""
    run = Run.create("phantom", runs=tmp_path_factory.mktemp("phantom"))
    with start(rehearsal, run, model=model_of(rehearsal), patience_s=600) as session:
        yield session.endpoint


def test_every_rung_is_green(endpoint: Endpoint) -> None:
    """Kimi's template, parsers, latent attention and experts, as vLLM has them, against all twelve rungs."""
    ladder = verify(endpoint, Options(thinking="yes"))

    told = {rung.name: rung.reason for rung in ladder.rungs if rung.verdict != "pass"}
    assert (ladder.engine, told) == ("vllm", {})
    assert [rung.name for rung in ladder.rungs] == list(NAMES)
