"""scripts/dump_flags.py makes catalogues from help texts and parsers."""

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dump_flags.py"
# The venv that `make test-vllm` makes; only the tests marked `engine` need it.
CPU = os.environ | {"VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
VLLM = str(Path(os.environ.get("MOEBOX_VLLM_VENV", ".venv-vllm")) / "bin" / "python")
HELP = """----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads to use
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f16, q8_0
                                        (default: f16)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable KV cache offloading
--control-vector-layer-range START END
                                        layer range
--draft, --draft-max N                  the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
"""


def dump(*arguments: str, python: str = sys.executable) -> dict:
    """The catalogue that the script prints."""
    done = subprocess.run([python, SCRIPT, *arguments], env=CPU, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_help_text_becomes_a_catalogue(tmp_path: Path):
    """Aliases, values, choices, off switches and what was removed."""
    (tmp_path / "help.txt").write_text(HELP)
    made = dump("llama.cpp", "--version", "b1", "--text", str(tmp_path / "help.txt"))

    assert made["flags"] == {
        "-h": {"also": ["--help", "--usage"], "takes": 0},
        "-t": {"also": ["--threads"]},
        "-fa": {"also": ["--flash-attn"], "choices": ["on", "off", "auto"]},
        "-ctk": {"also": ["--cache-type-k"], "choices": ["f16", "q8_0"]},
        "-kvo": {"also": ["--kv-offload"], "off": ["-nkvo", "--no-kv-offload"], "takes": 0},
        "--control-vector-layer-range": {"takes": 2},
    }
    assert made["removed"]["--draft"] == "use --spec-draft-n-max or --spec-ngram-mod-n-max"


def test_actions_become_a_catalogue(tmp_path: Path):
    """A parser's actions, dumped elsewhere."""
    rows = [
        {"flags": ["--x", "--no-x", "-x"], "nargs": 0, "choices": None},
        {"flags": ["--n"], "nargs": None, "choices": [1, 2]},
        {"flags": [], "nargs": "?", "choices": None},
    ]
    (tmp_path / "actions.json").write_text(json.dumps(rows))
    made = dump("vllm", "--version", "1", "--actions", str(tmp_path / "actions.json"))

    assert made["flags"] == {"--x": {"also": ["-x"], "off": ["--no-x"], "takes": 0}, "--n": {"choices": ["1", "2"]}}


@pytest.mark.engine
def test_the_vllm_catalogue_is_that_of_its_parser():
    """The parser of vLLM 0.32.0 gives the flags that moebox ships."""
    made = dump("vllm", "--version", "0.32.0", python=VLLM)
    text = resources.files("moebox.data").joinpath("flags", "vllm-0.32.0.json").read_text()
    shipped = json.loads(text)["flags"]

    assert made["flags"] == shipped
