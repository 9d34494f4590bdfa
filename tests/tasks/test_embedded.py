"""The whole loop on a real engine with a model: the phantom does errands."""

from pathlib import Path

import pytest

from moebox.checkpoint import deploy
from moebox.serve import session
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.reply import Ask
from tests.embedded import phantom_recipe


@pytest.mark.slow
def test_the_phantom_does_errands(tmp_path: Path):
    """Real tokens, a real tool parser, a real context limit; the hidden checks find the value in its file."""
    recipe = phantom_recipe(context=4096)
    run = Run.create("embedded", runs=tmp_path)
    with session.start(deploy(recipe), run) as live:
        options = runner.Options(job_s=120, thinking=True)
        worker = runner.Agent(Ask(endpoint=live.endpoint, thinking=True))
        told = runner.begin(live.endpoint, runner.names(["errand"], "easy", 2, 0), worker, options)
        done = runner.work_all(told, worker, run, options, runner.Listener())

    assert told.context == 4096
    assert len(done.results) == 2
    for result in done.results:
        assert result.solved, (result.end, result.why)
        assert result.turns[0].prompt_tokens
        assert {call.tool for turn in result.turns for call in turn.calls} >= {"read_file", "write_file"}
