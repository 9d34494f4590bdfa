"""What a person meets first: the list of commands, help that says only what it must, completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moebox.cli import COMMANDS, main, section_of
from moebox.cli.completion import complete
from moebox.verify.options import CHECK_NAMES


def test_commands_are_grouped_and_fit_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["help"]) == 0
    text = capsys.readouterr().out

    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.index("Start here") < text.index("Plan\n") < text.index("Serve\n") < text.index("Prove\n")
    for name in {name.partition(" ")[0] for name in COMMANDS}:
        assert f"\n  {name} " in text


def test_the_help_is_one_screen_with_every_command(capsys: pytest.CaptureFixture[str]):
    """24 lines of 80 columns begin with what to type first; `moebox help` has the sentences."""
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert "moebox plan MODEL" in lines[1]
    named = set(" ".join(lines).replace(",", " ").split())
    assert {name.partition(" ")[0] for name in COMMANDS} <= named


def test_moebox_alone_is_the_first_commands_and_what_to_do_now(capsys: pytest.CaptureFixture[str]):
    """A few lines of 80 columns; the last ones name a command that exists, by what this machine has."""
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) <= 8
    assert max(map(len, lines)) <= 80
    (now,) = [line for line in lines if line.startswith("now, on this machine")]
    assert now.partition(": moebox ")[2] in COMMANDS


def test_every_command_has_a_section():
    """A new command is put where a person looks for it; only completion is left over."""
    assert {name.partition(" ")[0] for name in COMMANDS if section_of(name.partition(" ")[0]) == "More"} <= {
        "completion"
    }


def test_the_list_loads_nothing_heavy():
    code = "import sys; from moebox.cli import main; main([]); main(['--help']);"
    code += (
        "print(sorted(m for m in ('cyclopts', 'rich', 'msgspec', 'moebox.core') if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["plan"], "Exit code 1 when nothing fits"),
        (["task"], "Families, from easy to hard"),
        (["compare"], '"no difference" is an answer'),
        (["calibrations"], "List the calibrations"),
        (["fleet", "plan"], "the death of one box"),
    ],
)
def test_help_says_what_the_list_has_no_room_for(command: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    """The page of a command shows its whole description, exit codes included, not the one line of the list."""
    main([*command, "--help"])

    assert says in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", [["plan"], ["bench"], ["run"], ["verify"]])
def test_help_prints_no_empty_defaults(command: list[str], capsys: pytest.CaptureFixture[str]):
    main([*command, "--help"])
    text = capsys.readouterr().out

    assert '[default: ""]' not in text
    assert "[default: False]" not in text
    assert "[default: None]" not in text
    assert "choices: ," not in text


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["pl"], "plan"),
        (["plan", "kimi-k2."], "kimi-k2.6"),
        (["plan", "kimi-k2.6", "--box", "8x-rtx-pro-6000-s"], "8x-rtx-pro-6000-server"),
        (["plan", "x", "--experts"], "--experts-on-gpu"),
        (["up", "kimi-k26-v"], "kimi-k26-vllm"),
        (["doctor", "ker"], "kernels"),
        (["forecast", "x", "--engine", "ik"], "ik_llama.cpp"),
    ],
)
def test_what_can_be_named_is_completed(words: list[str], wanted: str):
    assert wanted in complete(words)


def test_bash_completes_with_the_printed_script(tmp_path: Path):
    """The script as a shell takes it: sourced, then asked for the second word."""
    (tmp_path / "moebox").write_text(f'#!/bin/sh\nexec {sys.executable} -m moebox "$@"\n')
    (tmp_path / "moebox").chmod(0o755)
    program = (
        'eval "$(moebox completion bash)"; COMP_WORDS=(moebox plan kimi-k2.6 --box 8x-b2); COMP_CWORD=4; _moebox; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, env=env)

    assert "8x-b200" in done.stdout.split()


def test_plain_output_has_no_escapes():
    done = subprocess.run(
        [sys.executable, "-m", "moebox", "plan", "kimi-k2.6", "--box", "8x-b200", "--plain"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FORCE_COLOR": "1"},
    )

    assert "\x1b" not in done.stdout + done.stderr


def test_the_help_counts_the_checks_that_there_are():
    """`verify` climbs as many checks as its line in the overview says."""
    assert f" {len(CHECK_NAMES)} correctness checks" in COMMANDS["verify"][1]
