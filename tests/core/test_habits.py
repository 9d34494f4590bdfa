"""Habits of engines: recognised in a ladder's reasons, told to clients, and never taken for another engine's."""

import pytest

from moebox.core.habits import habits, habits_of, recognised


@pytest.mark.parametrize(
    ("probe", "reason", "habit"),
    [
        ("max_tokens", "0 of 8 (finish_reason 'stop' after max_tokens 8 of a story)", "ik-finish-stop-at-max-tokens"),
        ("too long", "a prompt beyond 4,096 tokens: HTTP 500: the request exceeds", "ik-too-long-is-500"),
        ("stop string", "went on past the stop string ['12']: '9, 10, 11, 1'", "ik-stop-string-leaks"),
    ],
)
def test_a_reason_shows_a_habit(probe: str, reason: str, habit: str) -> None:
    """By engine, rung, probe and what the probe saw."""
    found = recognised("ik_llama.cpp", "limits", probe, reason)
    assert found is not None
    assert found.id == habit
    assert recognised("vllm", "limits", probe, reason) is None
    assert recognised("ik_llama.cpp", "plain", probe, reason) is None


def test_every_habit_says_what_a_client_should_do() -> None:
    """Rows are whole, named once, and belong to engines."""
    assert len({habit.id for habit in habits()}) == len(habits())
    assert all(habit.does and habit.client and habit.source for habit in habits())
    assert {habit.engine for habit in habits()} <= {"vllm", "sglang", "llama.cpp", "ik_llama.cpp"}
    assert habits_of("nobody") == ()
