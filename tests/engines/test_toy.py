"""An engine from another package: found by its entry point, planned, rendered, launched; a broken one is one line."""

import dataclasses
import json
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moebox import engines
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core import catalogue, registry
from moebox.core.box import Box
from moebox.core.recipe import Recipe, Runtime
from moebox.engines import flags
from moebox.engines.engine import load_engine
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.render import render
from moebox.serve.session import engine_session
from moebox.store import Run
from tests.sampling import one_in

TOY = Path(__file__).parents[1] / "toy_engine"
BOX = Box(name="8x-b200", gpus=(catalogue.find_gpu("b200"),) * 8)
Install = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions whose entry points name engines; undone afterwards."""
    clear_caches()

    def install(**points: str) -> None:
        for number, (name, package) in enumerate(points.items()):
            folder = tmp_path / f"dist{number}-1.0.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist{number}\nVersion: 1.0\n")
            (folder / "entry_points.txt").write_text(f"[moebox.engines]\n{name} = {package}\n")
        monkeypatch.syspath_prepend(str(TOY))
        monkeypatch.syspath_prepend(str(tmp_path))
        clear_caches()

    yield install
    monkeypatch.undo()
    clear_caches()
    for name in [name for name in sys.modules if name.startswith(("toy_engine", "second_toy"))]:
        del sys.modules[name]


def clear_caches() -> None:
    """Clear the caches of engines."""
    registry.load_registry.cache_clear()
    for cached in (flags.flag_catalogue, flags._catalogue_files, load_engine):
        cached.cache_clear()


def planned() -> Recipe:
    """Return the planner's recipe for the toy."""
    model = catalogue.find_model("kimi-k2.6")
    return choose_plan(BOX, model, catalogue.published_checkpoints(model.name), Constraints(engine="toy")).recipe


def test_it_is_found_planned_and_rendered(installed: Install) -> None:
    """No module of moebox has its name; its flags come from its own table."""
    installed(toy="toy_engine")
    recipe = planned()
    deployment = deploy(recipe, BOX)

    assert registry.engine_names()[-1] == "toy"
    assert recipe.engine == "toy"
    assert recipe.parallel.tp > 1
    assert engines.memory_budget(deployment).fits
    argv = engines.build_launch(deployment).argv
    assert argv[:3] == ("toy-serve", "--model", "moonshotai/Kimi-K2.6")
    assert argv[argv.index("--split") + 1] == str(recipe.parallel.tp)
    script = render(deployment, "script")
    assert 'toy-serve "${args[@]}"' in script
    assert "--split 8" in script
    assert "toys/engine:1.0" in render(deployment, "docker")


