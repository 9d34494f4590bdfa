"""Upgrades: what is worse is refused and what is equal passes; the old endpoint is what runs, whatever is killed."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.core.upgrade_result import GainAtConcurrency
from moebox.core.verdict import Gain
from moebox.errors import ExternalError
from moebox.flows import compare, switch, upgrade
from moebox.flows.compare import CompareEffort
from moebox.flows.pace import SpeedMeter, SpeedRounds
from moebox.flows.service import control_unit, install_unit
from moebox.flows.upgrade import (
    Judges,
    ProvenSide,
    UpgradeEffort,
    UpgradeResult,
    decide_upgrade,
    parse_judges,
    regressions,
    speed_text,
    try_upgrade,
    upgrade_recipe,
)
from moebox.quality import measure
from moebox.runs.listing import HistoryRow, mark_regressions
from moebox.serve import preflight, state
from moebox.serve.stop import stop_instance
from moebox.store import Run
from tests.embedded import phantom_recipe
from tests.quality.toy_server import few_texts
from tests.sampling import one_in
from tests.versions import needs_cmake, write_tree

pytestmark = needs_cmake
FAULTS = ["scores:0", "scores:0", "slow:0.5", "parser", "drop", "no-start", "scores:0.6"]  # b1 to b7
QUICK = UpgradeEffort(
    trials=2,
    soak_requests=8,
    soak_concurrency=4,
    compare=CompareEffort(concurrency=(2,), questions=10, rounds=3, prompt_words=8),
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe on build b1 of a repository whose later builds have faults; nothing of it runs afterwards."""
    write_tree(tmp_path / "tree", ["+".join(filter(None, ("canned", fault))) for fault in FAULTS])
    assert main(["engines", "install", "llama.cpp@b1", "--source", str(tmp_path / "tree")]) == 0
    port = preflight.find_free_port()
    made = dataclasses.replace(
        phantom_recipe(name="ph", engine_version="b1", max_seqs=4), runtime=Runtime(), listen=Listen(port=port)
    )
    path = tmp_path / "ph.toml"
    path.write_text(f"# mine\n{codec.to_toml(made)}")
    yield path
    for instance in state.list_instances():
        stop_instance(instance)


def stated_speeds(a: SpeedMeter, b: SpeedMeter, *, rounds: int) -> tuple[SpeedRounds, ...]:
    """The servers' own word for their speed, with a little scatter: a busy machine would hide what a clock sees."""
    found = []
    for meter in (a, b):
        meter.run_round(keep=False)
        with urllib.request.urlopen(f"{meter.endpoint.base_url}/models", timeout=20) as reply:
            rate = meter.concurrency / json.load(reply)["pace"]
        rates = tuple(rate * (0.99, 1.01)[number % 2] for number in range(rounds))
        found.append(dataclasses.replace(meter.speed_rounds(), tok_s=rates, ttft_ms=(20.0,) * rounds))
    return tuple(found)


def read_version(path: Path) -> str:
    return codec.read_toml(Recipe, path).engine_version


def serving(path: Path) -> str:
    """The version whose program answers at the recipe's port, or ""."""
    port = codec.read_toml(Recipe, path).listen.port
    found = [instance for instance in switch.live_instances("ph") if instance.port == port and instance.ready]
    if not found:
        return ""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=20) as reply:
        assert reply.status == 200
    return codec.read_toml(Recipe, Path(found[0].run) / "recipe.toml").engine_version


