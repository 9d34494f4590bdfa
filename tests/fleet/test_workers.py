"""An engine whose first node connects to workers on the others: llama.cpp's RPC servers."""

import dataclasses
from pathlib import Path

import pytest

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.recipe import Hybrid, Listen, Parallel, Recipe, Runtime
from moebox.errors import BadInput
from moebox.serve.nodes import Nodes, conductor_config, prepare_conductor
from moebox.store import Run
from tests.embedded import phantom_recipe

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def recipe(**more: object) -> Recipe:
    usual = phantom_recipe(
        name="rpc",
        model="phantom",
        parallel=Parallel(nodes=3),
        hybrid=Hybrid(threads=4),
        runtime=Runtime(entry="/opt/llama/bin/llama-server"),
        listen=Listen(port=8000, key_env="TEAM_KEY"),
    )
    return dataclasses.replace(usual, **more)  # type: ignore[arg-type]


def nodes(*addresses: str) -> Nodes:
    return Nodes(names=tuple(f"n{rank}" for rank in range(1, len(addresses) + 1)), addresses=addresses)


def test_the_first_node_connects_to_the_workers_of_the_others_and_waits_for_them() -> None:
    first, *others = conductor_config(deploy(recipe()), nodes(*ADDRESSES), "r")["ranks"]

    assert first["argv"][first["argv"].index("--rpc") + 1] == "10.0.0.2:8001,10.0.0.3:8001"
    assert first["waits_for"] == 8001
    assert [rank["argv"] for rank in others] == [
        ("/opt/llama/bin/ggml-rpc-server", "-H", address, "-p", "8001", "-t", "4") for address in ADDRESSES[1:]
    ]
    assert {rank["other_names"] for rank in others} == {("rpc-server",)}


def test_a_worker_gets_no_key() -> None:
    assert engines.build_launch(deploy(recipe()), addresses=ADDRESSES).secret_env
    assert not engines.build_launch(deploy(recipe()), rank=1, addresses=ADDRESSES).secret_env


def test_a_list_of_workers_that_the_recipe_gives_stands() -> None:
    argv = engines.build_launch(deploy(recipe(flags={"rpc": "a:1,b:2"})), addresses=ADDRESSES).argv

    assert argv.count("--rpc") == 1
    assert argv[argv.index("--rpc") + 1] == "a:1,b:2"


def test_one_node_has_no_workers() -> None:
    assert "--rpc" not in engines.build_launch(deploy(recipe(parallel=Parallel()))).argv


def test_a_plan_warns_that_the_port_is_open_to_all() -> None:
    texts = [warning.text for warning in engines.find_refusals(deploy(recipe()))]

    assert any("RPC servers need no key" in text for text in texts)


def test_addresses_of_ipv6_are_one_line() -> None:
    with pytest.raises(BadInput, match="not IPv6"):
        prepare_conductor(deploy(recipe()), nodes("fd00::1", "fd00::2", "fd00::3"), Run.create("rpc"))


@pytest.mark.parametrize("form", ["script", "slurm", "k8s", "compose"])
def test_it_is_not_rendered_and_one_line_says_what_starts_it(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rpc.toml"
    path.write_text(codec.to_toml(recipe()))

    assert main(["render", str(path), "--as", form]) == 2
    assert "over several nodes is not rendered" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--slurm", "--dry-run"]])
def test_a_question_how_it_starts_does_not_lead_to_render(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` said render and render said up."""
    path = tmp_path / "rpc.toml"
    path.write_text(codec.to_toml(recipe(listen=Listen())))

    assert main(["up", str(path), *more]) == 2
    hint = capsys.readouterr().err
    assert "--hosts FILE" in hint
    assert "render" not in hint
