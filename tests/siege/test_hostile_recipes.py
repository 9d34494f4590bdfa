"""2,000 hostile recipes over all engines and forms: no command of theirs runs, and each file is read back as meant."""

import dataclasses
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.core.setting import with_settings
from moebox.engines.assemble import container_network
from moebox.errors import BadInput
from moebox.render import LAUNCH_FORMATS, LaunchFormat, render
from moebox.serve.order import prepare_launch
from tests import shellcheck
from tests.serve.rendered import recipes
from tests.siege import readback, slurm
from tests.siege.hostile import FREE, many

FEW = 60
ALL = 2000
PIECE = 100  # of them in one test: each tells of itself, and a piece can be run alone


def expected(recipe: Recipe, form: LaunchFormat) -> list[str]:
    """What the engine is to be given, whatever stands around it."""
    kinds = {"docker": "docker", "podman": "podman", "compose": "docker", "k8s": "docker"}
    runtime: Any = dataclasses.replace(recipe.runtime, kind=kinds.get(form, recipe.runtime.kind))
    host = "0.0.0.0" if form in ("k8s", "slurm") else recipe.listen.host
    recipe = dataclasses.replace(recipe, runtime=runtime, listen=dataclasses.replace(recipe.listen, host=host))
    inside = engines.runs_in_container(recipe)
    bind = "0.0.0.0" if inside and container_network(recipe) != "host" else recipe.listen.host
    return [part for word in engines.load_engine(recipe.engine).arguments(deploy(recipe), host=bind) for part in word]


def plain(words: list[str]) -> list[str]:
    """Words in any order; JSON by what it says, since a script builds it around a variable."""
    return sorted(json.dumps(json.loads(word)) if word.startswith("{") and _is_json(word) else word for word in words)


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except ValueError:
        return False
    return True


