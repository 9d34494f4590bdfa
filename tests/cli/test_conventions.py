"""What holds for every command: one-line errors, exit codes, JSON alone on stdout, and a quick start."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from moebox.cli import COMMANDS, main
from tests.driving import recipe_text


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "moebox", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nope"], 2, "nope"),
        (["models", "show", "kimi-k26"], 2, "kimi-k2.6"),
        (["box", "--box", "8x-rtx-pro-600"], 2, "rtx-pro-6000"),
        (["box", "--bix", "1"], 2, "--bix"),
        (["models", "show", "/no/such/folder"], 2, "no such file"),
        (["plan", "kimi-k2.6", "--box", "1x-rtx-5090", "--ram", "12"], 2, "768GiB"),
        (["plan"], 2, "MODEL is missing"),
        (["bench", "import", "nosuch.json"], 2, "error: nosuch.json: no such file\n"),
        (["bench", "import", "/"], 2, "error: /: is a folder, not a file\n"),
        (["models", "show", "kimi-k2.6", "extra"], 2, "unexpected argument 'extra'"),
        (["plan", "kimi-k2.6", "--tp"], 2, "--tp needs a value"),
        (["fleet", "plan", "--users", "3"], 2, "--slo is missing"),
        (["fleet", "plan", "--users", "3", "--slo", "ttft=2s"], 2, "or a model with --box"),
        (["render", "kimi-k26-vllm", "--as", "nosuch"], 2, "kustomize"),
        (["rn"], 2, "unknown command 'rn'\n\nhint: did you mean run"),
        (["doctor", "nosuch"], 2, "unknown doctor command 'nosuch'\n\nhint: known: box, engine, kernels, logs\n"),
        (["run", "--until", "nosuch"], 2, "plan, doctor, rehearse, up, verify, climb, bench, task, report\n"),
        (["plan", "kimi-k2.6", "--goal", "speed"], 2, "--goal 'speed': choose throughput, latency or context\n"),
        (["plan", "kimi-k2.6", "--tp", "two"], 2, "--tp 'two': must be a whole number\n"),
        (["connect", "nosuch"], 2, "CLIENT 'nosuch': choose claude-code"),
        (["doctor", "kernels", "--engine", "llama.cpp"], 2, "it is for vllm and sglang"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
):
    """What is wrong, how to fix it, and no traceback."""
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) <= 3


def test_debug_keeps_the_traceback():
    """--debug is for people who want to read the code."""
    done = run("models", "show", "kimi-k26", "--debug")
    assert "Traceback" in done.stderr


def test_json_stands_alone_on_stdout(capsys: pytest.CaptureFixture[str]):
    """One document, with the keys that scripts rely on."""
    assert main(["models", "show", "kimi-k2.6", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "kimi-k2.6"
    assert document["parameters"]["by_component"]["routed_experts"] == 1_014_686_023_680
    assert document["kv_bytes_per_token"]["fp8"] == 35_136
    assert document["checkpoints"][0]["bytes"] == 595_148_146_656
    assert main(["box", "--box", "8x-h200", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["gpus"]) == 8


def test_the_command_line_answers_for_itself():
    """--version and --help work; a module run is the console script."""
    assert run("--version").stdout.startswith("moebox ")
    assert "models" in run("--help").stdout


def test_every_command_of_the_table_loads_and_explains_itself():
    """A command stands in the table once it works, and has a sentence of help."""
    for name, (target, _) in COMMANDS.items():
        function = pkgutil.resolve_name(target)
        assert function.__doc__, name


def test_showing_a_model_loads_only_what_it_needs():
    """Slow imports (terminal tables, HTTP, the planner) stay out of a JSON answer."""
    code = "import sys; from moebox.cli import main; main(['models', 'show', 'kimi-k2.6', '--json']);"
    code += "print(sorted(m for m in ('rich.table', 'httpx2', 'starlette', 'jinja2', 'psutil', 'asyncio',"
    code += " 'moebox.planner', 'moebox.engines') if m in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_closed_pipe_is_no_error():
    """`moebox models | head -1` ends quietly."""
    line = f"{sys.executable} -m moebox models | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr


def recipe_of(tmp_path: Path, *words: str) -> str:
    """The file that `plan` writes."""
    path = tmp_path / "r.toml"
    path.write_text(recipe_text("kimi-k2.6", *words))
    return str(path)


@pytest.mark.parametrize("command", ["up", "climb", "rehearse"])
def test_a_hint_for_a_missing_engine_holds_for_every_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint was --runtime docker, which climb does not have."""
    path = recipe_of(tmp_path, "--box", "8x-h200", "--engine", "vllm")
    monkeypatch.setenv("PATH", str(tmp_path))
    capsys.readouterr()

    assert main([command, path]) != 0
    assert 'or runtime.kind = "docker" in the recipe' in capsys.readouterr().err


def test_a_patched_image_is_not_sent_to_native_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Slurm job wanted runtime.kind native, and native wanted docker."""
    words = ["--box", "8x-rtx-pro-6000-server", "--image"]
    path = recipe_of(tmp_path, *words, "community")
    monkeypatch.setenv("PATH", str(tmp_path))
    capsys.readouterr()
    assert main(["render", path, "--as", "slurm"]) == 2
    assert "--image stock" in capsys.readouterr().err
    assert main(["up", path]) != 0
    assert "native" not in capsys.readouterr().err
    assert main(["render", recipe_of(tmp_path, *words, "stock"), "--as", "slurm"]) == 0


def test_a_rate_in_a_boxs_name_keeps_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    """25GB/s became 25gb/s, which reads as bits."""
    assert main(["plan", "kimi-k2.6", "--box", "2x8x-H200@25GB/s"]) == 0
    assert "on 2x8x-h200@25GB/s:" in capsys.readouterr().out
