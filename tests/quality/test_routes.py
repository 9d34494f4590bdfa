"""The check `routes`: a server whose probabilities hang on the route of a prompt is named with that route."""

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckVerdict
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks
from tests.quality.toy_server import ToyServer
from tests.serving import live

FAULTS = {
    "cached": "cached prefixes differ",
    "cached, long": "cached prefixes differ at 1",
    "pieces": "prompts read in pieces differ",
    "crowd": "prompts in a crowd differ",
}


def check_routes(fault: str = "", dialect: str = "prefixes", noise: float = 0.0) -> CheckVerdict:
    with live(ToyServer(dialect, fault=fault, noise=noise)) as server:
        endpoint = endpoint_from_url(server.url, "toy")
        options = VerifyOptions(seed=5, parallel=4, context=1600)
        return run_checks(endpoint, options, only=["routes"]).rungs[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_route_is_named(fault: str):
    """The route that answers otherwise fails with its name."""
    verdict = check_routes(fault)
    assert verdict.verdict == "fail"
    assert any(FAULTS[fault] in probe.reason for probe in verdict.probes), verdict


@pytest.mark.parametrize("dialect", ["prefixes", "prompt_logprobs"])
def test_a_server_without_such_a_fault_passes(dialect: str):
    """All routes agree, with ids or token texts."""
    verdict = check_routes(dialect=dialect)
    assert (verdict.verdict, verdict.reason) == ("pass", "")


@pytest.mark.parametrize("fault", ["none", "one", "random"])
def test_a_server_without_usable_figures_is_skipped(fault: str):
    """Without log-probabilities, or with invented ones, nothing is said about routes."""
    assert check_routes(fault).verdict == "skip"
