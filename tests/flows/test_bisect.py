"""Bisection: the first bad version is found with noise and with versions that do not build; it resumes and ends."""

import dataclasses
import random
import re
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.engine_source import EngineSource, parse_source
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.core.upgrade_result import GainAtConcurrency, Outcome, ProvenSide, UpgradeResult
from moebox.core.verdict import Gain
from moebox.detect import load_box
from moebox.errors import BadInput
from moebox.flows import bisect
from moebox.flows.bisect import Bisection, issue_text, list_candidates
from moebox.flows.upgrade import Judges, UpgradeEffort, parse_judges
from moebox.serve import installs
from moebox.store import Run
from tests.driving import call_main
from tests.embedded import phantom_recipe
from tests.engines.test_toy import Install, installed  # noqa: F401  (a fixture)
from tests.versions import needs_cmake, needs_pip, write_tree, write_wheel


def simulate(first_bad: int, *, count: int, wrong: float, skipped: set[int], seed: int) -> tuple[str, int]:
    """Bisect versions whose judgement is wrong with this probability; the ends are judged rightly."""
    rng = random.Random(seed)
    names = tuple(f"v{number}" for number in range(count))
    found = Bisection(recipe="r", good=names[0], bad=names[-1], judges=Judges(), candidates=names)
    trials = 0
    while version := found.next_version:
        trials += 1
        number = names.index(version)
        is_bad = number >= first_bad
        if 0 < number < count - 1 and rng.random() < wrong:
            is_bad = not is_bad
        mark = "skip" if number in skipped else "bad" if is_bad else "good"
        found = dataclasses.replace(found, marks={**found.marks, version: (*found.marks.get(version, ()), mark)})  # type: ignore[arg-type]
        assert trials < 200
    low, high = found.ends
    assert low < high
    return names[high], trials


def test_every_first_bad_version_is_found() -> None:
    """Without noise, at each of 16 places, in at most nine judgements."""
    for first in range(1, 16):
        found, trials = simulate(first, count=16, wrong=0.0, skipped=set(), seed=0)
        assert found == f"v{first}"
        assert trials <= 9


def test_wrong_judgements_rarely_mislead() -> None:
    """At 5 % wrong judgements, as of a 95 % interval, at least 9 of 10 bisections end at the right version."""
    right = sum(
        simulate(1 + seed % 15, count=16, wrong=0.05, skipped=set(), seed=seed)[0] == f"v{1 + seed % 15}"
        for seed in range(300)
    )
    assert right >= 270


def test_versions_that_cannot_be_tried_are_passed_over() -> None:
    """The first bad one that can be judged is the answer; those before it are suspects."""
    assert simulate(7, count=16, wrong=0.0, skipped={8, 9}, seed=0)[0] == "v7"
    assert simulate(8, count=16, wrong=0.0, skipped={8, 9}, seed=0)[0] == "v10"


