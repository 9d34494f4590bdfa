"""Boxes by name and by file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import codec
from moebox.detect import load_box
from moebox.errors import BadInput, MoeboxError, UnknownName


def test_a_name_gives_count_and_gpu():
    """Eight GPUs with their own figures."""
    found = load_box("8x-rtx-pro-6000-server")
    assert len(found.gpus) == 8
    assert found.gpus[0].smem == 101_376
    assert found.gpu_memory == 8 * 102_641_958_912


def test_gpus_can_be_mixed_and_machines_counted():
    """The smallest GPU of a mixed box decides; 2n- means two machines."""
    mixed = load_box("1x-rtx-5090+1x-rtx-4090")
    assert mixed.is_mixed
    assert mixed.smallest_gpu is not None
    assert mixed.smallest_gpu.name == "rtx-4090"
    assert load_box("2n-8x-h200").nodes == 2


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("2x RTX 5090", "2x-rtx-5090"),
        ("4x NVIDIA RTX PRO 6000 Blackwell Server Edition", "4x-rtx-pro-6000-server"),
        ("NVIDIA GeForce RTX 5090", "1x-rtx-5090"),
        ("2x8x NVIDIA H200", "2x8x-h200"),
        ("rtx_pro 6000", "1x-rtx-pro-6000-server"),
        ("8×H200", "8xh200"),
        ("2x-rtx-5090,1x-rtx-4090", "2x-rtx-5090+1x-rtx-4090"),
    ],
)
def test_a_name_with_spaces_is_read_as_the_driver_writes_it(name: str, same: str):
    """What nvidia-smi prints can be pasted; the box has the name that commands can repeat without quotes."""
    found = load_box(name)
    assert found.name == same
    assert found.gpus == load_box(same).gpus


@pytest.mark.parametrize(
    "name",
    [
        "rtx-5090+512GB",
        "1x-rtx-5090, 512 GB RAM",
        "RTX 5090 with 512GB of DDR5 RAM",
        "5090+512GB DDR5-6400",
        "RTX 5090  with  512GB",
    ],
)
def test_a_name_may_hold_the_memory(name: str):
    """As people write it; `--ram` comes first, and the box has the name that commands can repeat without quotes."""
    found = load_box(name)
    assert (found.ram, found.gpus) == (512 * 10**9, load_box("1x-rtx-5090").gpus)
    assert found.name in ("5090+512gb", "rtx-5090+512gb", "1x-rtx-5090+512gb")
    assert load_box(found.name).ram == found.ram
    assert load_box(name, ram="1TiB").ram == 2**40


def test_memory_on_the_command_line_wins():
    """--ram and --ram-bandwidth, in the usual units."""
    found = load_box("1x-rtx-5090", ram="768GiB", ram_bandwidth="614GB/s")
    assert found.ram == 768 * 2**30
    assert found.ram_bandwidth == 614_000_000_000


@pytest.mark.parametrize(
    "name",
    ["8x-rtx-pro-600", "8x-", "x", "0x-h100", "9999999x-h100", "", "8x-h100+", "0n-1x-h100", "64GB", "h100+1TB+1TB"],
)
def test_an_invalid_box_is_refused_in_one_line(name: str):
    """An unknown GPU gets a suggestion; an absurd count is refused."""
    with pytest.raises(BadInput) as caught:
        load_box(name or " ")
    assert "\n" not in caught.value.message


@given(st.text(max_size=40))
def test_no_name_crashes_the_grammar(text: str):
    """Whatever is typed, the answer is a box or one line."""
    if text.strip("\x00") != text or not text:
        return
    try:
        load_box(text)
    except MoeboxError as problem:
        assert problem.exit_code == 2


def test_a_short_file_describes_a_box(tmp_path: Path):
    """As a user writes it by hand."""
    path = tmp_path / "attic.toml"
    path.write_text(
        'gpus = ["2x-rtx-pro-6000-max-q"]\nram = "768GiB"\nram_bandwidth = "614GB/s"\ncpu = { cores = 16 }\n'
    )
    found = load_box(str(path))
    assert found.name == "attic"
    assert len(found.gpus) == 2
    assert found.cpu.cores == 16


def test_a_captured_file_describes_a_box(tmp_path: Path):
    """box.toml of the capture bundle."""
    path = tmp_path / "box.toml"
    path.write_text(codec.to_toml(load_box("4x-l40s", ram="1TiB")))
    assert load_box(str(path)) == load_box("4x-l40s", ram="1TiB")


@pytest.mark.parametrize(
    ("text", "why"),
    [('gpus = ["2x-nothing"]', "unknown GPU"), ('gpu = ["2x-h100"]', "unknown setting"), ('ram = "x"', "not a size")],
)
def test_a_broken_file_names_itself(tmp_path: Path, text: str, why: str):
    """The message has the field and the problem."""
    path = tmp_path / "box.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=why):
        load_box(str(path))


def test_a_missing_file_is_not_a_gpu(tmp_path: Path):
    """A path that ends in .toml is a file, not a name."""
    with pytest.raises(BadInput, match="no such file"):
        load_box(str(tmp_path / "none.toml"))


def test_unknown_gpus_suggest_near_names():
    """rtx-pro-600 is one letter from rtx-pro-6000."""
    with pytest.raises(UnknownName) as caught:
        load_box("8x-rtx-pro-600")
    assert "rtx-pro-6000" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["2x8x-rtx-pro-6000-server", "2n-8x-rtx-pro-6000-server"])
def test_nodes_times_gpus(text: str) -> None:
    """Sixteen GPUs, eight in each of two nodes; the link between them is unknown."""
    found = load_box(text)

    assert (found.nodes, len(found.gpus), found.network) == (2, 8, 0)


def test_the_rate_between_nodes_stands_after_an_at() -> None:
    """It is for each GPU, in bytes."""
    assert load_box("4x8x-h200@25GB/s").network == 25_000_000_000


@pytest.mark.parametrize("text", ["8x-h200@50GB/s", "2x8x-h200@fast", "2x8x-h200@", "2x8x-h200@1B/s", "999x8x-h200"])
def test_nodes_that_cannot_be_meant(text: str) -> None:
    """One line each."""
    with pytest.raises(BadInput):
        load_box(text)
