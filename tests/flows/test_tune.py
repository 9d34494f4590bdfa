"""A tuning with a real engine process: it finds the optimum, keeps no wrong answers, its budget and what it found."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.recipe import Climb, Flag, Hybrid, Recipe
from moebox.engines.tunables import load_tunables
from moebox.errors import AnswerIsNo
from moebox.flows.tune import Tuner, tune
from moebox.flows.tune_state import (
    Changes,
    ScreenTrial,
    TuneOptions,
    combine_changes,
    pareto_front,
    single_key,
)
from moebox.flows.walk import with_setting
from moebox.serve import state
from moebox.store import Run
from moebox.verify.options import CHECK_NAMES
from tests.driving import moebox, written

from .test_climb import LIGHT, recipe  # noqa: F401  (a fixture)

LITTLE = ("--set", "questions=2", "--set", "concurrency=2", "--set", "trials=1", "--set", "depths=[0.5]")
SETTINGS: dict[str, list[Flag]] = {"hybrid.ubatch": [1024], "hybrid.threads": [4, 2], "kv": ["q4_0"]}
OPTIONS = TuneOptions(only=tuple(SETTINGS), combinations=2, finalists=1)


@pytest.fixture
def start(recipe: Recipe) -> Recipe:  # noqa: F811
    """The oracle with three settings, one of which makes it fast and wrong."""
    return dataclasses.replace(recipe, hybrid=Hybrid(threads=3), climb=Climb(settings=SETTINGS))


def test_the_winner_is_the_optimum_that_answers_correctly(start: Recipe):
    """The cache type would be twice as fast: with it every finalist fails, and without it the true optimum wins."""
    run = Run.create("tune")
    result = tune(start, run, OPTIONS, LIGHT, lambda *_: None, None)
    found = result.state

    best = codec.read_toml(Recipe, run.path / "best.toml")
    assert (best.hybrid, best.kv) == (Hybrid(threads=2, ubatch=1024), "auto")
    failed = [trial for trial in found.finalists if trial.verdict == "fail"]
    assert failed
    assert all("kv q4_0" in trial.change and "arithmetic" in trial.why for trial in failed)
    assert result.best
    assert result.best.gain
    assert result.best.gain.low > 0.9  # of 1.5 in truth
    assert {row.path: round(row.gain, 1) for row in found.reasons} == {"hybrid.ubatch": 1.0, "hybrid.threads": 0.2}
    head = (run.path / "best.toml").read_text().splitlines()[:3]
    assert head[0].startswith("# Tuned for throughput: hybrid.ubatch 1024, hybrid.threads 2: faster: +1")
    assert "# hybrid.threads = 2: +2" in "\n".join(head)
    assert found.layers == OPTIONS.layers  # screened with dummy weights
    assert ElementTree.fromstring((run.path / "pareto.svg").read_text()).tag.endswith("svg")  # noqa: S314  (our own)
    assert state.list_instances() == []


def test_a_budget_that_is_too_short_is_kept(start: Recipe):
    """It ends in the middle of the first trial, and reports it."""
    began = time.monotonic()
    with pytest.raises(AnswerIsNo, match=r"budget of .* ended before the recipe was measured"):
        tune(start, Run.create("tune"), dataclasses.replace(OPTIONS, budget_s=0.05), LIGHT, lambda *_: None, None)
    assert time.monotonic() - began < 60  # a whole trial has minutes of patience
    assert state.orphan_processes() == {}


@pytest.mark.siege
def test_a_killed_tuning_is_resumed(start: Recipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """kill -9 in the screening: what was measured is not measured again, and nothing is left over."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(dataclasses.replace(start, climb=Climb(settings={"hybrid.ubatch": [4096]}))))
    words = ["--set", "rounds=2", "--set", "questions=2", "--set", "concurrency=2", "--set", "only=hybrid.ubatch"]
    words += ["--set", "trials=1", "--set", "tokens=24", "--set", "depths=[0.5]"]
    words += ["--set", "combinations=1", "--set", "finalists=1", "--json"]
    command = [sys.executable, "-m", "moebox", "tune", str(path), *words]
    killed = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    screened: list[object] = []
    while not screened and killed.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
        for file in (tmp_path / "runs").glob("*/tune.json"):
            screened = json.loads(file.read_text())["screened"]
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (folder,) = (tmp_path / "runs").iterdir()

    assert main(["tune", "--resume", folder.name, "--goal", "latency"]) == 2
    assert "was begun for throughput" in capfd.readouterr().err
    assert main(["climb", "--resume", folder.name]) == 2
    assert "is not a run of `moebox climb`" in capfd.readouterr().err
    assert main(["tune", "--resume", folder.name, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["screened"][: len(screened)] == screened
    assert [row["changes"] for row in document["screened"]] == [{}, {"hybrid.ubatch": 4096}]
    assert document["result"]
    assert state.orphan_processes() == {}


@pytest.mark.siege
def test_a_spent_budget_says_how_to_go_on(start: Recipe, tmp_path: Path):
    """The error, `runs show` and a second try name one command; it goes on, and makes no check again that passed."""
    path = written(dataclasses.replace(start, climb=Climb(settings={"hybrid.ubatch": [4096]})), tmp_path)
    ended = moebox("tune", path, *LITTLE, "--set", "rounds=100", "--budget", "10s")
    (folder,) = (tmp_path / "runs").iterdir()
    command = f"moebox tune --resume {folder.name} --budget 1m"
    assert ended.code == 1
    assert "the budget of 10.0 s ended before the recipe was measured" in ended.err
    assert f"`{command}` goes on" in ended.err

    again = moebox("tune", "--resume", folder.name)
    assert again.code == 2
    assert "of 10.0 s are spent" in again.err
    assert f"`{command}` goes on" in again.err
    (row,) = moebox("runs", "--json").document["runs"]
    assert (row["state"], row["live"]) == ("failed in tune", False)
    assert f"next {command}" in " ".join(moebox("runs", "show").out.split())

    words = [sys.executable, "-m", *command.split()]
    going_on = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert going_on.stderr
    news = [next(going_on.stderr).strip() for _ in range(3)]
    assert news[2] == f"{len(CHECK_NAMES)} checks passed before the interruption", news
    going_on.send_signal(signal.SIGINT)
    assert f"interrupted; resume with: moebox tune --resume {folder.name}" in going_on.communicate()[1]
    assert going_on.returncode == 130
    assert moebox("runs", "--json").document["runs"][0]["state"] == "interrupted in tune"


@pytest.mark.siege
def test_checks_of_another_recipe_are_made_again(start: Recipe, tmp_path: Path):
    """A trial that goes on with another recipe, or with a damaged file, makes its checks."""
    path = written(dataclasses.replace(start, climb=Climb(settings={"hybrid.ubatch": [4096]})), tmp_path)
    ended = moebox("tune", path, *LITTLE, "--set", "rounds=100", "--budget", "10s")
    (folder,) = (tmp_path / "runs").iterdir()
    assert ended.code == 1
    (trial,) = folder.glob("climb/*")
    (trial / "trial.toml").write_text((trial / "trial.toml").read_text().replace("threads = 3", "threads = 2"))
    again = moebox("tune", "--resume", folder.name, "--budget", "20s")
    assert "checks passed before" not in again.err
    (trial / "verify.json").write_text("{")
    again = moebox("tune", "--resume", folder.name, "--budget", "30s")
    assert "checks passed before" not in again.err


@pytest.mark.siege
def test_a_budget_that_ends_the_search_has_a_result(start: Recipe, tmp_path: Path):
    """Exit code 0 with the best recipe so far, and the command that searches on."""
    values: list[Flag] = list(range(256, 1280, 16))
    path = written(dataclasses.replace(start, climb=Climb(settings={"hybrid.ubatch": values})), tmp_path)
    few = ("--set", "rounds=2", "--set", "tokens=24", "--set", "only=hybrid.ubatch")
    done = moebox("tune", path, *LITTLE, *few, "--budget", "30s").good()
    (folder,) = (tmp_path / "runs").iterdir()
    command = f"`moebox tune --resume {folder.name} --budget 1m`"
    assert f"the budget of 30.0 s ended the search, {command} goes on" in " ".join(done.out.split())
    assert codec.read_toml(Recipe, folder / "best.toml").engine == "llama.cpp"
    assert moebox("runs", "--json").document["runs"][0]["state"] == "ended"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a recipe, or a run with --resume"),
        (["no.toml"], "no such file"),
        (["--resume", "nowhere"], "no run called"),
        (["{}", "--budget", "soon"], "--budget: 'soon' is not a time"),
        (["{}", "--budget", "1s"], "--budget must be from 10s"),
        (["{}", "--set", "finalists=0"], "--set finalists"),
        (["{}", "--set", "roundz=3"], "--set roundz: there is no such setting"),
        (["{}", "--set", "reference=no.ref"], "no.ref"),
        (["{}", "--set", "only=hybrid.ubatsh"], "only=hybrid.ubatsh: not a setting that can be tuned here"),
        (["{}", "--set", "power=true"], "no NVIDIA GPU whose power cap could be changed"),
    ],
)
def test_bad_input_is_one_line(
    start: Recipe, tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    """Exit code 2, before an engine starts."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(start))
    assert main(["tune", *(str(path) if word == "{}" else word for word in words)]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_every_declared_setting_is_one_of_the_engine():
    """Paths exist in a recipe, flags in the engine's own parser; every setting says what it does."""
    from moebox.engines.flags import flag_catalogue

    for engine in ("vllm", "sglang", "llama.cpp", "ik_llama.cpp", "ktransformers"):
        tunables = load_tunables(engine)
        assert len(tunables) >= 5
        plain = Recipe(name="r", engine=engine, model="m", checkpoint="c", served_name="m")
        for tunable in tunables:
            assert tunable.why
            head, _, flag = tunable.path.partition(".")
            if head == "flags":
                spec = flag_catalogue(engine).find_spec(flag if flag.startswith("-") else f"--{flag}")
                assert spec, (engine, flag)
                assert not spec.choices or {str(value) for value in tunable.values} <= set(spec.choices)
            elif not tunable.share_of:
                assert with_setting(plain, tunable.path, tunable.values[0]) != plain


def test_gains_alone_order_the_combinations():
    """The best sum first; what gains nothing alone is left out; ties take fewer changes."""
    settings = {"a": [1, 2], "b": [True], "c": ["x"]}
    gains = {single_key("a", 1): 0.1, single_key("a", 2): 0.4, single_key("b", True): 0.2, single_key("c", "x"): 0.001}

    combined = combine_changes(settings, gains, width=3)
    assert combined == [{"a": 2, "b": True}, {"a": 2}, {"a": 1, "b": True}]
    assert pareto_front([(1, 1), (2, 3), (3, 2), (1, 2)]) == [(1, 2), (2, 3)]


H200_TOK_S = {  # Kimi's shapes in 12 layers under vLLM 0.26, 32 streams: s = 16 sequences, f = FLASH_ATTN_MLA, g, a
    "": 898.7, "a": 844.6, "g": 1287.9, "ga": 1520.8, "f": 766.4, "fa": 771.5, "fg": 1298.3, "fga": 1526.4,
    "s": 426.2, "sa": 505.6, "sg": 1019.2, "sga": 1175.1, "sf": 529.3, "sfa": 508.0, "sfg": 1029.7, "sfga": 1210.7,
}  # fmt: skip


def test_what_gains_only_beside_another_setting_is_found(start: Recipe, monkeypatch: pytest.MonkeyPatch):
    """Measured on an H200: asynchronous scheduling (a) gains nothing, and 18% with larger CUDA graphs (g)."""

    def screen(tuner: Tuner, changes: Changes, stage: int) -> ScreenTrial:
        name = "".join(each for each in "sfga" if each in changes)
        asked.append(name)
        return ScreenTrial(changes=changes, stage=stage, scores=(H200_TOK_S[name],))

    asked: list[str] = []
    monkeypatch.setattr(Tuner, "screen", screen)
    monkeypatch.setattr(Tuner, "forecast_gain", lambda tuner, changes: 0.0)
    tuner = Tuner(start, Run.create("tune"), LIGHT, lambda kind, news: None, None, options=OPTIONS)
    settings: dict[str, list[Flag]] = {name: [True] for name in "sfga"}

    pool = tuner.halve(combine_changes(settings, tuner.screen_settings(settings), width=8))
    assert asked[:8] == ["", "s", "f", "g", "a", "g", "fg", "ga"]  # 16 sequences are hopeless
    best = max(H200_TOK_S["".join(name for name in "sfga" if name in changes)] for changes in pool)
    assert best > 0.97 * max(H200_TOK_S.values())
