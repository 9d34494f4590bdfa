"""Quirks of engines: recognised in the reasons of checks, reported to clients, never taken for another engine's."""

import pytest

from moebox.core.quirks import all_quirks, engine_quirks, match_quirk, unexpected_failure
from moebox.core.verdict import CheckVerdict, Probe


@pytest.mark.parametrize(
    ("probe", "reason", "quirk"),
    [
        ("max_tokens", "0 of 8 (finish_reason 'stop' after max_tokens 8 of a story)", "ik-finish-stop-at-max-tokens"),
        ("too long", "a prompt beyond 4,096 tokens: HTTP 500: the request exceeds", "ik-too-long-is-500"),
        ("stop string", "went on past the stop string ['12']: '9, 10, 11, 1'", "ik-stop-string-leaks"),
    ],
)
def test_a_reason_shows_a_quirk(probe: str, reason: str, quirk: str) -> None:
    """By engine, check, probe and reason."""
    found = match_quirk("ik_llama.cpp", "limits", probe, reason)
    assert found is not None
    assert found.id == quirk
    assert match_quirk("vllm", "limits", probe, reason) is None
    assert match_quirk("ik_llama.cpp", "plain", probe, reason) is None


def test_every_quirk_has_advice_for_clients() -> None:
    """Rows are whole, named once, and belong to engines."""
    assert len({quirk.id for quirk in all_quirks()}) == len(all_quirks())
    assert all(quirk.does and quirk.client and quirk.source for quirk in all_quirks())
    assert {quirk.engine for quirk in all_quirks()} <= {"vllm", "sglang", "llama.cpp", "ik_llama.cpp"}
    assert engine_quirks("unknown") == ()


def limits(*probes: tuple[str, str]) -> CheckVerdict:
    """A failed check with probes that failed for these reasons."""
    failed = tuple(Probe(name=name, verdict="fail", reason=reason) for name, reason in probes)
    return CheckVerdict(name="limits", verdict="fail", reason="it failed", probes=failed)


def test_a_failure_beyond_the_quirks_is_not_explained_by_them() -> None:
    """A check fails by its quirks alone only if every failed probe shows one."""
    quirk = ("too long", "HTTP 500: the request exceeds")
    assert unexpected_failure("ik_llama.cpp", limits(quirk)) == ""
    assert unexpected_failure("ik_llama.cpp", limits(quirk, ("usage", "counts 3 of 8"))) == "counts 3 of 8"
    assert unexpected_failure("vllm", limits(quirk)) == quirk[1]
    assert unexpected_failure("ik_llama.cpp", limits()) == "it failed"
    assert unexpected_failure("ik_llama.cpp", CheckVerdict(name="limits", verdict="warn")) == ""


def test_a_refused_prompt_that_fails_the_next_request_is_a_quirk() -> None:
    """Seen in the check after the one that sends a prompt beyond the context."""
    reason = "HTTP 500: Input prompt is too big compared to KV size. Please try increasing KV size."
    found = match_quirk("ik_llama.cpp", "errors", "kept alive", reason)
    assert found is not None
    assert found.id == "ik-too-long-fails-the-next"
