"""Weights on disk are recognised: a folder, a GGUF and a catalogue name of one model give the same launch."""

import dataclasses
import itertools
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from moebox import codec, engines
from moebox.checkpoint import deploy, look_up_model
from moebox.cli import main
from moebox.core import catalogue, registry
from moebox.core.recipe import Recipe
from moebox.detect.declared import parse_box
from moebox.errors import MoeboxError, UnknownName
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.serve import preflight
from moebox.serve.dummy import write_gguf
from tests.sampling import one_in

CONFIGS = Path(__file__).parents[1] / "checkpoint" / "configs"
MAX_Q_BOX = ("--box", "2x-rtx-pro-6000-max-q", "--ram", "768GiB", "--ram-bandwidth", "614GB/s")
KIMI = json.loads((CONFIGS / "nvidia--Kimi-K2.6-NVFP4.json").read_text())
TEMPLATE = "{{ tools }}<|tool_calls_section_begin|>{% if thinking %}<think>{% endif %}"


def published() -> list[tuple[str, str]]:
    """Configurations of repositories that the catalogue knows: file and model."""
    found = []
    for file in sorted(CONFIGS.glob("*.json")):
        owner, _, name = file.stem.partition("--")
        try:
            found.append((file.stem, catalogue.find_model(f"{owner}/{name}").name))
        except UnknownName:
            continue
    return found


def test_a_checkpoint_is_the_one_that_its_engine_reads() -> None:
    """gpt-oss is published in mxfp4 as safetensors and as GGUF: llama.cpp was started with the former."""
    for name, traits in itertools.product(catalogue.models(), registry.all_traits()):
        for form in catalogue.published_checkpoints(name):
            if form.format in traits.formats:
                recipe = Recipe(name="x", engine=traits.name, model=name, checkpoint=form.name, served_name="x")
                assert deploy(recipe).checkpoint == form


def folder(at: Path, config: Any, template: str = "") -> Path:
    """A folder as the Hub's client makes it, without the weights."""
    at.mkdir(parents=True, exist_ok=True)
    (at / "config.json").write_text(json.dumps(config))
    if template:
        (at / "chat_template.jinja").write_text(template)
    return at


