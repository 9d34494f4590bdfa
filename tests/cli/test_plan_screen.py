"""`moebox plan` on a terminal of 24 lines and 80 columns: the answer is seen without scrolling."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli import main, output
from moebox.core.recipe import Recipe
from moebox.phantom import gguf_path
from tests.sampling import one_in

pytestmark = pytest.mark.usefixtures("plans_once")
PLANS = {
    "fits": "gpt-oss-120b --box 1x-h200",
    "has notes": "glm-5.3 --box 8x-rtx-pro-6000",
    "warns": "kimi-k2.6 --box 8x-rtx-pro-6000-server --context 128k --concurrency 16",
    "unequal GPUs": "minimax-m3 --box 5x-mi300x --pp 5 --tp 1",
    "experts in RAM": "kimi-k2.6 --box 2x-rtx-pro-6000-max-q --ram 768GiB --ram-bandwidth 614GB/s",
    "two nodes": "kimi-k2.6 --box 2x8x-rtx-pro-6000-server --goal latency",
    "drafts": "kimi-k2.6 --box 8x-b200 --bold",
}


@pytest.fixture(autouse=True)
def small_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    output.stdout_console.cache_clear()
    yield
    output.stdout_console.cache_clear()


def rows_on_screen(text: str) -> int:
    """Count the rows of a terminal with 80 columns, which breaks longer lines itself."""
    return sum(max(1, math.ceil(len(line) / 80)) for line in text.splitlines())


def next_command(screen: str) -> str:
    """Return the command in the row `next`."""
    (command,) = re.findall(r"^  next    (.+)$", screen, re.MULTILINE)
    return command


@pytest.mark.parametrize("words", one_in(2, PLANS.values()), ids=PLANS)
def test_the_answer_fits_one_screen(words: str, capsys: pytest.CaptureFixture[str]):
    """What runs, whether it fits, the speed with its range and the next command; three warnings at most."""
    assert main(["plan", *words.split()]) == 0
    screen = capsys.readouterr().out

    assert rows_on_screen(screen) <= 23  # the prompt of the shell takes one
    lines = screen.splitlines()
    assert lines[0].startswith("  chosen  ")
    assert len([line for line in lines if "GiB" in line and line.startswith("✓ fits")]) == 1
    assert re.search(r"^  speed   [\d,.]+ tok/s \([\d,.]+ to [\d,.]+\) with 1 stream", screen, re.MULTILINE)
    assert re.search(r"expect -\d+% to \+\d+%", " ".join(screen.split()))
    assert len(re.findall(r"^[!·✗] ", screen, re.MULTILINE)) <= 3
    assert re.search(r"^  starts  \S+ [\w.-]+: (runs|should start|may start) \(", screen, re.MULTILINE)
    assert ("no report" in screen) == ("`moebox rehearse` tries the recipe" in screen)
    assert next_command(screen).startswith("moebox plan ")
    assert [line for line in lines if len(line) > 80 and "moebox" not in line] == []


@pytest.mark.parametrize("words", one_in(3, [PLANS["experts in RAM"], PLANS["warns"], PLANS["drafts"]]))
def test_the_next_command_saves_the_same_plan(words: str, capsys: pytest.CaptureFixture[str]):
    """Pasted as it is, it writes the recipe that was shown; then `up` of that file is the next command."""
    assert main(["plan", *words.split()]) == 0
    program, *pasted = shlex.split(next_command(capsys.readouterr().out))
    assert program == "moebox"
    assert main(pasted) == 0
    assert next_command(capsys.readouterr().out) == "moebox up recipe.toml"

    assert main(["plan", *words.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    saved = codec.read_toml(Recipe, Path("recipe.toml"))
    assert saved == codec.decode(Recipe, document["recipe"], where="json")
    assert main(["up", "recipe.toml", "--dry-run"]) == 0


def test_on_this_machine_the_next_command_starts_the_engine(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Without --box the plan is for this machine: one line saves the recipe and starts it."""
    model = tmp_path / "a model.gguf"
    model.symlink_to(gguf_path())
    assert main(["plan", str(model)]) == 0
    saving, starting = next_command(capsys.readouterr().out).split(" && ")

    assert shlex.split(saving) == ["moebox", "plan", str(model), "-o", "recipe.toml"]
    assert starting == "moebox up recipe.toml"


