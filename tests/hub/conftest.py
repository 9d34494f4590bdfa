"""A local Hub with small repositories, and the command line against it."""

import importlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from tests.checkpoint import tiny
from tests.checkpoint.test_safetensors import KIMI, PARTS
from tests.driving import Done, call_main, environment
from tests.hub.server import HubServer, Repo

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz123456"
Moebox = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """The server, without repositories."""
    server = HubServer()
    yield server
    server.close()


@pytest.fixture
def moebox(hub: HubServer, tmp_path: Path) -> Iterator[Moebox]:
    """Run a command with this Hub and folders of its own; keywords change the environment."""

    def call(*words: str | Path, **changed: str) -> Done:
        env = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DOWNLOAD_TIMEOUT": "10",
            "MOEBOX_STATE": str(tmp_path / "state"),
        }
        with environment(env | changed):
            importlib.reload(constants)  # it reads the environment when it is imported
            close_session()
            done = call_main(*map(str, words))
        assert "Traceback" not in done.err, done.err
        assert TOKEN not in done.out + done.err
        return done

    yield call
    importlib.reload(constants)


def small_repo(folder: Path, *, shards: int = 3, padding: int = 0) -> Repo:
    """A repository of a small model in several shards; `padding` bytes of random data in each."""
    made = tiny.folder(folder, KIMI)
    names, files, draw = list(PARTS), {}, random.Random(1)
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        own = {each: PARTS[each] for each in names[number::shards]}
        own[f"model.layers.1.mlp.experts.{number}.up_proj.weight"] = ("U8", [padding], padding)
        path = tiny.shard(made / name, own)
        size, at = path.stat().st_size, sum(size for _, _, size in own.values())
        with open(path, "r+b") as file:
            file.seek(size - at)
            file.write(draw.randbytes(at))
        files[name] = path.read_bytes()
        weight_map |= dict.fromkeys(own, name)
    total = sum(map(len, files.values()))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = json.dumps(KIMI).encode()
    files["README.md"] = b"# a model\n"
    files["tokenizer.json"] = b"{}"
    return Repo(files)
