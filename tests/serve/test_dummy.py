"""Generated GGUF files: shapes that our own reader finds again, and routers that spread tokens."""

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import phantom
from moebox.checkpoint import resolve_model
from moebox.core.calibration import shape_id
from moebox.core.model import Gqa, Model, Moe
from moebox.errors import BadInput
from moebox.flows.calibrate import dense_type, tensor_types
from moebox.serve.dummy import CONTROL_TOKENS, build_vocabulary, ggml_type, random_floats, write_gguf
from tests.serve.conftest import TINY

QWEN = Model(
    name="small",
    title="Small",
    architecture="Qwen3MoeForCausalLM",
    hidden=64,
    layers=3,
    vocab=600,
    context=4096,
    gqa=Gqa(heads=4, kv_heads=2, head_dim=16),
    moe=Moe(experts=8, used=2, intermediate=32),
)


@given(st.integers(1, 300), st.integers(0, 12), st.booleans(), st.integers(0, 9))
def test_scattered_floats_are_of_one_size_and_either_sign(number: int, small: int, wide: bool, seed: int) -> None:
    """Between 2^-small and twice that, never zero, never infinite: every score counts and none drowns the others."""
    raw = random_floats(random.Random(seed), number, wide=wide, small=small)
    values = struct.unpack(f"<{number}{'f' if wide else 'e'}", raw)
    assert all(2.0**-small <= abs(value) < 2.0 ** (1 - small) for value in values)
    if number > 60:
        assert min(values) < 0 < max(values)


@pytest.mark.parametrize("model", [TINY, QWEN], ids=["latent", "grouped"])
def test_the_file_has_the_shapes_of_the_model(model: Model, tmp_path: Path) -> None:
    """As our own reader of GGUF files sees them, with even routing or without."""
    for even in (False, True):
        path = tmp_path / f"even-{even}.gguf"
        size = write_gguf(path, model, layers=model.layers, even_routing=even)
        assert path.stat().st_size == size
        found, _ = resolve_model(str(path))
        assert (found.layers, found.hidden, found.vocab) == (model.layers, model.hidden, model.vocab)
        assert found.moe is not None
        assert model.moe is not None
        assert (found.moe.experts, found.moe.used) == (model.moe.experts, model.moe.used)
        assert type(found.attention) is type(model.attention)


def test_keys_and_values_in_one_matrix_stay_so(tmp_path: Path) -> None:
    """What is timed with few layers is what is served: the other form takes three times as long on a CPU."""
    whole, (form,) = resolve_model(str(phantom.gguf_path()))
    there = tensor_types(form)
    write_gguf(tmp_path / "cut.gguf", whole, layers=2, quant=form.quant, types=there, even_routing=True)
    cut, (small,) = resolve_model(str(tmp_path / "cut.gguf"))
    here = {name: kind for name, kind in tensor_types(small).items() if name.startswith("blk.")}

    assert here == {name: kind for name, kind in there.items() if name.startswith(("blk.0.", "blk.1."))}
    assert len(set(here.values())) == 3
    assert cut.mla == whole.mla
    assert (
        shape_id(replace(cut, vocab=whole.vocab))
        == shape_id(whole)
        != shape_id(resolve_model(str(phantom.latent_path()))[0])
    )


def test_attention_and_shared_weights_have_the_bits_of_the_checkpoint(tmp_path: Path) -> None:
    """Published files keep them in Q8_0: with twice the bytes a step on the GPUs would be timed twice too long."""
    sizes = {}
    for dense in ("f16", "q8_0"):
        path = tmp_path / f"{dense}.gguf"
        write_gguf(path, QWEN, layers=QWEN.layers, quant="q8_0", dense=dense, even_routing=True)
        model, (form,) = resolve_model(str(path))
        sizes[dense] = form.bytes_by_component
        assert dense_type(form, model) == dense
    assert sizes["q8_0"]["attention"] == pytest.approx(sizes["f16"]["attention"] * 8.5 / 16, rel=0.01)
    assert sizes["q8_0"]["routed_experts"] == sizes["f16"]["routed_experts"]


def test_even_routing_fills_routers_and_nothing_large(tmp_path: Path) -> None:
    """Experts stay holes in a sparse file: only routers, norms and the rows of some tokens take disk."""
    large = Model(
        name="large",
        title="Large",
        architecture="Qwen3MoeForCausalLM",
        hidden=1024,
        layers=2,
        vocab=20_000,
        context=4096,
        gqa=Gqa(heads=8, kv_heads=2, head_dim=64),
        moe=Moe(experts=64, used=4, intermediate=1024),
    )
    size = write_gguf(tmp_path / "large.gguf", large, layers=2, even_routing=True)
    on_disk = (tmp_path / "large.gguf").stat().st_blocks * 512
    assert on_disk < size / 4


def test_every_token_of_a_prompt_has_a_text_of_its_own() -> None:
    """A server that compares prompts by text must be able to tell them apart."""
    names, kinds = build_vocabulary(2000)
    assert len(set(names)) == 2000
    assert [name for name, kind in zip(names, kinds, strict=True) if kind != 1] == list(CONTROL_TOKENS)


def test_types_are_those_of_ggml(tmp_path: Path) -> None:
    """Q4_X is a recipe of Q4_0 experts; a mix is no type; a name that is none is refused."""
    assert ggml_type("q4_0") == ggml_type("Q4_X") == 2
    assert ggml_type("IQ3_K") is not None
    assert ggml_type("Q4_K_M") is None
    with pytest.raises(BadInput, match="is not a type of ggml"):
        write_gguf(tmp_path / "x.gguf", TINY, quant="mix-IQ3_K")
