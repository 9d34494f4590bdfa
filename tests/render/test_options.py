"""`runtime.options` in Compose and Kubernetes: each is there, or the file is refused by the option's name."""

import dataclasses
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moebox.checkpoint import deploy
from moebox.core.containers import OPTIONS
from moebox.core.recipe import Recipe
from moebox.errors import BadInput
from moebox.render import LaunchFormat, render
from moebox.render.options import FLAGS, LISTS, NUMBERS, TEXTS
from tests.serve.rendered import recipes
from tests.siege import readback

BASE = "kimi-k26-vllm"


def recipe_with(*options: str) -> Recipe:
    """A recipe whose container is started with these."""
    recipe = recipes()[BASE]
    return dataclasses.replace(recipe, runtime=dataclasses.replace(recipe.runtime, kind="docker", options=options))


def rendered(form: LaunchFormat, *options: str) -> str:
    """The file of a recipe with these options."""
    return render(deploy(recipe_with(*options)), form)


def service(*options: str) -> dict[str, object]:
    """The one service of its Compose file."""
    text = rendered("compose", *options)
    readback.compose(text)
    (found,) = yaml.safe_load(text)["services"].values()
    return dict(found)


def test_options_reach_the_compose_file() -> None:
    """They were left out without a word: a container with another limit, user and log came up."""
    options = ("--shm-size", "16g", "--ulimit=memlock=-1", "--ulimit", "stack=67108864:-1", "--ipc=private", "--init")
    options += ("--cap-add", "SYS_NICE", "--cap-add=IPC_LOCK", "--user", "1000:1000", "--restart=on-failure:3")
    options += ("--log-driver", "local", "--log-opt", "max-size=10m", "--stop-timeout", "90", "--pids-limit=-1")
    options += ("--device=/dev/infiniband", "--label", "team=moe")
    found = service(*options)

    assert found["shm_size"] == "16g"
    assert found["ulimits"] == {"memlock": -1, "stack": {"soft": 67108864, "hard": -1}}
    assert (found["ipc"], found["init"], found["pids_limit"]) == ("private", True, -1)
    assert found["cap_add"] == ["SYS_NICE", "IPC_LOCK"]
    assert (found["user"], found["restart"], found["stop_grace_period"]) == ("1000:1000", "on-failure:3", "90s")
    assert found["logging"] == {"driver": "local", "options": {"max-size": "10m"}}
    assert found["devices"] == ["/dev/infiniband:/dev/infiniband"]


def test_without_options_the_file_is_as_before() -> None:
    """Shared memory, restarts and time to end."""
    found = service()

    assert (found["ipc"], found["restart"], found["stop_grace_period"]) == ("host", "unless-stopped", "60s")


@pytest.mark.parametrize(
    "option", ["--cpuset-mems=0", "--userns=keep-id", "--gpus=2", "--network=none", "--pull=newer"]
)
def test_what_compose_has_no_word_for_is_refused_by_name(option: str) -> None:
    """One line."""
    with pytest.raises(BadInput, match=re.escape(f"compose has no counterpart of {option}")):
        rendered("compose", option)
    rendered("docker", option)


def test_kubernetes_takes_shared_memory_and_refuses_the_rest_by_name() -> None:
    """A pod has its own words for limits, users and restarts, which a recipe does not know."""
    text = rendered("k8s", "--shm-size=64g", "--ipc=host", "--gpus", "all")

    readback.kubernetes(text)
    assert "sizeLimit: 64Gi" in text
    for option in ("--ulimit=memlock=-1", "--memory=1g", "--init", "--user=1000"):
        with pytest.raises(BadInput, match=re.escape(f"k8s has no counterpart of {option}")):
            rendered("k8s", option)


@given(st.data())
def test_any_option_is_in_the_file_or_refused_by_its_name(data: st.DataObject) -> None:
    """Over the whole grammar of options."""
    name = data.draw(st.sampled_from(sorted(OPTIONS)))
    value = data.draw(st.from_regex(re.compile(OPTIONS[name], re.ASCII), fullmatch=True)) if OPTIONS[name] else ""
    word = f"{name}={value}" if value else name
    try:
        found = service(word)
    except BadInput as problem:
        assert name in problem.message
        assert "\n" not in problem.message
        return
    key = TEXTS.get(name) or NUMBERS.get(name) or FLAGS.get(name) or LISTS.get(name)
    if key in TEXTS.values():
        assert readback.interpolated(str(found[key])) == value
    elif key in LISTS.values():
        assert found[key] == [value]
    elif key is not None:
        assert found[key] == (int(value) if value else True)
