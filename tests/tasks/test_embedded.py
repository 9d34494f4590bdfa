"""The whole loop against a real engine: the phantom has not learnt to work with files, and says so by its score."""

from pathlib import Path

import pytest

from moebox import phantom
from moebox.checkpoint import deploy
from moebox.core.recipe import Hybrid, Listen, Recipe, Runtime
from moebox.serve import session
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.reply import Ask
from moebox.tasks.result import UNFINISHED


@pytest.mark.slow
def test_the_phantom_is_given_errands_and_nothing_breaks(tmp_path: Path):
    """Real tokens, a real tool parser, a real context limit: every job ends by itself and has a score."""
    recipe = Recipe(
        name="phantom",
        engine="llama.cpp",
        model="kimi-k2.6",
        checkpoint=str(phantom.gguf_path()),
        served_name="phantom",
        context=4096,
        hybrid=Hybrid(threads=1),
        runtime=Runtime(kind="embedded"),
        listen=Listen(port=0),
    )
    run = Run.create("embedded", runs=tmp_path)
    with session.start(deploy(recipe), run) as live:
        options = runner.Options(job_s=10, thinking=False)
        worker = runner.Agent(Ask(endpoint=live.endpoint, thinking=False))
        told = runner.begin(live.endpoint, runner.names(["errand"], "easy", 1, 0), worker, options)
        done = runner.work_all(told, worker, run, options, runner.Listener())

    assert told.context == 4096
    assert len(done.results) == 1
    for result in done.results:
        assert result.end not in UNFINISHED
        assert result.end != "endpoint", result.why
        assert result.turns[0].prompt_tokens
        assert result.hidden[1] == 1
