"""Repositories as their makers wrote them: every one gives a plan.

The config.json files are recorded (tests/checkpoint). The lists of files are made here and have no weights, so that
sizes follow from the configs; reading headers is tested with small repositories in test_models.py.
"""

from pathlib import Path

import pytest

from moebox.checkpoint.remote import keep_model
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from tests.hub.server import HubServer, Repo

FOLDER = Path(__file__).parents[1] / "checkpoint"
RECORDED = sorted((*FOLDER.glob("configs/*--*.json"), *FOLDER.glob("unknown_configs/*--*.json")))
# Large enough for each of them: the question is whether there is a plan, not what fits.
BOX = Box(name="8x-b300", gpus=(catalogue.find_gpu("b300"),) * 8)
ONE_LAYOUT = Constraints(context=8192, tp=8, pp=1, dp=1, dcp=1, speculate="none")


def test_forty_recorded_repositories_give_forty_plans(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read through the Hub's own client, each with its layers, bytes, a cache and a forecast, without a refusal."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # read once, when the package is imported
    monkeypatch.setenv("MOEBOX_STATE", str(tmp_path))
    failed = {}
    for path in RECORDED:
        repo = path.stem.replace("--", "/")
        hub.repos[repo] = Repo(files={"config.json": path.read_bytes()})
    for repo in hub.repos:
        found = keep_model(repo).resolve()
        try:
            plan = choose_plan(BOX, found.model, found.checkpoints, ONE_LAYOUT)
            assert plan.memory.kv_tokens >= 8192
            assert plan.memory.kv_bytes_per_token > 0
            assert plan.forecast
        except Exception as problem:
            failed[repo] = repr(problem)[:300]

    assert not failed
    assert len(hub.repos) >= 40