@pytest.mark.parametrize(
    ("slow", "asked"), [("decode at 4", ((4,), False)), ("prefill", ((), True))], ids=["decode", "prompts"]
)
def test_only_the_load_at_which_the_bad_end_is_slower_is_measured(
    slow: str, asked: tuple[tuple[int, ...], bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The bad end is measured at every load; what comes after it at the one that showed the loss."""
    loads, efforts = {"decode at 1": (1, "decode"), "decode at 4": (4, "decode"), "prefill": (1, "prefill")}, []

    def judge(
        good: Recipe, new: Recipe, names: tuple[str, str], run: Run, effort: UpgradeEffort, *given: object
    ) -> UpgradeResult:
        efforts.append((effort.compare.concurrency, effort.prompts))
        is_bad = int(new.engine_version) >= 7
        gains = tuple(
            GainAtConcurrency(
                concurrency=streams, a_tok_s=9, b_tok_s=8, a_ttft_ms=1, b_ttft_ms=1, what=what,
                gain=Gain(share=-0.1, low=-0.12, high=-0.08) if is_bad and name == slow else None,
            )
            for name, (streams, what) in loads.items()
        )  # fmt: skip
        outcome: Outcome = "roll back" if is_bad else "no difference"
        sides = {"A": ProvenSide(), "B": ProvenSide()}
        return UpgradeResult(name="ph", old="", new="", outcome=outcome, reasons=(), gains=gains, sides=sides)

    def install(recipe: Recipe, source: EngineSource, **more: object) -> Recipe:
        return dataclasses.replace(recipe, engine_version=source.version)

    monkeypatch.setattr(bisect, "try_upgrade", judge)
    monkeypatch.setattr(bisect, "with_engine", install)
    versions, box = [f"llama.cpp=={number}" for number in range(1, 10)], load_box("8x-h200")
    judges = parse_judges("speed")
    recipe = phantom_recipe(name="ph")
    state = bisect.plan_bisection(recipe, versions, judges, tree="", box=box)
    run, state = bisect.open_journal(state)
    found = bisect.bisect_versions("ph", recipe, run, state, box=box, notify=print)
    assert found.first_bad == "llama.cpp==7"
    assert efforts[0] == ((1, 4), True)
    assert set(efforts[1:]) == {asked}


def test_a_good_end_that_does_not_run_is_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing starts on this machine: that is an error each time, and no version is called the first bad one."""

    def judge(*given: object) -> UpgradeResult:
        reasons = ("does not start: it needs a GPU",)
        return UpgradeResult(name="ph", old="", new="", outcome="roll back", reasons=reasons, sides={})

    monkeypatch.setattr(bisect, "try_upgrade", judge)
    monkeypatch.setattr(bisect, "with_engine", lambda recipe, source, **more: recipe)
    path = tmp_path / "ph.toml"
    path.write_text(codec.to_toml(phantom_recipe(name="ph")))
    words = [
        "upgrade",
        "bisect",
        str(path),
        "llama.cpp==1",
        "llama.cpp==3",
        "--between",
        "llama.cpp==2",
        "--by",
        "alive",
        "--yes",
    ]
    for _ in range(2):
        assert main(words) == 1
        printed = capsys.readouterr()
        assert "llama.cpp==1 could not be judged: does not start: it needs a GPU" in printed.err
        assert "First bad" not in printed.out
    assert main(["upgrade", "bisect", str(path), "llama.cpp==1", "llama.cpp==1"]) == 2
    assert "llama.cpp==1 is both the good and the bad version" in capsys.readouterr().err


@needs_cmake
def test_commits_are_bisected_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Builds of a repository: one does not build, from b3 on concurrent requests break off."""
    faults = ["canned", "no-build", "canned+drop", "canned+drop"]
    tree = tmp_path / "tree"
    write_tree(tree, faults)
    recipe = dataclasses.replace(phantom_recipe(name="ph", max_seqs=4), runtime=Runtime(), listen=Listen(port=0))
    path = tmp_path / "ph.toml"
    path.write_text(codec.to_toml(recipe))
    words = ["upgrade", "bisect", str(path), "llama.cpp@b1", "llama.cpp@b4", "--source", str(tree), "--by", "soak"]
    assert call_main(*words, stdin="n\n").code == 1
    asked = call_main(*words)
    assert (asked.code, "install up to 4 of 4 versions of llama.cpp, about 1.0 GB each" in asked.err) == (2, True)
    assert "`--yes` confirms in advance" in asked.err
    assert installs.list_installs() == []
    assert main([*words, "--yes"]) == 0
    text = capsys.readouterr().out
    assert "server: change 3" in text
    assert "under load" in text
    assert "CMake Error" in text
    assert {each.name for each in installs.list_installs()} == {"llama.cpp@b1", "llama.cpp@b4"}


@needs_cmake
def test_a_bad_end_that_is_good_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1: nothing lies between two good versions."""
    write_tree(tmp_path / "tree", ["canned", "canned"])
    path = tmp_path / "ph.toml"
    path.write_text(codec.to_toml(dataclasses.replace(phantom_recipe(name="ph", max_seqs=4), runtime=Runtime())))
    words = ["llama.cpp@b1", "llama.cpp@b2", "--source", str(tmp_path / "tree"), "--by", "alive"]
    assert main(["upgrade", "bisect", str(path), *words, "--yes"]) == 1
    assert "llama.cpp@b2 is as good as llama.cpp@b1" in capsys.readouterr().err
    assert main(["runs"]) == 0
    assert "failed in upgrade" in capsys.readouterr().out
    assert main(["runs", "show"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "upgrade failed: llama.cpp@b2 is as good as llama.cpp@b1" in shown
    assert f"next moebox upgrade bisect {path} llama.cpp@b1" in shown


def test_nothing_is_installed_where_the_engine_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions of vLLM take gigabytes, and a machine without a GPU could judge none of them."""
    if load_box().gpus:
        pytest.skip("this machine has a GPU")
    assert main(["upgrade", "bisect", "kimi-k26-vllm", "vllm==0.28.0", "vllm==0.32.0", "--yes"]) == 3
    assert capsys.readouterr().err.startswith("error: vLLM needs a GPU; nothing is installed\n")


@needs_pip
def test_releases_come_from_the_package_index(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: Install,  # noqa: F811
) -> None:
    """Between two versions, in the order of their numbers."""
    installed(toy="toy_engine")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    for version in ("1.0", "1.2", "1.10", "1.9", "2.0", "2.1"):
        write_wheel(tmp_path / "wheels", version)
    found = list_candidates(parse_source("toy==1.2"), parse_source("toy==2.0"), (), "")
    assert found == ["toy==1.2", "toy==1.9", "toy==1.10", "toy==2.0"]
    with pytest.raises(BadInput, match=re.escape("toy==1.2 is not newer than toy==2.0")):
        list_candidates(parse_source("toy==2.0"), parse_source("toy==1.2"), (), "")


def test_the_text_for_an_issue_names_everything() -> None:
    """The first bad version, what is wrong, what could not be tried, and the changes."""
    state = Bisection(
        recipe="r",
        good="vllm==1",
        bad="vllm==4",
        judges=Judges(),
        candidates=("vllm==1", "vllm==2", "vllm==3", "vllm==4"),
        marks={"vllm==3": ("bad", "bad"), "vllm==2": ("skip",)},
        reasons={"vllm==3": "decode at 4 -15.0%", "vllm==2": "was not installed"},
        first_bad="vllm==3",
        suspects=("vllm==2", "vllm==3"),
        changes=("vllm==2", "vllm==3"),
    )
    text = issue_text(state)
    assert text.startswith("First bad version: vllm==3")
    assert "What is wrong: decode at 4 -15.0%" in text
    assert "could not be tried: vllm==2" in text
