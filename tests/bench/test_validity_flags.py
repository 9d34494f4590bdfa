"""Figures that cannot be believed are marked: a server that was not steady, or not ours alone."""

from moebox.bench.validity import foreign_traffic_flag, unsteady_flag
from moebox.core.result import ServerView, SteadyState


def window(first: float, second: float, requests: int = 32) -> SteadyState:
    """A steady window with the speeds of its halves."""
    return SteadyState(
        start_s=1.0,
        end_s=9.0,
        requests=requests,
        request_throughput=4.0,
        output_throughput=(first + second) / 2,
        mean_concurrency=8.0,
        halves=(first, second),
    )


def test_halves_that_disagree_are_named() -> None:
    """Kernels that were compiled in the first half make it slower; a tenth is noise; few requests say nothing."""
    assert unsteady_flag(window(300.0, 610.0)) == "not steady: 300 tok/s in the first half, 610 tok/s in the second"
    assert unsteady_flag(window(560.0, 610.0)) == ""
    assert unsteady_flag(window(300.0, 610.0, requests=4)) == ""
    assert unsteady_flag(None) == ""


def test_traffic_of_others_is_seen_in_the_servers_counters() -> None:
    """Prompt tokens that we did not send came from another client; templates and one request at the edge are not."""
    quiet = ServerView(figures={"prompt_tokens": 10_200.0})
    assert foreign_traffic_flag(quiet, prompt_tokens=10_000, requests=100) == ""
    busy = ServerView(figures={"prompt_tokens": 25_000.0})
    assert "other clients used the server" in foreign_traffic_flag(busy, prompt_tokens=10_000, requests=100)
    assert foreign_traffic_flag(None, prompt_tokens=10_000, requests=100) == ""
