"""A quality result in the report: figures with intervals, and pictures by kind of text and depth."""

from pathlib import Path

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.quality import measure
from moebox.quality.measure import QualityGate
from moebox.report.files import write_report
from moebox.report.sections.checks import quality_section
from moebox.runs.reader import read_run
from moebox.store import Run
from tests.quality.toy_server import ToyServer, few_texts
from tests.serving import live


def test_divergence_is_drawn_by_kind_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a result with a reference has figures; a damaged file is a gap, not a crash."""
    monkeypatch.setattr(measure, "standard_texts", few_texts)
    gate, runs = QualityGate(0.02), []
    for noise in (0.0, 0.6):
        runs.append(run := Run.create("quality", runs=tmp_path))
        with live(ToyServer("prompt_logprobs", noise=noise)) as server:
            gate.judge(endpoint_from_url(server.url, "toy"), run)
        run.release_lock()
    first, second = map(read_run, runs)
    assert first.quality
    assert not quality_section([first]).blocks
    section = quality_section([second])
    assert "above the limit of 0.02" in section.lead
    page = tmp_path / "page.html"
    write_report([runs[1]], page)
    text = page.read_text()
    assert "Divergence by kind of text" in text
    assert "Divergence by depth in the context" in text
    assert "pseudo-words" in text
    (runs[1].path / "quality.json").write_text('{"about": 1}')
    damaged = read_run(runs[1])
    assert damaged.quality is None
    assert any("quality.json" in gap for gap in damaged.gaps)
