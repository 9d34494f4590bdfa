"""What is said while something takes long, and what a job's line says of its failure."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from moebox.cli.display import WaitingLine
from moebox.cli.run import RunView
from moebox.cli.task import job_line
from moebox.core.pipeline import STEPS, PipelineStep, RunRequest
from moebox.flows.pipeline import DEMO_STEP_S, begin_pipeline
from moebox.store import Run, durations
from moebox.tasks.result import JobResult
from moebox.units import format_seconds

REASON = "hidden test test_totals_by_month failed: expected {'2026-01': 1204, '2026-02': 887} but got {'2026-01': 1204}"


@pytest.fixture(autouse=True)
def own_durations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MOEBOX_CACHE", str(tmp_path))


def test_a_first_time_is_bounded_by_its_limit():
    """`rehearse --measure` says how long it may still take before it ever ran here."""
    waiting = WaitingLine("", "measure vllm kimi-k2.6", limit_s=600.0)

    assert waiting.duration_text() == ": at most 10 min 00 s"
    assert re.search(r"at most (9 min \d\d s|10 min 00 s) left$", waiting.progress_text())


def test_a_second_time_goes_by_the_first():
    durations.remember_duration("measure vllm kimi-k2.6", 3_600.0)
    waiting = WaitingLine("", "measure vllm kimi-k2.6", limit_s=7_200.0)

    assert waiting.duration_text().endswith(", as last time")
    assert waiting.progress_text().endswith(" left (as last time)")


def test_the_table_of_a_run_fits_a_screen_with_the_time_left(tmp_path: Path):
    """At 80x24: one line for each step, what runs now, and the time left, in the very first run of the demo too."""
    run = Run.create("run-phantom", runs=tmp_path)
    pipeline = begin_pipeline(RunRequest(), run)
    clock = iter([0.0, *[45.0] * 9])
    view = RunView(pipeline, run, now=lambda: next(clock), quiet=True)
    figures = {"kv_tokens": 8192, "forecast": "86.4 tok/s (80.2 to 92.1) with 1 stream at 1,024 tokens"}
    view.handle_event("step", PipelineStep(name="plan", state="done", seconds=3.0, figures=figures))
    view.handle_event("step", PipelineStep(name="verify", state="running"))
    for number in range(30):
        view.handle_event("news", f"news {number} of a step that has a lot to report, more than fits on a line")
    screen = io.StringIO()
    Console(width=80, height=24, file=screen, color_system=None).print(view)

    lines = screen.getvalue().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    others = [line.split()[1] for line in lines if line.startswith(("✓", "·"))]
    assert others == [step for step in STEPS if step != "verify"]
    left = f"{format_seconds(DEMO_STEP_S['verify'] - 45.0)} left"
    assert any("verify" in line and left in line for line in lines), lines
    assert "news 29" in screen.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_the_reason_of_a_failed_job_is_wrapped_and_not_cut(width: int):
    """At 80 columns the reason took two lines and was cut after one."""
    result = JobResult(family="implement", level="easy", seed=7, solved=False, end="done", wrong=REASON, wrong_turn=12)

    lines = job_line(result, width).plain.splitlines()

    assert all(len(text) <= width for text in lines)
    assert " ".join(text.strip() for text in lines[1:]) == f"turn 12: {REASON}"
