"""GGUF repositories: one file is chosen by ORG/REPO:QUANT, files of one quantisation are never mixed."""

from pathlib import Path

import pytest

from tests.checkpoint import tiny
from tests.hub.conftest import Moebox
from tests.hub.server import COMMIT, HubServer, Repo

BOX = ("--box", "1x-h200", "--context", "4096", "--engine", "llama.cpp")


MISSING = b'{"weight_map": {"x": "a.safetensors"}}'
# Types that both llama.cpp and its fork read.
TENSORS = [(name, dimensions, 0) for name, dimensions, _ in tiny.TENSORS]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """A GGUF file of a small model."""
    return tiny.gguf(tmp_path / "a.gguf", tiny.DEEPSEEK2, TENSORS).read_bytes()


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("org/T-GGUF:Q4_K_M", "org/T-GGUF:Q4_K_M"),
        ("org/T-GGUF:q8_0", "org/T-GGUF:Q8_0"),
        ("org/T-GGUF:Q4_K_XL", "org/T-GGUF:UD-Q4_K_XL"),  # as llama.cpp finds it
        ("hf.co/org/T-GGUF:Q8_0", "org/T-GGUF:Q8_0"),
        ("https://huggingface.co/org/T-GGUF/blob/main/T-Q8_0.gguf", "org/T-GGUF:Q8_0"),
        ("org/T-GGUF@v2:Q8_0", f"org/T-GGUF@{COMMIT}:Q8_0"),
        ("org/T-GGUF:Q8_0@v2", f"org/T-GGUF@{COMMIT}:Q8_0"),
        ("https://huggingface.co/org/T-GGUF/blob/v2/T-Q8_0.gguf", f"org/T-GGUF@{COMMIT}:Q8_0"),
    ],
)
def test_a_quantisation_is_planned_as_llama_cpp_names_it(
    hub: HubServer, moebox: Moebox, data: bytes, name: str, chosen: str
):
    """ORG/REPO:QUANT, with @REVISION on either side, or the address of the file; the recipe pins the commit."""
    files = {f"T-{quant}.gguf": data for quant in ("Q4_K_M", "Q8_0", "UD-Q4_K_XL")}
    hub.repos["org/T-GGUF"] = Repo(files, revisions=("main", "v2"))
    assert moebox("plan", name, *BOX, "--json").good().document["recipe"]["checkpoint"] == chosen


@pytest.mark.parametrize("command", ["plan", "fetch", "models add", "models show"])
def test_an_unknown_quantisation_is_one_line_with_those_that_are_there(
    hub: HubServer, moebox: Moebox, data: bytes, command: str
):
    """The same line from each command, also for a repository without any GGUF file."""
    hub.repos["org/T-GGUF"] = Repo({"T-Q8_0.gguf": data, "T-IQ3_K.gguf": data, "mmproj-F16.gguf": b"x"})
    done = moebox(*command.split(), "org/T-GGUF:Q2_K")
    assert (done.code, len(done.err.splitlines())) == (2, 3), done.err  # an empty line and a hint
    assert "org/T-GGUF: 0 GGUF files are called Q2_K; there are IQ3_K, Q8_0" in done.err
    for bad in ("org/T-GGUF:../x", "org/T-GGUF:Q8_0:Q8_0", "org/T-GGUF:"):
        done = moebox(*command.split(), bad)
        assert (done.code, "not a valid" in done.err) == (2, True), done.err


def test_files_of_one_quantisation_have_names_of_their_own(hub: HubServer, moebox: Moebox, data: bytes, tmp_path: Path):
    """Two folders, two suffixes and another model's file: each has a name of its own, and its own bytes."""
    other = {**tiny.DEEPSEEK2, "deepseek2.embedding_length": 128, "general.name": "Other"}
    more = tiny.gguf(tmp_path / "b.gguf", other, [*TENSORS, ("blk.1.ffn_up.weight", [64, 64], 0)]).read_bytes()
    files = {"a/T-Q4_K_M.gguf": data, "b/T-Q4_K_M.gguf": more, "T-Q8_0.gguf": data, "T-Q8_0-v2.gguf": data}
    hub.repos["org/T-GGUF"] = Repo(files)
    for label in ("a/T-Q4_K_M", "b/T-Q4_K_M", "T-Q8_0", "T-Q8_0-v2"):
        planned = moebox("plan", f"org/T-GGUF:{label}", *BOX, "-o", tmp_path / "r.toml", "--json").good().document
        assert planned["recipe"]["checkpoint"] == f"org/T-GGUF:{label}"
        command = moebox("up", tmp_path / "r.toml", "--dry-run").good().out
        assert f"--hf-file {label}.gguf " in command
        assert moebox("fetch", f"org/T-GGUF:{label}", "--json").good().document["files"] == 1
    (own,) = moebox("models", "show", "org/T-GGUF:b/T-Q4_K_M", "--json").good().document["checkpoints"]
    assert (
        own["bytes"]
        == moebox("models", "show", "org/T-GGUF:a/T-Q4_K_M", "--json").document["checkpoints"][0]["bytes"] + 64 * 64 * 4
    )
    both = moebox("plan", "org/T-GGUF:Q4_K_M", *BOX)
    assert both.code == 2
    assert "2 GGUF files are called Q4_K_M; name one: a/T-Q4_K_M, b/T-Q4_K_M" in both.err
    shown = moebox("models", "show", "org/T-GGUF", "--json").good().document
    assert {each["name"].partition(":")[2] for each in shown["checkpoints"]} == {"a/T-Q4_K_M", "T-Q8_0", "T-Q8_0-v2"}
    assert any("b/T-Q4_K_M is another model" in note for note in shown["notes"])


