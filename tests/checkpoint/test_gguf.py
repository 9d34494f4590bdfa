"""GGUF headers: models, split parts, ik_llama.cpp's types, and hostile counts."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox import phantom
from moebox.checkpoint import gguf, resolve_model
from moebox.cli import main
from moebox.errors import BadInput, MoeboxError
from tests.checkpoint.mutation import mutated
from tests.checkpoint.tiny import DEEPSEEK2, TENSORS
from tests.checkpoint.tiny import gguf as write


def test_a_file_gives_model_and_bytes(tmp_path: Path):
    """Shape from metadata, parameters and bytes from the tensor table."""
    path = write(tmp_path / "tiny.gguf", DEEPSEEK2, TENSORS)
    model, (checkpoint,) = resolve_model(str(path))
    assert model.mla is not None
    assert model.mla.kv_width == 576
    assert model.parameters_by_component["embed"] == 64 * 256
    assert checkpoint.bytes_by_component["routed_experts"] == 256 * 32 * 8 // 256 * 110
    assert checkpoint.engines == ("ik_llama.cpp",), "IQ3_K loads in ik_llama.cpp only"
    assert checkpoint.quant == "IQ3_K"


def test_split_parts_are_read_together_and_a_missing_one_is_named(tmp_path: Path):
    """Any part may be given."""
    first = write(tmp_path / "m-00001-of-00002.gguf", DEEPSEEK2, TENSORS[:3])
    with pytest.raises(BadInput, match=r"1 of 2 parts are missing.*m-00002-of-00002"):
        resolve_model(str(first))
    second = write(tmp_path / "m-00002-of-00002.gguf", {}, TENSORS[3:])
    whole = resolve_model(str(first))[1][0].bytes_by_component
    assert "routed_experts" in whole
    assert resolve_model(str(second))[1][0].bytes_by_component == whole


def test_a_header_without_a_shape_is_refused_by_key(tmp_path: Path):
    """The key that is missing is named."""
    with pytest.raises(BadInput, match=r"llama\.block_count is missing"):
        resolve_model(str(write(tmp_path / "l.gguf", {"general.architecture": "llama"}, [])))


def test_a_projector_is_not_called_a_damaged_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """mmproj files lie beside the weights in most repositories of vision models."""
    path = write(tmp_path / "mmproj-F16.gguf", {"general.architecture": "clip"}, [])
    assert main(["plan", str(path), "--box", "1x-rtx-5090"]) == 2
    assert "is a vision projector (mmproj)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "too short"),
        (b"GGUF", "too short"),
        (b"nope" + b"\x00" * 40, "not a GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "cannot hold"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "cannot hold"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + b"k" * 20, "past the end"),
    ],
)
def test_absurd_counts_are_refused(tmp_path: Path, raw: bytes, why: str):
    """Counts that the file cannot hold cost nothing."""
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    with pytest.raises(BadInput, match=why):
        gguf.read_header(path)


def test_keys_and_values_in_one_matrix_are_seen():
    """A file from before llama.cpp knew latent attention: the same sizes, but every head is cached."""
    (old, _), (new, _) = (resolve_model(str(path)) for path in (phantom.gguf_path(), phantom.latent_path()))
    assert old.mla
    assert new.mla
    assert old.mla.whole_heads
    assert replace(old.mla, whole_heads=False) == new.mla


def test_arrays_within_arrays_end(tmp_path: Path):
    """A value that nests without end is refused, not followed."""
    nested = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + nested)
    with pytest.raises(BadInput):
        gguf.read_header(path)


@settings(max_examples=150)
@given(data=st.data())
def test_no_mutation_of_a_real_file_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """Bytes flipped and cut anywhere: a model or one line."""
    path = write(tmp_path_factory.mktemp("fuzz") / "x.gguf", DEEPSEEK2, TENSORS)
    path.write_bytes(mutated(path.read_bytes(), data))
    try:
        resolve_model(str(path))
    except MoeboxError as problem:
        assert problem.exit_code == 2
