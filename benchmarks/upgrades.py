"""How often upgrades are judged rightly: refusals, passes, bisections, and kills at random moments.

    python benchmarks/upgrades.py [refuse|pass|bisect|kill|switch|power] [COUNT] [--canned SECONDS] [--noise 0.05]
                                  [--bursts 0] [--by NAMES] [--first 0] [--tree DIR --kept DIR [--engine NAME]]

Builds are commits whose llama-server passes requests on to the embedded engine with an injected fault
(tests/faulty_server.py). With --canned they stream words on a schedule, one in so many seconds, so a trial needs no
quiet cores; --noise and --bursts add random stretches to every stream of both sides. `kill` and `switch` kill moebox,
an engine or a guard while versions are tried and while the endpoint is switched; `power` does in a sweep of power caps,
with a driver that is a file. With --tree, a git repository of llama.cpp or ik_llama.cpp, builds are real: its server
with a change in the source (every step takes as long as 15 % less speed needs, or tool calls are left in the text, or
of ik_llama.cpp, which does not parse the phantom's calls, thoughts), beside a commit that changes a comment. --kept
holds them for all trials, so that only the first one compiles everything.
It prints one line a trial and a sum; "undecided" is neither right nor wrong.
"""

import argparse
import collections
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
from tests.flows.test_power_sweep import ROOT, STAND_IN, SWEEP
from tests.versions import run_git, write_tree

from moebox import codec
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.core.verdict import wilson_score
from moebox.flows import switch
from moebox.serve import preflight, state
from moebox.serve.agent import port_is_open
from moebox.serve.stop import stop_instance

COUNTS = {"refuse": 20, "pass": 20, "bisect": 10, "kill": 20, "switch": 12, "power": 20}
RESTORED_S = 180.0  # until an endpoint is back that took seconds to start
VICTIMS = ("moebox", "engine", "guard")
SOURCES = {"llama.cpp": "tools/server", "ik_llama.cpp": "examples/server"}
SLOWER = """
    static int64_t last_step = 0;
    llama_synchronize({context});
    const int64_t now = ggml_time_us();
    while (now - last_step < 500000 && ggml_time_us() < now + (now - last_step) * 3 / 17) {{}}
    last_step = ggml_time_us();"""
IDS = "new_msg.set_tool_call_ids(generated_tool_call_ids, gen_tool_call_id);"
NO_CALLS = """
    if (!new_msg.tool_calls.empty()) { new_msg.content = generated_text; new_msg.tool_calls.clear(); }"""
NO_THOUGHTS = """
    if (!new_msg.reasoning_content.empty()) { new_msg.content = generated_text; new_msg.reasoning_content.clear(); }"""
REAL_FAULTS = {  # by engine: the file, the text in it that is followed by a fault, and the fault
    ("llama.cpp", "slow:0.85"): (
        "server-context.cpp",
        "ret = llama_decode(ctx_tgt, batch_view);",
        SLOWER.format(context="ctx_tgt"),
    ),
    ("llama.cpp", "parser"): ("server-task.cpp", IDS, NO_CALLS),
    ("ik_llama.cpp", "slow:0.85"): (
        "server-context.cpp",
        "static inline int server_decode(llama_context * ctx, const llama_batch & batch) {",
        f"""
    const int result = llama_decode(ctx, batch);{SLOWER.format(context="ctx")}
    if (last_step) return result;""",
    ),
    ("ik_llama.cpp", "parser"): ("server-context.cpp", IDS, NO_THOUGHTS),
}


