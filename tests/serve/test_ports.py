"""Ports that an engine takes beside its own: chosen together, refused above the last one, named when taken."""

import dataclasses
import socket

import pytest

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core import registry
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, ExternalError
from moebox.flows.recipes import load_recipe
from moebox.serve import preflight

SGLANG = registry.engine_traits("sglang")


def on(port: int) -> Recipe:
    """SGLang's shipped recipe on this port."""
    recipe = load_recipe("kimi-k26-sglang")
    return dataclasses.replace(recipe, listen=dataclasses.replace(recipe.listen, port=port))


def test_free_ports_are_chosen_together() -> None:
    """Fifty of them, and never one whose gRPC port would lie above 65,535: most rehearsals of SGLang died of that."""
    for _ in range(50):
        port = preflight.find_free_port(offsets=SGLANG.ports)
        assert port <= SGLANG.last_port
        assert all(preflight.port_is_free("127.0.0.1", taken) for taken in SGLANG.ports_used(port))


def test_a_port_too_high_is_one_line() -> None:
    """Before anything starts, with the highest that would do."""
    engines.check_recipe(deploy(on(55535)))
    with pytest.raises(BadInput, match="also listens on 65,536") as refused:
        engines.check_recipe(deploy(on(55536)))
    assert "55535" in (refused.value.hint or "")


def test_a_taken_port_beside_its_own_is_reported() -> None:
    """Somebody listens where gRPC would: named before the launch."""
    port = preflight.find_free_port(offsets=SGLANG.ports)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + SGLANG.ports[0]))
        other.listen()
        assert not preflight.port_is_free("127.0.0.1", port + SGLANG.ports[0])
        deployment = deploy(on(port))
        ports = deployment.engine.ports_used(port)
        with pytest.raises(ExternalError, match=f"port {port + SGLANG.ports[0]}"):
            [preflight.check_port("127.0.0.1", number) for number in ports]


def listening(port: int = 0) -> socket.socket:
    """As llama.cpp's server listens: the port may be shared, and what is left of its connections may not be bound."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def test_connections_that_an_engine_left_behind_do_not_take_its_port() -> None:
    """`moebox down`, then `up` within the minute that the kernel keeps closed connections; the engine itself starts."""
    with listening() as engine:
        port = engine.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            engine.accept()[0].close()  # the server hangs up first, as one that is stopped does
            assert client.recv(1) == b""
    preflight.check_port("127.0.0.1", port)
    preflight.check_port("0.0.0.0", port)
    with listening(port):
        assert not preflight.port_is_free("127.0.0.1", port)
        assert not preflight.port_is_free("0.0.0.0", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_an_address_of_no_machine_or_of_another_is_one_line(host: str) -> None:
    """Unknown names and others' addresses: said with the host, not a traceback."""
    with pytest.raises(ExternalError, match=f"cannot listen on {host}"):
        preflight.check_port(host, 18999)
