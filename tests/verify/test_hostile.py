"""Whatever a server does, a run ends with a verdict, and the text it sends does no harm."""

import pytest

from moebox.cli import main
from moebox.core.endpoint import endpoint_from_url
from moebox.verify.checks import streaming
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from tests.sampling import one_in

from .oracle.app import MODEL
from .oracle.hostile import HOSTILE
from .oracle.rates import RIGHT

QUICK = ("alive", "streaming", "tools")


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer of a hundred tokens shows an odd server as well as one of a thousand."""
    monkeypatch.setattr(streaming, "LONG_TOKENS", {"quick": 60, "normal": 600, "thorough": 1650})


@pytest.mark.parametrize("name", one_in(2, [*sorted(HOSTILE), "never-ends", "never-answers"]))
def test_a_hostile_server_ends_in_a_verdict(oracle: str, name: str):
    """Streams without end, arbitrary output, false limits: not a pass, within the run's time."""
    options = VerifyOptions(thinking="yes", trials=2, deadline_s=1, time_s=3, seed=1)
    results = run_checks(
        endpoint_from_url(f"{oracle}/{name}", MODEL), options, only=["alive", "json", "tools", "streaming", "limits"]
    )

    if name != "says-any-limit":  # which now and then announces a right one
        assert results.verdict in ("warn", "fail")
        assert any(check.reason for check in results.rungs)


def test_a_run_out_of_time_is_reported(oracle: str):
    """Checks that did not run are skipped, and the verdict is not a pass."""
    results = run_checks(
        endpoint_from_url(f"{oracle}/correct", MODEL),
        VerifyOptions(time_s=0.2, seed=1),
        only=["alive", "plain", "tools"],
    )

    assert "out of time" in results.stopped
    assert results.rungs[-1].verdict in ("warn", "skip")
    assert results.verdict != "pass"


def test_what_a_server_writes_is_escaped(oracle: str, capsys: pytest.CaptureFixture[str]):
    """An error message cannot clear the user's screen."""
    assert main(["verify", f"{oracle}/shouts", "--model", MODEL, "--only", "alive"]) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\u001b[2J" in shown


@pytest.mark.parametrize("name", one_in(6, sorted(RIGHT)))
def test_unusual_but_valid_replies_never_fail(oracle: str, name: str):
    """Line ends, comments, unknown fields, media types in any case; the benchmark runs all checks."""
    results = run_checks(
        endpoint_from_url(f"{oracle}/{name}", MODEL), VerifyOptions(thinking="yes", trials=1, seed=1), only=QUICK
    )

    assert [(check.name, check.reason) for check in results.rungs if check.verdict == "fail"] == []


@pytest.mark.parametrize(
    ("name", "check", "others"),
    [
        ("store-without-tools", "tools", ("agents", "limits")),
        ("system-role-refused", "prompts", ("responses",)),
        ("foreign-call-ids-refused", "agents", ("tools",)),
        ("stream-options-refused", "streaming", ("json",)),
    ],
)
def test_a_refused_feature_is_a_warning_of_one_check(oracle: str, name: str, check: str, others: tuple[str, ...]):
    """With the server's own words; the other checks skip what needs it."""
    options = VerifyOptions(thinking="yes", trials=1, seed=1)
    results = run_checks(endpoint_from_url(f"{oracle}/{name}", MODEL), options, only=[check, *others])
    marks = {rung.name: rung.verdict for rung in results.rungs}

    assert marks.pop(check) == "warn"
    assert set(marks.values()) <= {"pass", "skip"}
    assert any("refuse" in rung.reason or "does not accept" in rung.reason for rung in results.rungs)


def test_a_fault_of_one_in_three_is_seen(oracle: str):
    """One lost piece of a streamed call in three is a warning or a failure of the tools check, with its rate."""
    endpoint = endpoint_from_url(f"{oracle}/piece-lost@3!s", MODEL)
    results = run_checks(endpoint, VerifyOptions(thinking="yes", trials=12, seed=1), only=["tools"])
    failures = {failure.kind: failure for failure in results.rungs[0].slips}

    assert results.verdict in ("warn", "fail")
    assert failures["tool-call/streamed"].seen >= 1
    assert failures["tool-call/streamed"].low < 1 / 3 < failures["tool-call/streamed"].high + 0.2


def test_wrong_answers_of_the_model_are_not_attributed_to_the_server(oracle: str):
    """The same prompt is wrong again, whole and streamed."""
    results = run_checks(
        endpoint_from_url(f"{oracle}/correct~25", MODEL),
        VerifyOptions(thinking="yes", seed=5),
        only=["arithmetic", "tools"],
    )
    met = [failure for failure in results.slips if failure.seen]

    assert met
    assert {failure.whose for failure in met} == {"model"}
    assert results.verdict != "fail"