class Siege:
    """Renders, runs and reads back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = folder / "canary"
        self.canary.mkdir()
        self.env = readback.stand_ins(folder / "bin")
        self.counts: Counter[str] = Counter()
        self.units: list[Path] = []
        self.scripts: list[Path] = []
        self.jobs: list[Path] = []

    def attack(self, seed: int, recipe: Recipe) -> None:
        """One recipe in every form."""
        for form in LAUNCH_FORMATS:
            try:
                text = render(deploy(recipe), form)
            except BadInput as problem:
                assert "\n" not in problem.message, problem.message
                self.counts["refused"] += 1
                continue
            self.counts[form] += 1
            seen = self.read(text, form, f"{seed}-{form}")
            if not seen:  # the recipe names a program that is not here, or a key that is not set
                assert recipe.runtime.entry or recipe.runtime.python or recipe.listen.key_env not in ("", "MY_KEY"), (
                    seed
                )
            elif recipe.parallel.nodes == 1 and not recipe.runtime.setup:
                wanted = expected(recipe, form)
                seen = seen[:-2] if seen[-2:-1] == ["--api-key-file"] else seen  # how the key gets there by a pipe
                assert plain(seen[-len(wanted) :]) == plain(wanted), (seed, form)
            assert not os.listdir(self.canary), (seed, form, "a command of the recipe ran")

    def read(self, text: str, form: LaunchFormat, name: str) -> list[str]:
        """The words that would be started."""
        if form == "compose":
            return readback.compose(text)
        if form == "k8s":
            return readback.kubernetes(text)
        if form == "systemd":
            self.units.append(self.folder / f"u{name}.service")
            self.units[-1].write_text(text)
            return readback.unit(text)
        self.scripts.append(self.folder / f"s{name}.sh")
        self.scripts[-1].write_text(text)
        if form == "slurm":
            self.jobs.append(self.scripts[-1])
        calls = readback.run_script(text, self.folder, self.env)
        known = (*readback.PROGRAMS, "python3")
        assert all(call[0] in known for call in calls), calls
        return calls[-1] if calls else []


def attack(count: int, folder: Path, *, start: int = 0) -> Siege:
    """`count` of them."""
    siege = Siege(folder)
    for seed, recipe in many(count, siege.canary, start=start):
        if isinstance(recipe, Recipe):
            siege.attack(seed, recipe)
        else:
            siege.counts["refused by type"] += 1
    return siege


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Siege:
    """One for many examples."""
    return Siege(tmp_path_factory.mktemp("siege"))


@settings(max_examples=8)
@given(
    text=st.text(min_size=1, max_size=40),
    base=st.sampled_from(sorted(recipes())),
    where=st.sampled_from(["served_name", "model", "env.X", "flags"]),
)
def test_any_text_is_refused_or_read_back(siege: Siege, text: str, base: str, where: str):
    """Whatever a model is called, each target's own parser reads the same text again."""
    recipe = recipes()[base]
    siege.attack(0, with_settings(recipe, {f"flags.{FREE[recipe.engine]}" if where == "flags" else where: text}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": {"$(touch x)": "1"}}, "not a valid name of a variable"),
        ({"listen.host": "$(touch x)"}, "not a valid address"),
        ({"runtime.entry": "vllm serve \\"}, "cannot be split"),
        ({"runtime.entry": "sh -c 'touch x'"}, "would run program text"),
        ({"runtime.entry": "python3 -c pass"}, "would run program text"),
        ({"runtime.kind": "docker", "runtime.setup": "pip install x; touch y"}, "not allowed"),
        ({"runtime.kind": "docker", "runtime.setup": "curl example.org"}, "not an installer"),
        ({"runtime.kind": "docker", "runtime.image": "-v/:/host"}, "not a valid image"),
        ({"runtime.kind": "docker", "runtime.mounts": {"/": "/host"}}, "more than weights"),
        ({"runtime.kind": "docker", "runtime.mounts": {"/var/run/docker.sock": "/s"}}, "system folder"),
        ({"runtime.kind": "docker", "runtime.mounts": {"~/.ssh": "/s"}}, "more than weights"),
        ({"runtime.kind": "docker", "runtime.options": ["--privileged"]}, "not allowed in a recipe"),
        ({"runtime.kind": "docker", "runtime.options": ["evil/image"]}, "not allowed in a recipe"),
        ({"runtime.kind": "docker", "checkpoint": "/root/.ssh"}, "more than weights"),
        ({"runtime.kind": "docker", "checkpoint": "../../etc"}, "needs the whole path"),
        ({"env": {"BASH_ENV": "$(touch x)"}}, "decides which programs run"),
        ({"env": {"X": "hf_abcdefghijklmnop"}}, "looks like a key"),
        ({"served_name": "a\u2028services: {}"}, "control character"),
        ({"hybrid": {"ranges": ["x\nExecStartPre=/bin/true"]}, "engine": "ik_llama.cpp"}, "control character"),
    ],
)
def test_what_a_recipe_may_not_say_is_one_line(changes: dict[str, Any], said: str):
    """Refused wherever it is used, with the field's name."""
    recipe = with_settings(recipes()["kimi-k26-vllm"], changes)
    for form in LAUNCH_FORMATS:
        with pytest.raises(BadInput, match=said) as problem:
            render(deploy(recipe), form)
        assert "\n" not in problem.value.message
    with pytest.raises(BadInput, match=said):
        prepare_launch(deploy(recipe))


def test_hostile_recipes_run_nothing_and_parse(tmp_path: Path):
    """A few of those that `make test-siege` goes through."""
    siege = attack(FEW, tmp_path)

    assert siege.counts["script"] > 5
    assert siege.counts["refused"] > 5


@pytest.mark.siege
@pytest.mark.parametrize("start", range(0, ALL, PIECE))
def test_two_thousand_hostile_recipes(start: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """All of them, and what systemd, Slurm and shellcheck say of the files."""
    siege = attack(PIECE, tmp_path, start=start)
    verify(siege.units)
    if slurm.installed():
        with slurm.controller(tmp_path / "slurm") as env:
            assert not [refused for job in siege.jobs if (refused := slurm.refusal(job, env))]
    assert not shellcheck.complaints(*siege.scripts, severity="error")[:3000]
    with capsys.disabled():
        print(f"\n{start}-{start + PIECE - 1}: {dict(siege.counts)}; 0 commands run, 0 files that do not parse", end="")


def verify(units: list[Path]) -> None:
    """systemd's own opinion, where it is installed; programs that are not here are no fault of a file."""
    if shutil.which("systemd-analyze") is None:
        return
    for start in range(0, len(units), 100):
        some = units[start : start + 100]
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *some], capture_output=True, text=True, check=False
        )
        said = [line for line in done.stderr.splitlines() if any(unit.name in line for unit in some)]
        complaints = [line for line in said if "docker.service" not in line and "is not executable" not in line]
        assert not complaints, complaints[:5]
