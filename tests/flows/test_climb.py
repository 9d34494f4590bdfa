"""A climb with a real engine process: keeps what is better, rolls back the rest, and survives being killed."""

import dataclasses
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moebox import codec, http
from moebox.cli import main
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Climb, Hybrid, Listen, Recipe, Runtime
from moebox.errors import BadInput
from moebox.flows.pace import TOKENS, SpeedRounds
from moebox.flows.trials import climb
from moebox.flows.walk import ClimbEffort, ClimbTrial
from moebox.runs.listing import summarize_run
from moebox.serve import state
from moebox.store import Run
from tests.driving import moebox, written

from ..verify.oracle import engine
from ..verify.oracle.engine import PACED
from .pipelines import weights

ROOT = Path(__file__).parents[2]


def stated_speed(endpoint: Endpoint, *, concurrency: int, rounds: int, tokens: int) -> SpeedRounds:
    """The oracle's own word for its speed, with a little scatter: a busy machine would hide what a clock sees."""
    page = http.get(f"{endpoint.server_url}/metrics").text
    rate = concurrency / float(page.rpartition("oracle:word_seconds ")[2])
    scatter = itertools.islice(itertools.cycle((0.99, 1.01)), rounds)
    return SpeedRounds(
        concurrency=concurrency, tok_s=tuple(rate * factor for factor in scatter), ttft_ms=(20.0,) * rounds
    )


LIGHT = ClimbEffort(
    concurrency=2,
    rounds=4,
    tokens=PACED,
    questions=6,
    trials=2,
    parallel=4,
    depths=(0.5,),
    first_checks=("alive", "arithmetic"),
    patience_s=120,
    measure_speed=stated_speed,
)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe whose engine is the oracle, started as a process by llama-server's words."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Recipe(
        name="oracle",
        engine="llama.cpp",
        model="kimi-k2.6",
        checkpoint=str(weights(tmp_path)),
        served_name="oracle-k2",
        context=2048,
        hybrid=Hybrid(),
        listen=Listen(port=0),
        runtime=Runtime(entry=f"{sys.executable} -m tests.verify.oracle.engine"),
        climb=Climb(
            contexts=(2048, 4096, 9216, 16384),
            speculate=("none", "ngram-mod"),
            settings={"hybrid.ubatch": [4096, 128], "kv": ["q4_0"]},
        ),
    )


def test_the_oracle_knows_the_streams_that_are_timed():
    """Without it they would come all at once: a climb would find no step faster than another."""
    assert engine.TOKENS == TOKENS


def by_change(trials: tuple[ClimbTrial, ...]) -> dict[str, ClimbTrial]:
    return {trial.change: trial for trial in trials}


def test_a_climb_keeps_what_is_verified_and_better(recipe: Recipe):
    """One setting at a time; each is kept or dropped for a reason, and the best recipe is written out."""
    run = Run.create("climb")
    summit = climb(recipe, run, effort=LIGHT)
    steps = by_change(summit.trials)

    assert [trial.kept for trial in summit.trials] == [True, True, False, False, True, False, False]
    assert steps["context 4096"].kv_tokens == 4096
    assert "ended with code 1" in steps["context 9216"].why
    assert summit.passed_over == {"context 16384": "context 9216 failed already"}
    assert "plain" in steps["speculate ngram-mod"].why
    assert steps["hybrid.ubatch 4096"].why.startswith("faster")
    assert steps["hybrid.ubatch 128"].why.startswith("slower")
    assert "arithmetic" in steps["kv q4_0"].why
    assert steps["hybrid.ubatch 4096"].same == LIGHT.questions
    best = codec.read_toml(Recipe, run.path / "best.toml")
    assert (best.context, best.hybrid and best.hybrid.ubatch, best.kv) == (4096, 4096, "auto")
    kinds = [event.kind for event in run.read_events()]
    assert kinds.count("climb.kept") == 3
    assert kinds.count("climb.dropped") == 4
    assert state.list_instances() == []