def test_a_model_that_does_not_fit_is_answered_in_a_few_rows(capsys: pytest.CaptureFixture[str]):
    """The error comes first, with what is missing; the hint says what would be enough."""
    assert main(["plan", "kimi-k2.6", "--box", "1x-rtx-4090"]) == 1
    screen = capsys.readouterr().err

    assert screen.startswith("error: Kimi K2.6 does not fit on 1x-rtx-4090: ")
    assert "hint: --ram " in screen
    assert rows_on_screen(screen) <= 10


def test_the_rest_of_a_plan_is_behind_flags(capsys: pytest.CaptureFixture[str]):
    """--memory has the devices, --why every warning in full, --all the alternatives; two at once are refused."""
    words = ["plan", *PLANS["warns"].split()]
    assert main([*words, "--json"]) == 0
    warnings = [warning["text"] for warning in json.loads(capsys.readouterr().out)["warnings"]]
    assert main(words) == 0
    assert f"{len(warnings)} notes in full: --why" in capsys.readouterr().out

    pages = {}
    for flag in ("--memory", "--why", "--all"):
        assert main([*words, flag]) == 0
        pages[flag] = " ".join(capsys.readouterr().out.split())
    assert "routed experts" in pages["--memory"]
    assert "alternatives" not in pages["--memory"]
    for flag in ("--why", "--all"):
        assert [text for text in warnings if " ".join(text.split()) not in pages[flag]] == []
    assert "alternatives" in pages["--all"]
    assert main([*words, "--why", "--all"]) == 2
    assert "--why and --all are different pages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (f"forecast {PLANS['has notes']}", "expect -"),
        (f"forecast {PLANS['experts in RAM']}", "expect -"),
        ("forecast kimi-k2.6 --box 8x-b200 --input 8192 --output 2048 --concurrency 1,8,32", "out tok/s"),
        ("box --box 8x-rtx-pro-6000-server", "RTX PRO 6000"),
        ("doctor box --box 8x-rtx-pro-6000-server", "checks: 0 failed"),
    ],
)
def test_other_answers_fit_one_screen(words: str, answer: str, capsys: pytest.CaptureFixture[str]):
    """Speeds with their range, the box, and the sum of the checks are seen without scrolling."""
    assert main(words.split()) == 0
    screen = capsys.readouterr().out

    assert rows_on_screen(screen) <= 23
    assert answer in screen


def test_a_missing_engine_is_named_before_the_next_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """On this machine without the engine: the plan says how to install it, and `run` stops at its first step."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["plan", str(gguf_path()), "--engine", "ik_llama.cpp", "-o", "recipe.toml"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "! next moebox up recipe.toml up refuses it: ik_llama.cpp is not installed here" in screen
    assert "moebox engines install ik_llama.cpp@" in screen

    assert main(["run", "--recipe", "recipe.toml", "--yes"]) == 3
    steps = capsys.readouterr()
    assert "✗ plan ik_llama.cpp is not installed here" in steps.out
    assert "rehearse" not in steps.out


@pytest.mark.parametrize("model", ["deepseek-v4-flash", "gpt-oss-120b", "qwen3.6-35b-a3b"])
def test_requests_of_two_lengths_follow_from_one_room(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Caches with windows and states: "7.0 requests of 65,536, or 840 of 8,192" cannot both be true."""
    words = ["plan", model, "--box", "4x-rtx-pro-6000-server"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert main([*words, "--json"]) == 0
    long = json.loads(capsys.readouterr().out)["memory"]["requests_of_context"]
    requests, short = re.search(r"([\d,.]+) requests of 65,536, or ([\d,]+) of 8,192", shown).groups()  # type: ignore[union-attr]

    assert int(float(requests.replace(",", ""))) == long
    assert long <= int(short.replace(",", "")) <= 8 * (long + 1)
