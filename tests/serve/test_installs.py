"""Versions of engines: installed beside each other, used by recipes that name them, removed; faults are one line."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moebox import codec, files
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.box import Box, Cpu
from moebox.core.engine_source import parse_source
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.engines.engine import load_engine
from moebox.errors import BadInput
from moebox.serve import installs
from moebox.serve.install import install_engine
from moebox.serve.order import prepare_launch
from moebox.serve.session import engine_session
from moebox.store import Run
from tests.embedded import phantom_recipe
from tests.engines.test_toy import Install, installed  # noqa: F401  (a fixture)
from tests.versions import needs_cmake, needs_pip, run_git, write_tree, write_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Install) -> Path:  # noqa: F811
    """A folder of wheels as the only package index; the toy is a known engine."""
    installed(toy="toy_engine")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    write_wheel(tmp_path / "wheels", "1.0")
    write_wheel(tmp_path / "wheels", "1.1")
    write_wheel(tmp_path / "wheels", "2.0", needs="not-a-package-at-all")
    return tmp_path / "wheels"


def toy_recipe(version: str) -> Recipe:
    """A recipe of the toy that names a version."""
    return Recipe(
        name="toy",
        engine="toy",
        engine_version=version,
        model="kimi-k2.6",
        checkpoint="moonshotai/Kimi-K2.6",
        served_name="toy",
        listen=Listen(port=0),
    )


@needs_pip
def test_a_recipe_runs_on_the_version_that_it_names(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two versions lie beside each other; each recipe starts its own, and both are listed until they are removed."""
    assert main(["engines", "install", "toy==1.0"]) == 0
    assert main(["engines", "install", "toy==1.1"]) == 0
    for version in ("1.0", "1.1"):
        argv = prepare_launch(deploy(toy_recipe(version))).argv
        assert argv[0] == str(installs.engines_dir() / f"toy-{version}" / "bin" / "toy-serve")
    newest = prepare_launch(deploy(toy_recipe(""))).argv[0]  # named by no recipe, and not on PATH
    assert newest == str(installs.engines_dir() / "toy-1.1" / "bin" / "toy-serve")
    with engine_session(deploy(toy_recipe("1.1")), Run.create("toy"), patience_s=60) as session:
        assert session.is_alive
        capsys.readouterr()
        assert main(["engines", "remove", "toy==1.1"]) == 3
        assert f"is used by {session.run.id}" in capsys.readouterr().err
        main(["engines", "--json"])
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["engines"]}
        assert rows["toy==1.1"]["used_by"] == [session.run.id]
        assert rows["toy==1.0"]["used_by"] == []
    assert main(["engines", "remove", "toy==1.1"]) == 0
    assert [each.name for each in installs.list_installs()] == ["toy==1.0"]
    assert sorted(path.name for path in installs.engines_dir().iterdir() if path.is_dir()) == ["toy-1.0"]


