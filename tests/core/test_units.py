"""Numbers to words and back."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moebox import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("768GiB", 768 * 2**30),
        ("595.1 GB", 595_100_000_000),
        ("1.5TiB", 3 * 2**39),
        ("512", 512),
        ("768G", 768 * 2**30),
    ],
)
def test_sizes_are_read_in_usual_spellings(text: str, size: int):
    """Binary and decimal units differ; a bare G is what memory tools mean by it."""
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "12 parsecs", "-5GB", "1e999GB", "0x10"])
def test_an_invalid_size_is_refused_with_an_example(text: str):
    """The message shows how to write it."""
    with pytest.raises(ValueError, match="768GiB"):
        units.parse_size(text)


@given(st.integers(0, 2**60))
def test_whole_bytes_survive(size: int):
    """A plain number of bytes means itself, up to the precision of a float."""
    assert units.parse_size(str(size)) == pytest.approx(size, rel=1e-12)


@given(st.text(max_size=30))
@example("0.0.0")
@example("1_000.5GiB")
def test_no_text_crashes_the_parsers(text: str):
    """They answer or raise ValueError, never anything else."""
    for parse in (units.parse_size, units.parse_rate, units.parse_tokens, units.parse_seconds):
        try:
            assert parse(text) >= 0
        except ValueError as problem:
            assert "not a" in str(problem)


def test_contexts_are_binary_and_times_have_units():
    """64k is 65,536 tokens; 50ms is a twentieth of a second."""
    assert units.parse_tokens("64k") == 65_536
    assert units.parse_seconds("50ms") == 0.05
    assert [*map(units.parse_seconds, ("1h30m", "9m40s", "9 min 40 s", "7"))] == [5400, 580, 580, 7]
    assert units.parse_rate("614GB/s") == 614_000_000_000


def test_words_have_as_many_digits_as_they_deserve():
    """As every table shows them."""
    assert units.format_gb(595_148_146_656) == "595.1 GB"
    assert units.format_gb(1.029e12) == "1.03 TB"
    assert units.format_gib(102_641_958_912) == "95.59 GiB"
    assert units.format_tok_s(18.94) == "18.9 tok/s"
    assert units.format_tok_s(1650) == "1,650 tok/s"
    assert units.format_seconds(0.363) == "363 ms"
    assert units.format_seconds(245) == "4 min 05 s"
