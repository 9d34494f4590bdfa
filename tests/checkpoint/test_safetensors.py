"""safetensors headers: sizes by component, and hostile files refused in bounded time and memory."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.checkpoint import resolve_model, safetensors
from moebox.errors import BadInput, MoeboxError
from tests.checkpoint.mutation import mutated
from tests.checkpoint.tiny import KIMI as WHOLE
from tests.checkpoint.tiny import folder, shard

KIMI = {
    **WHOLE,
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "vocab_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_attention_heads": 2,
    "v_head_dim": 4,
}

PARTS = {
    "model.embed_tokens.weight": ("BF16", [16, 8], 256),
    "lm_head.weight": ("BF16", [16, 8], 256),
    "model.layers.0.self_attn.o_proj.weight": ("BF16", [8, 8], 128),
    "model.layers.0.mlp.down_proj.weight": ("BF16", [8, 8], 128),
    "model.layers.0.input_layernorm.weight": ("BF16", [8], 16),
    "model.layers.1.mlp.experts.7.down_proj.weight_packed": ("I32", [8, 4], 128),
    "model.layers.1.mlp.shared_experts.down_proj.weight": ("BF16", [8, 8], 128),
    "model.layers.1.mlp.gate.weight": ("BF16", [4, 8], 64),
    "model.layers.2.eh_proj.weight": ("BF16", [8, 8], 128),
    "vision_tower.blocks.0.wqkv.weight": ("BF16", [8, 8], 128),
}


def test_bytes_are_accounted_by_component_and_layer(tmp_path: Path):
    """Every component, the MTP layer apart, and nothing counted twice."""
    path = folder(tmp_path / "m", KIMI)
    shard(path / "model-00001-of-00001.safetensors", PARTS)
    _, (checkpoint,) = resolve_model(str(path))
    assert checkpoint.how == "read"
    assert checkpoint.total_bytes == sum(size for _, _, size in PARTS.values())
    assert checkpoint.bytes_by_component["routed_experts"] == 128
    assert checkpoint.bytes_by_component["mtp"] == 128
    assert checkpoint.bytes_by_component["vision"] == 128
    assert checkpoint.layer_bytes[:2] == (272, 320)


def test_a_tensor_that_two_files_have_counts_once(tmp_path: Path):
    """Numbered shards beside a whole model.safetensors, without an index: engines load both into one place."""
    path = folder(tmp_path / "m", KIMI)
    shard(path / "model.safetensors", PARTS)
    shard(path / "model-00001-of-00001.safetensors", PARTS)
    _, (checkpoint,) = resolve_model(str(path))
    assert checkpoint.total_bytes == sum(size for _, _, size in PARTS.values())


def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path):
    """`git clone` without LFS leaves 130 bytes of text in place of each shard."""
    path = folder(tmp_path / "m", KIMI)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4967000000\n"
    (path / "model-00001-of-00001.safetensors").write_text(pointer)
    with pytest.raises(BadInput, match="a pointer of Git LFS") as found:
        resolve_model(str(path))
    assert found.value.hint == "run `git lfs pull`"


def test_an_incomplete_download_is_reported_first(tmp_path: Path):
    """The index names a shard that is not there."""
    path = folder(tmp_path / "m", KIMI)
    shard(path / "a.safetensors", PARTS)
    weights = {"x": "a.safetensors", "y": "b.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(BadInput, match=r"1 of 2 shards are missing.*b\.safetensors"):
        resolve_model(str(path))


def test_an_index_cannot_point_outside_its_folder(tmp_path: Path):
    """A hostile index reads nothing else."""
    path = folder(tmp_path / "m", KIMI)
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../../etc/passwd"}}')
    with pytest.raises(BadInput, match="outside the folder"):
        resolve_model(str(path))


def test_weights_that_do_not_match_config_are_refused(tmp_path: Path):
    """A config of 61 layers beside weights of two: one line with both figures."""
    path = folder(tmp_path / "m", {**KIMI, "num_hidden_layers": 61})
    shard(path / "model-00001-of-00001.safetensors", PARTS)
    with pytest.raises(BadInput, match=r"config\.json has 61 layers, the weights hold 3"):
        resolve_model(str(path))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": 16}, "a hidden size of 16, the weights hold 8"),
        ({"vocab_size": 17}, "a vocabulary of 17, the weights hold 16"),
        ({"n_routed_experts": 8}, "8 experts, the weights hold 4"),
        ({"num_attention_heads": 4}, "4 attention heads, the weights hold 2"),
    ],
)
def test_shapes_that_do_not_match_config_are_refused(tmp_path: Path, changed: dict[str, int], message: str):
    """Hidden size, vocabulary, experts and heads are looked up in the headers, not only the number of layers."""
    path = folder(tmp_path / "m", {**KIMI, **changed})
    shard(path / "model-00001-of-00001.safetensors", PARTS)
    with pytest.raises(BadInput, match=message) as refused:
        resolve_model(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 50) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 60_000) + b'{"a":' * 12_000,
        struct.pack("<Q", 9) + b'{"a":{}}\xff',
        struct.pack("<Q", 2**20) + b"[" * 2**20,
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, raw: bytes):
    """A header of 2^63 bytes, nesting without end, truncation, the wrong kind: one line each."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(BadInput) as caught:
        list(safetensors.read_header(path))
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"dtype": "BF16", "shape": [2], "data_offsets": [0, 2**40]}, "outside"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [-4, 0]}, "outside"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [8, 4]}, "outside"),
        ({"dtype": "BF16", "shape": [2**62, 2**62], "data_offsets": [0, 4]}, "another number"),
        ({"dtype": "BF16", "shape": [-2, -1], "data_offsets": [0, 4]}, "impossible"),
        ({"dtype": "WAT", "shape": [2], "data_offsets": [0, 40]}, "outside"),
    ],
)
def test_tensors_must_lie_in_the_file_and_fill_their_shape(tmp_path: Path, entry: dict[str, object], why: str):
    """Offsets, shapes and types are checked against each other and the file."""
    raw = json.dumps({"w": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\x00" * 16)
    with pytest.raises(BadInput, match=why):
        list(safetensors.read_header(path))


@settings(max_examples=150)
@given(data=st.data())
def test_no_mutation_of_a_real_file_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """Bytes flipped, cut and inserted: a table of tensors or one line."""
    path = shard(tmp_path_factory.mktemp("fuzz") / "x.safetensors", PARTS)
    path.write_bytes(mutated(path.read_bytes(), data))
    try:
        list(safetensors.read_header(path))
    except MoeboxError as problem:
        assert problem.exit_code == 2
