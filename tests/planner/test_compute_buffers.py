"""Compute buffers of both llama.cpp servers on the CPU, against their logs ("CPU compute buffer size").

Read on 15 November 2026 from ik_llama.cpp 8337e4c and llama.cpp b21e4de with generated weights of the models' shapes.
"""

import pytest

from moebox.checkpoint import resolve_model
from moebox.core import catalogue
from moebox.core.model import Model
from moebox.core.recipe import EngineName, Hybrid, Recipe
from moebox.engines.ggml.memory import cpu_compute_bytes
from moebox.phantom import gguf_path, latent_path
from moebox.sizing.constants import MIB

# Engine, model, context of all slots, slots, -ub, -mla, -amb: MiB.
SEEN = [
    ("ik_llama.cpp", "qwen3-235b", 4096, 1, 512, None, None, 312.75),
    ("ik_llama.cpp", "qwen3-235b", 65536, 1, 512, None, None, 312.75),
    ("ik_llama.cpp", "qwen3-235b", 4096, 1, 2048, None, None, 1251.0),
    ("ik_llama.cpp", "kimi-k2.6", 4096, 1, 512, None, None, 478.8),
    ("ik_llama.cpp", "kimi-k2.6", 65536, 1, 512, 3, None, 570.13),
    ("ik_llama.cpp", "kimi-k2.6", 4096, 1, 2048, None, None, 1336.0),
    ("ik_llama.cpp", "kimi-k2.6", 16384, 1, 512, 3, 512, 928.13),
    ("ik_llama.cpp", "kimi-k2.6", 131072, 1, 512, 3, 512, 1040.13),
    ("ik_llama.cpp", "kimi-k2.6", 131072, 1, 1024, 3, 512, 1268.26),
    ("ik_llama.cpp", "kimi-k2.6", 131072, 1, 4096, 3, 512, 2672.0),
    ("ik_llama.cpp", "kimi-k2.6", 65536, 1, 512, 3, 1024, 1808.13),
    ("ik_llama.cpp", "phantom", 65536, 1, 512, 3, 512, 841.56),
    ("ik_llama.cpp", "phantom", 16384, 4, 512, 3, 512, 217.56),
    ("ik_llama.cpp", "phantom", 131072, 1, 512, 3, 512, 969.56),
    ("ik_llama.cpp", "phantom", 65536, 1, 512, 1, None, 87.51),
    ("llama.cpp", "qwen3-235b", 768, 1, 512, None, None, 176.76),
    ("llama.cpp", "qwen3-235b", 4096, 1, 512, None, None, 180.01),
    ("llama.cpp", "qwen3-235b", 65536, 1, 2048, None, None, 960.05),
    ("llama.cpp", "kimi-k2.6", 4096, 1, 512, None, None, 270.01),
    ("llama.cpp", "kimi-k2.6", 65536, 1, 2048, None, None, 1320.03),
    ("llama.cpp", "phantom", 16384, 4, 512, None, None, 28.1),
    ("llama.cpp", "phantom", 65536, 1, 512, None, None, 88.1),
    ("llama.cpp", "whole heads", 16384, 4, 512, None, None, 18.89),
    ("llama.cpp", "whole heads", 65536, 1, 512, None, None, 78.89),
    ("llama.cpp", "whole heads", 65536, 1, 2048, None, None, 315.55),
]


def model_of(name: str) -> Model:
    files = {"phantom": latent_path, "whole heads": gguf_path}  # the same model in both formats
    return resolve_model(str(files[name]()))[0] if name in files else catalogue.find_model(name)


@pytest.mark.parametrize(("engine", "name", "context", "slots", "ubatch", "mla", "amb", "mebibytes"), SEEN)
def test_the_buffer_is_as_large_as_in_the_log(
    engine: EngineName,
    name: str,
    context: int,
    slots: int,
    ubatch: int,
    mla: int | None,
    amb: int | None,
    mebibytes: float,
) -> None:
    """Never less by more than 3 %, never more by more than an eighth."""
    recipe = Recipe(
        name="any",
        engine=engine,
        model=name,
        checkpoint="any",
        served_name="any",
        context=context // slots,
        max_seqs=slots,
        hybrid=Hybrid(ubatch=ubatch, mla=mla, attention_buffer=amb, gpu_layers=0),
    )
    planned = cpu_compute_bytes(model_of(name), recipe, alone=True)
    assert -0.03 < planned / (mebibytes * MIB) - 1 < 0.125
