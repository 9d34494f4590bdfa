"""`moebox run` offers to fetch the weights that are missing."""

import os
import re
from pathlib import Path

from moebox.phantom import gguf_path
from tests.hub.conftest import Moebox, small_repo
from tests.hub.server import HubServer, Repo


def test_run_offers_to_fetch_missing_weights(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """It names size, free disk and time first; without a terminal only --yes agrees, and whole files are kept."""
    repo = hub.repos["org/Small"] = small_repo(tmp_path / "m", padding=50_000)
    recipe = tmp_path / "recipe.toml"
    moebox("plan", "org/Small", "--box", "1x-h200", "--context", "4096", "--engine", "vllm", "-o", recipe).good()
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    words = ("run", "--recipe", recipe, "--until", "up", "--skip", "doctor,rehearse", "--ram-bandwidth", "20GB/s")
    cached = tmp_path / "hf/hub/models--org--Small/snapshots"

    declined = moebox(*words, PATH=path)
    text = " ".join((declined.out + declined.err).split())
    assert re.search(r"org/Small lacks (\S+ MB) of \1 here \(\d+ files\); \S+ GB are free in ", text), text
    assert re.search(r"at most .* of one connection", text)
    assert "Not a terminal, so the answer is no" in text
    assert not list(cached.glob("*/*.safetensors"))

    agreed = moebox(*words, "--yes", PATH=path)
    text = " ".join((agreed.out + agreed.err).split())
    assert text.index("org/Small lacks") < text.index("every hash is the Hub's")
    shards = {file.name: file.read_bytes() for file in cached.glob("*/*.safetensors")}
    assert shards
    assert shards == {name: repo.files[name] for name in shards}
    assert "lacks" not in moebox(*words, "--yes", PATH=path).out


def test_a_gguf_of_the_hub_runs_on_the_embedded_engine(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """Without an engine on PATH: `up` names the command that fetches the file, `run` fetches it and starts it."""
    hub.repos["org/Tiny-GGUF"] = Repo(files={"Q8_0/tiny-Q8_0.gguf": gguf_path().read_bytes()})
    recipe = tmp_path / "recipe.toml"
    shown = moebox("plan", "org/Tiny-GGUF", "-o", recipe).good().out
    assert f"next moebox fetch org/Tiny-GGUF:Q8_0 && moebox up {recipe}" in " ".join(shown.split())
    done = moebox("up", recipe, "--detach")
    assert done.code == 3
    assert "`moebox fetch org/Tiny-GGUF:Q8_0`" in done.err

    moebox("run", "org/Tiny-GGUF", "--until", "up", "--skip", "doctor,rehearse", "--port", "0", "--yes").good()
    command = moebox("up", recipe, "--dry-run").good().out
    assert re.search(r" -m \S+/snapshots/\S+/Q8_0/tiny-Q8_0\.gguf ", command)
    other = moebox("up", recipe, "--dry-run", "--set", "engine=ik_llama.cpp", "--set", "runtime.kind=native").good().out
    assert "/snapshots/" in other  # the engine would download it once more
    assert "--hf-repo" not in other