@pytest.mark.parametrize("missing", [1, 2])
def test_only_the_incomplete_quantisation_is_refused(hub: HubServer, moebox: Moebox, data: bytes, missing: int):
    """The others are planned with a note; the incomplete one is one line."""
    parts = {f"Q4_K_M/T-Q4_K_M-0000{n}-of-00003.gguf": data for n in (1, 2, 3) if n != missing}
    hub.repos["org/T-GGUF"] = Repo(
        {**parts, "T-Q8_0.gguf": data, "T-IQ3_K.gguf": b"version https://git-lfs.github.com"}
    )
    planned = moebox("plan", "org/T-GGUF", *BOX, "--json").good().document
    assert planned["recipe"]["checkpoint"] == "org/T-GGUF:Q8_0"
    reason = f"1 of 3 parts are missing, the first is T-Q4_K_M-0000{missing}-of-00003.gguf"
    notes = [each["text"] for each in planned["warnings"]]
    assert any("org/T-GGUF:Q4_K_M is not planned: " in note and note.endswith(reason) for note in notes)
    assert "org/T-GGUF:IQ3_K is not planned: not a GGUF file" in notes
    for command in ("plan", "fetch"):
        refused = moebox(command, "org/T-GGUF:Q4_K_M")
        assert (refused.code, reason in refused.err) == (2, True), refused.err


def test_the_only_gguf_is_fetched_without_its_name(hub: HubServer, moebox: Moebox, data: bytes):
    """One file needs no name; of several one has to be named, and the index's faults name the repository."""
    hub.repos["org/T-GGUF"] = Repo({"T-Q8_0.gguf": data, "mmproj-F16.gguf": b"x"})
    assert moebox("fetch", "org/T-GGUF", "--json").good().document["fetched"] == ["T-Q8_0.gguf"]
    hub.repos["org/T-GGUF"].files["T-Q4_K_M.gguf"] = data
    refused = moebox("fetch", "org/T-GGUF")
    assert (refused.code, "Q4_K_M, Q8_0" in refused.err) == (2, True)
    for index, line in (
        (b"<html>", "not valid JSON"),
        (b"{}", "has no weight_map"),
        (MISSING, "names a.safetensors, "),
    ):
        hub.repos["org/Index"] = Repo({"model.safetensors.index.json": index, "model.safetensors": b"x"})
        refused = moebox("fetch", "org/Index")
        assert refused.code == 2
        assert refused.err.startswith("error: org/Index")
        assert line in refused.err


def test_a_revision_of_a_gguf_is_never_replaced_by_another(hub: HubServer, moebox: Moebox, data: bytes, tmp_path: Path):
    """The engine knows no revisions, so that an unfetched one is refused; two revisions keep their own rows."""
    hub.repos["org/T-GGUF"] = Repo({"T-Q8_0.gguf": data}, revisions=("main", "v2"))
    recipe = tmp_path / "r.toml"
    moebox("plan", "org/T-GGUF:Q8_0@v2", *BOX, "-o", recipe).good()
    hub.repos["org/T-GGUF"].commit = "f" * 40
    moebox("plan", "org/T-GGUF:Q8_0", *BOX).good()
    asked = len(hub.requests)
    refused = moebox("up", recipe, "--dry-run")
    assert refused.code == 3
    assert f"`moebox fetch org/T-GGUF@{COMMIT}:Q8_0`" in refused.err
    assert len(hub.requests) == asked
    kept = moebox("models", "--json").good().document["kept"]
    assert sorted((row["revision"], row["commit"]) for row in kept) == [("", "f" * 40), ("v2", COMMIT)]
