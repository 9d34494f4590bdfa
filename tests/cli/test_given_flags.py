"""Flags that a user gives: what is started is what was meant, for values of every form."""

import shlex
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.recipe import Recipe
from moebox.core.setting import apply_settings
from moebox.flows.recipes import load_recipe


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A planned recipe of each engine."""
    folder, found = tmp_path_factory.mktemp("recipes"), {}
    boxes = {"vllm": "8x-h200", "sglang": "8x-h200", "llama.cpp": "2x-rtx-5090+1TB", "ktransformers": "2x-rtx-5090+1TB"}
    for engine, box in boxes.items():
        found[engine] = str(folder / f"{engine}.toml")
        assert main(["plan", "kimi-k2.6", "--engine", engine, "--box", box, "-o", found[engine]]) == 0
    return found


CASES = [
    ("sglang", 'flags.json-model-override-args={"a":true}', ["--json-model-override-args", '{"a":true}']),
    ("vllm", 'flags.compilation-config={"mode":3}', ["--compilation-config", '{"mode":3}']),
    ("vllm", "flags.compilation-config.cudagraph_capture_sizes=[1,2]", ["cudagraph_capture_sizes", "[1, 2]"]),
    ("vllm", "flags.cudagraph-capture-sizes=[1,2,4]", ["--cudagraph-capture-sizes", "1", "2", "4"]),
    ("vllm", "flags.max_logprobs=5", ["--max-logprobs", "5"]),
    ("vllm", "flags.--revision=12e4", ["--revision", "12e4"]),
    ("ktransformers", "flags.kt-max-deferred-experts-per-token=2", ["--kt-max-deferred-experts-per-token", "2"]),
    ("llama.cpp", "flags.--load_mode=none", ["--load-mode", "none"]),
]


@pytest.mark.parametrize(("engine", "setting", "words"), CASES, ids=[setting for _, setting, _ in CASES])
def test_a_value_reaches_the_engine_as_it_was_written(
    engine: str, setting: str, words: list[str], recipes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON stays JSON, lists are words or one list, and the recipe reads back as the same one."""
    assert main(["up", recipes[engine], "--dry-run", "--set", setting]) == 0
    started = [word.removeprefix("--compilation-config.") for word in shlex.split(capsys.readouterr().out)]
    assert words in [started[place : place + len(words)] for place in range(len(started))]
    changed = apply_settings(load_recipe(recipes[engine]), [setting])
    assert codec.decode(Recipe, codec.parse_toml(codec.to_toml(changed), where="again"), where="again") == changed


@pytest.mark.parametrize(
    ("engine", "setting", "flag"),
    [
        ("vllm", "flags.enable_prompt_tokens_details=false", "--enable-prompt-tokens-details"),
        ("llama.cpp", "flags.-ot=false", "-ot"),
    ],
)
def test_false_drops_a_flag(
    engine: str, setting: str, flag: str, recipes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that takes a value: `false` is none."""
    main(["up", recipes[engine], "--dry-run"])
    assert flag in capsys.readouterr().out.split()
    assert main(["up", recipes[engine], "--dry-run", "--set", setting]) == 0
    assert not {flag, "false"} & set(capsys.readouterr().out.split())


def test_a_key_beside_json_becomes_part_of_it(recipes: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM would read the key alone and lose the draft's model."""
    words = ["--set", "speculate=eagle3", "--set", "flags.speculative-config.draft_tensor_parallel_size=1"]
    assert main(["up", recipes["vllm"], "--dry-run", *words]) == 0
    line = shlex.split(capsys.readouterr().out)
    document = codec.parse_json(line[line.index("--speculative-config") + 1], where="argv")
    assert (document["method"], document["draft_tensor_parallel_size"]) == ("eagle3", 1)
    assert not any(word.startswith("--speculative-config.") for word in line)


def test_a_list_of_numbers_is_read_from_a_file(recipes: dict[str, str], tmp_path: Path) -> None:
    """As TOML has it, and as the same recipe."""
    path = tmp_path / "r.toml"
    path.write_text(Path(recipes["vllm"]).read_text().replace("[flags]", "[flags]\ncudagraph-capture-sizes = [1, 2]"))
    assert load_recipe(str(path)).flags["cudagraph-capture-sizes"] == [1, 2]
