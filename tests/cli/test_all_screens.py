"""Every command on a terminal of 80 columns and 24 lines: its answer is seen without scrolling."""

import math
from pathlib import Path

import pytest

from moebox.cli import COMMANDS, main, output
from tests.report.making import a_run

LOG = Path(__file__).parents[1] / "logs" / "vllm-0.32-port-in-use.log"
BOX = "--box 8x-rtx-pro-6000-server"
# command -> (arguments, exit code, what its first line holds). Without an engine or a network the answer of some is an
# error, which has to fit as well.
SCREENS = {
    "run": (f"kimi-k2.6 {BOX} --until plan --yes", 0, "plan"),
    "plan": (f"kimi-k2.6 {BOX}", 0, "chosen"),
    "forecast": (f"kimi-k2.6 {BOX}", 0, "Kimi K2.6"),
    "box": (BOX, 0, "8x-rtx-pro-6000-server"),
    "models": ("", 0, "model"),
    "models show": ("deepseek-v4-pro", 0, "DeepSeek V4 Pro"),
    "models add": ("not-a-repository", 2, "error: not-a-repository: not a repository of the Hub"),
    "models search": ("", 2, "error: no words to search for"),
    "recipes": ("", 0, "shipped:"),
    "fetch": ("no-such-file.toml", 2, "error: "),
    "rehearse": ("no-such-file.toml", 2, "error: "),
    "twin": ("no-such-model", 2, "error: "),
    "calibrations": ("", 0, ""),
    "calibrations show": ("nothing", 2, "error: "),
    "calibrations remove": ("nothing", 2, "error: "),
    "calibrations export": ("nothing -o x.json", 2, "error: "),
    "calibrations import": ("no-such-file.json", 2, "error: "),
    "doctor box": (BOX, 0, "11 checks: 0 failed, 0 with warnings, 11 could not be made"),
    "doctor engine": ("vllm", 0, "checks: 0 failed"),
    "doctor logs": (str(LOG), 1, "cause: another program listens on the port"),
    "doctor kernels": ("", 2, "error: "),
    "up": ("kimi-k26-vllm --dry-run", 0, "vllm"),
    "ps": ("", 0, "nothing is running"),
    "logs": ("", 3, "error: "),
    "down": ("", 3, "error: "),
    "render": ("kimi-k26-vllm --as script -o serve.sh", 0, ""),
    "connect": ("claude-code", 3, "error: "),
    "watch": ("", 3, "error: "),
    "switch": ("no-such-file.toml", 2, "error: "),
    "fleet plan": ("kimi-k2.6", 2, "error: "),
    "fleet render": ("no-such-file.toml", 2, "error: "),
    "fleet up": ("no-such-file.toml", 2, "error: "),
    "fleet ps": ("", 0, "no fleet"),
    "fleet down": ("", 3, "error: "),
    "fleet verify": ("", 3, "error: "),
    "fleet bench": ("", 3, "error: "),
    "engines": ("", 0, "engine"),
    "engines install": ("", 2, "error: which version?"),
    "engines remove": ("no-such-engine==1", 2, "error: "),
    "upgrade": ("no-such-file.toml", 2, "error: "),
    "upgrade apply": ("no-such-file.toml", 2, "error: "),
    "upgrade rollback": ("", 2, "error: no applied upgrade"),
    "upgrade bisect": ("no-such-file.toml", 2, "error: "),
    "runs history": ("no-such-recipe", 2, "error: "),
    "tune": ("no-such-file.toml", 2, "error: "),
    "verify": ("", 3, "error: "),
    "quality": ("", 3, "error: "),
    "climb": ("no-such-file.toml", 2, "error: "),
    "compare": ("a.toml b.toml", 2, "error: "),
    "bench": ("", 3, "error: "),
    "bench import": ("no-such-file.json", 2, "error: "),
    "task": ("", 3, "error: "),
    "runs": ("", 0, "run"),
    "runs show": ("latest", 0, ""),
    "runs rm": ("no-such-run --yes", 2, "error: "),
    "report": ("latest", 0, "report"),
    "pack": ("latest -o packed", 0, "packed"),
    "completion": ("fish", 0, "complete"),
}
FURTHER = {"run": "on 8x-rtx-pro-6000-server; then", "render": "wrote serve.sh"}  # anywhere in the output
SERVES = {"ui"}  # prints its address and serves until it is stopped


@pytest.fixture(autouse=True)
def small_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    for name in ("RUNS", "STATE", "CALIBRATIONS"):
        monkeypatch.setenv(f"MOEBOX_{name}", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    output.stdout_console.cache_clear()
    output.stderr_console.cache_clear()
    yield
    output.stdout_console.cache_clear()
    output.stderr_console.cache_clear()


def test_every_command_is_rendered():
    """A new command gets a row in this file."""
    assert SCREENS.keys() | SERVES == COMMANDS.keys()


@pytest.mark.parametrize("command", SCREENS)
def test_the_answer_is_seen_without_scrolling(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Output and errors together take at most 23 rows, one is left for the prompt; the answer comes first."""
    arguments, code, answer = SCREENS[command]
    if command.startswith(("runs", "report", "pack")):
        a_run(tmp_path / "runs")
    got = main([*command.split(), *arguments.split()])
    shown = capsys.readouterr()
    screen = [*shown.err.splitlines(), *shown.out.splitlines()] if code else shown.out.splitlines()

    assert got == code, shown.err
    assert sum(max(1, math.ceil(len(line) / 80)) for line in screen) <= 23
    assert FURTHER.get(command, "") in shown.out + shown.err
    assert answer in "".join(screen[:1])
