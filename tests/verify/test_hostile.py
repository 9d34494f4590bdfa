"""Whatever a server does, the ladder ends with a verdict, and its words do no harm."""

import pytest

from moebox.cli import main
from moebox.core.endpoint import endpoint_from_url
from moebox.verify.checks import streaming
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks

from .oracle.app import MODEL
from .oracle.hostile import HOSTILE
from .oracle.rates import RIGHT

QUICK = ("alive", "streaming", "tools")


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer of a hundred tokens shows an odd server as well as one of a thousand."""
    monkeypatch.setattr(streaming, "LONG_TOKENS", 600)


@pytest.mark.parametrize("name", [*sorted(HOSTILE), "never-ends", "never-answers"])
def test_a_hostile_server_ends_in_a_verdict(oracle: str, name: str):
    """Streams without end, anything at all, lies about limits: not green, within the ladder's time."""
    options = VerifyOptions(thinking="yes", trials=2, deadline_s=1, time_s=5, seed=1)
    ladder = run_checks(
        endpoint_from_url(f"{oracle}/{name}", MODEL), options, only=["alive", "json", "tools", "streaming", "limits"]
    )

    if name != "says-any-limit":  # which now and then says a fair one
        assert ladder.verdict in ("warn", "fail")
        assert any(rung.reason for rung in ladder.rungs)


def test_a_ladder_that_runs_out_of_time_says_so(oracle: str):
    """What was not asked is skipped, and the verdict is not green."""
    ladder = run_checks(
        endpoint_from_url(f"{oracle}/correct", MODEL),
        VerifyOptions(time_s=0.2, seed=1),
        only=["alive", "plain", "tools"],
    )

    assert "out of time" in ladder.stopped
    assert ladder.rungs[-1].verdict in ("warn", "skip")
    assert ladder.verdict != "pass"


def test_what_a_server_writes_is_escaped(oracle: str, capsys: pytest.CaptureFixture[str]):
    """An error cannot clear the screen of the one who reads it."""
    assert main(["verify", f"{oracle}/shouts", "--model", MODEL, "--only", "alive"]) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\u001b[2J" in shown


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_what_is_odd_and_legal_is_never_red(oracle: str, name: str):
    """Line ends, comments, unknown fields, media types in any case; the whole ladder is the benchmark's."""
    ladder = run_checks(
        endpoint_from_url(f"{oracle}/{name}", MODEL), VerifyOptions(thinking="yes", trials=2, seed=1), only=QUICK
    )

    assert [(rung.name, rung.reason) for rung in ladder.rungs if rung.verdict == "fail"] == []


def test_a_fault_of_one_in_three_is_seen(oracle: str):
    """One lost piece of a streamed call in three turns the tools rung yellow or red, with its rate."""
    endpoint = endpoint_from_url(f"{oracle}/piece-lost@3!s", MODEL)
    ladder = run_checks(endpoint, VerifyOptions(thinking="yes", trials=12, seed=1), only=["tools"])
    slips = {slip.kind: slip for slip in ladder.rungs[0].slips}

    assert ladder.verdict in ("warn", "fail")
    assert slips["tool-call/streamed"].seen >= 1
    assert slips["tool-call/streamed"].low < 1 / 3 < slips["tool-call/streamed"].high + 0.2


def test_a_model_that_errs_is_told_from_its_server(oracle: str):
    """The same prompt is wrong again, whole and streamed: the model's own."""
    ladder = run_checks(
        endpoint_from_url(f"{oracle}/correct~25", MODEL),
        VerifyOptions(thinking="yes", seed=5),
        only=["arithmetic", "tools"],
    )
    met = [slip for slip in ladder.slips if slip.seen]

    assert met
    assert {slip.whose for slip in met} == {"model"}
    assert ladder.verdict != "fail"