def test_nothing_is_stated_about_its_models(installed: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """Which architectures an engine of another package has is not in the tables: a plan says that it is not known."""
    installed(toy="toy_engine")
    assert main(["plan", "kimi-k2.6", "--box", "8x-b200", "--engine", "toy", "--json"]) == 0
    (line,) = [text for text in json.loads(capsys.readouterr().out)["reasons"] if text.startswith("support: ")]
    assert line == "support: Toy 1.0 on NVIDIA B200 SXM: not known"


@pytest.mark.parametrize("model", one_in(2, ["kimi-k2.6", "qwen3-235b", "gpt-oss-120b", "deepseek-v3.2"]))
@pytest.mark.parametrize("box", one_in(2, ["8x-b200", "4x-b300", "6x-h200", "8x-rtx-pro-6000-server", "2-nodes"]))
def test_every_plan_for_it_is_accepted_by_up(
    installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, box: str
) -> None:
    """Plans divide the model only as its traits allow (tensor parallelism); what cannot fit says so."""
    installed(toy="toy_engine")
    nodes = tmp_path / "nodes.toml"
    nodes.write_text('name = "two"\nnodes = 2\ngpus = ["h200", "h200", "h200", "h200"]\n')
    recipe = tmp_path / "toy.toml"
    place = str(nodes) if box == "2-nodes" else box
    code = main(["plan", model, "--engine", "toy", "--box", place, "-o", str(recipe)])
    printed = capsys.readouterr()

    if code == 1:
        assert "does not fit" in printed.err
        return
    assert code == 0, printed.err
    parallel = tomllib.loads(recipe.read_text())["parallel"]
    assert [name for name, size in parallel.items() if size > 1] in ([], ["tp"])
    assert main(["up", str(recipe), "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("flag", "size"), [("--pp", "2"), ("--ep", "8"), ("--dp", "2"), ("--dcp", "2")])
def test_a_constraint_that_it_cannot_meet_is_one_line(
    installed: Install, capsys: pytest.CaptureFixture[str], flag: str, size: str
) -> None:
    """The line names the flag and the engine."""
    installed(toy="toy_engine")
    assert main(["plan", "kimi-k2.6", "--engine", "toy", "--box", "8x-b200", flag, size]) == 2
    assert f"error: {flag} {size}: Toy does not" in capsys.readouterr().err


def test_it_is_launched_and_answers(installed: Install, tmp_path: Path) -> None:
    """Its process is started, its health checked, its log read by the default patterns, and both its ports are free."""
    installed(toy="toy_engine")
    entry = shlex.join([sys.executable, str(TOY / "toy_engine" / "server.py")])
    recipe = dataclasses.replace(planned(), runtime=Runtime(entry=entry), max_seqs=8)
    recipe = dataclasses.replace(recipe, listen=dataclasses.replace(recipe.listen, port=0))
    with engine_session(deploy(recipe), Run.create("toy", runs=tmp_path / "runs"), patience_s=30) as session:
        assert session.is_alive
        assert session.watch.summary.ready


def test_without_it_recipes_that_name_it_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The name is looked up among engines that are there."""
    file = tmp_path / "r.toml"
    file.write_text('name = "x"\nengine = "toy"\nmodel = "kimi-k2.6"\ncheckpoint = "int4"\nserved_name = "x"\n')
    assert main(["up", str(file), "--dry-run"]) == 2
    assert "unknown engine 'toy'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("import nowhere_at_all\n", "ModuleNotFoundError"),
        ("TRAITS = 1 / 0\n", "ZeroDivisionError"),
        ("def (\n", "SyntaxError"),
        ("TRAITS = {}\n", "is not a Traits"),
        ("raise SystemExit(3)\n", "SystemExit"),
    ],
)
def test_a_broken_engine_is_one_warning_and_stops_nothing(
    installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, warning: str
) -> None:
    """Every command continues, with one warning line."""
    package = tmp_path / "second_toy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "traits.py").write_text(text)
    installed(second="second_toy")

    assert main(["plan", "kimi-k2.6", "--box", "8x-b200", "--json"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "second_toy" in warnings[0]
    assert warning in warnings[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no attribute 'ENGINE'"),
        ("ENGINE = 1\n", "its ENGINE has no traits, fields, "),
        ("from moebox.engines.engine import Engine\nclass Toy(Engine): pass\nENGINE = Toy()\n", "memory_budget"),
        ("from toy_engine.engine import ToyEngine\nclass Toy(ToyEngine): fields = 1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_an_engine_that_lacks_something_required_is_one_line(
    installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    """The line names the package and what is missing."""
    package = tmp_path / "second_toy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "traits.py").write_text(
        "from dataclasses import replace\nfrom toy_engine.traits import TRAITS as TOY\n"
        "TRAITS = replace(TOY, name='second')\n"
    )
    (package / "engine.py").write_text(text)
    installed(second="second_toy")

    assert main(["plan", "kimi-k2.6", "--box", "8x-b200", "--engine", "second"]) == 2
    error = capsys.readouterr().err
    assert "engine 'second' of second_toy cannot be used" in error
    assert problem in error
    assert "docs/engines.md" in error


def test_doctor_accepts_a_complete_package(installed: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """Required parts are present, optional ones are named, and one example is checked."""
    installed(toy="toy_engine")
    assert main(["doctor", "engine", "toy", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    present = ("traits", "fields", "arguments", "entry_command", "memory_budget", "variables", "flags", "example")
    assert {checks[name]["verdict"] for name in present} == {"pass"}
    assert checks["draft_arguments"]["verdict"] == "note"
    assert checks["draft_arguments"]["found"] == "optional, left at its default"


@pytest.mark.parametrize(
    ("traits", "engine", "failed", "found"),
    [
        ("import nowhere_at_all\n", "", "traits.py", "ModuleNotFoundError"),
        ("", "", "engine.py", "has no attribute 'ENGINE'"),
        (
            "",
            "from moebox.engines.engine import Engine\nclass E(Engine): pass\nENGINE = E()\n",
            "engine.py",
            "arguments",
        ),
        ("", "ENGINE = 1\n", "memory_budget", "missing"),
        ("", "from toy_engine.engine import ENGINE\n", "flags", "no table of flags"),
    ],
)
def test_doctor_names_what_a_package_lacks(
    installed: Install,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    traits: str,
    engine: str,
    failed: str,
    found: str,
) -> None:
    """Exit code 1, and a line for each missing part."""
    package = tmp_path / "second_toy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    own = "from dataclasses import replace\nfrom toy_engine.traits import TRAITS as TOY\n"
    (package / "traits.py").write_text(traits or f"{own}TRAITS = replace(TOY, name='second')\n")
    (package / "engine.py").write_text(engine)
    installed(second="second_toy")
    assert main(["doctor", "engine", "second", "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks[failed]["verdict"] == "fail"
    assert found in checks[failed]["found"]


def test_doctor_reports_a_method_that_fails(
    installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example names the method and its error in one line."""
    package = tmp_path / "second_toy"
    shutil.copytree(TOY / "toy_engine", package)
    text = (package / "engine.py").read_text().replace("tp = recipe.parallel.tp", "tp = 1 // 0")
    (package / "engine.py").write_text(text.replace("toy_engine.traits", "second_toy.traits"))
    installed(toy="second_toy")
    assert main(["doctor", "engine", "toy"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "memory_budget failed for" in shown
    assert "ZeroDivisionError" in shown


def test_doctor_refuses_an_unknown_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the known names, exit code 2."""
    assert main(["doctor", "engine", "nope"]) == 2
    assert "unknown engine 'nope'" in capsys.readouterr().err


def test_of_two_engines_with_one_name_the_first_is_kept(
    installed: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """moebox's own stay; the other is one line."""
    package = tmp_path / "second_toy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    kept = registry.engine_names()[0]
    (package / "traits.py").write_text(
        "from dataclasses import replace\nfrom toy_engine.traits import TRAITS as TOY\n"
        f"TRAITS = replace(TOY, name={kept!r})\n"
    )
    installed(second="second_toy")

    assert main(["plan", "kimi-k2.6", "--box", "8x-b200", "--json"]) == 0
    assert registry.find_engine(kept).package.startswith("moebox.")
    assert f"engine {kept!r} of second_toy is left out" in capsys.readouterr().err
