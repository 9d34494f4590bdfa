"""Whether vLLM and SGLang agree about one model on a GPU, and whether an fp8 cache is told from a bf16 one.

    python benchmarks/quality_gpu.py read vllm --out DIR      # starts each variant, saves DIR/NAME.moeq; then sglang
    python benchmarks/quality_gpu.py judge --out DIR          # needs no GPU

Both serve the phantom's weights. The healthy variants, other kernels and batches of both engines with a bf16 cache, are
each other's references: every one of them is judged by the others, and the fp8 caches by all of them.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from moebox import codec, phantom
from moebox.core.recipe import Listen, Recipe
from moebox.quality.judge import judge_quality
from moebox.quality.reference import read_reference

VLLM = {"enforce-eager": True, "kv-cache-memory-bytes": 2_000_000_000}
SGLANG = {"attention-backend": "triton", "disable-cuda-graph": True, "max-total-tokens": 40_000}
FP8 = "fp8"
VARIANTS: dict[str, dict[str, dict[str, object]]] = {  # flags by engine and name
    "vllm": {
        "vllm": {},
        f"vllm-{FP8}": {},
        "vllm-triton": {"attention-backend": "TRITON_MLA"},
        f"vllm-triton-{FP8}": {"attention-backend": "TRITON_MLA"},
        "vllm-small-steps": {},
    },
    "sglang": {
        "sglang": {},
        "sglang-small-steps": {},
        f"sglang-{FP8}": {},
    },
}


def run_moebox(state: Path, *words: str) -> str:
    """Run one command; its last lines if it fails. Variants that share a GPU have a state folder each."""
    env = {**os.environ, "MOEBOX_STATE": str(state), "MOEBOX_RUNS": str(state / "runs")}
    argv = [sys.executable, "-m", "moebox", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-1500:]


def read_variant(engine: str, name: str, out: Path) -> str:
    """Start a variant, save what it expects of the texts, and stop it. Return what went wrong."""
    recipe = Recipe(
        name=name,
        engine=engine,
        model="phantom",
        checkpoint=str(phantom.hf_path()),
        served_name=name,
        context=8192,
        max_seqs=8,
        batched_tokens=256 if "small-steps" in name else None,
        memory_utilization=0.12 if engine == "vllm" else 0.9,  # SGLang: of what is free
        kv="fp8" if FP8 in name else "bf16",
        listen=Listen(port=21_000 + 7 * list(VARIANTS[engine]).index(name)),
        flags={**(VLLM if engine == "vllm" else SGLANG), **VARIANTS[engine][name]},  # type: ignore[dict-item]
    )
    path, state = out / f"{name}.toml", out / f"state-{name}"
    path.write_text(codec.to_toml(recipe))
    problem = run_moebox(state, "up", str(path), "--detach")
    if not problem:
        problem = run_moebox(state, "quality", name, "--save", str(out / f"{name}.moeq"))
        run_moebox(state, "down", name)
    return problem


def judge(out: Path) -> None:
    """Judge every file by the healthy ones, itself left out."""
    files = {path.stem: read_reference(path).readings for path in sorted(out.glob("*.moeq"))}
    healthy = [name for name in files if FP8 not in name]
    for name, readings in files.items():
        judged = judge_quality([files[other] for other in healthy if other != name], readings)
        print(f"{name}: {judged.verdict}")
        for row in (*judged.by_kind, *judged.by_depth):
            kl = row.mean_kl
            print(f"    {row.name:<20} {row.positions:5} {kl.value:.4f} ({kl.low:.4f} to {kl.high:.4f})")


def main() -> None:
    """Read the variants of one engine, or judge what was read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("read", "judge"))
    parser.add_argument("engine", nargs="?", choices=VARIANTS, default="vllm")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=1, help="variants that run at a time")
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "judge":
        judge(given.out)
        return
    phantom.hf_path()  # written before several look for it
    with ThreadPoolExecutor(given.at_once) as pool:
        names = [name for name in VARIANTS[given.engine] if not (given.out / f"{name}.moeq").exists()]
        for found in pool.map(lambda name: f"{name}: {read_variant(given.engine, name, given.out) or 'read'}", names):
            print(found, flush=True)


if __name__ == "__main__":
    main()
