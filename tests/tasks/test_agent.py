"""Our agent against a scripted model behind a real port: good work is solved, cheating is not, nothing hangs."""

import json
import threading
import time
from pathlib import Path

import pytest

from moebox.core.endpoint import Endpoint
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.families import FAMILIES
from moebox.tasks.reply import ReplySettings, TaskApi
from moebox.tasks.result import JobName, JobResult, load_task_run
from tests.sampling import one_in

from .conftest import do, one, serving


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_good_work_is_solved_in_every_family(family: str, server: str, tmp_path: Path):
    """With all hidden tests, valid calls and nothing tampered with."""
    result = one(server, "solve", family, tmp_path)

    assert result.solved, result.wrong
    assert result.end == "done"
    assert result.hidden_tests[0] == result.hidden_tests[1] > 0
    assert all(call.ok for call in result.all_calls)


@pytest.mark.parametrize("family", ["repair", "gadget", "long-reply"])
def test_the_anthropic_api_does_the_same_work(family: str, server: str, tmp_path: Path):
    """Tools, results and a long text over /v1/messages."""
    api: TaskApi = "anthropic"

    assert one(server, "solve", family, tmp_path, api=api).solved


def test_several_calls_in_one_reply_are_all_made(server: str, tmp_path: Path):
    """In their order."""
    result = one(server, "parallel", "refactor", tmp_path)

    assert result.solved
    assert len(result.turns) == 2


CHEATS = {
    "lazy": "without writing anything",
    "edits-tests": "which must stay",
    "solves-and-edits-tests": "which must stay",
    "prints-pass": "0 of 6 passed",
    "forges": "pipe of its results",
    "outside": "hidden",
    "writes-outside-by-code": "hidden",
    "endless-code": "0 of 6 passed",
}


@pytest.mark.parametrize("script", one_in(2, CHEATS))
def test_cheating_is_not_solving(script: str, server: str, tmp_path: Path):
    """Saying so, changing the tests, printing PASS, forging results, writing elsewhere, code without end."""
    result = one(server, script, "repair", tmp_path)

    assert not result.solved
    assert CHEATS[script] in result.wrong
    assert not Path("/tmp/moebox-was-here").exists()


def test_paths_outside_are_counted(server: str, tmp_path: Path):
    """Three were asked for, and none was reached."""
    result = one(server, "outside", "repair", tmp_path)

    assert result.outside == ("/tmp/moebox-was-here", "../../moebox-was-here", "/etc/passwd")
    assert "root:" not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))


ENDS = {
    "loop": ("loop", "5 times"),
    "wanders": ("turns", ""),
    "only-thinks": ("thinking", "nothing but thinking"),
    "malformed": ("malformed", "not JSON"),
    "cut": ("cut", "token limit"),
    "context": ("context", "2048"),
    "refuses": ("endpoint", "CUDA error"),
    "breaks-off": ("endpoint", "broke off"),
}


@pytest.mark.parametrize("script", ENDS)
def test_what_goes_wrong_is_recorded_and_ends_the_job(script: str, server: str, tmp_path: Path):
    """With its own reason, at the step where it happened."""
    result = one(server, script, "repair", tmp_path)

    end, why = ENDS[script]
    assert result.end == end
    assert why in result.why
    assert not result.solved
    assert result.wrong_turn == len(result.turns)


def test_a_small_server_that_does_not_say_its_context_is_asked_for_less(server: str, tmp_path: Path):
    """Instead of taking its refusal for a full conversation."""
    assert one(server, "small", "errand", tmp_path).solved


def test_a_reply_of_thinking_alone_may_be_followed_by_work(server: str, tmp_path: Path):
    """Once."""
    assert one(server, "thinks-once", "repair", tmp_path).solved


def test_a_bad_call_is_answered_and_may_be_repaired(server: str, tmp_path: Path):
    """Both are counted."""
    result = one(server, "repairs", "repair", tmp_path)

    assert result.solved
    assert [call.ok for call in result.turns[0].calls] == [False, False]
    assert sum(call.repaired for call in result.all_calls) == 1