def run_moebox(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command."""
    return subprocess.run([sys.executable, "-m", "moebox", *words], capture_output=True, text=True, check=False)


def add_real_builds(tree: Path, upstream: str, engine: str, prefix: str, faults: list[str]) -> None:
    """Add commits PREFIX1, PREFIX2, … to a clone of the engine: each has its fault, or another comment."""
    if not tree.exists():
        subprocess.run(["git", "clone", "--quiet", "--shared", str(Path(upstream).resolve()), str(tree)], check=True)
        run_git(tree, "tag", "upstream")
    if f"{prefix}{len(faults)}" in run_git(tree, "tag").split():
        return
    run_git(tree, "checkout", "--quiet", "--detach", "upstream")
    folder = tree / SOURCES[engine]
    original = {row[0]: (folder / row[0]).read_text() for key, row in REAL_FAULTS.items() if key[0] == engine}
    for number, fault in enumerate(faults, 1):
        for name, text in original.items():
            (folder / name).write_text(text)
        if fault:
            name, place, change = REAL_FAULTS[engine, fault]
            assert original[name].count(place) == 1, f"{name} of this {engine} has no {place!r}"
            (folder / name).write_text(original[name].replace(place, place + change))
        with open(folder / "server-queue.cpp", "a") as file:
            file.write(f"// {prefix} {number}\n")
        run_git(tree, "commit", "--quiet", "--all", "--message", f"server: change {number}")
        run_git(tree, "tag", "--force", f"{prefix}{number}")


def pick_process(instance: state.Instance, victim: str) -> int:
    """The process id of an engine or its guard; 0 if it has none yet."""
    return instance.guard if victim == "guard" else instance.guard_state.engine


def kill_process(pid: int) -> None:
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Trials:
    """Trials of one kind of servers."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.named = given.by
        self.by = given.by or ("alive,soak,answers,speed" if given.canned else "alive,plain,tools,soak,answers,speed")
        parts = [f"canned:{given.canned}"] * bool(given.canned)
        parts += [f"noise:{given.noise}"] * bool(given.noise) + [f"bursts:{given.bursts}"] * bool(given.bursts)
        self.shared = "+".join(parts)
        self.upstream, self.engine, self.kept = given.tree, given.engine, Path(given.kept).resolve()

    def prepare(self, folder: Path, faults: list[str], prefix: str = "b") -> tuple[Path, Path]:
        """Write the repository and a recipe on its first build."""
        os.environ |= {"MOEBOX_STATE": str(folder / "state"), "MOEBOX_RUNS": str(folder / "runs")}
        tree = folder / "tree"
        if self.upstream:
            tree = self.kept / "tree"
            os.environ["MOEBOX_STATE"] = str(self.kept / "state")
            add_real_builds(tree, self.upstream, self.engine, prefix, faults)
        else:
            write_tree(tree, ["+".join(filter(None, (self.shared, fault))) for fault in faults], prefix)
        context = 512 if self.engine == "ik_llama.cpp" else 2048  # it reads prompts slower the fuller its cache is
        recipe = dataclasses.replace(
            phantom_recipe(name="ph", engine=self.engine, engine_version=f"{prefix}1", max_seqs=4, context=context),
            runtime=Runtime(),
            listen=Listen(port=preflight.find_free_port()),
        )
        path = folder / "ph.toml"
        path.write_text(codec.to_toml(recipe))
        done = run_moebox("engines", "install", f"{self.engine}@{prefix}1", "--source", str(tree))
        assert done.returncode == 0, done.stderr
        return path, tree

    def judge_upgrade(self, folder: Path, fault: str) -> tuple[str, str]:
        """The outcome of an upgrade from a good build to one with a fault, and why."""
        prefix = fault.partition(":")[0] or "same"
        recipe, tree = self.prepare(folder, ["", fault], prefix)
        words = [
            "upgrade",
            str(recipe),
            "--to",
            f"{self.engine}@{prefix}2",
            "--source",
            str(tree),
            "--by",
            self.by,
            "--json",
        ]
        done = run_moebox(*words)
        found = json.loads(done.stdout) if done.stdout else {"outcome": "error", "headline": done.stderr[-300:]}
        text = f"{fault or 'identical'}: {found['headline']}; {'; '.join(found.get('reasons', ()))}"
        outcome = str(found["outcome"])
        if outcome in ("undecided", "error"):
            return outcome, text
        right = ("roll back",) if fault else ("keep", "no difference")
        return ("right" if outcome in right else "wrong") + f", {outcome}", text

    def refuse(self, folder: Path, rng: random.Random, number: int) -> tuple[str, str]:
        return self.judge_upgrade(folder, ("slow:0.85", "parser")[number % 2])

    def accept(self, folder: Path, rng: random.Random, number: int) -> tuple[str, str]:
        return self.judge_upgrade(folder, "")

    def bisect(self, folder: Path, rng: random.Random, number: int) -> tuple[str, str]:
        """Whether a bisection over 16 builds ends at the fault: 15 % slower, or (--by tools) the parser."""
        by, first, prefix = self.named or "speed=5%", rng.randint(2, 15), f"trial{number}-"
        fault = "slow:0.85" if by.startswith("speed") else "parser"
        recipe, tree = self.prepare(folder, ["" if build < first else fault for build in range(1, 17)], prefix)
        ends = (f"{self.engine}@{prefix}1", f"{self.engine}@{prefix}16")
        done = run_moebox("upgrade", "bisect", str(recipe), *ends, "--source", str(tree), "--by", by, "--json")
        if done.returncode:
            return "undecided", f"injected in change {first}: {done.stderr[-400:]}"
        found = json.loads(done.stdout)
        judged = sum(map(len, found["marks"].values()))
        text = f"injected in change {first}, found {found['changes'][0]}, {judged} judgements"
        if len(found["suspects"]) > 1:
            return "undecided", f"{text}, {len(found['suspects'])} suspects"
        return "right" if found["changes"][0].endswith(f"server: change {first}") else "wrong", text

    def kill(self, folder: Path, rng: random.Random, number: int) -> tuple[str, str]:
        """Whether the old endpoint is back after kill -9 of moebox, an engine or a guard at a random moment."""
        return self.kill_upgrade(folder, VICTIMS[number % 3], rng.uniform(1, 40), "testing")

    def switch(self, folder: Path, rng: random.Random, number: int) -> tuple[str, str]:
        """The same while the endpoint is switched to a build that was accepted; afterwards the new one is right."""
        return self.kill_upgrade(folder, VICTIMS[number % 3], rng.uniform(0, 1.5), "switching")

    def kill_upgrade(self, folder: Path, victim: str, wait_s: float, phase: str) -> tuple[str, str]:
        """Kill a process of an upgrade and see whether one endpoint answers, the one that the recipe's file names."""
        recipe, tree = self.prepare(folder, ["", "slow:0.5" if phase == "testing" else ""])
        up = run_moebox("up", str(recipe), "--detach")
        assert up.returncode == 0, up.stderr
        argv = [sys.executable, "-m", "moebox", "upgrade", "apply", str(recipe), "llama.cpp@b2", "--source", str(tree)]
        argv += ["--by", "alive,speed" if phase == "testing" else "alive"]
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while phase == "switching" and not switch.list_journals("switching") and child.poll() is None:
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
        target = 0
        while victim != "moebox" and target <= 1 and child.poll() is None:  # of the upgrade, not the user's own engine
            owed = switch.list_journals(*switch.OWED)
            within = owed[0].run if owed and phase == "testing" else ""
            tried = switch.live_instances("ph", within=within) if owed else []
            target = pick_process(tried[-1], victim) if tried else 0
            time.sleep(0.05)
        if child.poll() is not None:
            victim = f"no {victim}, it had ended"
        else:
            kill_process(child.pid if victim == "moebox" else target)
        seen = ", ".join(journal.phase for journal in switch.list_journals(*switch.OWED)) or "not under way"
        child.wait()
        until = time.monotonic() + RESTORED_S
        while switch.list_journals(*switch.OWED) and time.monotonic() < until:
            time.sleep(0.2)
        run_moebox("ps")  # recovers if the keeper was the victim, or if no upgrade had begun
        live = [each for each in switch.live_instances("ph") if each.detached and each.ready]
        versions = [codec.read_toml(Recipe, Path(each.run) / "recipe.toml").engine_version for each in live]
        named = codec.read_toml(Recipe, recipe)
        answers = port_is_open("127.0.0.1", named.listen.port)
        is_applied = bool(switch.list_journals("applied"))
        for instance in state.list_instances():
            stop_instance(instance)
        text = f"{victim} after {wait_s:.1f} s ({seen}): {versions} live, {answers=}, {is_applied=}"
        is_right = versions == [named.engine_version] == ["b2" if is_applied else "b1"] and answers
        return "right" if is_right else "wrong", text

    def power(self, folder: Path, rng: random.Random, number: int) -> tuple[str, str]:
        """Whether the power cap is restored after kill -9 of moebox, an engine or a guard within a sweep."""
        recipe, _ = self.prepare(folder, [""])
        (cap := folder / "cap").write_text("600000")
        names = {"MOEBOX_STAND_IN_NVML": str(cap), "PYTHONPATH": f"{STAND_IN}:{ROOT}", "CUDA_VISIBLE_DEVICES": "0"}
        argv = [sys.executable, "-c", SWEEP, str(recipe)]
        child = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | names
        )
        until = time.monotonic() + RESTORED_S
        while cap.read_text() in ("", "600000") and child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(wait_s := rng.uniform(0, 1.5))
        victim, before = VICTIMS[number % 3], cap.read_text()
        live = switch.live_instances("", within=str(folder / "runs"))
        target = pick_process(live[-1], victim) if live and victim != "moebox" else child.pid
        kill_process(target)
        problem = child.communicate()[1].strip().splitlines()[-1:]
        while (cap.read_text() != "600000" or state.orphan_processes()) and time.monotonic() < until:
            time.sleep(0.1)
        after, left = cap.read_text(), state.orphan_processes()
        text = f"{victim} after {wait_s:.1f} s at {before} mW: {after} mW, left {len(left)} processes; {problem}"
        return "right" if after == "600000" and not left else "wrong", text