def planned(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Recipe:
    """The recipe that `moebox plan` writes."""
    file = path / "recipe.toml"
    assert main(["plan", *words, "-o", str(file), "--json"]) == 0
    capsys.readouterr()
    return codec.read_toml(Recipe, file)


def launched(recipe: Recipe) -> list[str]:
    """The launch without the words that name the weights."""
    deployment = deploy(recipe)
    argv = list(engines.build_launch(deployment).argv)
    names = {
        deployment.weights_path,
        deployment.checkpoint.file,
        f"{deployment.weights_path}:{deployment.checkpoint.name}",
    }
    return [word for word in argv if word not in names and word not in ("-m", "-hf", "--hf-repo", "--hf-file")]


@pytest.mark.parametrize(("config", "name"), one_in(3, published(), unpack=True))
def test_a_folder_is_planned_like_its_name(
    config: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parsers, template switches, drafts, remote code, images: whatever depends on the architecture, by any path."""
    weights = folder(tmp_path / config.partition("--")[2], json.loads((CONFIGS / f"{config}.json").read_text()))
    constraints = ("--box", "16x-b300", "--engine", "vllm", "--tp", "4", "--pp", "4", "--ep", "1", "--context", "8192")
    ours = planned(tmp_path, capsys, str(weights), *constraints)
    theirs = planned(tmp_path, capsys, name, *constraints)

    assert ours.checkpoint == str(weights)
    same = ("model", "served_name", "tool_parser", "reasoning_parser", "trust_remote_code", "flags", "speculate")
    assert {field: getattr(ours, field) for field in same} == {field: getattr(theirs, field) for field in same}
    alike = dataclasses.replace(ours, memory_utilization=theirs.memory_utilization, name=theirs.name)
    assert launched(alike) == launched(theirs)


def test_a_gguf_is_launched_like_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file called by its title is planned, written, and its recipe starts: names with blanks become slugs."""
    file = tmp_path / "Kimi K2.6.gguf"
    write_gguf(file, catalogue.find_model("kimi-k2.6"), layers=61)
    constraints = (*MAX_Q_BOX, "--engine", "llama.cpp", "--experts-on-gpu", "3+3", "--ub", "2048")
    theirs = planned(tmp_path, capsys, "kimi-k2.6", *constraints, "--checkpoint", "Q4_X")
    ours = planned(tmp_path, capsys, str(file), *constraints)

    assert ours.model == "kimi-k2.6"
    assert launched(ours) == launched(theirs)
    assert main(["up", str(tmp_path / "recipe.toml"), "--dry-run"]) == 0


def test_a_folder_in_place_is_written_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan ./models/kimi` writes a path that `up` finds from anywhere, and what Kimi needs."""
    folder(tmp_path / "models" / "kimi", KIMI, TEMPLATE)
    monkeypatch.chdir(tmp_path)
    recipe = planned(tmp_path, capsys, "./models/kimi", "--box", "8x-rtx-pro-6000-server")

    assert recipe.checkpoint == str(tmp_path / "models" / "kimi")
    argv = engines.build_launch(deploy(recipe)).argv
    assert str(tmp_path / "models" / "kimi") in argv
    flags = {"--tool-call-parser", "--reasoning-parser", "--trust-remote-code", "--language-model-only"}
    assert flags <= set(argv)


def test_fp8_on_rtx_blackwell_is_refused_for_a_kimi_on_disk_too(tmp_path: Path) -> None:
    """The refusal depends on the shape, not on the name."""
    from moebox.detect import load_box

    weights = folder(tmp_path / "mine", KIMI, TEMPLATE)
    recipe = Recipe(name="x", engine="vllm", model="mine", checkpoint=str(weights), served_name="x", kv="fp8")
    refusals = engines.find_refusals(deploy(recipe, load_box("8x-rtx-pro-6000-server")))
    assert any("102,400" in refusal.text for refusal in refusals)


def test_a_model_that_only_resembles_one_gets_its_parsers_and_a_line(tmp_path: Path) -> None:
    """Fewer layers than any Kimi: the template identifies the family; its own code is not run by default."""
    text = {**KIMI["text_config"], "num_hidden_layers": 20}
    found = look_up_model(str(folder(tmp_path / "small", {**KIMI, "text_config": text}, TEMPLATE)))

    assert (found.model.tool_parser, found.model.reasoning_parser) == ("kimi_k2", "kimi_k2")
    assert not found.model.trust_remote_code
    assert "treated as Kimi K2" in found.notes[0]
    assert "holds no weights" in found.notes[1]


def test_among_models_of_one_shape_the_name_decides_with_a_note(tmp_path: Path) -> None:
    """K2.5, K2.6 and K2.7 have one shape: a repository's name is believed, a folder called `weights` gets a line."""
    hub = tmp_path / "models--moonshotai--Kimi-K2.5" / "snapshots" / "0123abc"
    named, unnamed = look_up_model(str(folder(hub, KIMI))), look_up_model(str(folder(tmp_path / "weights", KIMI)))

    assert (named.model.name, len(named.notes)) == ("kimi-k2.5", 1)
    assert f"{hub} holds no weights: bytes are computed from config.json" in named.notes[0]
    assert unnamed.model.tool_parser == "kimi_k2"
    assert "has the shape of" in unnamed.notes[0]


def hub_cache(at: Path) -> Path:
    """A split GGUF as the Hub's client keeps it: links from snapshots/ into blobs/."""
    repository = at / "hub" / "models--ubergarm--Kimi-K2.6-GGUF"
    blob = repository / "blobs" / "0123abcd"
    blob.parent.mkdir(parents=True)
    write_gguf(blob, catalogue.find_model("kimi-k2.6"), layers=61)
    shard = repository / "snapshots" / "e5f6" / "IQ3_K" / "Kimi-K2.6-IQ3_K.gguf"
    shard.parent.mkdir(parents=True)
    shard.symlink_to(os.path.relpath(blob, shard.parent))
    return shard


def test_a_path_in_a_hub_cache_keeps_its_name_and_its_links(tmp_path: Path) -> None:
    """Natively the link is named; a container gets the whole repository, so that the links lead somewhere."""
    shard = hub_cache(tmp_path)
    recipe = Recipe(name="x", engine="ik_llama.cpp", model="kimi-k2.6", checkpoint=str(shard), served_name="x")
    native = engines.build_launch(deploy(recipe))
    inside = dataclasses.replace(recipe, runtime=dataclasses.replace(recipe.runtime, kind="podman"))
    contained = engines.build_launch(deploy(inside))

    assert native.argv[1:3] == contained.argv[1:3] == ("-m", str(shard))
    repository = str(shard.parents[3])
    assert contained.mounts[repository] == f"{repository}:ro"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "IQ3_K",
            ["--hf-repo", "ubergarm/Kimi-K2.6-GGUF", "--hf-file", "IQ3_K/Kimi-K2.6-IQ3_K-00001-of-00012.gguf"],
        ),
        ("UD-Q4_K_XL", ["--hf-repo", "unsloth/Kimi-K2.6-GGUF", "--hf-file"]),
    ],
)
def test_the_fork_gets_the_file(
    form: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one it refuses to start; two quants never give the same command."""
    recipe = planned(tmp_path, capsys, "kimi-k2.6", *MAX_Q_BOX, "--engine", "ik_llama.cpp", "--checkpoint", form)
    assert list(engines.build_launch(deploy(recipe)).argv[1 : 1 + len(expected)]) == expected


def test_mainline_gets_the_quantisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It finds the file by itself."""
    recipe = planned(tmp_path, capsys, "kimi-k2.6", *MAX_Q_BOX, "--engine", "llama.cpp", "--checkpoint", "Q4_X")
    assert engines.build_launch(deploy(recipe)).argv[1:3] == ("-hf", "ubergarm/Kimi-K2.6-GGUF:Q4_X")


def test_an_unverified_checkpoint_is_planned_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And then a refusal names the missing file."""
    assert main(["plan", "kimi-k2.6", *MAX_Q_BOX, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    seen = {document["recipe"]["checkpoint"], *(other["recipe"]["checkpoint"] for other in document["alternatives"])}
    unverified = {form.name for form in catalogue.published_checkpoints("kimi-k2.6") if form.unverified}
    assert unverified
    assert not seen & unverified
    requested = planned(tmp_path, capsys, "kimi-k2.6", *MAX_Q_BOX, "--checkpoint", "smol-IQ3_KS")
    assert any("is not known" in refusal.text for refusal in engines.find_refusals(deploy(requested)))


def script(recipe: Recipe, form: str, tmp_path: Path, model_path: Path | str) -> list[str]:
    """What a rendered script runs with MODEL_PATH set."""
    from moebox.render import render
    from tests.serve.rendered import run, stand_in

    tool = "llama-server" if form == "script" else form
    env = stand_in(tmp_path / "bin", tool) | {"MODEL_PATH": str(model_path)}
    return list(run(render(deploy(recipe), form), tmp_path, env)["argv"])  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["script", "docker", "podman"])
def test_model_path_takes_a_file_of_a_hub_cache(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe of the Hub's file, started from a file on disk: -m with the shard's own name, links and all."""
    shard = hub_cache(tmp_path)
    recipe = planned(tmp_path, capsys, "kimi-k2.6", *MAX_Q_BOX, "--engine", "ik_llama.cpp", "--checkpoint", "IQ3_K")
    argv = script(recipe, form, tmp_path, shard)

    assert argv[argv.index("-m") + 1] == str(shard)
    assert not {"--hf-repo", "--hf-file"} & set(argv)
    repository = shard.parents[3]
    assert form == "script" or f"{repository}:{repository}:ro" in argv
    assert argv[argv.index("--alias") + 1] == recipe.served_name, shlex.join(argv)


def test_a_folder_without_weights_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be planned before the download; `up` reports in one line what is missing."""
    weights = folder(tmp_path / "Kimi-K2.6", KIMI)
    recipe = planned(tmp_path, capsys, str(weights), "--box", "8x-b200")
    assert recipe.checkpoint == str(weights)
    assert main(["plan", str(weights), "--box", "8x-b200"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split(maxsplit=1)[1].startswith("Kimi K2.6 nvfp4 on")
    with pytest.raises(MoeboxError, match="no weights"):
        preflight.check_checkpoint(deploy(recipe).weights_path, recipe)
    assert not preflight.uses_dummy_weights(recipe)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_rehearsal_before_the_download_needs_no_weights(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with nothing but its config: the engine invents the weights, so only the engine itself is missed."""
    weights = folder(tmp_path / "Kimi-K2.6", KIMI)
    recipe = planned(tmp_path, capsys, str(weights), "--box", "8x-b200", "--engine", engine)
    path = tmp_path / "before.toml"
    path.write_text(codec.to_toml(recipe))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["rehearse", str(path), "--measure"]) == 3
    error = capsys.readouterr().err
    assert "is not installed here" in error
    assert "no weights" not in error


def test_a_folder_published_with_a_vision_tower_is_the_model_that_the_catalogue_has_without(tmp_path: Path) -> None:
    """nvidia's MiniMax M3 goes by another name of the architecture: it lost its tool parser and had other bytes."""
    configs = Path(__file__).parents[1] / "checkpoint" / "configs"
    config = json.loads((configs / "nvidia--MiniMax-M3-NVFP4.json").read_text())
    layer, mxfp8 = "language_model.model.layers.5", {"quant_algo": "MXFP8"}
    modules = (f"{layer}.block_sparse_moe.shared_experts.up_proj", f"{layer}.self_attn.q_proj", f"{layer}.mlp.up_proj")
    config["quantization_config"]["quantized_layers"] |= dict.fromkeys(modules, mxfp8)  # the file has a few of 22,000
    place = tmp_path / "m3"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    found, known = look_up_model(str(place)), catalogue.find_model("minimax-m3")

    assert (found.model.name, found.model.tool_parser) == (known.name, known.tool_parser)
    form = catalogue.find_checkpoint("minimax-m3", "nvfp4")
    tower = 656_654_080  # parameters in bf16, by its vision_config
    assert found.checkpoints[0].total_bytes == form.total_bytes + 2 * tower
    box = parse_box("8x-b200")
    theirs = choose_plan(box, known, (form,), Constraints()).recipe
    mine = choose_plan(box, found.model, found.checkpoints, Constraints()).recipe
    assert dataclasses.replace(mine, checkpoint=theirs.checkpoint) == theirs
