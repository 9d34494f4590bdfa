"""How long a prompt was, by the usage of /v1/messages."""

import pytest

from moebox.stream.events import anthropic_prompt_tokens


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 58, "output_tokens": 7}, 58),
        ({"input_tokens": 34, "cache_read_input_tokens": 24}, 58),  # llama.cpp, second time it sees the beginning
        ({"input_tokens": 30, "cache_read_input_tokens": 24, "cache_creation_input_tokens": 4}, 58),
        ({"input_tokens": 58, "cache_read_input_tokens": None}, 58),
        ({"input_tokens": "58"}, None),
        ({}, None),
    ],
)
def test_what_a_cache_gave_counts_as_well(usage: dict[str, object], tokens: int | None) -> None:
    """Servers with a prompt cache were taken to lose the system prompt."""
    assert anthropic_prompt_tokens(usage) == tokens
