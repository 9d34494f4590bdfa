"""Fleets that start, answer, lose a member and stop; and those that cannot start leave nothing behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox import http
from moebox.cli import main
from moebox.errors import BadInput, ExternalError
from moebox.serve import state
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox_fleet import up as fleet_up
from moebox_fleet import verify as fleet_verify
from moebox_fleet.loss import run_streams

FleetFile = Callable[..., Path]


def test_a_fleet_of_twins_answers_loses_only_a_members_streams_and_stops(
    fleet_file: FleetFile, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    running = fleet_up.start_fleet(fleet_file(), twins=True, patience_s=60)
    try:
        record = running.record
        assert fleet_up.answers_chat(record.endpoint())
        assert record.endpoint().context == 65536
        for url in (record.base_url, *(member.base_url for member in record.members)):
            assert http.get(f"{url}/models").status == 401  # another user of the machine has no key
            assert http.get(f"{url}/models", headers=record.endpoint().headers).ok
        key = (record.endpoint().key or "").encode()
        written = [path for path in tmp_path.rglob("*") if path.is_file() and key in path.read_bytes()]
        assert {path.parent.name for path in written} == {"keys"}  # and not in a log, journal or record
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in written)
        assert [row["status"] for row in fleet_up.fleet_status(record)] == ["ready"] * 3

        with pytest.raises(BadInput, match="running already"):
            fleet_up.start_fleet(Path(record.file))
        with pytest.raises(BadInput, match="has no member"):
            fleet_verify.verify_fleet(record, VerifyOptions(seed=1), only=["alive"], kill="none", run=Run.create("x"))

        verdict = fleet_verify.verify_fleet(
            record, VerifyOptions(seed=1), only=["alive"], kill="busiest", streams=8, run=Run.create("verify-pair")
        )

        assert {check.name: check.verdict for check in verdict.checks.rungs}["alive"] == "pass"
        assert verdict.affinity.verdict == "skip"  # round and round: nothing to keep
        assert verdict.loss is not None
        assert verdict.loss.is_good
        assert verdict.loss.inside == len(verdict.loss.lost) == 4
        assert verdict.loss.finished == 4
        assert main(["fleet", "ps", "--json"]) == 0
        parts = json.loads(capsys.readouterr().out)["fleets"][0]["parts"]
        assert [part["status"] for part in parts] == ["ready"] * 3  # the killed one is back
    finally:
        running.stop()
    assert fleet_up.list_fleets() == []


def test_streams_without_a_member_are_lost_and_named() -> None:
    from moebox.core.endpoint import endpoint_from_url

    seen = run_streams(endpoint_from_url("127.0.0.1:9", "m"), streams=2, tokens=4, deadline_s=20)

    assert [stream.name[-3:] for stream in seen if stream.is_lost] == ["000", "001"]
    assert all(stream.error for stream in seen)


def test_a_router_of_another_version_is_one_line(fleet_file: FleetFile) -> None:
    with pytest.raises(ExternalError, match=r"sglang-router 9\.9\.9 is installed, and moebox knows 0\.2, 0\.3"):
        fleet_up.start_fleet(fleet_file(version="9.9.9"), twins=True)


def test_a_missing_router_is_one_line(tmp_path: Path, fleet_file: FleetFile) -> None:
    with pytest.raises(BadInput, match=r"router\.python: .* not found"):
        fleet_up.start_fleet(fleet_file(python=str(tmp_path / "nowhere")), twins=True)
    bare = tmp_path / "bare" / "bin"
    bare.mkdir(parents=True)
    (bare / "python").write_text("#!/bin/sh\nexit 1\n")
    (bare / "python").chmod(0o755)
    with pytest.raises(ExternalError, match="sglang-router is not installed here"):
        fleet_up.start_fleet(fleet_file(python=str(bare.parent)), twins=True)


def test_members_that_do_not_answer_or_serve_another_model_are_one_line(fleet_file: FleetFile) -> None:
    away = '[[member]]\nname = "away"\nurl = "http://127.0.0.1:9"\nmodel = "m"\n'
    with pytest.raises(ExternalError, match=r"away: http://127\.0\.0\.1:9 does not answer"):
        fleet_up.start_fleet(fleet_file(members=away))


def test_two_models_behind_one_router_are_refused(fleet_file: FleetFile) -> None:
    mixed = '[[member]]\nrecipe = "kimi-k26-vllm"\n[[member]]\nurl = "http://127.0.0.1:9"\nmodel = "other"\n'
    with pytest.raises(BadInput, match="members serve different models"):
        fleet_up.start_fleet(fleet_file(members=mixed))


def test_a_member_that_cannot_start_takes_the_others_down_with_it(tmp_path: Path, fleet_file: FleetFile) -> None:
    boxes = ("8x-h200", "1x-rtx-4090")
    members = "".join(f'[[member]]\nrecipe = "kimi-k26-vllm"\nbox = "{box}"\n' for box in boxes)
    with pytest.raises(ExternalError, match="twin ended while starting"):
        fleet_up.start_fleet(fleet_file(members=members), twins=True, patience_s=60)

    assert [one for one in state.list_instances() if one.is_alive] == []


@pytest.mark.parametrize("words", [["ps"], ["down"], ["verify"], ["bench"]])
def test_commands_without_a_fleet_say_so(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fleet", *words])

    shown = capsys.readouterr()
    assert code == (0 if words == ["ps"] else 3)
    assert "no fleet is running" in shown.out + shown.err
