"""Stories with the oracle as their engine."""

from pathlib import Path

import pytest

from .pipelines import ROOT, Hold, oracle_recipe


@pytest.fixture
def story_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe file whose engine is the oracle."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return oracle_recipe(tmp_path)


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Lets a test choose the moment at which something happens to the oracle or to moebox."""
    return Hold(tmp_path / "hold", monkeypatch)
