"""Recipes of every shape that is rendered, and programs that stand in for engines."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from moebox.core.recipe import Recipe
from moebox.core.setting import with_settings
from moebox.flows.recipes import load_recipe, shipped_recipes
from moebox.render import LAUNCH_FORMATS
from tests.chain.parse_back import parse_command

# As Slurm's own answers: the names of a list of nodes, and a node on one line.
SCONTROL = """#!/bin/sh
case "$2" in
hostnames) printf 'n1\\nn2\\n' ;;
node) echo "NodeName=$3 Arch=x86_64 CoresPerSocket=1 NodeAddr=$3 NodeHostName=$3 Version=22.05.8 State=IDLE" ;;
esac
"""
ROOT = Path(__file__).resolve().parents[2]


HYBRID = Recipe(
    name="two-cards",
    engine="ik_llama.cpp",
    model="kimi-k2.6",
    checkpoint="/models/Kimi K2.6/Kimi-K2.6-IQ3_K-00001-of-00012.gguf",
    served_name="kimi",
    context=131072,
    max_seqs=2,
    thinking=False,
    hybrid=parse_command("ik_llama.cpp", "llama-server -m x.gguf -mla 3 -amb 512 -t 15").hybrid,
)


@functools.cache
def recipes() -> dict[str, Recipe]:
    """One recipe of every shape that is rendered differently."""
    found = {name: load_recipe(name) for name in shipped_recipes()}
    found["hybrid"] = HYBRID
    found["mainline"] = with_settings(
        HYBRID, {"engine": "llama.cpp", "hybrid.mla": None, "hybrid.attention_buffer": None, "kv": "f16"}
    )
    found["experts-in-ram"] = with_settings(
        found["kimi-k26-sglang"],
        {
            "engine": "ktransformers",
            "runtime.image": "kt:1",
            "flags": {},
            "hybrid": {"threads": 64, "pools": 2, "gpu_experts": 8},
        },
    )
    found["keyed"] = with_settings(found["kimi-k26-vllm"], {"listen.key_env": "MY_KEY", "thinking": False})
    found["keyed-sglang"] = with_settings(found["kimi-k26-sglang"], {"listen.key_env": "MY_KEY"})
    found["keyed-hybrid"] = with_settings(HYBRID, {"listen.key_env": "MY_KEY"})
    found["two-nodes"] = with_settings(found["kimi-k26-vllm"], {"parallel.nodes": 2, "parallel.pp": 2})
    found["two-nodes-sglang"] = with_settings(found["kimi-k26-sglang"], {"parallel.nodes": 2, "parallel.tp": 16})
    found["speculating"] = with_settings(
        found["kimi-k26-vllm"], {"speculate": {"method": "eagle3", "draft": "a/draft", "tokens": 2}, "vision": True}
    )
    return found


def possible(name: str, form: str) -> bool:
    """Whether this recipe has such a form at all; the others are refused in a test of their own."""
    recipe = recipes()[name]
    if form == "k8s":
        return not recipe.runtime.preset
    return form != "slurm" or recipe.runtime.kind == "native"


ALL = [(name, form) for name in recipes() for form in LAUNCH_FORMATS if possible(name, form)]


def stand_in(folder: Path, *names: str) -> dict[str, str]:
    """Programs that print how they were called, first on PATH."""
    folder.mkdir()
    for name in names:
        program = folder / name
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            "keep = ('VLLM_API_KEY', 'SGLANG_API_KEY', 'LLAMA_API_KEY', 'VLLM_ENGINE_READY_TIMEOUT_S')\n"
            "files = [open(a).read() for a in sys.argv if a.startswith('/dev/fd/')]\n"
            "print(json.dumps({'argv': sys.argv, 'env': {k: os.environ.get(k) for k in keep}, 'files': files}))\n"
        )
        program.chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": "/home/someone"}


def run(text: str, tmp_path: Path, env: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Run a rendered script and read what the stand-in printed."""
    script = tmp_path / "script.sh"
    script.write_text(text)
    done = subprocess.run(["bash", script, *arguments], env=env, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
