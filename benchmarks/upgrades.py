"""How often upgrades are judged rightly, on the phantom: refusals, passes, bisections, and kills at random moments.

    python benchmarks/upgrades.py [refuse|pass|bisect|kill] [COUNT]

Builds are commits whose llama-server passes requests on to the embedded engine with an injected fault
(tests/faulty_server.py). Run it on a quiet machine with at least four cores; it prints one line a trial and a sum.
"""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.embedded import phantom_recipe
from tests.versions import write_tree

from moebox import codec
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.flows import switch
from moebox.serve import preflight, state
from moebox.serve.stop import stop_instance

COUNTS = {"refuse": 20, "pass": 20, "bisect": 10, "kill": 20}
BY = "alive,plain,tools,soak,answers,speed"


def run_moebox(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command."""
    return subprocess.run([sys.executable, "-m", "moebox", *words], capture_output=True, text=True, check=False)


def prepare(folder: Path, faults: list[str]) -> tuple[Path, Path]:
    """Write the repository and a recipe on its first build."""
    os.environ |= {"MOEBOX_STATE": str(folder / "state"), "MOEBOX_RUNS": str(folder / "runs")}
    write_tree(folder / "tree", faults)
    recipe = dataclasses.replace(
        phantom_recipe(name="ph", engine_version="b1", max_seqs=4, context=8192),
        runtime=Runtime(),
        listen=Listen(port=preflight.find_free_port()),
    )
    path = folder / "ph.toml"
    path.write_text(codec.to_toml(recipe))
    done = run_moebox("engines", "install", "llama.cpp@b1", "--source", str(folder / "tree"))
    assert done.returncode == 0, done.stderr
    return path, folder / "tree"


def judge_upgrade(folder: Path, fault: str) -> tuple[str, str]:
    """The outcome of an upgrade from a good build to one with a fault, and the headline."""
    recipe, tree = prepare(folder, ["", fault])
    done = run_moebox("upgrade", str(recipe), "--to", "llama.cpp@b2", "--source", str(tree), "--by", BY, "--json")
    found = json.loads(done.stdout) if done.stdout else {"outcome": "error", "headline": done.stderr[-300:]}
    return found["outcome"], found["headline"]


def judge_bisection(folder: Path, rng: random.Random) -> tuple[bool, str]:
    """Whether a bisection over 16 builds with noise ends at the injected one."""
    first = rng.randint(2, 15)
    faults = ["noise:0.05" if number < first else "noise:0.05+slow:0.85" for number in range(1, 17)]
    recipe, tree = prepare(folder, faults)
    ends = ("llama.cpp@b1", "llama.cpp@b16")
    done = run_moebox("upgrade", "bisect", str(recipe), *ends, "--source", str(tree), "--by", "speed=5%", "--json")
    if done.returncode:
        return False, done.stderr[-300:]
    found = json.loads(done.stdout)
    return f"server: change {first}" in found["changes"][0], f"injected in b{first}, found {found['changes'][0]}"


def judge_kill(folder: Path, rng: random.Random) -> tuple[bool, str]:
    """Whether the old endpoint is back after kill -9 of moebox, an engine or a guard at a random moment."""
    recipe, tree = prepare(folder, ["", "slow:0.5"])
    assert run_moebox("up", str(recipe), "--detach").returncode == 0
    victim, wait_s = rng.choice(("moebox", "engine", "guard")), rng.uniform(1, 40)
    argv = [sys.executable, "-m", "moebox", "upgrade", "apply", str(recipe), "llama.cpp@b2", "--source", str(tree)]
    argv += ["--by", "alive,plain,speed"]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(wait_s)
    tried = switch.live_instances("", within=str(folder / "runs"))
    if victim == "moebox" or not tried:
        child.kill()
    else:
        last = tried[-1]
        with contextlib.suppress(ProcessLookupError):
            os.kill(last.guard if victim == "guard" else last.guard_state.engine, signal.SIGKILL)
    child.wait()
    until = time.monotonic() + 120
    while switch.list_journals(*switch.OWED) and time.monotonic() < until:
        time.sleep(0.2)
    run_moebox("ps")  # recovers if the keeper was the victim, or if no upgrade had begun
    live = [each for each in switch.live_instances("ph") if each.detached and each.ready]
    versions = [codec.read_toml(Recipe, Path(each.run) / "recipe.toml").engine_version for each in live]
    for instance in state.list_instances():
        stop_instance(instance)
    return versions == ["b1"], f"{victim} after {wait_s:.1f} s: {versions}"


def main() -> int:
    """Run one kind of trial, or all."""
    chosen = sys.argv[1:2] or list(COUNTS)
    for kind in chosen:
        count, good = int(sys.argv[2]) if len(sys.argv) > 2 else COUNTS[kind], 0
        for number in range(count):
            rng = random.Random(number)
            with tempfile.TemporaryDirectory(prefix="upgrades-") as folder:
                if kind in ("refuse", "pass"):
                    fault = ("slow:0.85", "parser")[number % 2] if kind == "refuse" else ""
                    outcome, text = judge_upgrade(Path(folder), fault)
                    right = (outcome == "roll back") if kind == "refuse" else outcome in ("keep", "no difference")
                    text = f"{fault or 'identical'}: {outcome}, {text}"
                else:
                    right, text = (judge_bisection if kind == "bisect" else judge_kill)(Path(folder), rng)
            good += right
            print(f"{kind} {number + 1}: {'right' if right else 'WRONG'}: {text}", flush=True)
        print(f"{kind}: {good} of {count}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
