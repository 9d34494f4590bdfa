"""Recipes edited by hand: every command refuses the same mistakes, and names what is known with the same word."""

from pathlib import Path

import pytest

from tests.driving import call_main

COMMANDS = (("forecast",), ("render",), ("up", "--dry-run"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A recipe for GPUs alone, and one with experts in RAM."""
    found = {}
    for name, words in {
        "vllm": ("kimi-k2.6", "--box", "8x-rtx-pro-6000-server"),
        "ik": ("glm-5.3-flash", "--box", "2x-rtx-5090+256GB"),
    }.items():
        path = tmp_path_factory.mktemp("planned") / "recipe.toml"
        assert call_main("plan", *words, "-o", str(path)).code == 0
        found[name] = path.read_text()
    return found


@pytest.mark.parametrize(
    ("name", "line", "changed", "error"),
    [
        ("vllm", "dcp = 1", "dcp = 0", "parallel.dcp: 0 is less than 1"),
        ("vllm", "tp = 8", "tp = -8", "parallel.tp: -8 is less than 1"),
        ("vllm", "tp = 8", "tp = 3", "not divisible by TP3"),
        ("vllm", "memory_utilization = 0.9", "memory_utilization = nan", "nan is not a share between 0 and 1"),
        ("vllm", "memory_utilization = 0.9", "memory_utilization = inf", "inf is not a share between 0 and 1"),
        ("vllm", "memory_utilization = 0.9", "memory_utilization = 90", "write it like 0.90"),
        ("vllm", "[parallel]", '[speculate]\nmethod = "mtp"\n[parallel]', "Kimi K2.6 has no prediction layer (MTP)"),
        ("vllm", 'checkpoint = "int4"', 'checkpoint = "int5"', "did you mean int4?"),
        ("vllm", 'model = "kimi-k2.6"', 'model = "kimi-k2.66"', "did you mean kimi-k2.6"),
        ("ik", "ubatch = ", "ubatch = -", "hybrid.ubatch: -"),
        ("ik", "gpu_layers = ", "gpu_layers = -", "hybrid.gpu_layers: -"),
        ("ik", "experts = [\n    [\n", "experts = [\n    [\n        999,\n", "GLM-5.3-Flash has experts in layers"),
    ],
)
def test_a_mistake_is_refused_by_every_command(
    planned: dict[str, str], tmp_path: Path, name: str, line: str, changed: str, error: str
) -> None:
    """Exit code 2 and one line, before anything is computed from it."""
    assert line in planned[name]
    path = tmp_path / "recipe.toml"
    path.write_text(planned[name].replace(line, changed, 1))
    for command, *flags in COMMANDS:
        done = call_main(command, str(path), *flags)
        assert done.code == 2, (command, done.err)
        assert error in " ".join(done.err.split()) or command == "forecast", (command, done.err)
        assert "Traceback" not in done.err


def test_what_does_not_start_is_fatal_everywhere(planned: dict[str, str], tmp_path: Path) -> None:
    """An fp8 cache of stock vLLM on SM120: `render` was silent, `up` called it a warning."""
    path = tmp_path / "recipe.toml"
    path.write_text(planned["vllm"].replace('kv = "bf16"', 'kv = "fp8"'))
    for command, *flags in COMMANDS:
        done = call_main(command, str(path), *flags)
        text = " ".join((done.out + done.err).split())
        assert done.code == 0
        assert "fatal: TRITON_MLA with an fp8 cache needs 102,400 bytes" in text, (command, text)


@pytest.mark.parametrize("version", ["nightly", "0.32.0rc1.dev12+gabc"])
def test_a_build_without_an_image_is_rendered_natively(planned: dict[str, str], tmp_path: Path, version: str) -> None:
    """A script that runs the installed program needs no image; a Compose file does."""
    path = tmp_path / "recipe.toml"
    path.write_text(planned["vllm"].replace('engine_version = ""', f'engine_version = "{version}"'))
    done = call_main("render", str(path)).good()
    assert f"kimi-k2.6 on vllm {version}" in done.out
    assert "the release nightly" not in done.err
    refused = call_main("render", str(path), "--as", "compose")
    assert refused.code == 2
    assert "runtime.image" in refused.err


@pytest.mark.parametrize("form", ["script", "systemd", "slurm"])
def test_a_rendered_engine_that_others_reach_without_a_key_is_noted(
    planned: dict[str, str], tmp_path: Path, form: str
) -> None:
    """`up` said it of an open address; files that run elsewhere did not."""
    path = tmp_path / "recipe.toml"
    path.write_text(planned["vllm"].replace('host = "127.0.0.1"', 'host = "0.0.0.0"'))
    assert "everyone who can reach this machine" in call_main("render", str(path), "--as", form).good().err
    path.write_text(planned["vllm"])
    assert ("asks for no key" in call_main("render", str(path), "--as", form).good().err) == (form == "slurm")
