"""What is said while something takes long, and what a job's line says of its failure."""

import re
from pathlib import Path

import pytest

from moebox.cli.display import TimeEstimate
from moebox.cli.task.view import job_line
from moebox.store import durations
from moebox.tasks.result import JobResult

REASON = "hidden test test_totals_by_month failed: expected {'2026-01': 1204, '2026-02': 887} but got {'2026-01': 1204}"


@pytest.fixture(autouse=True)
def own_durations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MOEBOX_CACHE", str(tmp_path))


def test_a_first_time_is_bounded_by_its_limit():
    """`rehearse --measure` says how long it may still take before it ever ran here."""
    estimate = TimeEstimate("measure vllm kimi-k2.6", limit_s=600.0)

    assert estimate.duration_text() == ": at most 10 min 00 s"
    assert re.search(r"at most (9 min \d\d s|10 min 00 s) left$", estimate.progress_text())


def test_a_second_time_goes_by_the_first():
    durations.remember_duration("measure vllm kimi-k2.6", 3_600.0)
    estimate = TimeEstimate("measure vllm kimi-k2.6", limit_s=7_200.0)

    assert estimate.duration_text().endswith(", as last time")
    assert estimate.progress_text().endswith(" left (as last time)")


@pytest.mark.parametrize("width", [80, 160])
def test_the_reason_of_a_failed_job_is_wrapped_and_not_cut(width: int):
    """At 80 columns the reason took two lines and was cut after one."""
    result = JobResult(family="implement", level="easy", seed=7, solved=False, end="done", wrong=REASON, wrong_turn=12)

    lines = job_line(result, width).plain.splitlines()

    assert all(len(text) <= width for text in lines)
    assert " ".join(text.strip() for text in lines[1:]) == f"turn 12: {REASON}"