def test_a_machine_that_becomes_faster_is_not_taken_for_a_setting(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The step before is measured once more after a gain: it has gained as much, so the setting has done nothing."""
    monkeypatch.setenv("MOEBOX_ORACLE_DRIFT", str(tmp_path / "starts"))
    walk = dataclasses.replace(recipe, climb=Climb(contexts=(2048,), speculate=(), settings={"kv": ["q8_0"]}))
    run = Run.create("climb")
    trial = climb(walk, run, effort=LIGHT).trials[1]

    assert len((tmp_path / "starts").read_text().splitlines()) == 3  # the start, the step, the start again
    assert not trial.kept
    assert trial.why.startswith("no difference seen")
    assert trial.gain
    assert trial.gain.high > 0.5  # what it would have claimed
    assert state.list_instances() == []


def test_an_engine_that_is_no_good_ends_the_climb(recipe: Recipe, tmp_path: Path):
    """Nothing to climb from is an answer, with the reason, and no interruption: the run is listed as failed."""
    broken = dataclasses.replace(recipe, kv="q4_0")
    ended = moebox("climb", written(broken, tmp_path), "--set", "questions=2", "--set", "trials=2")
    assert ended.code == 1
    row = summarize_run(Run.open("latest"))
    assert row.state_text(live=False) == "failed in climb"
    assert "arithmetic" in row.failed
    assert f"next moebox climb --resume {row.id}" in " ".join(moebox("runs", "show").out.split())


def test_a_setting_that_does_not_exist_is_reported_before_anything_starts(recipe: Recipe):
    """A misspelt setting costs no engine start."""
    document = {**codec.to_plain(recipe), "climb": {"settings": {"hybrid.ubatches": [512]}}}
    with pytest.raises(BadInput, match="ubatches"):
        climb(codec.decode(Recipe, document, where="test"), Run.create("climb"), effort=LIGHT)


def test_a_killed_climb_is_taken_up_where_it_stopped(recipe: Recipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """kill -9 in the middle of a step: steps before it are not repeated, it is, and nothing is left over."""
    document = {**codec.to_plain(recipe), "climb": {"contexts": [2048, 4096], "speculate": [], "settings": {}}}
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(codec.decode(Recipe, document, where="test")))
    marker = tmp_path / "reached"
    words = [sys.executable, "-m", "moebox", "climb", str(path), "--set", "rounds=2", "--set", "questions=4"]
    words += ["--set", "trials=1", "--set", "tokens=24", "--set", "depths=[0.5]"]
    env = {**os.environ, "MOEBOX_ORACLE_KILLS": f"{marker}:4096"}
    killed = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not marker.exists() and killed.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (folder,) = (tmp_path / "runs").iterdir()
    done = json.loads((folder / "climb.json").read_text())

    for name in ("rounds", "concurrency", "questions", "jobs"):  # the steps before would not be comparable
        assert main(["climb", "--resume", folder.name, "--set", f"{name}=7"]) == 2
        assert f"--set {name}=7: {folder.name} was begun with" in capfd.readouterr().err
    assert main(["climb", "--resume", folder.name, "--set", "questions=4", "--json"]) == 0
    table = json.loads(capfd.readouterr().out)
    assert [(len(step["samples"]), step["asked"]) for step in table["steps"]] == [(2, 4), (2, 4)]
    (folder / "effort.toml").unlink()  # as an earlier moebox left it
    gc.collect()  # the lock of a command ends with its process, or with its last reference in this one
    assert main(["climb", "--resume", folder.name, "--set", "rounds=3", "--json"]) == 0
    capfd.readouterr()
    assert [step["change"] for step in done["steps"]] == ["start"]
    assert [step["change"] for step in table["steps"]] == ["start", "context 4096"]
    assert table["steps"][0] == done["steps"][0]
    assert [step["verdict"] for step in table["steps"]] == ["pass", "pass"]
    assert state.orphan_processes() == {}
    other = tmp_path / "other.toml"
    other.write_text(path.read_text().replace("oracle-k2", "oracle-k3"))
    with pytest.raises(BadInput, match="another recipe"):
        climb(codec.read_toml(Recipe, other), Run(folder), effort=LIGHT)


def test_an_interrupted_climb_says_how_to_go_on(recipe: Recipe, tmp_path: Path):
    """Exit code 130 and the command to type; the engine is gone."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(recipe))
    words = [sys.executable, "-m", "moebox", "climb", str(path)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert any(line.startswith("start") for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    output = process.stderr.read()
    process.stderr.close()

    assert process.wait(timeout=60) == 130
    (run,) = (tmp_path / "runs").iterdir()
    assert output.splitlines()[-1] == f"interrupted; resume with: moebox climb --resume {run.name}"
    assert state.orphan_processes() == {}


def test_two_recipes_are_compared_with_judgement(recipe: Recipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """What is said, how right, how valid, how many guesses were accepted, and how fast, with an interval."""
    plain, guessing = tmp_path / "a.toml", tmp_path / "b.toml"
    plain.write_text(codec.to_toml(recipe))
    document = {**codec.to_plain(recipe), "speculate": {"method": "ngram-mod"}}
    guessing.write_text(codec.to_toml(codec.decode(Recipe, document, where="test")))
    words = ["--json", "--set", "questions=10", "--set", "rounds=2", "--concurrency", "1,2"]

    assert main(["compare", str(plain), str(guessing), *words]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["answers"]["right_a"]["passed"] == 10
    assert found["answers"]["right_b"]["passed"] < 8
    assert found["answers"]["divergences"][0]["unit"] == "token"
    assert found["acceptance_a"] is None
    assert found["acceptance_b"] == pytest.approx(0.6)
    assert [row["concurrency"] for row in found["gains"]] == [1, 2]
    assert "worse" in found["verdict"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["climb"], "name a recipe, or a run with --resume"),
        (["climb", "no.toml"], "no such file"),
        (["climb", "--resume", "nowhere"], "no run called"),
        (["compare", "a.toml", "b.toml"], "no such file"),
        (["compare", "x", "y", "--concurrency", "many"], "1,4,16"),
        (["verify", "http://127.0.0.1:1", "--model", "m", "--context", "long"], "token count"),
        (["verify", "http://127.0.0.1:1", "--model", "m", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    """And exit code 2."""
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_an_engine_that_is_not_installed_is_no_verdict_on_the_recipe(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Something outside is missing: exit code 3 and how to get it, not "the recipe is not good"."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(dataclasses.replace(recipe, runtime=Runtime(entry="no-such-engine-program"))))

    assert main(["climb", str(path)]) == 3
    output = capsys.readouterr().err
    assert "error: llama.cpp is not installed here" in output
    assert "not good" not in output


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (Climb(contexts=(-5, 2048)), "climb.contexts: -5 is not a valid number of tokens"),
        (Climb(contexts=(0,)), "climb.contexts: 0 is not a valid number"),
        (Climb(contexts=(4096, 2048)), "climb.contexts: 2048 after 4096 would not be tried\n\nhint: write them in asc"),
        (Climb(contexts=(2048, 2048)), "climb.contexts: 2048 after 2048 would not be tried"),
        (Climb(speculate=("none", "egale3")), "climb.speculate: no draft method 'egale3'"),
        (Climb(speculate=("",)), "climb.speculate: no draft method ''"),
        (Climb(settings={"kv": ["zz"]}), "climb setting 'kv' = 'zz'"),
        (Climb(settings={"hybrid.ubatsh": [256]}), "hybrid"),
    ],
)
def test_a_table_that_cannot_be_meant_starts_nothing(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Climb, says: str
):
    """A mistyped draft method was found after an hour of starts; nor is a run's folder left."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(dataclasses.replace(recipe, climb=table)))

    assert main(["climb", str(path)]) == 2
    assert says in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*climb*"))


@pytest.mark.parametrize("table", ["[1]", '{"steps": 5}', '{"ended": true}', "{"])
def test_a_damaged_table_is_one_line(recipe: Recipe, table: str):
    """On resume, where steps of an earlier climb are read."""
    run = Run.create("climb-x")
    run.write_file("start.toml", codec.to_toml(recipe))
    run.write_file("climb.json", table)
    with pytest.raises(BadInput, match=r"climb\.json"):
        climb(recipe, run, effort=LIGHT)