def test_a_server_that_dies_is_not_the_models_failure(tmp_path: Path):
    """Its job and the later ones are left, and the caller gets the reason."""
    with serving() as url, pytest.raises(runner.ServerGone, match="does not answer any more"):
        do(url, "dies", "errand", tmp_path, seeds=(0, 1))

    kept = load_task_run(Run(next(tmp_path.glob("*-tasks-*"))))
    assert kept
    assert [result.end for result in kept.results] == ["gone"]
    assert len(kept.unfinished_jobs) == 2
    assert kept.finished_results == []


def test_a_server_that_hangs_is_left_when_the_job_is_out_of_time(server: str, tmp_path: Path):
    """And the next job is begun."""
    options = runner.TaskOptions(job_s=1.0)
    done = do(server, "hangs", "errand", tmp_path, seeds=(0, 1), options=options)

    assert {result.end for result in done.results} == {"time"}


def test_the_same_transcript_gives_the_same_score(server: str, tmp_path: Path):
    """Twice, but for the times."""

    def bare(result: JobResult) -> tuple[object, ...]:
        return result.solved, result.end, result.wrong, result.checks, result.tampered, [c.ok for c in result.all_calls]

    for script in ("solve", "lazy", "forges"):
        first, second = (one(server, script, "repair", tmp_path) for _ in range(2))
        assert bare(first) == bare(second)


def test_what_was_measured_is_in_the_result(server: str, tmp_path: Path):
    """Tokens, cache, context, speed over the job, our own overhead."""
    result = one(server, "solve", "plan", tmp_path, level="medium")

    assert result.output_tokens > 50
    assert all(turn.cached_tokens == pytest.approx(0.5 * (turn.prompt_tokens or 0), abs=2) for turn in result.turns[1:])
    assert len(result.turns) > 30
    assert sum(turn.overhead_s for turn in result.turns) / len(result.turns) < 0.05


def test_a_budget_leaves_jobs_and_resuming_does_only_those(server: str, tmp_path: Path):
    """What was finished stays as it was."""
    endpoint = Endpoint(base_url=server, model="slow")
    worker = runner.OwnAgent(ReplySettings(endpoint=endpoint))
    wanted = [JobName(family="errand", level="easy", seed=seed) for seed in range(4)]
    run = Run.create("tasks", runs=tmp_path)
    reported = runner.prepare_task_run(endpoint, wanted, worker, runner.TaskOptions())
    first = runner.run_jobs(reported, worker, run, runner.TaskOptions(budget_s=2.0), runner.JobListener())
    taken = load_task_run(run)
    assert taken == first
    assert 0 < len(taken.unfinished_jobs) < 4

    again: list[str] = []
    listener = runner.JobListener(on_begin=lambda name: again.append(name.id))
    last = runner.run_jobs(taken, worker, run, runner.TaskOptions(parallel=2), listener)

    assert sorted(again) == sorted(name.id for name in taken.unfinished_jobs)
    assert last.unfinished_jobs == []
    assert all(result.solved for result in last.results)
    assert {r.id: r for r in last.results}[first.finished_results[0].id] == first.finished_results[0]


def test_jobs_side_by_side_share_nothing(server: str, tmp_path: Path):
    """Six at once, each with its own folder."""
    options = runner.TaskOptions(parallel=6)
    done = do(server, "solve", "repair", tmp_path, seeds=tuple(range(6)), options=options)

    assert sum(result.solved for result in done.results) == 6


def test_stopping_drops_the_running_job_and_keeps_the_rest(server: str, tmp_path: Path):
    """A stopped job is unfinished: it will be done again."""
    endpoint = Endpoint(base_url=server, model="slow")
    from moebox.tasks.agent import WorkLimits
    from moebox.tasks.families import make_job

    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began = time.monotonic()
    done = runner.OwnAgent(ReplySettings(endpoint=endpoint))(
        make_job("plan", "medium", 0), WorkLimits(ends_at=began + 60, stop=stop.is_set), lambda turn: None
    )

    assert done.end == "stopped"


def test_the_transcript_is_kept(server: str, tmp_path: Path):
    """Every message, one a line."""
    result = one(server, "solve", "repair", tmp_path)
    rows = [json.loads(row) for row in next(tmp_path.rglob(result.transcript)).read_text().splitlines()]

    assert [row["role"] for row in rows[:3]] == ["system", "user", "assistant"]
    assert rows[-1]["content"].startswith("done")
