"""llama.cpp over several nodes: whole layers on every node, and the network in the forecast."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox import detect, engines
from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.box import Box, Cpu
from moebox.core.plan import Plan
from moebox.core.recipe import Hybrid
from moebox.engines.llama_cpp import memory
from moebox.errors import BadInput
from moebox.planner import layouts
from moebox.planner.candidates import base_recipe
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed.host import RpcHops
from tests.chain.parse_back import parse_command

GIB = 2**30
CONSTRAINTS = Constraints(engine="llama.cpp")
TWO = "2x2x-rtx-4090@1.25GB/s"


def plan(box: Box, name: str = "gpt-oss-120b", constraints: Constraints = CONSTRAINTS) -> Plan:
    """Plan a model on the box."""
    return choose_plan(box, catalogue.find_model(name), catalogue.published_checkpoints(name), constraints)


def in_ram(nodes: int, ram: int, network: int = 1_250_000_000) -> Box:
    """Return nodes without GPUs."""
    cpu = Cpu(cores=32, threads=64)
    return Box(name="cpus", cpu=cpu, ram=ram * GIB, ram_bandwidth=460 * 10**9, nodes=nodes, network=network)


def test_a_model_too_large_for_one_nodes_gpus_is_on_those_of_two() -> None:
    """gpt-oss-120b over two nodes of two RTX 4090: every layer is placed once, and the plan mentions the network."""
    found = plan(detect.load_box(TWO))
    hybrid = found.recipe.hybrid
    assert hybrid is not None
    assert found.recipe.parallel.nodes == 2
    assert len(hybrid.split) == 4
    assert sum(hybrid.split) == catalogue.find_model("gpt-oss-120b").layers + 1  # the output counts as one
    assert [device.device for device in found.memory.devices] == ["gpu0", "gpu1", "gpu2", "gpu3", "ram"]
    assert found.memory.fits
    experts = catalogue.find_checkpoint("gpt-oss-120b", found.recipe.checkpoint).expert_layer_bytes
    held = sum(device.weights.get("routed_experts", 0) for device in found.memory.devices)
    assert held == experts * catalogue.find_model("gpt-oss-120b").moe_layers
    assert "cross the network at every start" in " ".join(found.reasons)


def test_the_launch_names_the_layers_of_every_device_and_is_read_back() -> None:
    """-ts and --rpc name the layers and servers; parsed back, the command gives the same placement."""
    recipe = plan(detect.load_box(TWO)).recipe
    argv = engines.build_launch(deploy(recipe), addresses=("10.0.0.1", "10.0.0.2")).argv
    assert recipe.hybrid is not None
    assert argv[argv.index("-ts") + 1] == ",".join(map(str, recipe.hybrid.split))
    assert argv[argv.index("--rpc") + 1] == "10.0.0.2:8001"
    assert "-ot" not in argv  # it would put the experts of every node into the first one's RAM
    back = parse_command("llama.cpp", argv).hybrid
    assert back is not None
    assert (back.split, back.gpu_layers) == (recipe.hybrid.split, recipe.hybrid.gpu_layers)


def test_without_gpus_the_ram_of_both_nodes_holds_it() -> None:
    """The first node keeps the first layers, the server gets the others."""
    found = plan(in_ram(2, 384), "kimi-k2.6", Constraints())
    hybrid = found.recipe.hybrid
    assert hybrid is not None
    assert found.recipe.engine == "llama.cpp"
    assert hybrid.gpu_layers == sum(hybrid.split)  # these go to the server, the others stay
    assert [device.device for device in found.memory.devices] == ["ram1", "ram"]
    assert all(device.free >= 0 for device in found.memory.devices)


def test_what_one_node_holds_stays_there() -> None:
    """A model that fits on one node is not distributed."""
    assert plan(detect.load_box("2x8x-h200")).recipe.parallel.nodes == 1
    assert plan(in_ram(2, 1024), "kimi-k2.6", Constraints()).recipe.parallel.nodes == 1


def test_three_nodes_are_used_if_two_are_too_few() -> None:
    """The smallest number of nodes that holds the model is used."""
    assert plan(in_ram(3, 256), "kimi-k2.6", Constraints(checkpoint="UD-Q4_K_XL")).recipe.parallel.nodes == 3


def test_a_slower_network_is_slower_by_the_formula() -> None:
    """A hundredth of the rate costs what the arithmetic of the step gives."""
    fast, slow = (
        plan(
            detect.load_box(f"2x2x-rtx-4090@{rate}"),
            constraints=dataclasses.replace(CONSTRAINTS, checkpoint="Q4_K_M", ubatch=512),
        )
        for rate in ("12.5GB/s", "0.125GB/s")
    )
    hops = RpcHops(servers=1, rate=1.0, round_trip_us=120.0, hidden=2880, vocab=0, layers=18)
    moved = hops.request_bytes(1, 1024, prompt=False) + hops.reply_bytes(1, prompt=False)
    assert moved == 2880 * 4 + 1024 * 2 + 1900 + 2880 * 4
    steps = [1 / plan.forecast[0].decode_tok_s for plan in (fast, slow)]
    assert steps[1] - steps[0] == pytest.approx(moved / 0.125e9 - moved / 12.5e9, rel=0.05)
    lines = {line.what: line for line in slow.why}
    assert "0.120 ms round trip" in lines["network"].formula


def test_bytes_are_those_counted_on_a_real_server() -> None:
    """ggml-rpc-server with the phantom, all of it on the server: read from the connection's own counters."""
    hops = RpcHops(servers=1, rate=1.0, round_trip_us=0.0, hidden=256, vocab=1152, layers=5)
    prompt = sum(
        hops.request_bytes(min(512, 4000 - past), min(past + 512, 4096), prompt=True) for past in range(0, 4000, 512)
    )
    assert prompt == pytest.approx(24_628_222, rel=0.04)
    assert hops.request_bytes(1, 1280, prompt=False) == pytest.approx(218_355 / 40, rel=0.04)
    assert hops.reply_bytes(1, prompt=False) == pytest.approx(377_184 / 80, rel=0.04)


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(2, 6),
    gpus=st.integers(0, 4),
    ram=st.integers(8, 900),
    name=st.sampled_from(["kimi-k2.6", "gpt-oss-120b"]),
)
def test_every_layer_is_on_one_device(nodes: int, gpus: int, ram: int, name: str) -> None:
    """For any nodes, GPUs and RAM: the devices hold all layers, in order."""
    gpu = catalogue.find_gpu("rtx-4090")
    box = dataclasses.replace(in_ram(nodes, ram), gpus=(gpu,) * gpus)
    model = catalogue.find_model(name)
    form = next(form for form in catalogue.published_checkpoints(name) if form.format == "gguf")
    recipe = dataclasses.replace(base_recipe(model, form, "llama.cpp", CONSTRAINTS), hybrid=Hybrid())
    for spanning in layouts.multi_node_recipes(box, model, form, recipe):
        parts = memory.layers_by_device(box, model, spanning)
        assert [layer for part in parts for layer in part] == list(range(model.layers))
        assert len(parts) == len(memory.layer_devices(box, spanning.parallel.nodes))


@pytest.mark.parametrize(
    ("hybrid", "message"),
    [
        (Hybrid(split=(-1, 3)), "none negative"),
        (Hybrid(split=(0, 0)), "none negative"),
        (Hybrid(split=(2, 3), experts=((1,),)), "keeps experts"),
    ],
)
def test_an_invalid_split_is_one_line(hybrid: Hybrid, message: str) -> None:
    """Negative, empty and contradictory splits are refused."""
    recipe = dataclasses.replace(plan(detect.load_box(TWO)).recipe, hybrid=hybrid)
    with pytest.raises(BadInput, match=message):
        engines.check_recipe(deploy(recipe))


def test_only_llama_cpp_has_it() -> None:
    """ik_llama.cpp has no RPC servers, so such a recipe is refused."""
    recipe = dataclasses.replace(plan(detect.load_box(TWO)).recipe, engine="ik_llama.cpp")
    with pytest.raises(BadInput):
        engines.check_recipe(deploy(recipe))
