"""`moebox bench` against a real engine: the embedded llama.cpp with the phantom."""

import json
from pathlib import Path

import pytest

from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.serve import session
from moebox.store import Run
from tests.embedded import phantom_recipe


def test_prefill_decode_and_a_sweep_on_a_real_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one token that --pp asks for is <think>, which llama.cpp swallows; its cache answers no prompt."""
    recipe = phantom_recipe()
    with session.engine_session(deploy(recipe), Run.create("embedded", runs=tmp_path)) as live:
        where = ["bench", live.endpoint.base_url, "--model", "phantom", "--json"]
        assert main([*where, "--pp", "64", "--tg", "32", "--set", "repeat=2"]) == 0
        tests = json.loads(capsys.readouterr().out)
        assert main([*where, "--input", "64", "--output", "8", "--concurrency", "1,2", "--requests", "2"]) == 0
        sweep = json.loads(capsys.readouterr().out)

    assert [(row["test"], row["cold"], row["tries"]) for row in tests["rows"]] == [
        ("pp64", True, 2),
        ("pp64", False, 2),
        ("tg32", True, 2),
    ]
    assert all(row["mean_tok_s"] > 0 for row in tests["rows"])
    assert tests["flags"] == []
    assert [result["completed"] for result in sweep["results"]] == [2, 2]
    assert [result["prompts_cached"] for result in sweep["results"]] == [False, False]
