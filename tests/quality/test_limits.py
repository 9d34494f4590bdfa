"""Quality limits: a changed server may be as much farther from a reference as the limit says, and no more."""

from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core.endpoint import endpoint_from_url
from moebox.errors import BadInput
from moebox.flows.trials import TrialRunner
from moebox.flows.walk import ClimbTrial, parse_effort
from moebox.quality.measure import QualityGate
from moebox.store import Run
from tests.embedded import phantom_recipe
from tests.quality.toy_server import ToyServer
from tests.serving import live


def make_run(path: Path) -> Run:
    path.mkdir(parents=True)
    return Run(path)


def judge(gate: QualityGate, path: Path, noise: float = 0.0, seed: int = 2) -> tuple[bool | None, str]:
    """Let the gate judge a toy server; True, "" for the first."""
    with live(ToyServer("prompt_logprobs", noise=noise, seed=seed)) as server:
        found = gate.judge(endpoint_from_url(server.url, "toy"), make_run(path))
    return (found.keeps_limit, found.verdict) if found else (True, "")


def test_a_server_must_stay_near_the_first_one(tmp_path: Path):
    """The first server is the reference; an equal one keeps the limit, a noisy one does not."""
    gate = QualityGate(0.02)
    assert judge(gate, tmp_path / "a") == (True, "")
    assert judge(gate, tmp_path / "b")[0] is True
    keeps, text = judge(gate, tmp_path / "c", noise=0.6)
    assert (keeps, text.endswith("above the limit of 0.02")) == (False, True)
    interval = text.partition("(")[2].partition(")")[0].split(" to ")
    between = sum(map(float, interval)) / 2
    keeps, text = judge(QualityGate(between, before=tmp_path / "a"), tmp_path / "d", noise=0.6)
    assert (keeps, "not decided for a limit of" in text) == (None, True)


def test_with_a_reference_file_the_limit_is_about_the_change(tmp_path: Path):
    """A quant far from the original keeps the limit if it is no farther than before the change."""
    assert judge(QualityGate(0.02), tmp_path / "original") == (True, "")
    gate = QualityGate(0.02, reference=str(tmp_path / "original"))
    assert judge(gate, tmp_path / "before", noise=0.6) == (True, "")
    keeps, text = judge(gate, tmp_path / "after", noise=0.6, seed=3)
    assert keeps is True
    assert " nats more than before (" in text
    assert judge(gate, tmp_path / "worse", noise=1.0)[0] is False


def test_a_step_of_a_climb_must_keep_the_limit(tmp_path: Path):
    """The first step is what later ones are compared with; a step beyond the limit is not kept."""
    effort = parse_effort(["quality_limit=0.02"])
    runner = TrialRunner(phantom_recipe(), make_run(tmp_path / "climb"), effort, lambda kind, news: None, None)
    reasons = []
    for number, noise in enumerate((0.0, 0.0, 0.6)):
        name = f"climb/{number}"
        with live(ToyServer("prompt_logprobs", noise=noise)) as server:
            endpoint = endpoint_from_url(server.url, "toy")
            reasons.append(runner.find_quality_loss(endpoint, make_run(runner.run.path / name)))
        trial = ClimbTrial(
            number=number,
            change=name,
            path="",
            value=None,
            recipe=phantom_recipe(),
            verdict="pass",
            kept=True,
            folder=name,
        )
        runner.trials.append(trial)
    assert reasons[:2] == ["", ""]
    assert reasons[2].startswith("quality: ")


@pytest.mark.parametrize("text", ["quality_limit=-1", "quality_limit=nan", "quality_limit=11", "reference=no.moeq"])
def test_limits_that_make_no_sense_are_one_line(text: str, capsys: pytest.CaptureFixture[str]):
    """In climb, tune and compare alike."""
    with pytest.raises(BadInput):
        parse_effort([text])
    assert main(["compare", "http://127.0.0.1:9", "http://127.0.0.1:9", "--set", text]) == 2
    assert text.partition("=")[2] in capsys.readouterr().err
