"""A rendered file requests from the cluster what the recipe uses: GPUs, memory, cores."""

from pathlib import Path

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.recipe import Hybrid, Parallel, Recipe
from moebox.errors import ExternalError
from moebox.render import render
from moebox.serve.nodes import prepare_nodes
from moebox.serve.where import NodeSelection
from moebox.store import Run
from tests.embedded import phantom_recipe

SALLOC = '#!/bin/sh\nprintf "%s\\n" "$@" >"$REQUESTED"\n'
CPU = 'gpus = []\nram = "768GiB"\nram_bandwidth = "614GB/s"\ncpu = { cores = 16 }\n'


def plan_recipe(words: str, folder: Path) -> Recipe:
    """Return the recipe that `moebox plan` writes."""
    assert main(["plan", *words.split(), "-o", str(folder / "r.toml")]) == 0
    return codec.read_toml(Recipe, folder / "r.toml")


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("deepseek-v3.2 --box 2x-rtx-pro-6000-max-q --ram 768GiB --engine ktransformers", 2),
        ("glm-5.1 --box 2x-rtx-pro-6000-max-q --ram 768GiB", 2),
        ("minimax-m2.5 --box 8x-rtx-pro-6000-server --tp 4 --pp 1", 4),
        ("deepseek-v3.2 --box 2x8x-h200", 8),
    ],
)
def test_a_job_requests_the_planned_gpus(words: str, gpus: int, tmp_path: Path) -> None:
    """The GPUs per node are those of the plan, also for engines that split experts over RAM."""
    text = render(deploy(plan_recipe(words, tmp_path)), "slurm")

    assert f"#SBATCH --gpus-per-node={gpus}\n" in text
    assert f" with {gpus} GPUs" in text


@pytest.mark.parametrize("file_format", ["slurm", "k8s"])
def test_a_recipe_without_gpus_requests_none(file_format: str, tmp_path: Path) -> None:
    """A job for CPUs alone does not wait for a GPU."""
    (tmp_path / "cpu.toml").write_text(CPU)
    text = render(deploy(plan_recipe(f"qwen3-235b --box {tmp_path}/cpu.toml", tmp_path)), file_format)

    assert "one node with no GPU." in text
    assert "gpus-per-node" not in text
    assert "nvidia.com/gpu" not in text


def test_a_pod_requests_no_more_than_the_planned_machine_has(tmp_path: Path) -> None:
    """Memory and cores follow the model and the box."""
    (tmp_path / "small.toml").write_text('gpus = ["2x-rtx-4090"]\nram = "128GiB"\ncpu = { cores = 12 }\n')
    text = render(deploy(plan_recipe(f"gpt-oss-120b --box {tmp_path}/small.toml", tmp_path)), "k8s")

    assert 'requests: {cpu: "11", memory: 75Gi}' in text


def test_slurm_requests_gpus_on_every_node_that_gets_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp over two nodes of four GPUs requests four on each."""
    salloc = tmp_path / "salloc"
    salloc.write_text(SALLOC)
    salloc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("REQUESTED", str(tmp_path / "requested"))
    recipe = plan_recipe("kimi-k2.6 --box 2x4x-rtx-pro-6000-server --engine llama.cpp", tmp_path)

    with pytest.raises(ExternalError, match="granted nothing"):
        prepare_nodes(deploy(recipe), Run.create("rpc"), NodeSelection(slurm=True), lambda _: None)
    assert "--gpus-per-node=4" in (tmp_path / "requested").read_text().splitlines()


def test_layers_in_the_ram_of_other_nodes_take_no_gpu() -> None:
    """Nodes that hold layers in RAM alone request no GPU."""
    recipe = phantom_recipe(parallel=Parallel(nodes=3), hybrid=Hybrid(split=(5, 5)))

    assert recipe.gpus_per_node == 0
