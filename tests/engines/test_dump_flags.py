"""scripts/dump_flags.py makes catalogues from help texts and parsers."""

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from moebox import engines
from moebox.checkpoint import deploy
from tests.chain.links import launches
from tests.chain.test_chain import at_home, cases
from tests.serve.rendered import recipes

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
def test_the_vllm_catalogue_is_what_its_parser_says():
    """The parser of vLLM 0.32.0, asked today, gives the flags that moebox ships."""
    made = dump("vllm", "--version", "0.32.0", python=VLLM)
    text = resources.files("moebox.data").joinpath("flags", "vllm-0.32.0.json").read_text()
    shipped = json.loads(text)["flags"]

    assert made["flags"] == shipped


# vLLM's own parser and its check of what was parsed, over command lines given as JSON; prints how many passed.
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
lines = json.load(sys.stdin)
for argv in lines:
    validate_parsed_serve_args(parser.parse_args(argv))
print(len(lines))
"""


@pytest.mark.engine
def test_vllm_itself_parses_what_is_planned():
    """Every pin on a box of B200, chosen and runners-up: the chain's last link is the engine's own parser."""
    lines = launches(at_home(list(cases()), "vllm"))
    assert len(lines) > 20
    done = subprocess.run([VLLM, "-c", PARSE], env=CPU, input=json.dumps(lines), capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, str(len(lines))), done.stderr[-2000:]


@pytest.mark.engine
def test_vllm_itself_parses_what_is_rendered():
    """Every shape of recipe, as `vllm serve` would be given it."""
    found = [one for one in recipes().values() if one.engine == "vllm"]
    ranks = [(one, rank) for one in found for rank in range(one.parallel.nodes)]
    lines = [engines.launch(deploy(one), rank=rank, master="10.0.0.1").argv[2:] for one, rank in ranks]
    done = subprocess.run([VLLM, "-c", PARSE], env=CPU, input=json.dumps(lines), capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, str(len(lines))), done.stderr[-2000:]
