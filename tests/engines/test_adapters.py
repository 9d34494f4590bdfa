"""Recipes to commands: what Kimi needs on each engine, runtimes, presets and keys."""

import dataclasses
from typing import Any

import pytest

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core import presets, registry
from moebox.core.box import Box
from moebox.core.catalogue import find_gpu, find_model
from moebox.core.recipe import EngineName, Recipe, Speculate
from moebox.core.setting import with_settings
from moebox.flows.recipes import load_recipe
from tests.chain.parse_back import parse_command

KIMI = find_model("kimi-k2.6")
VLLM = load_recipe("kimi-k26-vllm")
SGLANG = load_recipe("kimi-k26-sglang")
COMMUNITY = load_recipe("kimi-k26-community")
HYBRID = with_settings(
    VLLM,
    {
        "engine": "ik_llama.cpp",
        "parallel": {},
        "flags": {},
        "kv": "q8_0",
        "trust_remote_code": False,
        "checkpoint": "/models/Kimi-K2.6-IQ3_K-00001-of-00012.gguf",
        "hybrid": {"mla": 3, "attention_buffer": 512, "experts": [[1, 2, 3], [58, 59, 60]], "threads": 16},
    },
)


def pairs(recipe: Recipe) -> dict[str, str]:
    """Flags and their values of the launch; a bare flag has ""."""
    argv = engines.build_launch(deploy(recipe)).argv
    found = {}
    for place, word in enumerate(argv):
        if word.startswith("-"):
            after = argv[place + 1] if place + 1 < len(argv) else "-"
            found[word] = "" if after.startswith("-") else after
    return found


def test_vllm_gets_what_kimi_needs():
    """Parsers, auto tool choice, its own code, and no vision tower if it is not wanted."""
    found = pairs(VLLM)

    assert found["--tool-call-parser"] == found["--reasoning-parser"] == "kimi_k2"
    assert {"--enable-auto-tool-choice", "--trust-remote-code", "--language-model-only"} <= set(found)
    assert engines.build_launch(deploy(VLLM)).env == {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}


def test_vision_is_served_by_a_copy_per_gpu():
    """The small tower runs data-parallel in both engines."""
    assert pairs(with_settings(VLLM, {"vision": True}))["--mm-encoder-tp-mode"] == "data"
    assert "--mm-enable-dp-encoder" in pairs(with_settings(SGLANG, {"vision": True}))


@pytest.mark.parametrize(
    ("recipe", "flag", "value"),
    [
        (VLLM, "--default-chat-template-kwargs", '{"thinking":false}'),
        (SGLANG, "--default-chat-template-kwargs", '{"thinking":false}'),
        (HYBRID, "--reasoning-budget", "0"),
        (with_settings(HYBRID, {"engine_version": "2026-04"}), "--chat-template-kwargs", '{"thinking":false}'),
    ],
)
def test_thinking_is_turned_off_in_each_engines_way(recipe: Recipe, flag: str, value: str):
    """ik_llama.cpp of August 2026 would send the whole answer to reasoning_content by the template's switch."""
    assert pairs(with_settings(recipe, {"thinking": False}))[flag] == value
    assert flag not in pairs(recipe)


def test_experts_are_placed_layer_by_layer():
    """The first rule that matches wins, so GPUs come before RAM; -ncmoe is never used, nor -ger."""
    argv = engines.build_launch(deploy(HYBRID)).argv
    rules = [argv[place + 1] for place, word in enumerate(argv) if word == "-ot"]

    assert rules == [
        r"blk\.(1|2|3)\.ffn_.*_exps=CUDA0",
        r"blk\.(58|59|60)\.ffn_.*_exps=CUDA1",
        "exps=CPU",
    ]
    found = pairs(HYBRID)
    assert (found["-mla"], found["-amb"], found["-ngl"], found["-ctk"]) == ("3", "512", "999", "q8_0")
    assert "--jinja" in found
    assert not {"-ncmoe", "-ger", "--special"} & set(found)


def test_slots_share_the_context():
    """llama.cpp divides -c over its slots, so two requests of 131,072 need twice that."""
    assert pairs(with_settings(HYBRID, {"context": 131072, "max_seqs": 2}))["-c"] == "262144"


def test_llama_cpp_gets_its_own_flags():
    """Mainline has no -mla, and needs K and V of one type; a repository is fetched by -hf."""
    recipe = with_settings(HYBRID, {"engine": "llama.cpp", "hybrid": {"experts": [[1]]}, "checkpoint": "a/b-GGUF"})
    found = pairs(recipe)

    assert found["-ctk"] == found["-ctv"] == "q8_0"
    assert found["-hf"] == "a/b-GGUF"
    assert "-mla" not in found


def test_a_draft_is_turned_on_in_each_engines_way():
    """EAGLE3 with three draft tokens."""
    draft = {"speculate": {"method": "eagle3", "draft": "a/draft", "tokens": 3}}

    assert '"num_speculative_tokens":3' in pairs(with_settings(VLLM, draft))["--speculative-config"]
    found = pairs(with_settings(SGLANG, draft))
    assert (found["--speculative-algorithm"], found["--speculative-num-draft-tokens"]) == ("EAGLE3", "4")


