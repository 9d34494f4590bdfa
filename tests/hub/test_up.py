"""Damaged shards are found before the engine starts."""

import os
from pathlib import Path

import pytest

from moebox.core.recipe import Recipe
from moebox.errors import ExternalError
from moebox.serve.preflight import check_checkpoint
from tests.checkpoint import tiny
from tests.hub.conftest import Moebox, small_repo
from tests.hub.server import COMMIT, HubServer


def test_up_names_the_file_to_fetch_again(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A shard in the cache that was cut is named with the command that repairs it, and that command does."""
    repo = hub.repos["org/Small"] = small_repo(tmp_path / "m", padding=50_000)
    recipe = tmp_path / "recipe.toml"
    arguments = ("--box", "1x-h200", "--context", "4096", "--engine", "vllm")
    moebox("plan", "org/Small", *arguments, "-o", recipe).good()
    moebox("fetch", recipe).good()
    name = "model-00002-of-00003.safetensors"
    shard = tmp_path / "hf/hub/models--org--Small/snapshots" / COMMIT / name
    os.truncate(shard.resolve(), 1000)
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = moebox("up", recipe, "--detach", PATH=path)
    assert done.code == 3
    assert f"{name} is damaged" in done.err
    assert "`moebox fetch org/Small`" in done.err
    assert moebox("fetch", recipe, "--json").good().document["fetched"] == [name]
    assert shard.read_bytes() == repo.files[name]
    assert f"{name} is damaged" not in moebox("up", recipe, "--detach", PATH=path).err


@pytest.mark.parametrize("change", ["cut", "longer", "swapped", "whole"])
def test_a_folder_is_compared_with_its_headers_and_index(tmp_path: Path, change: str):
    """A shard that is cut, has bytes too many, or is another one; whole folders pass."""
    folder = tmp_path / "m"
    for name, data in small_repo(folder, padding=4_000).files.items():
        (folder / name).write_bytes(data)
    shard = folder / "model-00003-of-00003.safetensors"
    if change == "cut":
        os.truncate(shard, shard.stat().st_size - 1)
    elif change == "longer":
        os.truncate(shard, shard.stat().st_size + 1)
    elif change == "swapped":
        shard.write_bytes((folder / "model-00001-of-00003.safetensors").read_bytes())
    recipe = Recipe(name="x", engine="vllm", model="x", served_name="x", checkpoint=str(folder))
    if change == "whole":
        check_checkpoint(str(folder), recipe)
        return
    with pytest.raises(ExternalError, match=r"model-00003-of-00003\.safetensors is damaged: it (has|lacks)"):
        check_checkpoint(str(folder), recipe)


def test_a_gguf_part_that_was_cut_is_named(tmp_path: Path):
    """A part with fewer bytes than its table of tensors describes."""
    tensors = [("token_embd.weight", [64, 256], 0)]
    for number in (1, 2):
        path = tiny.gguf(tmp_path / f"x-0000{number}-of-00002.gguf", tiny.DEEPSEEK2, tensors)
        os.truncate(path, 100_000 if number == 1 else 40_000)
    first = tmp_path / "x-00001-of-00002.gguf"
    recipe = Recipe(name="x", engine="llama.cpp", model="x", served_name="x", checkpoint=str(first))
    with pytest.raises(ExternalError, match=r"x-00002-of-00002\.gguf is damaged"):
        check_checkpoint(str(first), recipe)
