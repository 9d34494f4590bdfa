"""The embedded engine's own flags reach llama.cpp: what is parsed is set."""

import argparse

import pytest

from moebox.serve.embedded import TABLE, argument_parser, server_parameters

FLASH = TABLE["values"]["llama_flash_attn_type"]
REASONING = TABLE["values"]["common_reasoning_format"]


def given(*flags: str) -> argparse.Namespace:
    return argument_parser().parse_args(["-m", "any.gguf", *flags])


@pytest.mark.parametrize("word", FLASH)
def test_flash_attention_is_set(word: str) -> None:
    """On, off and auto differ."""
    import xllamacpp

    asked = server_parameters(given("--flash-attn", word)).flash_attn_type
    assert asked == getattr(xllamacpp.llama_flash_attn_type, FLASH[word])


def test_every_reasoning_format_is_another() -> None:
    """None leaves thinking in the text; the others take it out."""
    assert len({int(server_parameters(given("--reasoning-format", word)).reasoning_format) for word in REASONING}) == 4


def test_metrics_are_served_where_asked_for() -> None:
    assert server_parameters(given("--metrics")).endpoint_metrics
    assert not server_parameters(given()).endpoint_metrics