def test_the_recipes_own_flags_win_over_the_adapters():
    """A flag that is already there is replaced in its place; false removes it."""
    found = engines.build_launch(deploy(with_settings(COMMUNITY, {"flags.load-format": "auto", "vision": True}))).argv

    assert found.count("--load-format") == 1
    assert found[found.index("--load-format") + 1] == "auto"
    assert "--jinja" not in engines.build_launch(deploy(with_settings(HYBRID, {"flags.jinja": False}))).argv


def test_the_community_image_sets_its_environment():
    """Every variable has a reason; those that only help elsewhere are listed and not set."""
    launch = engines.build_launch(deploy(COMMUNITY))
    command = engines.launch_command(deploy(COMMUNITY), launch, run="r1", home="/home/x")
    preset = presets.load_preset("community")

    assert all(one.why for one in preset.variable)
    assert launch.env["NCCL_P2P_LEVEL"] == "SYS"
    assert "NCCL_GRAPH_FILE" not in launch.env
    assert launch.argv[:2] == ("/opt/venv/bin/vllm", "serve")
    assert command[command.index("--network") : command.index("--network") + 2] == ("--network", "host")
    assert "--label" in command
    assert "moebox.run=r1" in command
    assert "/home/x/.cache/huggingface:/root/.cache/huggingface" in command
    assert "-p" not in command


@pytest.mark.parametrize("kind", ["docker", "podman"])
@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1:8000:8000"), ("0.0.0.0", "8000:8000")])
def test_a_container_publishes_on_loopback_by_default(kind: str, host: str, shown: str):
    """Inside it listens on all addresses; what is reachable is decided by -p."""
    recipe = with_settings(VLLM, {"runtime.kind": kind, "listen.host": host})
    command = engines.launch_command(deploy(recipe), engines.build_launch(deploy(recipe)))

    assert command[command.index("-p") + 1] == shown
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert "vllm/vllm-openai:v0.32.0" in command
    assert command[command.index("vllm/vllm-openai:v0.32.0") + 1] == "moonshotai/Kimi-K2.6"


def test_weights_on_this_machine_are_mounted():
    """A folder as it is, a GGUF file with its neighbours."""
    folder = with_settings(VLLM, {"runtime.kind": "docker", "checkpoint": "/data/kimi"})
    file = with_settings(HYBRID, {"runtime.kind": "podman"})

    assert engines.build_launch(deploy(folder)).mounts == {"/data/kimi": "/data/kimi:ro"}
    assert engines.build_launch(deploy(file)).mounts == {"/models": "/models:ro"}


@pytest.mark.parametrize("recipe", [VLLM, SGLANG, HYBRID, COMMUNITY])
@pytest.mark.parametrize("kind", ["native", "docker"])
def test_keys_are_passed_by_name(recipe: Recipe, kind: str):
    """The engine's variable gets the caller's value; the argv holds neither."""
    if recipe is COMMUNITY and kind == "native":
        kind = "podman"
    keyed = with_settings(recipe, {"runtime.kind": kind, "listen.key_env": "MY_KEY"})
    launch = engines.build_launch(deploy(keyed))
    command = engines.launch_command(deploy(keyed), launch)
    name = registry.engine_traits(recipe.engine).key_env

    assert launch.secret_env[name] == "MY_KEY"
    assert "--api-key" not in command
    if kind != "native":
        assert command[command.index(name) - 1] == "-e"
    assert f'{name}="$MY_KEY"' in engines.shell_text(launch, command)


def test_a_venv_or_interpreter_is_used():
    """`runtime.python` may be either."""
    assert engines.build_launch(deploy(with_settings(VLLM, {"runtime.python": "/v"}))).argv[:2] == (
        "/v/bin/vllm",
        "serve",
    )
    assert engines.build_launch(deploy(with_settings(SGLANG, {"runtime.python": "/v/bin/python3"}))).argv[:3] == (
        "/v/bin/python3",
        "-m",
        "sglang.launch_server",
    )


def box(name: str, count: int = 8) -> Box:
    """Return a box of `count` GPUs."""
    return Box(name=f"{count}x-{name}", gpus=(find_gpu(name),) * count)


SERVER = box("rtx-pro-6000-server")


