"""Tune and upgrade on the page: started, followed, stopped and resumed; results, reasons and errors of the terminal."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.event import ClimbBegan, UpgradeStep
from moebox.core.recipe import Climb, Hybrid, Recipe
from moebox.core.upgrade_result import UPGRADE_FILE, GainAtConcurrency, UpgradeResult
from moebox.flows.trials import TABLE_FILE
from moebox.flows.tune_state import TUNE_FILE, ScreenTrial, SettingGain, TuneOptions, TuneState
from moebox.flows.walk import ClimbTrial
from moebox.store import Run
from tests.embedded import phantom_recipe
from tests.flows.test_climb import recipe  # noqa: F401  (a fixture)
from tests.web.test_cockpit import post, until
from tests.web.test_ui import get

Serve = Callable[..., str]
GAIN = GainAtConcurrency(concurrency=4, a_tok_s=100.0, b_tok_s=93.0, a_ttft_ms=20.0, b_ttft_ms=20.0, gain=None)
TUNED = TuneState(
    options=TuneOptions(goal="latency", budget_s=3600.0),
    layers=4,
    spent_s=1200.0,
    screened=(
        ScreenTrial(changes={}, stage=0, tok_s=100.0, ttft_ms=20.0),
        ScreenTrial(changes={"max_seqs": 8}, stage=0, tok_s=130.0, ttft_ms=25.0),
    ),
    reasons=(SettingGain(path="max_seqs", value=8, gain=0.3, source="measured alone", why="more at once"),),
    result="max_seqs 8: faster",
)


def a_tuning(home: Path) -> Run:
    run = Run.create("tune-mine", runs=home)
    start = ClimbTrial(
        number=0, change="start", path="", value=None, recipe=phantom_recipe(), verdict="pass", kept=True
    )
    start = dataclasses.replace(start, output_tok_s=90.0, ttft_ms=21.0, kept=True)
    run.add_event(ClimbBegan(recipe="mine", command="tune"))
    run.write_json(TUNE_FILE, TUNED)
    run.write_json(TABLE_FILE, {"steps": [codec.to_plain(start)], "ended": True, "best": 0})
    run.write_file("best.toml", codec.to_toml(phantom_recipe()))
    run.release_lock()
    return run


def an_upgrade(home: Path, **more: object) -> Run:
    run = Run.create("upgrade-mine", runs=home)
    run.add_event(UpgradeStep(recipe="mine", to="vllm==0.33.0", text="starting the old version"))
    result = UpgradeResult(name="mine", old="vllm 0.32.0", new="0.33.0", outcome="roll back", reasons=("it is slower",))
    run.write_json(UPGRADE_FILE, dataclasses.replace(result, gains=(GAIN,), seconds=600.0, **more))
    run.release_lock()
    return run


def read_pages(serve: Serve, home: Path, kind: str, run: Run) -> tuple[str, str]:
    """The list of this kind for the recipe "mine", and the run's own page."""
    url = serve(runs=home)
    return get(f"{url}{kind}?recipe=mine")[1], get(f"{url}runs/{run.id}/live")[1]


def test_a_tuning_shows_its_reasons_and_its_picture(serve: Serve, tmp_path: Path) -> None:
    """The list has goal, time and result; the run's page the gain of each setting and the trade-offs."""
    listed, page = read_pages(serve, tmp_path, "tune", a_tuning(tmp_path))

    assert 'value="mine"' in listed
    assert "max_seqs 8: faster" in listed
    assert "20 min 00 s of 60 min 00 s" in listed
    assert "max_seqs = 8: +30.0%, measured alone; more at once" in page
    assert "Speed against time to first token" in page
    assert 'aria-label="Speed against time to first token' in page


def test_an_upgrade_shows_its_answer_its_reasons_and_the_history(serve: Serve, tmp_path: Path) -> None:
    listed, page = read_pages(serve, tmp_path, "upgrade", an_upgrade(tmp_path))

    assert "vllm 0.32.0 → 0.33.0" in listed
    assert '<td class="bad">roll back</td><td>it is slower</td>' in listed
    assert "History of mine" in listed
    assert "vllm 0.32.0 → 0.33.0: not taken; it is slower; decode at 4 not measured" in page
    assert "decode at 4: 100.0 → 93.0 tok/s" in page


