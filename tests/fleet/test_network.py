"""The network between nodes, measured and fed into the forecast."""

from dataclasses import replace
from pathlib import Path

import pytest

from moebox import codec, detect
from moebox.cli import main
from moebox.core.box import Box
from moebox.core.engine_event import NodesReached
from moebox.planner.speed.links import describe_network, network_rate
from moebox.serve.node_checks import with_measured_network

SLOW = NodesReached(tcp_bytes_s=1e9, round_trip_us=200.0)


def two() -> Box:
    return detect.load_box("2x8x-h200")


def forecast(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    words = ["forecast", "kimi-k2.6", "--box", str(path), "--engine", "vllm", "--tp", "8", "--pp", "2"]
    assert main([*words, "--decode", "--concurrency", "1,64"]) == 0
    return capsys.readouterr().out


def decode(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> float:
    words = ["forecast", "kimi-k2.6", "--box", str(path), "--engine", "vllm", "--json", "--decode", *more]
    assert main([*words, "--concurrency", "64", "--context", "8192"]) == 0
    return float(codec.parse_json(capsys.readouterr().out, where="forecast")["rows"][0]["decode_tok_s"])


def saved(box: Box, tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.toml"
    path.write_text(codec.to_toml(box))
    return path


def test_a_slow_network_slows_the_forecast_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = saved(two(), tmp_path, "usual")
    slow = saved(with_measured_network(two(), SLOW, tcp_only=False), tmp_path, "slow")

    for spread in (("--tp", "8", "--pp", "2"), ("--tp", "16")):
        assert decode(slow, capsys, *spread) < decode(usual, capsys, *spread)
    assert "125 MB/s a GPU and 100 µs a hop measured between nodes" in forecast(slow, capsys)
    assert "assumed between nodes" in forecast(usual, capsys)


def test_nccl_takes_rdma_and_rpc_servers_tcp() -> None:
    link = NodesReached(tcp_bytes_s=1e9, round_trip_us=200.0, rdma_bytes_s=400_000_000_000)

    fast = with_measured_network(two(), link, tcp_only=False)
    assert (fast.network_measured, fast.network_us) == (50_000_000_000, None)
    assert with_measured_network(two(), link, tcp_only=True).network_measured == 125_000_000


def test_machines_with_a_network_built_in_have_that_one() -> None:
    """A DGX Spark comes with 200 GbE, not with the 400 Gb/s a GPU of an HGX rack."""
    sparks = detect.load_box("2x1x-gb10")

    assert describe_network(sparks).startswith("200 Gb/s a GPU built into these machines between nodes")
    assert network_rate(sparks) == 25e9
    assert network_rate(replace(sparks, network=12_500_000_000)) == 12.5e9
    assert network_rate(two()) == 50e9


def test_one_node_has_nothing_between_nodes() -> None:
    assert describe_network(detect.load_box("8x-h200")) == ""


@pytest.mark.parametrize(
    ("text", "says"), [("n1", "lists one node"), ("n1\nn2\nn3", "lists 3 nodes, and 2x8x-h200 has 2")]
)
def test_hosts_that_are_not_the_boxs_nodes_are_one_line(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)

    assert main(["box", "--box", "2x8x-h200", "--hosts", str(path)]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