@pytest.mark.parametrize(
    ("build", "outcomes", "reason"),
    [
        pytest.param("b2", ("no difference",), "", marks=pytest.mark.siege),
        ("b3", ("roll back",), "decode at 2 -"),
        ("b4", ("roll back",), "valid tool calls: lost 2 of 2"),
        pytest.param("b5", ("roll back",), "under load, ", marks=pytest.mark.siege),
        pytest.param("b6", ("roll back",), "ended with code 1 while starting", marks=pytest.mark.siege),
    ],
)
def test_a_worse_version_is_refused_with_its_reason(
    recipe: Path,
    tmp_path: Path,
    build: str,
    outcomes: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slower, with a broken parser, dying at the second request, or not starting; an equal one is not refused."""
    monkeypatch.setattr(compare, "measure_in_turn", stated_speeds)
    old = codec.read_toml(Recipe, recipe)
    new, names = upgrade_recipe(old, [f"llama.cpp@{build}"], tree=str(tmp_path / "tree"), notify=lambda text: None)
    judges = Judges(
        checks=("alive",),
        answers=build == "b4",
        soak=build in ("b2", "b5"),
        speed=None if build == "b4" else 0.02,
        quality=None,
    )
    run = Run.create("upgrade")
    found = try_upgrade(old, new, names, run, dataclasses.replace(QUICK, judges=judges), None, print)
    assert found.outcome in outcomes, found
    assert reason in "; ".join(found.reasons)
    page = (run.path / "upgrade.md").read_text()
    assert page.startswith(f"# llama.cpp b1 → {build}: ")
    assert found.outcome in page
    assert not [each for each in state.list_instances() if each.is_alive]


def test_a_version_whose_port_the_other_one_got_is_not_judged(recipe: Path, tmp_path: Path) -> None:
    """The old engine is killed, and the new one starts on its port: nothing is known of the difference."""
    old, run = codec.read_toml(Recipe, recipe), Run.create("upgrade")
    new, names = upgrade_recipe(old, ["llama.cpp@b3"], tree=str(tmp_path / "tree"), notify=lambda text: None)

    def kill_old(text: str) -> None:
        if text == "starting the new version":
            (engine,) = switch.live_instances("", within=str(run.path))
            os.kill(engine.guard_state.engine, signal.SIGKILL)
            while engine.is_alive:
                time.sleep(0.02)

    judges = Judges(checks=("alive",), answers=False, soak=False, quality=None)
    found = try_upgrade(old, new, names, run, dataclasses.replace(QUICK, judges=judges), None, kill_old)
    assert found.outcome == "undecided", found
    assert "the old version failed" in found.reasons[0]


@pytest.mark.siege
def test_the_keeper_goes_on_until_the_port_is_free(recipe: Path, tmp_path: Path) -> None:
    """What moebox left behind holds the port for longer than a few tries: no other command is needed afterwards."""
    old = codec.read_toml(Recipe, recipe)
    journal = switch.save_journal(
        switch.SwitchJournal(
            name="ph",
            phase="testing",
            run=str(tmp_path / "trial"),
            file=str(recipe),
            before=recipe.read_text(),
            old=old,
            new=old,
            live=old,
        )
    )
    with socket.create_server(("127.0.0.1", old.listen.port)):
        keeper = switch.start_keeper(journal)
        assert keeper.stdin
        keeper.stdin.close()  # moebox was killed
        while "could not be started again" not in journal.path.with_suffix(".log").read_text():
            assert keeper.poll() is None
            time.sleep(0.1)
    keeper.wait(120)
    assert serving(recipe) == "b1"


@pytest.mark.siege
def test_a_version_that_dies_at_the_switch_is_returned_from(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new engine is killed between its first answer and the end of the switch: the old one serves again."""
    before, start = recipe.read_text(), switch.start_detached
    assert main(["up", str(recipe), "--detach"]) == 0

    def start_and_kill(made: Recipe) -> state.Instance:
        instance = start(made)
        if made.engine_version == "b2":
            os.kill(instance.guard_state.engine, signal.SIGKILL)
            while instance.is_alive:
                time.sleep(0.02)
        return instance

    monkeypatch.setattr(switch, "start_detached", start_and_kill)
    words = ["upgrade", "apply", str(recipe), "--source", str(tmp_path / "tree"), "--by", "alive"]
    assert main([*words, "--to", "llama.cpp@b2"]) == 3
    assert (serving(recipe), recipe.read_text()) == ("b1", before)
    assert not switch.list_journals("applied")


def test_a_version_beyond_the_quality_limit_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--by quality` judges log-probabilities against the old version's; without any it is one line."""
    monkeypatch.setattr(measure, "standard_texts", lambda: few_texts()[:2])
    words = ["upgrade", str(recipe), "--source", str(tmp_path / "tree"), "--to"]
    assert main([*words, "llama.cpp@b2", "--by", "quality"]) == 0
    assert "quality: 0.0000 nats (0.0000 to 0.0000): within the limit of 0.02" in capsys.readouterr().out
    assert main([*words, "llama.cpp@b7", "--by", "quality"]) == 1
    assert "above the limit of 0.02" in capsys.readouterr().out
    assert main([*words, "llama.cpp@b3", "--by", "quality"]) == 1
    assert "roll back: " in (text := capsys.readouterr().out)
    assert "gives no log-probabilities" in text


def test_a_live_endpoint_is_switched_and_returns(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--apply serves the new version on the same port; --rollback brings back the old one and the file to the byte.

    `runs --history` lists both upgrades.
    """
    before = recipe.read_text()
    assert main(["up", str(recipe), "--detach"]) == 0
    words = ["upgrade", "apply", str(recipe), "--source", str(tmp_path / "tree"), "--by", "alive"]
    assert main([*words, "--to", "llama.cpp@b6"]) == 1
    assert (serving(recipe), recipe.read_text()) == ("b1", before)
    assert main([*words, "--to", "llama.cpp@b2"]) == 0
    assert (serving(recipe), read_version(recipe)) == ("b2", "b2")
    monkeypatch.chdir(recipe.parent)
    assert main(["upgrade", "rollback", recipe.name]) == 0
    assert (serving(recipe), recipe.read_text()) == ("b1", before)
    assert main(["upgrade", "rollback"]) == 2
    capsys.readouterr()
    assert main(["runs", "history", "ph", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["history"] if row["outcome"]]
    assert [(row["version"], row["outcome"], row["applied"]) for row in rows] == [
        ("llama.cpp b1 → b6", "roll back", False),
        ("llama.cpp b1 → b2", "no difference", True),
    ]
    assert "ended with code 1" in rows[0]["regression"]
    assert main(["runs", "history", "nothing"]) == 2


@pytest.mark.parametrize("victim", one_in(4, ["moebox and keeper", "moebox", "engine", "guard"]))
def test_the_old_endpoint_is_back_after_kill_9(recipe: Path, tmp_path: Path, victim: str) -> None:
    """Killed while the old version is stopped and another one is tried: the keeper or the next command starts it."""
    assert main(["up", str(recipe), "--detach"]) == 0
    argv = [sys.executable, "-m", "moebox", "upgrade", "apply", str(recipe), "llama.cpp@b2"]
    argv += ["--source", str(tmp_path / "tree"), "--by", "alive"]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    trials: list[state.Instance] = []
    while not trials and child.poll() is None:
        journals = switch.list_journals("testing")
        trials = [each for each in switch.live_instances("", within=journals[0].run) if each.ready] if journals else []
        time.sleep(0.01)
    assert trials
    assert switch.live_instances("ph") == trials
    if victim.startswith("moebox"):
        child.kill()
        if victim.endswith("keeper"):
            for pid in processes_with("moebox.flows.switch"):
                os.kill(pid, signal.SIGKILL)
            while processes_with("moebox.flows.switch"):  # until it is gone, the endpoint is left to it
                time.sleep(0.01)
    else:
        os.kill(trials[0].guard if victim == "guard" else trials[0].guard_state.engine, signal.SIGKILL)
    child.wait()
    if victim == "moebox and keeper":
        assert not [each for each in switch.live_instances("ph") if each.detached]
        assert main(["ps"]) == 0
    until = time.monotonic() + 60
    while switch.list_journals(*switch.OWED) and time.monotonic() < until:
        time.sleep(0.05)
    assert serving(recipe) in ("b1", "b2" if not victim.startswith("moebox") else "b1")
    assert len(switch.live_instances("ph")) == 1
    assert read_version(recipe) == serving(recipe)
    while processes_with("moebox.flows.switch") and time.monotonic() < until:
        time.sleep(0.05)


def processes_with(word: str) -> list[int]:
    """Processes of this suite that have a word in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = state.state_dir().as_posix().encode() in (entry / "environ").read_bytes()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine and word.encode() in words:
            found.append(int(entry.name))
    return found


BAD_INPUT = [
    ([], 2, "TO is missing"),
    (["--to", "llama.cpp@b99"], 2, "has no commit, tag or branch b99"),
    (["--to", ","], 2, "TO is empty"),
    (["--to", "vllm==0.32.0"], 2, "the recipe runs llama.cpp"),
    (["--to", "contxt=1"], 2, "--set contxt: there is no such setting"),
    (["--to", "max_seqs=4"], 2, "the recipe has it already"),
    (["--to", "llama.cpp@b2", "--by", "luck"], 2, "--by luck: not known"),
    (["--to", "llama.cpp@b2", "--by", "speed=fast"], 2, "not a limit"),
    (["bisect", "llama.cpp@b1", "vllm==1"], 2, "are two engines"),
    (["bisect", "llama.cpp@b2", "llama.cpp@b1"], 2, "no commit lies between"),
    (["bisect", "llama.cpp@b1", "llama.cpp@b99"], 2, "tree: fatal: "),
]


def test_bad_input_is_one_line_and_touches_nothing(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe's file stays as it is, and no journal is left."""
    before = recipe.read_text()
    capsys.readouterr()
    for words, code, message in BAD_INPUT:
        group, rest = (["upgrade", "bisect"], words[1:]) if words[:1] == ["bisect"] else (["upgrade"], words)
        assert main([*group, str(recipe), *rest]) == code, words
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
        assert len(errors) == 1
        assert message in errors[0]
    assert recipe.read_text() == before
    assert not switch.list_journals(*switch.OWED)


def test_the_command_measures_as_thoroughly_as_the_flow(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds have one place: the command adds the seed of the questions and what it judges by."""
    asked: list[UpgradeEffort] = []

    def decide(old: Recipe, new: Recipe, names: tuple[str, str], run: Run, effort: UpgradeEffort, *_) -> UpgradeResult:
        asked.append(effort)
        return UpgradeResult(name=old.name, old=names[0], new=names[1], outcome="no difference", reasons=())

    monkeypatch.setattr(upgrade, "try_upgrade", decide)
    assert main(["upgrade", str(recipe), "max_seqs=2", "--by", "speed"]) == 0
    usual = UpgradeEffort(judges=parse_judges("speed"))
    seeded = dataclasses.replace(usual.compare, seed=asked[0].compare.seed)
    assert asked == [dataclasses.replace(usual, compare=seeded)]


SYSTEMCTL = """#!{python}
import os, shlex, signal, socket, subprocess, sys, time
verb, name = [word for word in sys.argv[1:] if not word.startswith("--")]
unit, pid = "{folder}/systemd/user/" + name + ".service", "{folder}/pid"
number = int(open(pid).read()) if os.path.exists(pid) else 0
lives = number and os.path.exists(f"/proc/{{number}}") and open(f"/proc/{{number}}/stat").read().split()[2] != "Z"
if verb == "is-active":
    sys.exit(0 if lives else 3)
if verb == "stop" and lives:
    os.kill(number, signal.SIGTERM)
    while os.path.exists(f"/proc/{{number}}") and open(f"/proc/{{number}}/stat").read().split()[2] != "Z":
        time.sleep(0.05)
if verb == "start":
    command = next(line for line in open(unit) if line.startswith("ExecStart=")).removeprefix("ExecStart=")
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(place := "{folder}/notify%d" % time.time_ns())
    out = open("{folder}/service.log", "ab")
    env = {{**os.environ, "NOTIFY_SOCKET": place}}
    child = subprocess.Popen(shlex.split(command), env=env, stdout=out, stderr=out, start_new_session=True)
    open(pid, "w").write(str(child.pid))
    ready.settimeout(0.2)
    while True:
        try:
            sys.exit(0 if ready.recv(100) == b"READY=1" else 1)
        except TimeoutError:
            if child.poll() is not None:
                sys.exit(1)
"""


def test_a_service_is_stopped_for_the_trial_and_starts_with_the_applied_recipe(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`moebox up --service` by its own unit; systemd is a script that starts it, waits for readiness, and stops it."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "systemctl"
    program.write_text(SYSTEMCTL.format(python=sys.executable, folder=tmp_path / "config"))
    program.chmod(0o755)
    before = recipe.read_text()
    install_unit(deploy(codec.read_toml(Recipe, recipe)), str(recipe), [])
    assert control_unit("start", "ph")
    words = ["upgrade", "apply", str(recipe), "--source", str(tmp_path / "tree"), "--by", "alive"]
    try:
        assert serving(recipe) == "b1"
        assert main([*words, "--to", "llama.cpp@b6"]) == 1
        assert (serving(recipe), recipe.read_text(), control_unit("is-active", "ph")) == ("b1", before, True)
        assert main([*words, "--to", "llama.cpp@b2"]) == 0
        assert (serving(recipe), read_version(recipe), control_unit("is-active", "ph")) == ("b2", "b2", True)
        assert main(["upgrade", "rollback"]) == 0
        assert (serving(recipe), recipe.read_text(), control_unit("is-active", "ph")) == ("b1", before, True)
        other = tmp_path / "other.toml"
        other.write_text(before)
        assert main(["upgrade", "apply", str(other), *words[3:], "--to", "llama.cpp@b2"]) == 3
        assert serving(recipe) == "b1"
    finally:
        control_unit("stop", "ph")
    assert not control_unit("is-active", "ph")


def test_an_engine_of_another_terminal_is_left_alone(recipe: Path, tmp_path: Path) -> None:
    """`moebox up` without --detach keeps its engine: the upgrade refuses to stop it."""
    argv = [sys.executable, "-m", "moebox", "up", str(recipe)]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not serving(recipe) and child.poll() is None:
            time.sleep(0.05)
        words = ["--to", "llama.cpp@b2", "--source", str(tmp_path / "tree"), "--by", "alive"]
        assert main(["upgrade", str(recipe), *words]) == 3
        assert serving(recipe) == "b1"
    finally:
        child.send_signal(signal.SIGINT)
        child.wait()


def test_a_second_upgrade_of_a_recipe_waits_for_the_first(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run is named after a command, so the hint must not ask to stop it."""
    with contextlib.closing(state.Lease("upgrade-ph", "moebox upgrade (process 1)")):
        words = ["--to", "llama.cpp@b2", "--source", str(tmp_path / "tree"), "--by", "alive"]
        assert main(["upgrade", str(recipe), *words]) == 3
    error = capsys.readouterr().err
    assert "upgrade ph is in use by moebox upgrade (process 1)" in error
    assert "hint: wait until it ends" in error


def test_the_headline_names_what_decided() -> None:
    """Only a version that may be taken is called right; what was not checked is not said to have passed."""
    slow = GainAtConcurrency(
        concurrency=1, a_tok_s=9, b_tok_s=8, a_ttft_ms=1, b_ttft_ms=1, gain=Gain(share=-0.1, low=-0.12, high=-0.08)
    )
    result = UpgradeResult(
        name="ph", old="b1", new="b2", outcome="roll back", reasons=("worse answers",), gains=(slow,)
    )
    assert result.headline.startswith("b1 → b2: not taken; worse answers; decode at 1 -10.0%")
    assert dataclasses.replace(result, reasons=(speed_text(slow),)).headline.count("decode") == 1
    assert "b2: not decided; worse" in dataclasses.replace(result, outcome="undecided").headline
    assert "b2: right; decode" in dataclasses.replace(result, outcome="keep").headline
    sides = {"A": ProvenSide(marks={"alive": "pass"}), "B": ProvenSide()}
    assert dataclasses.replace(result, sides=sides).findings[-2:] == ["old: all checks passed", "new: not checked"]


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.009, 0.077, "no difference"),  # two starts of the same llama.cpp
        (0.03, 0.08, "keep"),
        (-0.077, -0.009, "no difference"),
        (-0.08, -0.03, "roll back"),
        (-0.12, 0.01, "undecided"),
    ],
)
def test_faster_is_what_exceeds_the_limit_that_slower_has(low: float, high: float, outcome: str) -> None:
    """Two starts of one build differ by a little, so a small gain is no reason to keep a version."""
    side = compare.MeasuredSide(name="A", answers_given=(), paces=(), acceptance=None)
    gain = Gain(share=(low + high) / 2, low=low, high=high)
    row = GainAtConcurrency(concurrency=1, a_tok_s=9, b_tok_s=9, a_ttft_ms=1, b_ttft_ms=1, gain=gain)
    found = dataclasses.replace(compare.compare_sides(side, side), gains=(row,))
    assert decide_upgrade(found, {"A": ProvenSide(), "B": ProvenSide()}, Judges())[0] == outcome


def test_a_check_that_warns_only_now_is_a_regression() -> None:
    """A new version that leaves thoughts in the answer only warns, since a server may have no parser for them."""
    old, reasons = ProvenSide(marks={"thinking": "pass", "tools": "warn"}), {"thinking": "<think> in the answer"}
    worse = ProvenSide(marks={"thinking": "warn", "tools": "warn"}, reasons=reasons)
    assert regressions(old, worse) == ["check thinking warns: <think> in the answer"]
    assert regressions(old, dataclasses.replace(worse, marks=old.marks)) == []
    assert regressions(worse, old) == []


def test_one_engine_at_a_time_is_measured_until_its_speed_is_known(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A's first half decides how many rounds B and A's other half take: one more start costs far more than a round."""
    asked = []

    def measure(endpoint: Endpoint, *, rounds: int, most_rounds: int, **how: int) -> SpeedRounds:
        asked.append((rounds, most_rounds))
        rates = (9.0, 8.0) * max(rounds // 2, most_rounds // 2)
        return SpeedRounds(concurrency=1, tok_s=rates, ttft_ms=rates)

    monkeypatch.setattr(compare, "measure_speed", measure)
    old = codec.read_toml(Recipe, recipe)
    effort = dataclasses.replace(QUICK.compare, concurrency=(1,), questions=0, rounds=4, most_rounds=12, prompt_words=0)
    a, b = compare.compare_targets(old, old, Run.create("compare"), effort, compare.SideListener(effort))
    assert asked == [(2, 6), (12, 0), (6, 0)]
    assert len(a.paces[0].tok_s) == len(b.paces[0].tok_s) == 12


def test_a_difference_that_other_starts_do_not_have_is_none(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts of one build of ik_llama.cpp read prompts 11% apart, for as long as they lived."""
    starts = []

    def measure(a: SpeedMeter, b: SpeedMeter, *, rounds: int) -> tuple[SpeedRounds, ...]:
        pair = stated_speeds(a, b, rounds=rounds)
        live = {instance.id for instance in state.list_instances() if instance.is_alive}
        if live not in starts:
            starts.append(live)
        faster = tuple(1.11 * rate for rate in pair[1].tok_s)
        return pair if len(starts) > 1 else (pair[0], dataclasses.replace(pair[1], tok_s=faster))

    monkeypatch.setattr(compare, "measure_in_turn", measure)
    old = codec.read_toml(Recipe, recipe)
    new, names = upgrade_recipe(old, ["llama.cpp@b2"], tree=str(tmp_path / "tree"), notify=lambda text: None)
    effort = dataclasses.replace(QUICK, compare=dataclasses.replace(QUICK.compare, rounds=3, most_rounds=6))
    judges = Judges(checks=("alive",), answers=False, soak=False, quality=None)
    effort = dataclasses.replace(effort, judges=judges)
    found = try_upgrade(old, new, names, Run.create("upgrade"), effort, None, print)
    assert found.outcome == "no difference", found
    assert len(starts) == 2


def test_an_old_version_that_does_not_start_again_is_not_the_new_ones_fault(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = compare.live_endpoint

    def start_once(target: Recipe, name: str, run: Run) -> contextlib.AbstractContextManager[Endpoint]:
        if name == "A2":
            raise ExternalError("the port is gone")
        return start(target, name, run)

    monkeypatch.setattr(compare, "live_endpoint", start_once)
    monkeypatch.setattr(compare, "measure_in_turn", stated_speeds)
    old = codec.read_toml(Recipe, recipe)
    new, names = upgrade_recipe(old, ["llama.cpp@b3"], tree=str(tmp_path / "tree"), notify=lambda text: None)
    effort = dataclasses.replace(QUICK, compare=dataclasses.replace(QUICK.compare, most_rounds=6))
    judges = Judges(checks=("alive",), answers=False, soak=False, quality=None)
    effort = dataclasses.replace(effort, judges=judges)
    found = try_upgrade(old, new, names, Run.create("upgrade"), effort, None, print)
    assert (found.outcome, found.reasons[0][:22]) == ("undecided", "the old version failed")


@pytest.mark.parametrize(("rates", "settled"), [((9,), False), ((9, 8, 9), False), ((9, 9.1, 9), True)])
def test_a_speed_is_known_when_its_rounds_agree(rates: tuple[float, ...], settled: bool) -> None:
    meter = SpeedMeter(Endpoint(base_url="http://127.0.0.1:1/v1", model="m"), concurrency=1)
    meter.rounds = [(rate, 20.0) for rate in rates]
    assert meter.is_settled is settled


def test_judges_are_parsed() -> None:
    """Names of checks restrict the checks; speed has a limit; nothing means everything."""
    assert parse_judges("") == Judges()
    assert parse_judges("quality=0.05").quality == 0.05
    only = parse_judges("tools, speed=5%")
    assert (only.checks, only.speed, only.soak, only.answers) == (("tools",), 0.05, False, False)
    assert deploy(phantom_recipe()).known_checkpoint


def test_worse_runs_are_marked_against_the_kept_version() -> None:
    """The first version is kept until an upgrade is applied; then figures are compared with the new one's."""
    old, new = (
        HistoryRow(run="r", when=0.0, version=f"vllm 0.{number}", checks="pass", tok_s=100.0) for number in (30, 32)
    )
    switched = HistoryRow(run="u", when=0.0, version="vllm 0.30 → 0.32", outcome="keep", applied=True)
    slow, broken = dataclasses.replace(new, tok_s=80.0), dataclasses.replace(new, checks="fail")
    found = mark_regressions([old, slow, switched, slow, new, slow, broken])
    marks = [row.regression for row in found]
    assert marks == [
        "",
        "-20% tok/s, not measured in turn",
        "",
        "",
        "",
        "-20% tok/s, not measured in turn",
        "checks fail",
    ]