def test_an_upgrade_is_followed_and_what_it_takes_is_known_from_the_last(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second tab, or the same after a refresh, reads the same folder; one that was left names the command again."""
    an_upgrade(tmp_path)
    url, run = serve(runs=tmp_path), Run.create("upgrade-mine", runs=tmp_path)
    run.add_event(UpgradeStep(recipe="mine", to="vllm==0.34.0", text="starting the old version"))
    run.add_event(UpgradeStep(recipe="mine", to="vllm==0.34.0", text="measuring decode at 4 requests, load 1 of 3"))
    run.write_file("command.log", "starting the old version\nerror: the disk is full\n")
    pages = [get(f"{url}runs/{run.id}/live")[1] for _ in range(2)]

    assert all("measuring decode at 4 requests, load 1 of 3" in page for page in pages)
    assert re.search("running upgrade, about [0-9]+ min [0-9]+ s left, by the last one", pages[0])
    assert "error: the disk is full" in pages[0]
    assert "vllm==0.34.0" in get(f"{url}upgrade")[1]
    run.release_lock()
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path))
    assert main(["runs", "show", run.id]) == 0
    assert "moebox upgrade mine vllm==0.34.0" in " ".join(capsys.readouterr().out.split())
    assert "interrupted in upgrade" in get(f"{url}runs/{run.id}/live")[1]


@pytest.mark.parametrize(
    ("path", "fields", "command"),
    [
        ("tune", {"recipe": "phantm"}, "tune phantm"),
        ("tune", {"recipe": "phantom", "budget": "1s"}, "tune phantom --budget 1s"),
        ("upgrade", {"recipe": "phantom", "to": "vllm==0.3"}, "upgrade phantom vllm==0.3"),
        ("upgrade/rollback", {"recipe": "phantom"}, "upgrade rollback phantom"),
    ],
)
def test_errors_are_those_of_the_terminal(
    serve: Serve, tmp_path: Path, path: str, fields: dict[str, str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same sentence and hint, and no run folder."""
    status, text = post(serve(runs=tmp_path), path, fields)
    assert main(command.split()) == 2
    error, _, hint = capsys.readouterr().err.partition("\n")

    assert status == 400
    assert json.loads(text)["error"] == error.removeprefix("error: ")
    assert json.loads(text)["hint"] == hint.strip().removeprefix("hint: ")
    assert not any(tmp_path.iterdir())


def test_a_tuning_is_started_stopped_and_resumed(
    serve: Serve,
    tmp_path: Path,
    recipe: Recipe,  # noqa: F811
) -> None:
    start = dataclasses.replace(recipe, hybrid=Hybrid(threads=3), climb=Climb(settings={"hybrid.ubatch": [1024]}))
    (tmp_path / "mine.toml").write_text(codec.to_toml(start))
    url = serve(runs=tmp_path / "runs")
    status, text = post(url, "tune", {"recipe": str(tmp_path / "mine.toml"), "goal": "latency", "budget": "1h"})
    assert status == 201, text
    name = json.loads(text)["go"].split("/")[2]
    run = Run(tmp_path / "runs" / name)
    until(lambda: (run.path / TUNE_FILE).exists())
    assert re.search("running tune, at most [0-9.]+ (h|min)", get(f"{url}runs/{name}/live")[1])

    assert post(url, f"runs/{name}/stop", {})[0] == 200
    until(lambda: not run.is_locked)
    assert "interrupted in tune" in get(f"{url}tune")[1]
    assert f"moebox tune --resume {name}" in (run.path / "command.log").read_text()
    assert post(url, "tune", {"resume": name, "budget": "2h"})[0] == 201
    until(lambda: "moebox tune" not in (run.path / "command.log").read_text())  # begun anew
    assert post(url, f"runs/{name}/stop", {})[0] == 200
    until(lambda: not run.is_locked)