@pytest.mark.parametrize(
    ("recipe", "changes", "where", "severity", "text"),
    [
        (VLLM, {"kv": "fp8"}, SERVER, "fatal", "102,400"),
        (VLLM, {"kv": "fp8", "engine_version": "0.26.0"}, SERVER, "fatal", "102,400"),
        (VLLM, {"parallel.tp": 6}, SERVER, "fatal", "heads"),
        (VLLM, {"parallel.tp": 16}, SERVER, "fatal", "16 GPUs"),
        (VLLM, {"flags.attention-backend": "FLASHMLA"}, SERVER, "fatal", "FLASHMLA"),
        (VLLM, {"parallel.dcp": 3}, SERVER, "fatal", "DCP3"),
        (VLLM, {"checkpoint": "x.gguf"}, SERVER, "fatal", "GGUF"),
        (VLLM, {"checkpoint": "nvfp4"}, box("h200"), "warning", "Blackwell"),
        (VLLM, {"max_seqs": None}, SERVER, "warning", "TRITON_MLA reserves"),
        (VLLM, {"parallel.dcp": 8, "speculate": {"draft": "a/b"}}, box("b200"), "warning", "DCP"),
        (VLLM, {}, SERVER, "note", "custom all-reduce"),
        (SGLANG, {"flags.attention-backend": "flashmla"}, SERVER, "fatal", "flashmla"),
        (SGLANG, {"engine_version": "0.5.6"}, SERVER, "fatal", "106,496"),
        (SGLANG, {"kv": "fp8", "engine_version": "0.5.10"}, SERVER, "warning", "16 tok/s"),
        (SGLANG, {"memory_utilization": 0.9}, SERVER, "warning", "0.85 held"),
        (HYBRID, {"engine": "llama.cpp", "hybrid": {}}, None, "fatal", "IQ3_K"),
        (HYBRID, {"checkpoint": "/m/Kimi-NVFP4.gguf"}, None, "fatal", "NVFP4"),
        (HYBRID, {"speculate": {"draft": "a"}}, None, "fatal", "eagle3"),
        (HYBRID, {"hybrid.mla": 0, "max_seqs": 1, "context": 131072}, None, "warning", "162.03 GiB of cache"),
        (HYBRID, {"flags.ncmoe": 4}, None, "warning", "-ncmoe"),
        (HYBRID, {"thinking": False}, None, "note", "budget"),
    ],
)
def test_known_issues_are_reported(recipe: Recipe, changes: dict[str, Any], where: Any, severity: str, text: str):
    """Each with a remedy, the worst first."""
    found = engines.find_refusals(deploy(with_settings(recipe, changes), where))

    assert any(one.severity == severity and text in one.text for one in found), [one.text for one in found]
    order = {"fatal": 0, "warning": 1, "note": 2}
    assert [order[one.severity] for one in found] == sorted(order[one.severity] for one in found)


@pytest.mark.parametrize(("engine", "context", "warnings"), [("llama.cpp", 32768, 1), ("llama.cpp", 256, 0)])
@pytest.mark.parametrize("ours", [True, False])
def test_a_file_from_before_latent_attention_costs_cache(engine: EngineName, context: int, warnings: int, ours: bool):
    """A warning from a gigabyte on; ik_llama.cpp makes the latent's matrices itself."""
    changes: dict[str, Any] = {"engine": engine if ours else "ik_llama.cpp", "hybrid": {}, "max_seqs": 1}
    deployment = deploy(with_settings(HYBRID, changes | {"context": context, "kv": "f16"}), SERVER)
    assert deployment.model.mla
    old = dataclasses.replace(deployment.model, mla=dataclasses.replace(deployment.model.mla, whole_heads=True))
    found = engines.find_refusals(dataclasses.replace(deployment, known_model=old))

    text = "keeps them for every head: 76.25 GiB of cache at 32,768 tokens; the latent takes 2.14 GiB"
    assert sum(text in one.text for one in found) == (warnings if ours else 0)
    assert sum("every head" in one.text for one in found) == (warnings if ours else 0)


@pytest.mark.parametrize("recipe", [VLLM, SGLANG, COMMUNITY, HYBRID])
def test_sound_recipes_are_not_refused(recipe: Recipe):
    """What moebox ships has no fatal issue on the box it is for."""
    found = engines.find_refusals(deploy(recipe, SERVER))

    assert [one.text for one in found if one.severity == "fatal"] == []
    if recipe is COMMUNITY:
        assert dataclasses.replace(recipe).kv == "fp8"


@pytest.mark.parametrize(
    ("engine", "method", "words"),
    [
        ("sglang", "mtp", ("--speculative-algorithm", "NEXTN")),
        ("sglang", "ngram", ("--speculative-algorithm", "NGRAM")),
        ("llama.cpp", "ngram", ("--spec-type", "ngram-simple")),
        ("llama.cpp", "mtp", ("--spec-type", "draft-mtp")),
    ],
)
def test_a_draft_goes_by_the_engines_own_name(engine: EngineName, method: str, words: tuple[str, str]):
    """SGLang has no MTP and llama.cpp no draft-ngram: both refused to start."""
    recipe = Recipe(
        name="x", engine=engine, model="x", checkpoint="x.gguf", served_name="", speculate=Speculate(method=method)
    )
    argv = engines.build_launch(deploy(recipe)).argv
    assert argv[argv.index(words[0]) + 1] == words[1]
    assert parse_command(engine, argv).speculate == recipe.speculate
