"""Run folders of earlier versions, kept as they were written: every reader still opens them."""

import json
import shutil
from pathlib import Path

import pytest

from moebox.core.engine_event import AttemptReady, RemedyApplied
from moebox.core.event import STEP_EVENTS, ClimbDropped, EngineLost, PipelineBegan, UnknownEvent
from moebox.flows import pipeline
from moebox.report.files import make_page
from moebox.report.page import render_html
from moebox.runs.listing import list_summaries, run_brief
from moebox.runs.reader import read_run
from moebox.store import Run

KEPT = Path(__file__).parent / "kept"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The folder of 0.1, which called the pipeline a story."""
    shutil.copytree(KEPT, tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    return Run(folder)


def test_the_journal_reads_as_types(run: Run) -> None:
    """Every event of it but the foreign one has a type."""
    events = list(run.read_events())
    assert isinstance(events[0], PipelineBegan)
    assert events[0].model == "kimi-k2.6"
    assert [event.kind for event in events if isinstance(event, UnknownEvent)] == ["weather.changed"]
    ready = next(event for event in events if isinstance(event, AttemptReady))
    assert ready.facts.devices[1].weights_bytes == 75e9
    dropped = next(event for event in events if isinstance(event, ClimbDropped))
    assert dropped.gain is not None
    assert dropped.gain.share == -0.2
    assert STEP_EVENTS["done"](step="bench") in events
    assert EngineLost(attempt=1) in events
    assert RemedyApplied(symptom="oom-context-too-long", change={"context": 155328}) in events


def test_the_report_shows_it(run: Run) -> None:
    """Attempts, problems, memory, the climb, losses and steps."""
    record = read_run(run)
    assert [attempt.outcome for attempt in record.attempts] == ["FAILED", "SUCCESS"]
    assert record.attempts[0].configuration == "vllm, GPU 0, 1, 2, 3, 4, 5, 6, 7, port 8000"
    assert "holds fewer tokens" in record.attempts[0].reason
    assert [problem.is_fixed for problem in record.problems] == [True]
    assert record.kv_tokens == 785872
    assert [device.device for device in record.reported_devices] == ["TP0", "TP1"]
    assert [(step.change, step.kept) for step in record.climb_steps] == [("context 131072", False)]
    assert "measurements/random-c1.samples: 2 writes lost to a full disk" in record.gaps
    assert [phase[0] for phase in record.phases] == ["plan", "up", "verify", "bench", "report"]
    assert record.simulation
    assert "context 131072" in render_html(make_page([run]))


def test_quirks_under_their_old_name(run: Run) -> None:
    """0.1 called them habits: read from a check's own file, and from verify.json if there is none."""
    file = run.path / "verdicts" / "00-alive.json"
    kept = json.loads(file.read_text()) | {"habits": ["llama.cpp: shows tools"]}
    file.write_text(json.dumps(kept))
    record = read_run(run)
    assert [check.quirks for check in record.checks] == [("llama.cpp: shows tools",)]
    assert not [gap for gap in record.gaps if "habits" in gap]

    results = json.loads((run.path / "verify.json").read_text())
    results["rungs"][0]["habits"] = ["vLLM: another"]
    run.write_json("verify.json", results)
    file.unlink()
    record = read_run(run)
    assert record.checks[0].quirks == ("vLLM: another",)
    assert not [gap for gap in record.gaps if "habits" in gap]


def test_the_lists_show_it(run: Run) -> None:
    """In `runs` and on the page."""
    assert run_brief(run)["last_kind"] == "pipeline.done"
    (row,) = list_summaries(run.path.parent)
    assert (row.model, row.step, row.simulation) == ("Kimi-K2.6", "report", True)


def test_it_can_be_resumed(run: Run) -> None:
    """The old file is taken up, and goes on under the new name."""
    resumed = pipeline.resume_pipeline(run)
    assert [step.name for step in resumed.steps if step.state == "waiting"] == ["bench", "report"]  # without random-c1
    assert (run.path / "pipeline.json").is_file()
    after = Run.create("next", runs=run.path.parent)
    pipeline.begin_pipeline(resumed.request, after)
    assert pipeline.expected_step_seconds(after)["verify"] > 0