def main() -> int:
    """Run one kind of trial, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=COUNTS)
    parser.add_argument("count", nargs="?", type=int)
    parser.add_argument("--canned", type=float, default=0.0, help="seconds a word; no engine")
    parser.add_argument("--noise", type=float, default=0.05, help="largest random stretch of a stream")
    parser.add_argument(
        "--bursts", type=float, default=0.0, help="share of streams that are stretched up to three times"
    )
    parser.add_argument("--by", default="", help="as of `moebox upgrade`")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial, which seeds it")
    parser.add_argument("--tree", default="", help="git repository of the engine: real builds")
    parser.add_argument("--engine", default="llama.cpp", choices=SOURCES, help="whose repository --tree is")
    parser.add_argument("--kept", default="upgrades-real", help="folder of the real builds")
    given = parser.parse_args()
    trials = Trials(given)
    for kind in [given.kind] if given.kind else COUNTS:
        outcomes: collections.Counter[str] = collections.Counter()
        judge = trials.accept if kind == "pass" else getattr(trials, kind)
        for number in range(given.first, given.first + (given.count or COUNTS[kind])):
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="upgrades-") as folder:
                outcome, text = judge(Path(folder), random.Random(number), number)
            outcomes[outcome] += 1
            print(f"{kind} {number}: {outcome}: {text} [{time.monotonic() - began:.0f} s]", flush=True)
        right = wilson_score(sum(outcomes[key] for key in outcomes if key.startswith("right")), outcomes.total())
        print(f"{kind}: right {right.passed} of {right.trials} ({right.low:.0%} to {right.high:.0%}); {dict(outcomes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
