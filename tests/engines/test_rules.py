"""An invalid recipe is refused, and the setting is named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core.recipe import EngineName, Recipe
from moebox.core.registry import engine_names
from moebox.core.setting import with_settings
from moebox.errors import BadInput
from moebox.flows.recipes import load_recipe, shipped_recipes
from tests.chain.parse_back import parse_command

VLLM = load_recipe("kimi-k26-vllm")
HYBRID = with_settings(
    VLLM,
    {
        "engine": "ik_llama.cpp",
        "parallel": {},
        "flags": {},
        "kv": "f16",
        "trust_remote_code": False,
        "checkpoint": "/models/kimi.gguf",
        "hybrid": {"mla": 3, "experts": [[1, 2], [59, 60]]},
    },
)


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_are_sound(name: str):
    """What comes with moebox passes its own rules."""
    engines.check_recipe(deploy(load_recipe(name)))
    engines.check_recipe(deploy(HYBRID))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"context": -1}, "context"),
        ({"max_seqs": 0}, "max_seqs"),
        ({"memory_utilization": 1.2}, "memory_utilization"),
        ({"listen.port": 70000}, "listen.port"),
        ({"served_name": "a\tb"}, "served_name"),
        ({"parallel.tp": 0}, "parallel.tp"),
        ({"parallel.nodes": 3}, "parallel.nodes"),
        ({"kv": "q8_0"}, "kv"),
        ({"name": "a b/c"}, "name"),
        ({"served_name": "--kimi"}, "served_name"),
        ({"runtime.kind": "embedded"}, "runtime.kind"),
        ({"runtime.preset": "community"}, "runtime.preset"),
        ({"runtime.kind": "docker", "runtime.preset": "nosuch"}, "runtime.preset"),
        ({"runtime.setup": "pip install x"}, "runtime.setup"),
        ({"hybrid": {"mla": 3}}, "hybrid"),
        ({"speculate": {"method": "eagle3", "draft": ""}}, "speculate.draft"),
        ({"speculate": {"method": "mtp", "tokens": 0}}, "speculate.tokens"),
        ({"model": "someone/else", "checkpoint": "someone/else"}, "trust_remote_code"),
        ({"flags.api-key": "x"}, "flags.api-key"),
        ({"flags.--api-key": "x"}, "flags.api-key"),
        ({"flags.hf-token": "x"}, "flags.hf-token"),
        ({"env.HF_TOKEN": "x"}, "env.HF_TOKEN"),
        ({"env.VLLM_API_KEY": "x"}, "env.VLLM_API_KEY"),
        ({"env.VLLM_ATTENTION_BACKEND": "TRITON_MLA"}, "env.VLLM_ATTENTION_BACKEND"),
        ({"listen.key_env": "sk-1234"}, "listen.key_env"),
        ({"flags.max-model-len": 1}, "flags.max-model-len"),
        ({"flags.tp": 1}, "flags.tp"),
        ({"flags.no-such-flag": True}, "--no-such-flag"),
        ({"flags.attention-backend": ["a", "b"]}, ""),
    ],
)
def test_invalid_settings_are_refused_by_name(changes: dict[str, Any], named: str):
    """One line with the setting in it."""
    if not named:
        engines.check_recipe(deploy(with_settings(VLLM, changes)))
        return
    with pytest.raises(BadInput) as refused:
        engines.check_recipe(deploy(with_settings(VLLM, changes)))
    assert named in refused.value.message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parallel.tp": 2}, "parallel"),
        ({"hybrid.mla": 7}, "hybrid.mla"),
        ({"engine": "llama.cpp"}, "hybrid.mla"),
        ({"hybrid.experts": [[1], [1]]}, "hybrid.experts"),
        ({"kv": "fp8"}, "kv"),
        ({"flags.fmoe": True}, "-fmoe"),
    ],
)
def test_hybrids_have_rules_of_their_own(changes: dict[str, Any], named: str):
    """What llama.cpp and its fork do not have, or have differently."""
    with pytest.raises(BadInput) as refused:
        engines.check_recipe(deploy(with_settings(HYBRID, changes)))
    assert named in refused.value.message


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(engine_names()),
        "context": st.integers(-5, 300000),
        "max_seqs": st.none() | st.integers(0, 300),
        "kv": st.sampled_from(["auto", "fp8", "bf16", "f16", "q8_0", "x"]),
        "vision": st.booleans(),
        "thinking": st.booleans(),
        "prefix_caching": st.none() | st.booleans(),
        "runtime.kind": st.sampled_from(["native", "docker", "podman", "embedded"]),
        "runtime.preset": st.sampled_from(["", "community"]),
        "listen.key_env": st.sampled_from(["", "MY_KEY"]),
        "speculate": st.none() | st.just({"method": "eagle3", "draft": "a/b"}),
        "parallel.tp": st.sampled_from([1, 2, 8]),
        "parallel.nodes": st.sampled_from([1, 2]),
        "flags": st.dictionaries(
            st.sampled_from(["metrics", "seed", "load-format", "ger"]), st.integers(0, 3), max_size=2
        ),
    },
)


@given(SETTINGS)
def test_a_recipe_is_refused_or_can_be_launched(changes: dict[str, Any]):
    """A recipe that passes the rules has a command, and its key is in none of the command's words."""
    recipe = with_settings(VLLM, changes)
    try:
        engines.check_recipe(deploy(recipe))
    except BadInput:
        return
    launch = engines.build_launch(deploy(recipe))
    argv = engines.launch_command(deploy(recipe), launch, run="r1", home="/home/x")
    assert all(isinstance(word, str) and word for word in argv)
    if recipe.listen.key_env:
        assert recipe.listen.key_env in launch.secret_env.values()
        assert "MY_KEY" not in " ".join(argv)


PARTS = ["docker", "podman", "run", "-p", "1:2", "x", "-v", "a:b:ro", "--entrypoint", "bash", "-c", "7", "-e", "A=1"]
PARTS += ["--port", "-np", "0", "-ot", "[1]", "vllm", "serve", "-d", "image", "--default-chat-template-kwargs"]
PARTS += ["--speculative-config", "{}", "python3", "-m", "a.gguf", "--model", "--tp", "-ctk", "--ipc=host", "--jinja"]


@given(st.sampled_from(engine_names()), st.text(max_size=60) | st.lists(st.sampled_from(PARTS), max_size=12))
def test_any_text_is_a_command_or_refused(engine: EngineName, argv: Any):
    """Parsing a command raises BadInput or nothing."""
    try:
        recipe = parse_command(engine, argv)
    except BadInput:
        return
    assert isinstance(recipe, Recipe)