def test_a_package_and_a_build_are_not_confused(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe without a version runs on what was installed last; a name without a version removes nothing."""
    builds = {"1.0": "", "1.1": "abc1234"}  # version to commit
    for when, (version, commit) in enumerate(builds.items()):
        folder = installs.install_folder("toy", version)
        kind = "build" if commit else "package"
        row = installs.InstalledEngine(
            engine="toy", version=version, kind=kind, commit=commit, path=str(folder), installed=float(when)
        )
        files.write_atomic(folder / installs.RECORD, codec.to_json(row))

    assert prepare_launch(deploy(toy_recipe(""))).argv[0] == str(
        installs.install_folder("toy", "1.1") / "bin" / "toy-serve"
    )
    for name in ("", "toy@"):
        assert main(["engines", "remove", name]) == 2
    assert "unknown installed engine 'toy@'" in capsys.readouterr().err
    assert main(["engines", "remove", "toy@abc1234"]) == 0
    assert [each.name for each in installs.list_installs()] == ["toy==1.0"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["toy==9.9"], 3, "toy==9.9 was not installed: ERROR: Could not find a version"),
        (["toy==main"], 2, "a package has a number"),
        (
            ["toy==2.0"],
            3,
            "toy==2.0 was not installed: ",
        ),
        (["toyy==1.0"], 2, "unknown engine 'toyy'"),
        (["toy==1.0; rm"], 2, "is not a version"),
        (["nothing"], 2, "'nothing' is not an engine version"),
        (["llama.cpp==b1"], 2, "llama.cpp is not a Python package"),
        (["llama.cpp@b1"], 2, "llama.cpp@b1: which source tree?"),
        (["llama.cpp@b1", "--source", "/nowhere"], 2, "/nowhere: not a source tree"),
        (["toy@1", "--source", "/tmp"], 2, "moebox cannot build toy"),
        ([], 2, "which version?"),
    ],
)
def test_what_cannot_be_installed_is_one_line(
    index: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    """Nothing of it stays: no folder that could be used or fills the disk."""
    assert main(["engines", "install", *words]) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not installs.list_installs()
    assert not [path for path in installs.engines_dir().glob("*") if path.is_dir()]


@needs_pip
def test_a_disk_that_is_too_small_is_refused_first(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The size of an installed version of the same engine is the measure; nothing is begun."""
    main(["engines", "install", "toy==1.0"])
    record = installs.engines_dir() / "toy-1.0" / installs.RECORD
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, "bytes": 2**60}))
    assert main(["engines", "install", "toy==1.1"]) == 3
    assert "toy==1.1 needs about" in capsys.readouterr().err


