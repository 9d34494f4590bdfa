"""The whole loop on a real engine with a model: the phantom does errands."""

from itertools import pairwise
from pathlib import Path

import pytest

from moebox.checkpoint import deploy
from moebox.serve import session
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.reply import ReplySettings
from tests.embedded import phantom_recipe


@pytest.mark.slow
def test_the_phantom_does_errands(tmp_path: Path):
    """Real tokens, a real tool parser, a real context limit; the hidden checks find the value in its file."""
    recipe = phantom_recipe(context=4096)
    run = Run.create("embedded", runs=tmp_path)
    with session.engine_session(deploy(recipe), run) as live:
        options = runner.TaskOptions(job_s=120, thinking=True)
        worker = runner.OwnAgent(ReplySettings(endpoint=live.endpoint, thinking=True))
        reported = runner.prepare_task_run(live.endpoint, runner.job_names(["errand"], "easy", 1, 0), worker, options)
        done = runner.run_jobs(reported, worker, run, options, runner.JobListener())

    assert reported.context == 4096
    assert len(done.results) == 1
    for result in done.results:
        assert result.solved, (result.end, result.why)
        assert result.turns[0].prompt_tokens
        # Every turn begins as the one before, thinking and calls included: the slot has all of that already.
        for before, turn in pairwise(result.turns):
            assert (turn.cached_tokens or 0) >= (before.prompt_tokens or 0)
        assert {call.tool for turn in result.turns for call in turn.calls} >= {"read_file", "write_file"}
