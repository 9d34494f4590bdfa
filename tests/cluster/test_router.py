"""The real sglang-router and vllm-router over simulated boxes, their own parsers, and Kubernetes' own schemas."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from moebox import codec, detect, http
from moebox.checkpoint import deploy
from moebox.flows import recipes
from moebox.flows.recipes import load_recipe
from moebox.render import render_files
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox_fleet import bench as fleet_bench
from moebox_fleet import up as fleet_up
from moebox_fleet import verify as fleet_verify
from moebox_fleet.file import RouterKind
from moebox_fleet.render import render_fleet

pytestmark = pytest.mark.engine
VENV = Path(os.environ.get("MOEBOX_ROUTER_VENV", ".venv-router")).absolute()
LITELLM = Path(os.environ.get("MOEBOX_LITELLM_VENV", ".venv-litellm")).absolute()
MEMBERS = '[[member]]\nname = "k26"\nrecipe = "kimi-k26-vllm"\nbox = "8x-h200"\ncount = 2\n'
PARSED = {
    "sglang-router": "from sglang_router.launch_router import parse_router_args as p; p(sys.argv[1:])",
    "vllm-router": "from vllm_router.launch_router import parse_router_args as p; p(sys.argv[1:])",
}


def fleet(tmp_path: Path, kind: RouterKind, *, port: int = 8080) -> Path:
    path = tmp_path / "fleet.toml"
    python = LITELLM if kind == "litellm" else VENV
    path.write_text(f'name = "pair"\n[router]\nkind = "{kind}"\nport = {port}\npython = "{python}"\n{MEMBERS}')
    return path


@pytest.mark.parametrize("kind", ["sglang-router", "vllm-router"])
def test_the_routers_own_parsers_take_every_flag(tmp_path: Path, kind: RouterKind) -> None:
    script = render_fleet(fleet(tmp_path, kind), "router")["router.sh"]
    words = script.splitlines()[-1].split()
    flags = words[words.index("--host") :]
    done = subprocess.run(
        [VENV / "bin" / "python", "-c", f"import sys; {PARSED[kind]}", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["sglang-router", "vllm-router"])
def test_a_real_router_serves_keeps_conversations_together_and_loses_only_a_members_streams(
    tmp_path: Path, kind: RouterKind
) -> None:
    running = fleet_up.start_fleet(fleet(tmp_path, kind, port=0), twins=True, patience_s=120)
    try:
        record = running.record
        verdict = fleet_verify.verify_fleet(
            record, VerifyOptions(seed=1), only=["alive"], kill="busiest", streams=64, run=Run.create("verify")
        )
        assert verdict.checks.has_passed
        assert verdict.affinity.verdict == "pass", verdict.affinity.reason
        assert verdict.loss is not None
        assert verdict.loss.is_good, verdict.loss
        assert 0 < len(verdict.loss.lost) <= (verdict.loss.inside or 0)
        record = fleet_up.find_fleet(record.name)
        load = fleet_bench.FleetLoad(concurrency=2, requests=8, output_tokens=16, probes=8)
        steps = fleet_bench.bench_fleet(record, (1, 2), load)
        assert [step.failed for step in steps] == [0, 0]
        assert all(step.router_cpu_s > 0 for step in steps)
    finally:
        running.stop()


def test_litellm_keeps_named_conversations_together_and_loses_only_a_members_streams(
    tmp_path: Path,
) -> None:
    running = fleet_up.start_fleet(fleet(tmp_path, "litellm", port=0), twins=True, patience_s=120)
    try:
        # It relays some hundred chunks a second: more streams would be done by the members before clients see them.
        verdict = fleet_verify.verify_fleet(
            running.record, VerifyOptions(seed=1), only=["alive"], kill="busiest", streams=8, run=Run.create("verify")
        )
        assert verdict.checks.has_passed
        assert verdict.affinity.verdict == "pass", verdict.affinity.reason
        assert "x-litellm-session-id" in verdict.affinity.reason
        assert verdict.loss is not None
        assert verdict.loss.is_good, verdict.loss
        assert verdict.loss.counted_by == "router"
    finally:
        running.stop()


def test_litellm_carries_the_ladder_to_real_engines_and_the_anthropic_api(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    recipe = tmp_path / "phantom.toml"
    recipe.write_text(codec.to_toml(recipes.plan_phantom(detect.load_box()).recipe))
    text = f'name = "real"\n[router]\nkind = "litellm"\nport = 0\npython = "{LITELLM}"\n'
    path.write_text(f'{text}[[member]]\nname = "p"\nrecipe = "{recipe}"\ncount = 2\n')
    running = fleet_up.start_fleet(path, patience_s=300)
    try:
        record = running.record
        verdict = fleet_verify.verify_fleet(
            record, VerifyOptions(seed=1), only=["streaming", "tools"], run=Run.create("verify")
        )
        assert verdict.checks.has_passed, verdict.checks
        endpoint = record.endpoint()
        body = {"model": endpoint.model, "max_tokens": 8, "messages": [{"role": "user", "content": "Say apple."}]}
        reply = http.post_json(f"{endpoint.server_url}/v1/messages", body, timeout_s=120)
        assert reply.ok, reply
        assert reply.json()["type"] == "message"
    finally:
        running.stop()


@pytest.mark.parametrize("kind", ["Deployment", "LeaderWorkerSet", "fleet"])
def test_kubernetes_own_schemas_take_every_object(tmp_path: Path, kind: str) -> None:
    if kind == "fleet":
        texts = render_fleet(fleet(tmp_path, "sglang-router"), "k8s")
    else:
        recipe = load_recipe("kimi-k26-vllm")
        if kind == "LeaderWorkerSet":
            from dataclasses import replace

            recipe = replace(recipe, parallel=replace(recipe.parallel, tp=8, pp=2, nodes=2))
        texts = render_files(deploy(recipe), "kustomize")
    known = []
    for text in texts.values():
        known += [
            one for one in yaml.safe_load_all(text) if one and "k8s.io" not in one["apiVersion"].partition("/")[0]
        ]
        known += [one for one in yaml.safe_load_all(text) if one and one["apiVersion"].startswith("networking.k8s.io")]
    checked = [one for one in known if one["apiVersion"].partition("/")[0] != "monitoring.coreos.com"]
    assert checked
    if kind == "LeaderWorkerSet":  # its pods are ordinary ones: checked as such
        (group,) = yaml.safe_load_all(texts["engine.yaml"])
        template = group["spec"]["leaderWorkerTemplate"]
        for place, pod in enumerate((template["leaderTemplate"], template["workerTemplate"])):
            checked.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{place}"}, "spec": pod["spec"]})
    for number, one in enumerate(checked):
        path = tmp_path / f"{number}.yaml"
        path.write_text(json.dumps(one))
        words = [VENV / "bin" / "kubernetes-validate", "--strict", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{one['kind']}: {done.stdout}{done.stderr}"