def build_processes(tree: Path) -> list[int]:
    """Return the processes of a build under way in a tree whose configuration sleeps."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith((b"cmake", b"sleep")) and (b"600.25" in words or str(tree).encode() in words):
            found.append(int(entry.name))
    return found


@needs_cmake
def test_a_killed_installation_is_never_used_and_is_removed(index: Path, tmp_path: Path) -> None:
    """Killed in the middle, it leaves a part folder; the next command removes it once its cmake is gone as well.

    SIGTERM ends cmake too and leaves no part folder.
    """
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "CMakeLists.txt").write_text("execute_process(COMMAND sleep 600.25)\n")
    argv = [sys.executable, "-m", "moebox", "engines", "install", "llama.cpp@b1", "--source", str(tree)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        child = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
        while len(build_processes(tree)) < 2:
            time.sleep(0.02)
            assert child.poll() is None
        child.send_signal(number)
        child.wait()
        if number == signal.SIGTERM:
            assert not build_processes(tree)
            assert not list(installs.engines_dir().glob(f"{installs.PART}*"))
    assert installs.remove_stale_parts(idle_s=0) == 0  # its cmake lives on, and writes into the folder
    for process in build_processes(tree):
        os.kill(process, signal.SIGKILL)
    until = time.monotonic() + 20
    while list(installs.engines_dir().glob(".*")) and time.monotonic() < until:
        installs.remove_stale_parts(idle_s=0)
        time.sleep(0.02)
    assert not list(installs.engines_dir().glob(".*"))
    assert not installs.list_installs()


@needs_cmake
def test_a_build_of_a_commit_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """cmake builds the server of a commit; a recipe with that engine_version starts it. One that fails is one line."""
    tree = tmp_path / "tree"
    write_tree(tree, ["", "no-build"])
    assert main(["engines", "install", "llama.cpp@b1", "--source", str(tree)]) == 0
    assert main(["engines", "install", "llama.cpp@b2", "--source", str(tree)]) == 3
    assert "CMakeLists.txt:3 (message): this commit does not build" in capsys.readouterr().err
    assert main(["engines", "install", "llama.cpp@b3", "--source", str(tree)]) == 2
    assert "has no commit, tag or branch b3" in capsys.readouterr().err
    assert main(["engines", "install", "llama.cpp@b1"]) == 0
    assert "to build it anew: `moebox engines remove llama.cpp@b1`" in " ".join(capsys.readouterr().err.split())
    recipe = dataclasses.replace(phantom_recipe(engine_version="b1"), runtime=Runtime())
    with engine_session(deploy(recipe), Run.create("built"), patience_s=60) as session:
        assert session.prepared.argv[0].endswith("/engines/llama.cpp-b1/bin/llama-server")
        assert session.is_alive


def test_builds_for_amx_keep_the_tile_configuration() -> None:
    """GCC before 13.3 drops stores that AMX intrinsics read, and llama.cpp then ends in an illegal instruction."""
    for features in ((), ("avx2", "amx_tile")):
        box = Box(name="x", cpu=Cpu(features=features))
        (configure, *_) = load_engine("llama.cpp").build_commands("/src", "/out", box, 2)
        assert any("-fno-dse" in word for word in configure) == bool(features)


@needs_cmake
def test_the_next_build_compiles_only_what_differs(tmp_path: Path) -> None:
    """Objects stay as long as a build of the tree is installed; one that was killed may have left half a file."""
    tree, compiled = tmp_path / "tree", tmp_path / "compiled"
    tree.mkdir()
    run_git(tree, "init", "--quiet", "--initial-branch", "main")
    rule = """add_custom_command(OUTPUT {0}.o DEPENDS ${{CMAKE_SOURCE_DIR}}/{0} COMMAND echo {0} >> {1}
        COMMAND ${{CMAKE_COMMAND}} -E copy ${{CMAKE_SOURCE_DIR}}/{0} {0}.o)"""
    rules = [rule.format(name, compiled) for name in ("engine", "server")]
    link = "add_custom_target(llama-server DEPENDS engine.o server.o COMMAND cat engine.o server.o > bin/llama-server)"
    lines = [
        "cmake_minimum_required(VERSION 3.16)",
        "project(llama NONE)",
        "file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/bin)",
    ]
    (tree / "CMakeLists.txt").write_text("\n".join([*lines, *rules, link]))
    for number in (1, 2, 3):
        (tree / "engine").write_text("engine")
        (tree / "server").write_text(f"server {number}")
        run_git(tree, "add", "--all")
        run_git(tree, "commit", "--quiet", "--message", f"change {number}")
        run_git(tree, "tag", f"b{number}")
    built = []
    for name in ("llama.cpp@b1", "llama.cpp@b2", "llama.cpp@HEAD", "llama.cpp@b3"):
        if name.endswith("b3"):
            (work,) = installs.engines_dir().glob(f"{installs.BUILD}*")
            (work / installs.LOCK).write_text("under way")
        found = install_engine(parse_source(name), tree=str(tree))
        built.append(((Path(found.path) / "bin" / "llama-server").read_text(), sorted(compiled.read_text().split())))
        compiled.write_text("")
    assert built == [
        ("engineserver 1", ["engine", "server"]),
        ("engineserver 2", ["server"]),
        ("engineserver 3", ["server"]),
        ("engineserver 3", ["engine", "server"]),
    ]
    for name in ("b1", "b2", "HEAD", "b3"):
        assert list(installs.engines_dir().glob(f"{installs.BUILD}*"))
        installs.remove_install(f"llama.cpp@{name}")
    assert not [path for path in installs.engines_dir().iterdir() if path.is_dir()]


def test_names_of_versions() -> None:
    """Packages, builds and images differ; the tag of a known image is its version."""
    assert str(parse_source("vllm==0.32.0")) == "vllm==0.32.0"
    assert parse_source("llama.cpp@b11669").kind == "build"
    image = parse_source("vllm/vllm-openai:v0.32.0")
    assert (image.engine, image.version, image.kind) == ("vllm", "0.32.0", "image")
    own = parse_source("vllm==0.32.0", image="registry.example.org/own:7")
    assert (own.engine, own.version, own.image) == ("vllm", "0.32.0", "registry.example.org/own:7")
    with pytest.raises(BadInput, match="no engine publishes"):
        parse_source("example.org/else:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [("packages = 3", "packages must be a table"), ("[packages]\nmirror = 'x'", "unknown setting 'packages.mirror'")],
)
def test_a_wrong_site_file_is_one_line(
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    """The line names the file and the setting."""
    site = tmp_path / "moebox.toml"
    site.write_text(text)
    monkeypatch.setenv("MOEBOX_SITE", str(site))
    assert main(["engines", "install", "toy==1.0"]) == 2
    assert message in capsys.readouterr().err
